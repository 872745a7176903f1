"""Which rows of its episode a batch reads for a window: what is brought from where no kernel can read in place.

The rows that were brought lie packed. To the collector's kernel each window is then an episode of its own, whose rows
lie there; so casts, padding, final observations and sums are made by the same code wherever the rows are from.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import cached_property

import numpy as np

from gear_data.kernels import cpu
from gear_data.kernels.output_plan import COLUMN_KINDS, OutputPlanArray
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
        low, count = np.empty((2, len(total)), np.int64)
        cpu.row_ranges.read_rows(windows.start, windows.length, total, self._numbers, low, count)
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


def column_reads(plan: OutputPlanArray) -> tuple[ColumnReads, ...]:
    """What a plan of `gear_data.kernels.cpu.collect` reads: each of its source columns is in one of these."""
    ranges: dict[int, set[RowRange]] = {}
    for output in plan[np.isin(plan["kind"], COLUMN_KINDS)]:
        first, width, within, shift, horizon = output[["first", "width", "within", "shift", "horizon"]].tolist()
        row_range = RowRange(first, width, bool(within), shift, max(1, horizon))
        ranges.setdefault(int(output["column"]), set()).add(row_range)
    columns_of: dict[frozenset[RowRange], list[int]] = {}
    for column, of_column in ranges.items():
        columns_of.setdefault(frozenset(of_column), []).append(column)
    return tuple(ColumnReads(tuple(columns), tuple(of_column)) for of_column, columns in columns_of.items())


def row_sizes(plan: OutputPlanArray) -> dict[int, int]:
    """Column -> bytes of a row."""
    return dict(plan[["column", "source_bytes"]][plan["source_bytes"] > 0].tolist())
