"""The rows of its episode that a window reads.

These rows are staged (copied to memory that the kernel reads) if the kernel cannot read them in place. The copies are
packed. The collecting kernel then treats each window as an episode whose rows lie in the copies. So the same code
computes casts, padding, final observations and sums for all rows.
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
    """The rows of its episode that an output reads for a window.

    Attributes:
        first, width, within, shift: see `Output`, where `within` is `within_window`.
        horizon: number of rows that are summed for each step; 1 without discounts.
    """

    first: int
    width: int
    within: bool
    shift: int
    horizon: int


@dataclass(frozen=True)
class ColumnReads:
    """A group of columns of which the same rows are read.

    For each window, the rows extend from the first to the last row that any output reads.

    Attributes:
        columns: indices of the columns in the schema.
        ranges: the rows that the outputs read.
    """

    columns: tuple[int, ...]
    ranges: tuple[RowRange, ...]

    def rows(self, windows: Windows, total: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Returns (first row, number of rows) that each window reads, int64 [B] each.

        Args:
            windows: B windows.
            total: int64 [B], the steps of each window's episode.
        """
        low, count = np.empty((2, len(total)), np.int64)
        cpu.row_ranges.read_rows(windows.start, windows.length, total, self._ranges, low, count)
        return low, count

    @cached_property
    def _ranges(self) -> Int64Array:
        """int64 [outputs, 5], for `gear_data.kernels.cpu.row_ranges`."""
        return np.array([astuple(row_range) for row_range in self.ranges], np.int64)

    @property
    def max_rows(self) -> int:
        """The most rows that a window reads."""
        last = max(each.first + each.width + max(each.shift, 0) + each.horizon - 1 for each in self.ranges)
        return last - min(each.first + min(each.shift, 0) for each in self.ranges)


def column_reads(plan: OutputPlanArray) -> tuple[ColumnReads, ...]:
    """Returns the columns that a plan reads, grouped by the rows that are read."""
    ranges: dict[int, set[RowRange]] = {}
    for output in plan[np.isin(plan["kind"], COLUMN_KINDS)]:
        first, width, within, shift, horizon = output[["first", "width", "within", "shift", "horizon"]].tolist()
        if shift and output["hops"]:
            # The next state is 1 to `hops` steps ahead.
            first, width, shift = first + 1, width + int(output["hops"]) - 1, 0
        row_range = RowRange(first, width, bool(within), shift, max(1, horizon))
        ranges.setdefault(int(output["column"]), set()).add(row_range)
    columns_of: dict[frozenset[RowRange], list[int]] = {}
    for column, of_column in ranges.items():
        columns_of.setdefault(frozenset(of_column), []).append(column)
    return tuple(ColumnReads(tuple(columns), tuple(of_column)) for of_column, columns in columns_of.items())


def row_sizes(plan: OutputPlanArray) -> dict[int, int]:
    """Returns column -> bytes of a row, for the columns that a plan reads."""
    return dict(plan[["column", "source_bytes"]][plan["source_bytes"] > 0].tolist())
