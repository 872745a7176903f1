"""Runs of bytes copied one after another."""

from __future__ import annotations

import numpy as np
from numba import njit

from gear_data.kernels.cpu.native import memcpy, prefetch


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def gather(sources, sizes, target):  # type: ignore[no-untyped-def]
    """Copies run i, sizes[i] bytes at address sources[i] (int64 [N] each), to behind the one before; the first to
    address `target`. The caller answers for the addresses."""
    for i in range(len(sources)):
        # Runs lie anywhere: without asking ahead every one of them begins with a wait for memory.
        if i + 4 < len(sources):
            for line in range(min((sizes[i + 4] + 63) // 64, 16)):
                prefetch(sources[i + 4] + 64 * line)
        memcpy(target, sources[i], np.uint64(sizes[i]))
        target += sizes[i]
