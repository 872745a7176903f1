"""Orders: every anchor once an epoch, as the dataset has them or permuted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.selection.anchors import Anchors
from gear_data.selection.prefix_table import PrefixTable
from gear_data.selection.window_sampler import SamplingPlan, WindowSampler
from gear_data.selection.windows import Float64Array, Int64Array, Windows

_FEISTEL_ROUNDS = 12
#: Below this many anchors an epoch's order is a stored permutation: Feistel networks over few bits are biased.
_FISHER_YATES_BELOW = 1 << 16


class OrderSelector:
    """Goes through the anchors in an order, every one once an epoch.

    Args:
        anchors: the episodes and their anchors.
        seed: 0 to 2^64 - 1, for windows with a drawn place.
        order: order(epoch, first, count) -> int64 [count], the anchors at places first to first + count of an epoch.
        name: the sampler's.
    """

    def __init__(self, anchors: Anchors, seed: int, order: Callable[[int, int, int], Int64Array], name: str) -> None:
        from gear_data.kernels.cpu.random import DOMAIN_SHUFFLE
        from gear_data.kernels.cpu.windows import WITHIN_OFFSET

        self._total = anchors.total
        self._sampler = WindowSampler(anchors, PrefixTable(anchors.prefix), seed, DOMAIN_SHUFFLE, WITHIN_OFFSET)
        self._order = order
        self._sampling_plan = SamplingPlan(self._sampler, order, self._total)
        self._name = name

    def select(self, step: int, count: int, position: int) -> Windows:
        parts = [self._order(*span) for span in self._sampling_plan.spans(position, count)]
        return self._sampler.windows(parts[0] if len(parts) == 1 else np.concatenate(parts), step)

    def sampling_plan(self, count: int) -> SamplingPlan | None:
        # A stored permutation is made as a whole.
        stored = isinstance(self._order, Permuted) and self._order.is_stored
        return None if stored else self._sampling_plan

    def shares(self) -> Float64Array:
        return self._sampler.shares()

    def epoch_slots(self, epochs: int) -> int | None:
        return epochs * self._total

    def identity(self) -> dict[str, Any]:
        return {"name": self._name}


def in_order(epoch: int, first: int, count: int) -> Int64Array:
    """Anchors in the order of the dataset."""
    return np.arange(first, first + count, dtype=np.int64)


@dataclass(frozen=True)
class Permuted:
    """Anchors 0 to size - 1, permuted anew for every epoch."""

    seed: int
    size: int

    @property
    def is_stored(self) -> bool:
        """Whether an epoch's order is kept as a whole."""
        return self.size < _FISHER_YATES_BELOW

    def __call__(self, epoch: int, first: int, count: int) -> Int64Array:
        """Places first to first + count of an epoch."""
        from gear_data.kernels.cpu.random import permuted

        if self.is_stored:
            return _stored_permutation(self.seed, epoch, self.size)[first : first + count]
        out = np.empty(count, np.int64)
        permuted(first, _round_keys(self.seed, epoch), self.size, out)
        return out


@lru_cache(maxsize=8)
def _stored_permutation(seed: int, epoch: int, size: int) -> Int64Array:
    from gear_data.kernels.cpu.random import DOMAIN_SHUFFLE, shuffled

    out = np.empty(size, np.int64)
    shuffled(np.uint64(seed), DOMAIN_SHUFFLE, epoch, out)
    out.flags.writeable = False
    return out


@lru_cache(maxsize=8)
def _round_keys(seed: int, epoch: int) -> npt.NDArray[np.uint64]:
    from gear_data.kernels.cpu.random import DOMAIN_FEISTEL, round_keys

    keys = np.empty(_FEISTEL_ROUNDS, np.uint64)
    round_keys(np.uint64(seed), DOMAIN_FEISTEL, epoch, keys)
    return keys
