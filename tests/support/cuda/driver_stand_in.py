"""The stand-in for CUDA's driver: see `driver_stand_in.c`."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from gear_data.residency.device import virtual_memory

SOURCE = Path(__file__).with_suffix(".c")


def build(folder: Path) -> Path:
    """Builds the library. Skips the test without a C compiler."""
    compiler = shutil.which("gcc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no C compiler to build the stand-in for CUDA's driver with")
    library = folder / "libcuda.so"
    if not library.exists():
        subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)
    return library


def install_driver(
    monkeypatch: pytest.MonkeyPatch, folder: Path, device_bytes: int = 1 << 40, *, shares: bool = True
) -> ctypes.CDLL:
    """Makes the stand-in the driver of this process, until the test ends.

    Args:
        monkeypatch: of the test.
        folder: for the library.
        device_bytes: bytes of the largest allocation.
        shares: whether the device shares memory between processes.
    """
    loaded = ctypes.CDLL(str(build(folder)))
    loaded.stand_in_mapped.restype = ctypes.c_uint64
    loaded.stand_in_set(ctypes.c_uint64(device_bytes), int(shares))
    driver = virtual_memory.load_driver(str(build(folder)))
    monkeypatch.setattr(virtual_memory, "_driver", lambda: driver)
    return loaded


def cupy_for(driver: ctypes.CDLL) -> SimpleNamespace:
    """Returns the part of CuPy that is needed, over the stand-in for the driver."""
    error = type("CudaError", (Exception,), {})
    runtime = SimpleNamespace(CUDARuntimeError=error, deviceSynchronize=driver.stand_in_context)
    others = {"memory": SimpleNamespace(OutOfMemoryError=error), "compiler": SimpleNamespace(CompileException=error)}
    others |= {"driver": SimpleNamespace(CUDADriverError=error), "nvrtc": SimpleNamespace(NVRTCError=error)}
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, **others))
