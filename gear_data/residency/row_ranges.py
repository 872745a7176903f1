"""Which rows of its episode a batch reads for a window: what is brought from where no kernel can read in place.

The rows that were brought lie packed. To the collector's kernel each window is then an episode of its own, whose rows
lie there; so casts, padding, final observations and sums are made by the same code wherever the rows are from.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import cached_property

import numpy as np

from gear_data.selection.windows import Int64Array, Windows


@dataclass(frozen=True)
class RowRange:
    """Which rows of its episode an output reads; see `gear_data.collection.output.Output`."""

    first: int
    width: int
    within: bool
    shift: int
    horizon: int


@dataclass(frozen=True)
class ColumnReads:
    """Columns of which the same rows are read: from the first that any output reaches to the last."""

    columns: tuple[int, ...]
    reaches: tuple[RowRange, ...]

    def rows(self, windows: Windows, total: Int64Array) -> tuple[Int64Array, Int64Array]:
        """int64 [B] each: the first row of the episode, which has `total`, and how many."""
        from gear_data.kernels.cpu.row_ranges import reached_rows

        low, count = np.empty((2, len(total)), np.int64)
        reached_rows(windows.start, windows.length, total, self._numbers, low, count)
        return low, count

    @cached_property
    def _numbers(self) -> Int64Array:
        """int64 [outputs, 5], as `gear_data.kernels.cpu.row_ranges` takes them."""
        return np.array([astuple(reach) for reach in self.reaches], np.int64)

    @property
    def most_rows(self) -> int:
        """No window has more."""
        last = max(reach.first + reach.width + max(reach.shift, 0) + reach.horizon - 1 for reach in self.reaches)
        return last - min(reach.first + min(reach.shift, 0) for reach in self.reaches)


def column_reads(plan: Int64Array) -> tuple[ColumnReads, ...]:
    """What a plan of `gear_data.kernels.cpu.collect` reads: each of its source columns is in one of these."""
    from gear_data.kernels.cpu import collect as cpu

    reaches: dict[int, set[RowRange]] = {}
    for row in plan[np.isin(plan[:, cpu.KIND], (cpu.KIND_COPY, cpu.KIND_CONVERT, cpu.KIND_DISCOUNTED))]:
        first, width, within, shift = row[[cpu.FIRST, cpu.WIDTH, cpu.WITHIN, cpu.SHIFT]].tolist()
        reach = RowRange(first, width, bool(within), shift, max(1, int(row[cpu.HORIZON])))
        reaches.setdefault(int(row[cpu.COLUMN]), set()).add(reach)
    alike: dict[frozenset[RowRange], list[int]] = {}
    for column, found in reaches.items():
        alike.setdefault(frozenset(found), []).append(column)
    return tuple(ColumnReads(tuple(columns), tuple(found)) for found, columns in alike.items())


def row_sizes(plan: Int64Array) -> dict[int, int]:
    """Column -> bytes of a row."""
    from gear_data.kernels.cpu import collect as cpu

    return dict(plan[:, [cpu.COLUMN, cpu.SOURCE_BYTES]][plan[:, cpu.SOURCE_BYTES] > 0].tolist())
