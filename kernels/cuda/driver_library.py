"""The library of the CUDA driver, for functions that CuPy does not have."""

from __future__ import annotations

import ctypes


def open_driver(library: str = "libcuda.so.1") -> ctypes.CDLL:
    """Opens the library.

    Raises:
        OSError: there is none.
    """
    return ctypes.CDLL(library)
