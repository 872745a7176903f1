"""The GPUs of this machine, by the driver's management library (NVML).

NVML creates no CUDA context. A context would take memory of every GPU, and forked processes could not use CUDA.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cache

_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96


@dataclass(frozen=True)
class NvidiaDriver:
    """An NVIDIA driver.

    Attributes:
        version: the driver's version.
        cuda: the newest CUDA version that it supports, (major, minor).
        gpus: names of the GPUs.
        mig: for each GPU, the UUIDs of its MIG instances; None: MIG is off, or the GPU does not have it.
    """

    version: str
    cuda: tuple[int, int]
    gpus: tuple[str, ...]
    mig: tuple[tuple[str, ...] | None, ...] = ()


@cache
def driver() -> NvidiaDriver | None:
    """Returns the driver, or None if there is none or it does not answer."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        if library.nvmlInit_v2() != 0:
            return None
    except (OSError, AttributeError):
        return None
    try:
        return _query(library)
    except AttributeError:  # the library is older than these functions
        return None
    finally:
        library.nvmlShutdown()


def _query(library: ctypes.CDLL) -> NvidiaDriver | None:
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    cuda, count, handle = ctypes.c_int(), ctypes.c_uint(), ctypes.c_void_p()
    if (
        library.nvmlSystemGetDriverVersion(text, _TEXT_BYTES)
        or library.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(cuda))
        or library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    ):
        return None
    version, names, mig = text.value.decode(), [], []
    for index in range(count.value):
        # A GPU that has fallen off its bus is still counted, and fails here.
        if not library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) and not library.nvmlDeviceGetName(
            handle, text, _TEXT_BYTES
        ):
            names.append(text.value.decode())
            mig.append(_mig_instances(library, handle))
    return NvidiaDriver(version, (cuda.value // 1000, cuda.value % 1000 // 10), tuple(names), tuple(mig))


def _mig_instances(library: ctypes.CDLL, gpu: ctypes.c_void_p) -> tuple[str, ...] | None:
    """Returns the UUIDs of a GPU's MIG instances, or None if MIG is off."""
    if not hasattr(library, "nvmlDeviceGetMigMode"):  # a driver before R450
        return None
    current, pending, most = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    if library.nvmlDeviceGetMigMode(gpu, ctypes.byref(current), ctypes.byref(pending)) or not current.value:
        return None
    library.nvmlDeviceGetMaxMigDeviceCount(gpu, ctypes.byref(most))
    text, instance, found = ctypes.create_string_buffer(_TEXT_BYTES), ctypes.c_void_p(), []
    for index in range(most.value):
        # Indices without an instance fail.
        if not library.nvmlDeviceGetMigDeviceHandleByIndex(
            gpu, index, ctypes.byref(instance)
        ) and not library.nvmlDeviceGetUUID(instance, text, _TEXT_BYTES):
            found.append(text.value.decode())
    return tuple(found)


def gpu_count() -> int:
    """Returns the number of GPUs that this process may use.

    The number is 0 if CUDA_VISIBLE_DEVICES hides all GPUs.
    """
    nvidia = driver()
    if nvidia is None or os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return 0
    return len(nvidia.gpus)
