"""Which rows a window reads, and where they are once they were brought: for what no kernel can read in place.

Rows that were brought lie packed. To `gear_data.kernels.cpu.collect.collect` each window is then
an episode of its own, and the
address of a column that of the episode's first row, whether or not that is there.
"""

from __future__ import annotations

import numpy as np
from numba import njit

#: Of a row of `reaches`; see `gear_data.residency.row_ranges.RowRange`.
FIRST, WIDTH, WITHIN, SHIFT, HORIZON = range(5)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def all_of(flags, episode):  # type: ignore[no-untyped-def]
    """Whether a flag, bool [episodes], is set for all windows' episodes, int64 [B]."""
    found = True
    for b in range(len(episode)):
        found &= flags[episode[b]]
    return found


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def reached_rows(start, length, total, reaches, low, count):  # type: ignore[no-untyped-def]
    """Fills the first row of its episode that each window reads, and how many: all from the first that any of several
    outputs reads to the last.

    Args:
        start, length, total: int64 [B]: each window's first step, its steps, and those of its episode.
        reaches: int64 [outputs, 5].
        low, count: int64 [B].
    """
    for b in range(len(start)):
        lowest, highest = total[b], np.int64(0)
        for k in range(len(reaches)):
            first = start[b] + reaches[k, FIRST]
            end = first + reaches[k, WIDTH]
            if reaches[k, WITHIN]:
                first, end = max(first, start[b]), min(end, start[b] + length[b])
            else:
                first, end = max(first, 0), min(end, total[b])
            if end > first:
                # The row before an episode's first and the one after its last are none of its own.
                lowest = min(lowest, max(first + reaches[k, SHIFT], 0))
                highest = max(highest, min(end + reaches[k, SHIFT] + reaches[k, HORIZON] - 1, total[b]))
        low[b], count[b] = lowest, max(highest - lowest, 0)


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def to_episodes(addresses, columns, row_bytes, start, count, away):  # type: ignore[no-untyped-def]
    """Turns addresses of the columns of windows' shards into those of their episodes' first rows.

    Args:
        addresses: int64 [B, columns of the dataset]; 0 for a column that is not here.
        columns, row_bytes: int64 [C]: which are wanted, and the bytes of a row of each.
        start: int64 [B]: the row of the shard that each episode begins with.
        count: int64 [B]: rows wanted; set to 0 where all columns are here.
        away: bool [C]: set where a column of any window is not here, all False before.
    """
    for b in range(len(start)):
        all_here = True
        for k in range(len(columns)):
            if addresses[b, columns[k]] == 0:
                away[k] = True
                all_here = False
            addresses[b, columns[k]] += start[b] * row_bytes[k]
        if all_here:
            count[b] = 0


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def to_packed(addresses, columns, row_bytes, parts, spans, low, count):  # type: ignore[no-untyped-def]
    """Sets the addresses of episodes' first rows where rows were brought.

    Args:
        addresses, columns, row_bytes: as of `to_episodes`.
        parts: int64 [C]: where the rows of each column lie, those of all spans one after another; 0 leaves a column's
            addresses alone.
        spans: int64 [n]: numbers of windows.
        low, count: int64 [B]: the first row of each window that was brought, and how many.
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
