"""The ceiling: libc's memmove of 1 GiB that no cache holds, by one thread."""

from __future__ import annotations

import argparse
import ctypes

import numpy as np
import numpy.typing as npt
from harness import Feed, main, versions_of

BLOCK_BYTES = 1 << 30


def build(_: argparse.Namespace) -> Feed:
    source = np.ones(BLOCK_BYTES, np.uint8)
    target = np.zeros(BLOCK_BYTES, np.uint8)  # written once below, so that no page fault is timed

    def next_batch() -> dict[str, npt.NDArray[np.uint8]]:
        ctypes.memmove(target.ctypes.data, source.ctypes.data, BLOCK_BYTES)
        return {"copy": target}

    next_batch()
    return Feed(
        next_batch=next_batch, windows=None, notes="1 GiB, bytes copied, one thread", versions=versions_of("numpy")
    )


if __name__ == "__main__":
    main(build, "Rate of a plain memory copy; --data is taken and not read.")
