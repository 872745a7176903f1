"""The GPU of the benchmark: memory by address, copies, launches, and times.

All copies and launches are in one stream.
"""

from __future__ import annotations

import math
import mmap
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import GearError
from gear_data.kernels.cuda.launcher import CudaLauncher, cuda_errors
from gear_data.kernels.cuda.tuning import Tuning

Bytes = npt.NDArray[np.uint8]

#: Launches are timed in groups of about this many seconds, so that the host stays ahead of the GPU.
_GROUP_SECONDS = 2e-3
_GROUP_MOST = 64
_ALIGNMENT = 256
#: cudaMemcpyDefault: CUDA derives the direction from the addresses.
_COPY = 4


class Gpu(CudaLauncher):
    """CUDA device 0.

    Addresses stay valid until the end of the `scope` in which they were allocated.
    """

    def __init__(self) -> None:
        import cupy

        super().__init__()
        self._cupy = cupy
        self._runtime = cupy.cuda.runtime
        self._held: list[Any] = []
        self._registered: list[tuple[int, mmap.mmap]] = []

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Frees at its end all memory that is allocated inside."""
        held, registered = len(self._held), len(self._registered)
        try:
            yield
        finally:
            self.wait()
            for address, _ in self._registered[registered:]:
                self._runtime.hostUnregister(address)
            del self._held[held:]
            del self._registered[registered:]
            self._cupy.get_default_memory_pool().free_all_blocks()
            self._cupy.get_default_pinned_memory_pool().free_all_blocks()

    def device(self, nbytes: int) -> int:
        """Allocates GPU memory, and returns its address."""
        with cuda_errors(f"{nbytes:,} bytes of GPU memory"):
            memory = self._cupy.cuda.alloc(nbytes + _ALIGNMENT)
        self._held.append(memory)
        return -(-int(memory.ptr) // _ALIGNMENT) * _ALIGNMENT

    def pinned(self, nbytes: int) -> Bytes:
        """Returns uint8 [nbytes] of host memory that CUDA allocated (cudaHostAlloc)."""
        with cuda_errors(f"{nbytes:,} bytes of pinned memory"):
            memory = self._cupy.cuda.alloc_pinned_memory(nbytes)
        self._held.append(memory)
        return np.frombuffer(memory, np.uint8, nbytes)

    def registered(self, nbytes: int) -> Bytes:
        """Returns uint8 [nbytes] of shared host memory, registered with CUDA.

        Residency `pinned` reads such memory.
        """
        pages = mmap.mmap(-1, nbytes)
        array = np.frombuffer(pages, np.uint8)
        with cuda_errors(f"registering {nbytes:,} bytes"):
            self._runtime.hostRegister(array.ctypes.data, nbytes, 0)
        self._registered.append((array.ctypes.data, pages))
        return array

    def host(self, nbytes: int) -> tuple[Bytes, str]:
        """Returns (host memory, its kind).

        The memory is `registered`, or `pinned` if CUDA refuses to register, as on some virtual machines.
        """
        try:
            return self.registered(nbytes), "registered"
        except GearError:
            return self.pinned(nbytes), "allocated"

    def put(self, array: npt.NDArray[Any]) -> int:
        """Copies an array to GPU memory, and returns the address."""
        data = np.ascontiguousarray(array)
        address = self.device(data.nbytes)
        if data.nbytes:
            self._runtime.memcpy(address, data.ctypes.data, data.nbytes, _COPY)
            # A copy of memory that is not pinned may end later, and other streams do not wait for it.
            self._runtime.streamSynchronize(0)
        return address

    def get(self, address: int, shape: Any, dtype: Any) -> npt.NDArray[Any]:
        """Returns the array at an address, after all earlier work."""
        array = np.empty(shape, dtype)
        self.wait()
        if array.nbytes:
            self._runtime.memcpy(array.ctypes.data, address, array.nbytes, _COPY)
        return array

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self._runtime.memcpyAsync(target, source, nbytes, _COPY, self._stream())

    def fill(self, target: int, value: int, nbytes: int) -> None:
        self._runtime.memsetAsync(target, value, nbytes, self._stream())

    def _stream(self) -> int:
        return int(self._cupy.cuda.get_current_stream().ptr)

    def wait(self) -> None:
        with cuda_errors("waiting for the GPU"):
            self._runtime.deviceSynchronize()

    def seconds(self, calls: Sequence[Callable[[], None]], repeats: int = 7) -> float:
        """Measures the seconds of one call on the GPU.

        Returns the median over `repeats` groups of calls. Each group lies between two events, and goes through the
        calls in turn.
        """
        for call in calls:
            call()
        group = min(_GROUP_MOST, max(len(calls), math.ceil(_GROUP_SECONDS / self._timed(calls, len(calls)))))
        return statistics.median(self._timed(calls, group) for _ in range(repeats))

    def _timed(self, calls: Sequence[Callable[[], None]], count: int) -> float:
        begin, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        begin.record()
        for number in range(count):
            calls[number % len(calls)]()
        end.record()
        with cuda_errors("measuring"):
            end.synchronize()
        # An event's clock has a resolution of half a microsecond.
        return max(float(self._cupy.cuda.get_elapsed_time(begin, end)) / 1e3, 5e-7) / count

    @contextmanager
    def tuned(self, tuning: Tuning) -> Iterator[None]:
        """Replaces the collecting kernels by builds with other constants."""
        other, own = CudaLauncher(tuning=tuning), (self.tuning, self._kernels, self._collect_blocks)
        self.tuning, self._kernels, self._collect_blocks = tuning, other._kernels, other._collect_blocks
        try:
            yield
        finally:
            self.tuning, self._kernels, self._collect_blocks = own

    def multiprocessors(self) -> int:
        return int(self._device.attributes["MultiProcessorCount"])

    def facts(self) -> dict[str, Any]:
        """Returns the facts that the results depend on."""
        properties = self._runtime.getDeviceProperties(0)
        name = properties["name"]
        return {
            "gpu": name.decode() if isinstance(name, bytes) else str(name),
            "multiprocessors": self.multiprocessors(),
            "memory_bytes": int(properties["totalGlobalMem"]),
            "l2_bytes": int(properties["l2CacheSize"]),
            "cuda_runtime": int(self._runtime.runtimeGetVersion()),
            "cuda_driver": int(self._runtime.driverGetVersion()),
            "nvrtc": ".".join(map(str, self._cupy.cuda.nvrtc.getVersion())),
            "cupy": str(self._cupy.__version__),
        }


def no_gpu() -> str | None:
    """Returns the reason why there is no GPU to measure, or None."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy cannot be imported ({error}): pip install 'gear-data[gpu]'"
    return None if cupy.cuda.is_available() else "there is no GPU here"
