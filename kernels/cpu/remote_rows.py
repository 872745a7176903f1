"""Rows that another node requests: checked, and packed column by column."""

from __future__ import annotations

import numpy as np

from gear_data.kernels.cpu.native import cached_njit, memcpy, prefetch

#: Errors that `find_shards` and `check_rows` return: no such shard, a shard of another node, rows that do not exist.
NO_SHARD, NOT_HERE, NO_ROWS = -1, -2, -3
#: The kernel prefetches the rows of the span this many spans ahead.
_AHEAD = 4


@cached_njit
def find_shards(shard, here, places):  # type: ignore[no-untyped-def]
    """Finds this node's index of each span's shard.

    Args:
        shard: int64 [N], the shard of each span; may have any values.
        here: int64 [shards], each shard's index on this node; -1 for a shard of another node.
        places: int64 [N], receives here[shard[i]].

    Returns:
        0, or NO_SHARD or NOT_HERE; then places[0] is the number of the wrong shard.
    """
    for i in range(len(shard)):
        if shard[i] < 0 or shard[i] >= len(here):
            places[0] = shard[i]
            return NO_SHARD
        places[i] = here[shard[i]]
        if places[i] < 0:
            places[0] = shard[i]
            return NOT_HERE
    return 0


@cached_njit
def check_rows(places, first, count, steps):  # type: ignore[no-untyped-def]
    """Counts the rows of all spans, and checks that they exist.

    Args:
        places: int64 [N], the index on this node of each span's shard.
        first, count: int64 [N], each span's first row and number of rows; may have any values.
        steps: int64 [shards of this node], rows of each shard.

    Returns:
        The number of rows, or NO_ROWS if a shard lacks some of them.
    """
    total = 0
    for i in range(len(places)):
        # first + count may overflow.
        if first[i] < 0 or count[i] < 0 or first[i] > steps[places[i]] or count[i] > steps[places[i]] - first[i]:
            return NO_ROWS
        total += count[i]
    return total


@cached_njit
def pack_rows(places, first, count, addresses, row_bytes, columns, targets):  # type: ignore[no-untyped-def]
    """Copies the rows of spans, column by column. The caller guarantees the addresses.

    Args:
        places, first, count: int64 [N], each span's shard, first row, and number of rows.
        addresses: int64 [shards, columns], the first byte of each column.
        row_bytes: int64 [columns], bytes of a row.
        columns, targets: int64 [C], the columns to copy, and the address for the rows of each.
    """
    spans = len(places)
    for k in range(len(columns)):
        column, target = columns[k], targets[k]
        width = row_bytes[column]
        for i in range(spans):
            # Runs are scattered: without prefetching, each begins with a wait for memory.
            if i + _AHEAD < spans:
                ahead = addresses[places[i + _AHEAD], column] + first[i + _AHEAD] * width
                for line in range(min((count[i + _AHEAD] * width + 63) // 64, 16)):
                    prefetch(ahead + 64 * line)
            memcpy(target, addresses[places[i], column] + first[i] * width, np.uint64(count[i] * width))
            target += count[i] * width
