"""The GPU of the benchmark: memory by address, copies, launches, and times.

All copies and launches are in one stream.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.kernels.cuda.launcher import CudaLauncher, cuda_errors
from gear_data.kernels.cuda.tuning import Tuning
from gear_data.residency.device.link import WARM_SECONDS
from gear_data.residency.device.registration import RegisteredMemory
from gear_data.residency.shared_memory import HEADER_BYTES, Segment, create_segment, map_segment, write

Bytes = npt.NDArray[np.uint8]

#: Launches are timed in groups of about this many seconds, so that the host stays ahead of the GPU.
_GROUP_SECONDS = 2e-3
_GROUP_MOST = 64
_REPEATS = 7
_ALIGNMENT = 256
#: Threads that fill host memory.
_THREADS = 8
#: cudaMemcpyDefault: CUDA derives the direction from the addresses.
_COPY = 4


@dataclass(frozen=True)
class HostMemory:
    """Host memory that the GPU reads.

    Attributes:
        data: uint8 [n], read-only.
        address: its address for the GPU.
    """

    data: Bytes
    address: int


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
        self._registered: list[RegisteredMemory] = []

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Frees at its end all memory that is allocated inside."""
        held, registered = len(self._held), len(self._registered)
        try:
            yield
        finally:
            self.wait()
            for memory in self._registered[registered:]:
                memory.close()
            del self._held[held:]
            del self._registered[registered:]
            self._cupy.get_default_memory_pool().free_all_blocks()
            self._cupy.get_default_pinned_memory_pool().free_all_blocks()

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Makes another stream than the default stream the current one."""
        stream = self._cupy.cuda.Stream(non_blocking=True)
        with stream:
            yield
        self.wait()

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

    def host(self, nbytes: int) -> HostMemory:
        """Returns a filled segment of shared memory, registered with CUDA.

        Residency `pinned` has the same memory.

        Raises:
            DeviceError, HostMemoryError: CUDA does not register the segment. There is no other memory to fall back to.
        """
        segment = Segment(f"benchmark-{os.getpid()}-{len(self._registered)}", HEADER_BYTES + nbytes, registrable=True)
        buffer = map_segment(create_segment(segment, partial(_fill_segment, nbytes=nbytes)), segment)
        memory = RegisteredMemory(buffer)
        self._registered.append(memory)
        data = np.frombuffer(buffer, np.uint8)[HEADER_BYTES:]
        return HostMemory(data, data.ctypes.data + memory.shift)

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

    def seconds(self, calls: Sequence[Callable[[], None]]) -> float:
        """Measures the seconds of one call on the GPU.

        Returns the median over some groups of calls. Each group lies between two events, and goes through all calls in
        turn. The calls also warm up the GPU.
        """
        each = self.warm(calls)
        group = max(len(calls), min(_GROUP_MOST, math.ceil(_GROUP_SECONDS / each)))
        return statistics.median(self._timed(calls, group) for _ in range(_REPEATS))

    def graph_seconds(self, calls: Sequence[Callable[[], None]]) -> float:
        """Measures the seconds of one call in a CUDA graph of all calls.

        The host takes no part in the calls: small launches follow each other as fast as the GPU takes them.
        """
        stream = self._cupy.cuda.Stream(non_blocking=True)
        with cuda_errors("capturing a CUDA graph"), stream:
            stream.begin_capture()
            for call in calls:
                call()
            graph = stream.end_capture()
        return self.seconds([graph.launch]) / len(calls)

    def warm(self, calls: Sequence[Callable[[], None]]) -> float:
        """Goes through the calls until the GPU has reached its clocks.

        Returns the seconds of a call.
        """
        until = time.perf_counter() + WARM_SECONDS
        while True:
            each = self._timed(calls, len(calls))
            if time.perf_counter() >= until:
                return each

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

    @property
    def l2_bytes(self) -> int:
        """The bytes of the cache of device memory."""
        return int(self._runtime.getDeviceProperties(0)["l2CacheSize"])

    def free_bytes(self) -> int:
        """Returns the bytes of GPU memory that nobody uses."""
        return int(self._runtime.memGetInfo()[0])

    def multiprocessors(self) -> int:
        return int(self._device.attributes["MultiProcessorCount"])


def gpu_facts() -> dict[str, Any]:
    """Returns the facts that the results depend on."""
    import cupy

    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(0)
    name = properties["name"]
    return {
        "gpu": name.decode() if isinstance(name, bytes) else str(name),
        "multiprocessors": int(properties["multiProcessorCount"]),
        "memory_bytes": int(properties["totalGlobalMem"]),
        "l2_bytes": int(properties["l2CacheSize"]),
        "cuda_runtime": int(runtime.runtimeGetVersion()),
        "cuda_driver": int(runtime.driverGetVersion()),
        "nvrtc": ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        "cupy": str(cupy.__version__),
        # Only the tests' stand-in for CuPy has the attribute. Its times are no results.
        "stand_in": hasattr(cupy, "stand_in"),
    }


def numbers() -> Bytes:
    """Returns the bytes of normal float32 numbers.

    Their number is a multiple of no case's row.
    """
    return np.random.default_rng(0).standard_normal((1 << 22) + 9, np.float32).view(np.uint8)


def fill_raw(raw: Bytes) -> None:
    """Fills a buffer with `numbers`, again and again."""
    tile = numbers()
    for first in range(0, len(raw), len(tile)):
        part = raw[first : first + len(tile)]
        part[:] = tile[: len(part)]


def _fill_segment(descriptor: int, nbytes: int) -> None:
    """Fills a segment like `fill_raw`, in several threads."""
    tile = memoryview(numbers())
    with ThreadPoolExecutor(min(_THREADS, len(os.sched_getaffinity(0)))) as pool:
        places = range(0, nbytes, len(tile))
        list(pool.map(lambda first: write(descriptor, tile[: nbytes - first], HEADER_BYTES + first), places))


def no_gpu() -> str | None:
    """Returns the reason why there is no GPU to measure, or None."""
    try:
        import cupy
    except ImportError as error:
        return f"CuPy cannot be imported ({error}): pip install 'gear-data[gpu]'"
    return None if cupy.cuda.is_available() else "there is no GPU here"
