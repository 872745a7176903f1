"""Fifo and Shuffle: every anchor once an epoch, in a fixed or permuted order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.kernels import cpu
from gear_data.kernels.window_plan import WITHIN_OFFSET
from gear_data.selection.anchors import Anchors
from gear_data.selection.prefix_table import PrefixTable
from gear_data.selection.samplers.sampler import Candidates, Selector
from gear_data.selection.window_sampler import SamplingPlan, WindowSampler
from gear_data.selection.windows import Float64Array, Int64Array, Windows

_FEISTEL_ROUNDS = 12
#: With fewer anchors, an epoch's order is a stored permutation: a Feistel network over few bits is biased.
_FISHER_YATES_BELOW = 1 << 16


@dataclass(frozen=True)
class Fifo:
    """Selects every anchor once an epoch, in the order of the dataset."""

    name = "fifo"

    def bind(self, candidates: Candidates, seed: int) -> Selector:
        """Returns the selector for these candidates."""
        return OrderSelector(candidates.anchors, seed, in_order, self.name)


@dataclass(frozen=True)
class Shuffle:
    """Selects every anchor once an epoch, in a new order every epoch.

    A batch may hold the end of one epoch and the beginning of the next.

    The order is a keyed permutation that is computed position by position (a Feistel network), so 10^11 anchors take no
    memory.
    """

    name = "shuffle"

    def bind(self, candidates: Candidates, seed: int) -> Selector:
        """Returns the selector for these candidates."""
        anchors = candidates.anchors
        return OrderSelector(anchors, seed, Permuted(seed, anchors.total), self.name)


class OrderSelector:
    """A `Selector` that selects every anchor once an epoch, in an order.

    Args:
        anchors: the episodes and their anchors.
        seed: 0 to 2^64 - 1, for windows whose anchor has a drawn place.
        order: order(epoch, first, count) -> int64 [count], the indices of the anchors at positions first to first +
            count of an epoch.
        name: the sampler's name.

    Attributes:
        order, name: see the arguments.
    """

    def __init__(self, anchors: Anchors, seed: int, order: Callable[[int, int, int], Int64Array], name: str) -> None:
        table = PrefixTable(anchors.prefix)
        self._total = anchors.total
        self._sampler = WindowSampler(anchors, table, seed, cpu.random.DOMAIN_SHUFFLE, WITHIN_OFFSET)
        self.order = order
        self._sampling_plan = SamplingPlan(self._sampler, order, self._total)
        self.name = name

    def select(self, step: int, count: int, position: int) -> Windows:
        parts = [self.order(*span) for span in self._sampling_plan.spans(position, count)]
        return self._sampler.windows(parts[0] if len(parts) == 1 else np.concatenate(parts), step)

    def sampling_plan(self, count: int) -> SamplingPlan | None:
        # A device cannot compute a part of a stored permutation.
        stored = isinstance(self.order, Permuted) and self.order.is_stored
        return None if stored else self._sampling_plan

    def shares(self) -> Float64Array:
        return self._sampler.shares()

    def epoch_slots(self, epochs: int) -> int | None:
        return epochs * self._total

    def identity(self) -> dict[str, Any]:
        return {"name": self.name}


def in_order(epoch: int, first: int, count: int) -> Int64Array:
    """Returns the anchors first to first + count, in the order of the dataset."""
    return np.arange(first, first + count, dtype=np.int64)


@dataclass(frozen=True)
class Permuted:
    """The anchors 0 to size - 1, in a new order every epoch."""

    seed: int
    size: int

    @property
    def is_stored(self) -> bool:
        """Whether an epoch's order is stored as a whole."""
        return self.size < _FISHER_YATES_BELOW

    def __call__(self, epoch: int, first: int, count: int) -> Int64Array:
        """Returns the anchors at positions first to first + count of an epoch."""
        if self.is_stored:
            return _stored_permutation(self.seed, epoch, self.size)[first : first + count]
        out = np.empty(count, np.int64)
        cpu.random.permuted(first, _round_keys(self.seed, epoch), self.size, out)
        return out


@lru_cache(maxsize=8)
def _stored_permutation(seed: int, epoch: int, size: int) -> Int64Array:
    out = np.empty(size, np.int64)
    cpu.random.shuffled(np.uint64(seed), cpu.random.DOMAIN_SHUFFLE, epoch, out)
    out.flags.writeable = False
    return out


@lru_cache(maxsize=8)
def _round_keys(seed: int, epoch: int) -> npt.NDArray[np.uint64]:
    keys = np.empty(_FEISTEL_ROUNDS, np.uint64)
    cpu.random.round_keys(np.uint64(seed), cpu.random.DOMAIN_FEISTEL, epoch, keys)
    return keys
