"""Gathering: copies scattered runs of bytes into contiguous memory."""

from __future__ import annotations

import numpy as np
from numba import njit

from gear_data.kernels.cpu.native import memcpy, prefetch


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def gather(sources, sizes, target):  # type: ignore[no-untyped-def]
    """Copies runs of bytes one after another. The caller guarantees the addresses.

    Args:
        sources, sizes: int64 [N], the address and the bytes of each run.
        target: the address of the first copied run.
    """
    for i in range(len(sources)):
        # Runs are scattered: without prefetching, each begins with a wait for memory.
        if i + 4 < len(sources):
            for line in range(min((sizes[i + 4] + 63) // 64, 16)):
                prefetch(sources[i + 4] + 64 * line)
        memcpy(target, sources[i], np.uint64(sizes[i]))
        target += sizes[i]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def write_elements(part, whole, first):  # type: ignore[no-untyped-def]
    """Copies `part`, [n, k], into the columns first to first + k - 1 of `whole`, [n, m] of the same dtype."""
    for row in range(part.shape[0]):
        for i in range(part.shape[1]):
            whole[row, first + i] = part[row, i]
