"""Which memory each part of a dataset belongs in, where the fastest does not hold all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gear_data.schema import Schema
from gear_data.selection.windows import Float64Array, Int64Array

#: From the fastest to the slowest; a plan's `tier` counts in them.
TIERS = ("device", "pinned", "disk")

#: Episodes that stand together in a shard are placed together, up to so many bytes; or fewer, for so many extents.
_EXTENT_BYTES, _EXTENTS = 8 << 20, 1024


@dataclass(frozen=True, eq=False)
class ResidencyPlan:
    """Where the columns of each extent, a run of episodes of one shard, belong.

    Attributes:
        columns: names of the columns of a fixed size.
        row_bytes: int64 [columns].
        shard, first, last: int64 [extents]: rows first to last of a shard.
        share: float64 [extents], 1 in sum: how much of what is drawn comes from each.
        read: bool [columns]: those that batches are made of.
        tier: uint8 [extents, columns], places in `TIERS`.
    """

    columns: tuple[str, ...]
    row_bytes: Int64Array
    shard: Int64Array
    first: Int64Array
    last: Int64Array
    share: Float64Array
    read: npt.NDArray[np.bool_]
    tier: npt.NDArray[np.uint8]

    @property
    def sizes(self) -> Int64Array:
        """int64 [extents, columns], bytes."""
        return (self.last - self.first)[:, None] * self.row_bytes

    def bytes(self, tier: str) -> int:
        """What belongs in a tier."""
        return int(self.sizes[self.tier == TIERS.index(tier)].sum())

    def read_share(self, tier: str) -> float:
        """The expected part of the bytes that batches are made of which a tier holds, 0 to 1."""
        # A step of each column that is read, from each extent as often as it is drawn.
        expected = self.share[:, None] * (self.row_bytes * self.read)
        return float(expected[self.tier == TIERS.index(tier)].sum() / max(expected.sum(), np.finfo(float).tiny))

    def __str__(self) -> str:
        lines = [f"{'tier':<8}{'MiB':>12}{'of what is read':>18}"]
        lines += [f"{t:<8}{self.bytes(t) / 2**20:>12,.1f}{self.read_share(t):>18.1%}" for t in TIERS]
        for index, name in enumerate(self.columns):
            held = [f"{self._part(index, t):.0%} {t}" for t in TIERS if self._part(index, t)]
            lines.append(f"{name}: {', '.join(held)}" + ("" if self.read[index] else " (not read)"))
        return "\n".join(lines)

    def _part(self, column: int, tier: str) -> float:
        sizes = self.sizes[:, column]
        return float(sizes[self.tier[:, column] == TIERS.index(tier)].sum() / max(1, sizes.sum()))


def make_plan(
    schema: Schema,
    read: Sequence[str],
    placement: tuple[Int64Array, Int64Array, Int64Array],
    shares: Float64Array,
    device_bytes: int,
    host_bytes: int,
) -> ResidencyPlan:
    """The plan that serves most of what is read from the fastest memory: a column of an extent goes before another if
    each of its bytes is read more often; of equals, the one that stands first. What is never read stays on disk.

    A pure function. Greedy by use per byte, as one fills a knapsack whose pieces may be cut (Dantzig, 1957): it falls
    short of the best by less than one piece.

    Args:
        schema: of the dataset; columns of variable length are left out.
        read: the columns that batches are made of.
        placement: int64 [n] each: every episode's shard, the row there of its first step, and its steps.
        shares: float64 [n]: how much of what is drawn comes from each episode; 1 in sum.
        device_bytes, host_bytes: what may be taken of the memory of the GPU, and of pinned memory.
    """
    columns = schema.fixed_columns
    shard, first, last, share = _extents(placement, shares, max(1, sum(column.row_bytes for column in columns)))
    row_bytes = np.array([column.row_bytes for column in columns], np.int64)
    is_read = np.array([column.name in read for column in columns], np.bool_)
    use = (share / (last - first))[:, None] * is_read
    sizes = ((last - first)[:, None] * row_bytes).reshape(-1)
    tier = np.full(sizes.shape, TIERS.index("disk"), np.uint8)
    order = np.argsort(-use.reshape(-1), kind="stable")[: np.count_nonzero(use)]
    for index, budget in enumerate((device_bytes, host_bytes)):
        taken = _first_that_fit(sizes[order], budget)
        tier[order[taken]] = index
        order = order[~taken]
    return ResidencyPlan(
        tuple(column.name for column in columns), row_bytes, shard, first, last, share, is_read, tier.reshape(use.shape)
    )


def _extents(
    placement: tuple[Int64Array, Int64Array, Int64Array], shares: Float64Array, step_bytes: int
) -> tuple[Int64Array, Int64Array, Int64Array, Float64Array]:
    """Shard, first and last row, and share of each run of episodes that stand together in a shard."""
    order = np.lexsort((placement[1], placement[0]))
    shard, first, steps = (values[order] for values in placement)
    ends = np.cumsum(steps) * step_bytes
    size = min(_EXTENT_BYTES, -(-int(ends[-1]) // _EXTENTS))
    # A new one at every multiple of the size, counted over all shards, and where a shard begins.
    begins = np.diff((ends - 1) // size, prepend=-1).astype(np.bool_)
    begins[1:] |= (shard[1:] != shard[:-1]) | (first[1:] != first[:-1] + steps[:-1])
    starts = np.flatnonzero(begins)
    lasts = np.append(starts[1:], len(order)) - 1
    return shard[starts], first[starts], (first + steps)[lasts], np.add.reduceat(shares[order], starts)


def _first_that_fit(sizes: Int64Array, budget: int) -> npt.NDArray[np.bool_]:
    """Which of these pieces are taken, in their order, while there is room; those too large are passed over."""
    taken = np.zeros(len(sizes), np.bool_)
    start = 0
    while start < len(sizes):
        ends = np.cumsum(sizes[start:])
        count = int(np.searchsorted(ends, budget, side="right"))
        taken[start : start + count] = True
        budget -= int(ends[count - 1]) if count else 0
        smaller = np.flatnonzero(sizes[start + count :] <= budget)
        if not len(smaller):
            break
        start += count + int(smaller[0])
    return taken
