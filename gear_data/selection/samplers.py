"""Samplers: from (seed, step) to windows, with no state but that.

Slot i of step t is the same for any rank, world size, worker count and prefetch depth, so a run resumes from
the step number alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gear_data.errors import unknown_name
from gear_data.selection.windows import Int64Array, StepTable, Windows

_FEISTEL_ROUNDS = 12
#: Below this many steps an epoch's order is a stored permutation: Feistel networks over few bits are biased.
_FISHER_YATES_BELOW = 1 << 16


class Sampler(Protocol):
    """Chooses the windows of every batch."""

    name: str

    def select(self, step: int, batch_size: int) -> Windows:
        """The windows of batch `step`: a pure function of the sampler, `step` and `batch_size`."""

    def epoch_slots(self, epochs: int) -> int | None:
        """How many windows so many epochs have, exactly; None if epochs have no exact end."""


class Uniform:
    """A window starts at a step drawn uniformly from all steps, with replacement."""

    name = "uniform"

    def __init__(self, table: StepTable, seed: int) -> None:
        self._table = table
        self._seed = np.uint64(seed)

    def select(self, step: int, batch_size: int) -> Windows:
        from gear_data.kernels.random import DOMAIN_UNIFORM, draw_below

        positions = np.empty(batch_size, np.int64)
        draw_below(self._seed, DOMAIN_UNIFORM, step, self._table.num_steps, positions)
        return self._table.windows(positions)

    def epoch_slots(self, epochs: int) -> int | None:
        return None


class Shuffle:
    """Every step once an epoch, in an order of its own for every epoch; batches run across epoch ends.

    The order is a keyed permutation computed in place (a Feistel network), so 10^11 steps take no memory.
    """

    name = "shuffle"

    def __init__(self, table: StepTable, seed: int) -> None:
        self._table = table
        self._seed = seed

    def select(self, step: int, batch_size: int) -> Windows:
        size = self._table.num_steps
        slot, last = step * batch_size, (step + 1) * batch_size
        parts: list[Int64Array] = []
        while slot < last:
            epoch, first = divmod(slot, size)
            count = min(size - first, last - slot)
            parts.append(_permutation(self._seed, epoch, size, first, count))
            slot += count
        return self._table.windows(np.concatenate(parts))

    def epoch_slots(self, epochs: int) -> int | None:
        return epochs * self._table.num_steps


def _permutation(seed: int, epoch: int, size: int, first: int, count: int) -> Int64Array:
    """Places first to first + count of the epoch's order of 0..size-1."""
    from gear_data.kernels.random import permuted

    if size < _FISHER_YATES_BELOW:
        return _stored_permutation(seed, epoch, size)[first : first + count]
    out = np.empty(count, np.int64)
    permuted(first, _round_keys(seed, epoch), size, out)
    return out


@lru_cache(maxsize=8)
def _stored_permutation(seed: int, epoch: int, size: int) -> Int64Array:
    from gear_data.kernels.random import DOMAIN_SHUFFLE, shuffled

    out = np.empty(size, np.int64)
    shuffled(np.uint64(seed), DOMAIN_SHUFFLE, epoch, out)
    out.flags.writeable = False
    return out


@lru_cache(maxsize=8)
def _round_keys(seed: int, epoch: int) -> npt.NDArray[np.uint64]:
    from gear_data.kernels.random import DOMAIN_FEISTEL, round_keys

    keys = np.empty(_FEISTEL_ROUNDS, np.uint64)
    round_keys(np.uint64(seed), DOMAIN_FEISTEL, epoch, keys)
    return keys


#: Name -> sampler, as `sampler=` takes them.
SAMPLERS: dict[str, Callable[[StepTable, int], Sampler]] = {"uniform": Uniform, "shuffle": Shuffle}


def make_sampler(name: str, table: StepTable, seed: int) -> Sampler:
    """Raises UnknownNameError, which lists the samplers."""
    if name not in SAMPLERS:
        raise unknown_name("sampler", name, SAMPLERS)
    return SAMPLERS[name](table, seed)
