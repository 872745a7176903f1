"""ResidencyPlan: the memory tier of each part of a dataset.

A plan is for a dataset that the fastest memory cannot hold as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import numpy as np
import numpy.typing as npt

from gear_data.schema import Schema
from gear_data.selection.windows import Float64Array, Int64Array
from gear_data.words import Tier

#: The tiers, from the fastest to the slowest. `ResidencyPlan.tier` holds indices of this tuple.
TIERS: tuple[Tier, ...] = get_args(Tier)

#: Contiguous episodes of a shard form an extent of up to _EXTENT_BYTES; extents of a small dataset are smaller, so that
#: there are about _EXTENTS of them.
_EXTENT_BYTES, _EXTENTS = 8 << 20, 1024


@dataclass(frozen=True, eq=False)
class ResidencyPlan:
    """The memory tier of each extent's columns.

    An extent is a run of contiguous episodes of one shard.

    Attributes:
        columns: names of the columns of fixed size.
        row_bytes: int64 [columns], bytes of a row.
        shard, first, last: int64 [extents], rows first to last of a shard.
        share: float64 [extents], each extent's share of the drawn steps, with a sum of 1.
        read: bool [columns], whether batches read the column.
        tier: uint8 [extents, columns], indices in `TIERS`.
        budgets: the bytes of GPU memory and of pinned memory that the plan may use.
    """

    columns: tuple[str, ...]
    row_bytes: Int64Array
    shard: Int64Array
    first: Int64Array
    last: Int64Array
    share: Float64Array
    read: npt.NDArray[np.bool_]
    tier: npt.NDArray[np.uint8]
    budgets: tuple[int, int]

    @property
    def sizes(self) -> Int64Array:
        """int64 [extents, columns], bytes."""
        return (self.last - self.first)[:, None] * self.row_bytes

    def bytes(self, tier: Tier) -> int:
        """Returns the bytes in a tier."""
        return int(self.sizes[self.tier == TIERS.index(tier)].sum())

    def read_share(self, tier: Tier) -> float:
        """Returns the expected share of batches' bytes that a tier holds, 0 to 1."""
        # The bytes of a step's read columns, weighted by how often each extent is drawn.
        expected = self.share[:, None] * (self.row_bytes * self.read)
        return float(expected[self.tier == TIERS.index(tier)].sum() / max(expected.sum(), np.finfo(float).tiny))

    def of_shard(self, shard: int) -> ResidencyPlan:
        """Returns the extents of a shard, as those of shard 0."""
        kept = self.shard == shard
        return replace(
            self,
            shard=np.zeros(int(kept.sum()), np.int64),
            first=self.first[kept],
            last=self.last[kept],
            share=self.share[kept],
            tier=self.tier[kept],
        )

    def __str__(self) -> str:
        lines = [f"{'tier':<8}{'MiB':>12}{'share of reads':>18}"]
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
    """Returns the plan that serves most reads from the fastest memory.

    A pure function.

    Columns of extents are placed by reads per byte, most first; ties keep their order. Columns that are never read stay
    on disk. This is the greedy solution of the fractional knapsack problem (Dantzig, 1957). The result is worse than
    the best plan by less than one column of an extent.

    Args:
        schema: the dataset's columns; columns of variable length are left out.
        read: the columns that batches read.
        placement: int64 [n] each: every episode's shard, the row there of its first step, and its steps.
        shares: float64 [n], each episode's share of the drawn steps, with a sum of 1.
        device_bytes, host_bytes: the bytes of GPU memory and of pinned memory that the plan may use.
    """
    columns = schema.fixed_columns
    row_bytes = np.array([column.row_bytes for column in columns], np.int64)
    extents = _extents(placement, shares, row_bytes, int(placement[2].sum()))
    is_read = np.array([column.name in read for column in columns], np.bool_)
    budgets = device_bytes, host_bytes
    tier = _tiers(extents, row_bytes, is_read, budgets)
    return ResidencyPlan(tuple(column.name for column in columns), row_bytes, *extents, is_read, tier, budgets)


def extend_plan(
    plan: ResidencyPlan, new_of_old: Int64Array, placement: tuple[Int64Array, Int64Array, Int64Array]
) -> ResidencyPlan:
    """Returns the plan for another generation of the dataset.

    A pure function. Extents of shards that both generations have keep their tiers. Those of new shards are placed as by
    `make_plan`, within what the budgets leave. How often new episodes are drawn is not known: a step of them counts
    like an average step.

    Args:
        plan: the plan of a generation.
        new_of_old: int64 [shards of the plan's generation], the number of each shard in the other generation; -1: it
            does not have the shard.
        placement: every episode of the other generation, as in `make_plan`.
    """
    moved = new_of_old[plan.shard]
    kept = moved >= 0
    added = ~np.isin(placement[0], new_of_old)
    parts = [(moved[kept], plan.first[kept], plan.last[kept], plan.share[kept], plan.tier[kept])]
    if added.any():
        fresh = placement[0][added], placement[1][added], placement[2][added]
        known, known_steps = float(plan.share[kept].sum()), int((plan.last - plan.first)[kept].sum())
        shares: Float64Array = fresh[2] * np.float64(known / known_steps if known else 1.0)
        extents = _extents(fresh, shares, plan.row_bytes, int(placement[2].sum()))
        used = [int(plan.sizes[kept][plan.tier[kept] == index].sum()) for index in range(len(plan.budgets))]
        free = plan.budgets[0] - used[0], plan.budgets[1] - used[1]
        parts.append((*extents, _tiers(extents, plan.row_bytes, plan.read, free)))
    joined = [np.concatenate(each) for each in zip(*parts, strict=True)]
    order = np.lexsort((joined[1], joined[0]))
    shard, first, last, share, tier = (values[order] for values in joined)
    total = share.sum() or 1.0  # the episodes that are drawn may all have left
    return replace(plan, shard=shard, first=first, last=last, share=share / total, tier=tier)


#: Shard, first row, last row and share of each extent.
_Extents = tuple[Int64Array, Int64Array, Int64Array, Float64Array]


def _tiers(
    extents: _Extents, row_bytes: Int64Array, is_read: npt.NDArray[np.bool_], budgets: tuple[int, int]
) -> npt.NDArray[np.uint8]:
    """Returns the tier of each column of extents, uint8 [extents, columns]; see `make_plan`."""
    _, first, last, share = extents
    use = (share / (last - first))[:, None] * is_read
    sizes = ((last - first)[:, None] * row_bytes).reshape(-1)
    tier = np.full(sizes.shape, TIERS.index("disk"), np.uint8)
    order = np.argsort(-use.reshape(-1), kind="stable")[: np.count_nonzero(use)]
    for index, budget in enumerate(budgets):
        taken = _first_that_fit(sizes[order], budget)
        tier[order[taken]] = index
        order = order[~taken]
    return tier.reshape(use.shape)


def _extents(
    placement: tuple[Int64Array, Int64Array, Int64Array], shares: Float64Array, row_bytes: Int64Array, all_steps: int
) -> _Extents:
    """Returns extents of some episodes of a dataset with `all_steps` steps."""
    step_bytes = max(1, int(row_bytes.sum()))
    order = np.lexsort((placement[1], placement[0]))
    shard, first, steps = (values[order] for values in placement)
    ends = np.cumsum(steps) * step_bytes
    size = min(_EXTENT_BYTES, -(-all_steps * step_bytes // _EXTENTS))
    # An extent begins at every multiple of the size, counted over all shards, and wherever rows are not contiguous.
    begins = np.diff((ends - 1) // size, prepend=-1).astype(np.bool_)
    begins[1:] |= (shard[1:] != shard[:-1]) | (first[1:] != first[:-1] + steps[:-1])
    starts = np.flatnonzero(begins)
    lasts = np.append(starts[1:], len(order)) - 1
    return shard[starts], first[starts], (first + steps)[lasts], np.add.reduceat(shares[order], starts)


def _first_that_fit(sizes: Int64Array, budget: int) -> npt.NDArray[np.bool_]:
    """Returns which pieces are taken: in order, while there is room.

    Pieces that are too large are skipped.
    """
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
