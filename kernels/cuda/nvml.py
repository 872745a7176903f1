"""The GPUs of this machine as their driver's management library (NVML) tells them.

It makes no CUDA context, which would take memory of every GPU and forbid CUDA to processes forked later.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cache

_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96


@dataclass(frozen=True)
class Driver:
    """An NVIDIA driver: its version, the newest CUDA it runs as (major, minor), and its GPUs' names."""

    version: str
    cuda: tuple[int, int]
    gpus: tuple[str, ...]


@cache
def driver() -> Driver | None:
    """The driver; None where there is none, or it does not answer."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        if library.nvmlInit_v2() != 0:
            return None
    except (OSError, AttributeError):
        return None
    try:
        return _ask(library)
    except AttributeError:  # a library older than these functions
        return None
    finally:
        library.nvmlShutdown()


def _ask(library: ctypes.CDLL) -> Driver | None:
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    cuda, count, handle = ctypes.c_int(), ctypes.c_uint(), ctypes.c_void_p()
    if (
        library.nvmlSystemGetDriverVersion(text, _TEXT_BYTES)
        or library.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(cuda))
        or library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    ):
        return None
    version, names = text.value.decode(), []
    for index in range(count.value):
        # A GPU that has fallen off its bus is counted, and fails here.
        if not library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) and not library.nvmlDeviceGetName(
            handle, text, _TEXT_BYTES
        ):
            names.append(text.value.decode())
    return Driver(version, (cuda.value // 1000, cuda.value % 1000 // 10), tuple(names))


def gpu_count() -> int:
    """How many GPUs this process may use; CUDA_VISIBLE_DEVICES counts where it hides all."""
    found = driver()
    if found is None or os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return 0
    return len(found.gpus)
