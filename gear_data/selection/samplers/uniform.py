"""Uniform: every anchor, or every episode, with the same probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gear_data.common.keywords import suggest_fields
from gear_data.kernels import cpu
from gear_data.kernels.window_plan import WITHIN_DRAWN, WITHIN_OFFSET
from gear_data.selection.anchors import Anchors
from gear_data.selection.prefix_table import PrefixTable
from gear_data.selection.samplers.sampler import Candidates, Selector, check_by
from gear_data.selection.window_sampler import SamplingPlan, WindowSampler
from gear_data.selection.windows import Float64Array, Windows
from gear_data.storage.episode_block import offsets_of
from gear_data.words import By


@suggest_fields
@dataclass(frozen=True)
class Uniform:
    """Draws uniformly, with replacement.

    Attributes:
        by: `step`: every anchor is equally likely; `episode`: every episode is equally likely, and then every anchor
            of the episode.

    Raises:
        UnknownNameError: another `by`.
    """

    by: By = "step"
    name = "uniform"

    def __post_init__(self) -> None:
        check_by(self.by)

    def bind(self, candidates: Candidates, seed: int) -> Selector:
        """Returns the selector for these candidates."""
        sampler = uniform_window_sampler(candidates.anchors, seed, self.by, cpu.random.DOMAIN_UNIFORM)
        return WindowSelector(sampler, {"name": self.name, "by": self.by})


class WindowSelector:
    """A `Selector` in which every slot is an independent draw.

    Mixtures and GPUs draw by the plan of `sampler` and do not call `select`, so no derived class changes `select`.

    Args:
        sampler: draws the windows.
        identity: see `Selector.identity`.
    """

    def __init__(self, sampler: WindowSampler, identity: dict[str, Any]) -> None:
        self.sampler = sampler
        self._identity = identity

    def select(self, step: int, count: int, position: int) -> Windows:
        return self.sampler.draw(step, count)

    def sampling_plan(self, count: int) -> SamplingPlan | None:
        return SamplingPlan(self.sampler)

    def shares(self) -> Float64Array:
        return self.sampler.shares()

    def epoch_slots(self, epochs: int) -> int | None:
        return None

    def identity(self) -> dict[str, Any]:
        return dict(self._identity)


def uniform_window_sampler(anchors: Anchors, seed: int, by: str, domain: int) -> WindowSampler:
    """Returns a sampler in which all anchors or all episodes have equal weight.

    Each anchor (by `step`) or episode (by `episode`) has the integer weight 1.

    Args:
        anchors: the episodes and their anchors.
        seed, domain: see `WindowSampler`.
        by: `step` or `episode`.
    """
    if by == "step":
        return WindowSampler(anchors, PrefixTable(anchors.prefix), seed, domain, WITHIN_OFFSET)
    table = PrefixTable(offsets_of(np.minimum(anchors.counts(), 1)))
    return WindowSampler(anchors, table, seed, domain, WITHIN_DRAWN)
