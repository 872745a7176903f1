"""A GPU that is not there: kernels compiled for the CPU, and the stand-ins of CuPy, the driver and torch.cuda."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from gear_data.kernels.cuda import launcher as cuda
from gear_data.residency.device import link
from gear_data.residency.device.stream import loader_stream
from tests.support.cuda.cupy_stand_in import make_cupy
from tests.support.cuda.driver_stand_in import install_driver
from tests.support.cuda.runner import CONSTANTS, KERNELS, SHIM
from tests.support.cuda.streams import ORDERS, Streams
from tests.support.cuda.torch_stand_in import TorchStandIn, patch_torch

#: Name of a .cu file -> library. A process compiles the kernels once.
_loaded: dict[str, ctypes.PyDLL] = {}


def _libraries(folder: Path) -> dict[str, ctypes.PyDLL]:
    """Compiles the kernels, at the first call. Returns name of a .cu file -> library.

    The kernels run with the GIL held, because fibers cannot switch while it is released.
    """
    if not _loaded:
        _loaded.update({name: _library(name, folder) for name in cuda._SOURCES})
    return _loaded


def _library(name: str, folder: Path) -> ctypes.PyDLL:
    library = folder / f"{name}.so"
    command = [
        str(shutil.which("g++")), "-std=c++17", "-O1", "-shared", "-fPIC", *CONSTANTS,
        f'-DKERNELS="{KERNELS / name}"', str(SHIM / "library.cpp"), "-o", str(library),
    ]  # fmt: skip
    if not library.exists():
        subprocess.run(command, check=True, capture_output=True)
    found = ctypes.PyDLL(str(library))
    found.shim_launch.argtypes = [ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p]
    return found


@dataclass(frozen=True)
class StandInGpu:
    """A `loader_checks.GpuUnderTest` on the stand-ins of CuPy and torch.cuda."""

    cupy: Any
    torch: TorchStandIn

    @property
    def taken(self) -> int:
        """The bytes of device memory that gear-data holds."""
        return self.cupy.taken + sum(block.size for block in self.torch.lent.values())

    def read(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Copies a batch's tensors. The batch is released when this returns.

        A kernel that reads a batch does not hold the batch either.
        """
        addresses = {key: (value.data_ptr(), value.nbytes) for key, value in batch.items()}
        copies = {key: torch.empty_like(value) for key, value in batch.items()}

        def copy() -> None:
            for key, (address, nbytes) in addresses.items():
                ctypes.memmove(copies[key].data_ptr(), address, nbytes)

        self.cupy.streams.add(self.torch.current, copy)
        return copies

    def finish(self) -> None:
        self.cupy.streams.finish_all()


@contextmanager
def stand_in(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, order: str, device_bytes: int = 1 << 30
) -> Iterator[StandInGpu]:
    """CuPy and torch's view of one device.

    Args:
        folder: for libraries of the kernels; the fixture `libraries`.
        order: one of `ORDERS`.
        device_bytes: of its memory.
    """
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ to build the kernels for the CPU with")
    fake = make_cupy(Streams(ORDERS[order]), _libraries(folder), device_bytes)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    driver = install_driver(monkeypatch, folder, device_bytes)
    driver.stand_in_context()
    fake.mapped_bytes = driver.stand_in_mapped
    # `auto` is to choose as on a GPU, whose kernels are faster than this process.
    monkeypatch.setattr(link, "link_rates", lambda device: link.LinkRates())
    fake.torch = torchs = TorchStandIn(fake.streams, device_bytes, lambda: fake.taken)
    patch_torch(monkeypatch, torchs, fake.streams)
    cuda._compiled.cache_clear()
    loader_stream.cache_clear()
    yield StandInGpu(fake, torchs)
    fake.streams.close()
    cuda._compiled.cache_clear()
    loader_stream.cache_clear()
