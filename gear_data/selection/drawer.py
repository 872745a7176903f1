"""WindowDrawer: from quanta of episodes, drawn or given, to windows."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from gear_data.selection.anchors import Anchors
from gear_data.selection.windows import ANCHORS, Float64Array, Int64Array, Windows


class QuantaSource(Protocol):
    """Episodes' integer weights, where a kernel finds them: a PrefixTable or a WeightTree. An episode without an anchor
    has none."""

    def plan_fields(self) -> dict[int, int]:
        """The fields of a plan that say where they are; valid while the source lives."""

    def shares(self) -> Float64Array:
        """float64 [k], 1 in sum: each episode's part of the quanta."""


class WindowDrawer:
    """Draws windows: a quantum, uniform below their number, leads to an episode, and to an anchor of it.

    Episodes so come in proportion to their quanta, whatever order those were summed in.

    Args:
        anchors: the episodes and their anchors.
        source: the episodes' quanta.
        seed: 0 to 2^64 - 1.
        domain: of the random numbers, see `gear_data.kernels.random`.
        within: how a quantum leads to an anchor of its episode, `gear_data.kernels.selection.WITHIN_...`.
        distinct: whether no episode comes twice in one batch.
        probability: whether drawn windows come with their probability; not with WITHIN_DIFFERENCE.
    """

    def __init__(
        self,
        anchors: Anchors,
        source: QuantaSource,
        seed: int,
        domain: int,
        within: int,
        distinct: bool = False,
        probability: bool = False,
    ) -> None:
        # Bound here: importing in `draw` would cost as much as several draws.
        from gear_data.kernels.selection import draw_windows

        self._draw_windows = draw_windows
        self._arguments = anchors, source, seed, domain, within, distinct, probability
        self._source = source
        self._rows = 4 if probability else 3
        self._plan = _make_plan(anchors, source, seed, domain, within, distinct)

    def __reduce__(self) -> tuple[Any, ...]:
        # A plan holds addresses.
        return (WindowDrawer, self._arguments)

    def shares(self) -> Float64Array:
        """float64 [k], 1 in sum: how much of what is drawn comes from each of the anchors' episodes."""
        return self._source.shares()

    def draw(self, step: int, count: int) -> Windows:
        """The windows of slots 0 to count - 1 of `step`: a function of the arguments of the drawer, `step` and the slot
        (and, if `distinct`, of the slots before it)."""
        out = np.empty((self._rows, count), np.int64)
        self._draw_windows(self._plan, step, out)
        return Windows(out[0], out[1], out[2], out[3].view(np.float64) if self._rows == 4 else None)

    def windows(self, numbers: Int64Array, step: int) -> Windows:
        """The windows of the quanta with these numbers, int64 [B], in slots 0 to B - 1 of `step`."""
        from gear_data.kernels.selection import windows_of_anchors

        out = np.empty((3, len(numbers)), np.int64)
        out[1] = numbers
        windows_of_anchors(self._plan, step, out)
        return Windows(out[0], out[1], out[2])


def _make_plan(
    anchors: Anchors, source: QuantaSource, seed: int, domain: int, within: int, distinct: bool
) -> Int64Array:
    from gear_data.kernels import selection as kernels

    rule, mask = anchors.rule, anchors.eligible
    fields = {
        **source.plan_fields(),
        kernels.SEED: int(np.uint64(seed).astype(np.int64)),
        kernels.DOMAIN: domain,
        kernels.EPISODES: len(anchors),
        kernels.DISTINCT: distinct,
        kernels.WITHIN: within,
        kernels.COUNTS: anchors.prefix.ctypes.data,
        kernels.OFFSETS: anchors.offsets.ctypes.data,
        kernels.CONTEXT: rule.context,
        kernels.STRIDE: rule.stride,
        kernels.ORIGIN: rule.first_anchor,
        kernels.ANCHOR: ANCHORS.index(rule.anchor),
        kernels.SHORT: rule.short,
    }
    if anchors.ids is not None:
        fields[kernels.IDS] = anchors.ids.ctypes.data
    if mask is not None:
        fields[kernels.WORDS] = mask.words.ctypes.data
        fields[kernels.RANKS] = mask.ranks.ctypes.data
        fields[kernels.FIRST] = anchors.first.ctypes.data
    plan = np.zeros(kernels.PLAN_FIELDS, np.int64)
    for field, value in fields.items():
        plan[field] = value
    return plan
