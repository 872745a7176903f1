"""Rows that another node asks for: checked, and packed column by column."""

from __future__ import annotations

import numpy as np
from numba import njit

from gear_data.kernels.cpu.native import memcpy, prefetch

#: What `check_rows` says; else the number of rows.
NO_SHARD, NOT_HERE, NO_ROWS = -1, -2, -3
_AHEAD = 4


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def find_shards(shard, here, places):  # type: ignore[no-untyped-def]
    """places[i] = here[shard[i]] for spans of shards (int64 [N] each); here is -1 for shards that are not.

    Returns:
        0; NO_SHARD or NOT_HERE, and then places[0] is the shard.
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


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def check_rows(places, first, count, steps):  # type: ignore[no-untyped-def]
    """How many rows spans have, count[i] from first[i] on in the shard places[i], which has steps[places[i]]; NO_ROWS
    where a shard does not have some of them. int64 [N] each, with any values."""
    total = 0
    for i in range(len(places)):
        # Not first + count, which may overflow.
        if first[i] < 0 or count[i] < 0 or first[i] > steps[places[i]] or count[i] > steps[places[i]] - first[i]:
            return NO_ROWS
        total += count[i]
    return total


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def pack_rows(places, first, count, addresses, row_bytes, columns, targets):  # type: ignore[no-untyped-def]
    """Copies spans' rows of some columns, those of each one after another. The caller answers for the addresses.

    Args:
        places, first, count: int64 [N], of each span its shard, first row and rows.
        addresses: int64 [shards, columns].
        row_bytes: int64 [columns], of a row.
        columns, targets: int64 [C], which columns, and the address that the rows of each go to.
    """
    spans = len(places)
    for k in range(len(columns)):
        column, target = columns[k], targets[k]
        width = row_bytes[column]
        for i in range(spans):
            # Runs lie anywhere: without asking ahead every one of them begins with a wait for memory.
            if i + _AHEAD < spans:
                ahead = addresses[places[i + _AHEAD], column] + first[i + _AHEAD] * width
                for line in range(min((count[i + _AHEAD] * width + 63) // 64, 16)):
                    prefetch(ahead + 64 * line)
            memcpy(target, addresses[places[i], column] + first[i] * width, np.uint64(count[i] * width))
            target += count[i] * width
