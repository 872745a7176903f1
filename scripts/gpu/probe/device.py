"""The GPU of the probe, by CuPy: one kernel that reads memory, copies, and times."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

THREADS = 512
#: A kernel that reads 16-byte words and returns one sum per thread. Eight loads of a thread are in flight at a time.
SOURCE = """
typedef unsigned long long u64;

extern "C" __global__ void __launch_bounds__(512)
read_words(const ulonglong2 *__restrict__ source, u64 words, u64 *__restrict__ sums) {
    const unsigned UNROLL = 8;
    u64 threads = (u64)gridDim.x * blockDim.x, thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    u64 sum = 0, at = thread;
    for (; at + (UNROLL - 1) * threads < words; at += UNROLL * threads) {
        ulonglong2 loaded[UNROLL];
#pragma unroll
        for (unsigned i = 0; i < UNROLL; i++) loaded[i] = source[at + i * threads];
#pragma unroll
        for (unsigned i = 0; i < UNROLL; i++) sum += loaded[i].x + loaded[i].y;
    }
    for (; at < words; at += threads) sum += source[at].x + source[at].y;
    sums[thread] = sum;
}
"""
#: cudaMemcpyDefault: CUDA derives the direction from the addresses.
_COPY = 4
#: GPUs raise their clocks under load, after this many seconds.
_WARM_SECONDS = 0.3
#: Seconds of a group of calls between two events, and the number of groups.
_GROUP_SECONDS, _GROUPS = 0.02, 5


class ProbedDevice:
    """CUDA device 0.

    Raises:
        ImportError: CuPy is not installed.
        Exception: any error of CuPy; see `errors`.

    Attributes:
        runtime: CuPy's binding of CUDA's runtime.
        errors: the exceptions of CuPy and CUDA.
    """

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self.runtime: Any = cupy.cuda.runtime
        self.errors = (
            self.runtime.CUDARuntimeError,
            cupy.cuda.driver.CUDADriverError,
            cupy.cuda.nvrtc.NVRTCError,
            cupy.cuda.memory.OutOfMemoryError,
        )
        module = cupy.RawModule(code=SOURCE, options=("--std=c++17",), backend="nvrtc")
        self._read_words = module.get_function("read_words")
        self.multiprocessors = int(cupy.cuda.Device(0).attributes["MultiProcessorCount"])
        self._sums = self.memory(THREADS * 8 * self.multiprocessors * 4)

    def memory(self, size: int) -> Any:
        """Allocates memory of the device; its address is `.ptr`."""
        return self._cupy.cuda.alloc(size)

    def pinned(self, size: int) -> np.ndarray:
        """Returns uint8 [size] of host memory that CUDA allocated (cudaHostAlloc)."""
        return np.frombuffer(self._cupy.cuda.alloc_pinned_memory(size), np.uint8, size)

    def pointer(self, address: int) -> int:
        """Returns the device's address of registered host memory; 0 if it has none."""
        return int(self.runtime.pointerGetAttributes(address).devicePointer or 0)

    def read(self, address: int, size: int, blocks: int) -> None:
        """Launches the kernel that reads memory."""
        arguments = tuple(np.uint64(number) for number in (address, size // 16, self._sums.ptr))
        self._read_words((blocks,), (THREADS,), arguments)

    def sum_by_kernel(self, address: int, size: int) -> int:
        """Returns the sum of the 8-byte words at an address, modulo 2^64."""
        self.read(address, size, self.multiprocessors)
        self.runtime.deviceSynchronize()
        return self._total(self._sums.ptr, THREADS * self.multiprocessors)

    def sum_by_copy(self, address: int, size: int) -> int:
        """Copies memory to the device and back. Returns the sum of its 8-byte words."""
        memory = self.memory(size)
        self.copy(memory.ptr, address, size)
        self.runtime.deviceSynchronize()
        return self._total(memory.ptr, size // 8)

    def _total(self, address: int, count: int) -> int:
        words = np.empty(count, np.uint64)
        self.runtime.memcpy(words.ctypes.data, address, words.nbytes, _COPY)
        return int(words.sum(dtype=np.uint64))

    def copy(self, target: int, source: int, size: int) -> None:
        self.runtime.memcpyAsync(target, source, size, _COPY, self._cupy.cuda.get_current_stream().ptr)

    def seconds(self, call: Callable[[], None]) -> float:
        """Measures the seconds of one call on the device: the median of groups."""
        until, count = time.perf_counter() + _WARM_SECONDS, 0
        while count == 0 or time.perf_counter() < until:
            call()
            self.runtime.deviceSynchronize()
            count += 1
        group = max(1, round(_GROUP_SECONDS / self._timed(call, 1)))
        return statistics.median(self._timed(call, group) for _ in range(_GROUPS))

    def _timed(self, call: Callable[[], None], count: int) -> float:
        begin, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        begin.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        # An event's clock has a resolution of half a microsecond.
        return max(float(self._cupy.cuda.get_elapsed_time(begin, end)) / 1e3, 5e-7) / count
