"""The rows that windows read, and their addresses after staging.

Staging copies rows that the collecting kernel cannot read in place; the copies are packed. The kernel
(`gear_data.kernels.cpu.collect.collect`) then treats window b as if it were episode b. The address of a column is the
address that the episode's first row would have, even if that row was not staged.
"""

from __future__ import annotations

import numpy as np

from gear_data.kernels.cpu.native import cached_njit

#: Columns of `ranges`; see `gear_data.residency.row_ranges.RowRange`.
FIRST, WIDTH, WITHIN, SHIFT, HORIZON = range(5)


@cached_njit
def all_of(flags, episode):  # type: ignore[no-untyped-def]
    """Returns whether a flag is set for the episodes of all windows.

    flags: bool [episodes]. episode: int64 [B].
    """
    found = True
    for b in range(len(episode)):
        found &= flags[episode[b]]
    return found


@cached_njit
def read_rows(start, length, total, ranges, low, count):  # type: ignore[no-untyped-def]
    """Finds the rows of its episode that each window reads.

    The rows extend from the first to the last row that any output reads.

    Args:
        start, length, total: int64 [B], each window's first step, its steps, and its episode's steps.
        ranges: int64 [outputs, 5], with the columns FIRST to HORIZON.
        low, count: int64 [B], receive the first row and the number of rows.
    """
    for b in range(len(start)):
        lowest, highest = total[b], np.int64(0)
        for k in range(len(ranges)):
            first = start[b] + ranges[k, FIRST]
            end = first + ranges[k, WIDTH]
            if ranges[k, WITHIN]:
                first, end = max(first, start[b]), min(end, start[b] + length[b])
            else:
                first, end = max(first, 0), min(end, total[b])
            if end > first:
                # The row before an episode's first row, and the row after its last, belong to other episodes.
                lowest = min(lowest, max(first + ranges[k, SHIFT], 0))
                highest = max(highest, min(end + ranges[k, SHIFT] + ranges[k, HORIZON] - 1, total[b]))
        low[b], count[b] = lowest, max(highest - lowest, 0)


@cached_njit
def to_episodes(addresses, columns, row_bytes, start, count, missing):  # type: ignore[no-untyped-def]
    """Turns addresses of columns into addresses of the episodes' first rows.

    Args:
        addresses: int64 [B, columns of the dataset]; 0 for a column that is not in this process's memory.
        columns, row_bytes: int64 [C], the columns that are read, and the bytes of a row of each.
        start: int64 [B], the shard's row of each episode's first step.
        count: int64 [B], rows that each window reads; set to 0 if all columns of the window are in this process's
            memory.
        missing: bool [C], all False; set to True for a column that some window lacks in this process's memory.
    """
    for b in range(len(start)):
        all_here = True
        for k in range(len(columns)):
            if addresses[b, columns[k]] == 0:
                missing[k] = True
                all_here = False
            addresses[b, columns[k]] += start[b] * row_bytes[k]
        if all_here:
            count[b] = 0


@cached_njit
def to_packed(addresses, columns, row_bytes, parts, spans, low, count):  # type: ignore[no-untyped-def]
    """Sets the addresses of episodes' first rows for windows whose rows were staged.

    Args:
        addresses, columns, row_bytes: see `to_episodes`.
        parts: int64 [C], the address of each column's staged rows, packed span after span; 0: keep the addresses.
        spans: int64 [n], indices of windows.
        low, count: int64 [B], the first staged row of each window, and the number of staged rows.
    """
    for k in range(len(columns)):
        if parts[k] == 0:
            continue
        row = np.int64(0)
        for i in range(len(spans)):
            b = spans[i]
            if count[b]:
                addresses[b, columns[k]] = parts[k] + (row - low[b]) * row_bytes[k]
                row += count[b]
