"""A runner on the GPU, for the checks that the kernels pass on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from gear_data.kernels.cuda.launcher import CudaLauncher


class GpuRunner(CudaLauncher):
    """Memory and kernels of CUDA device 0.

    Memory begins at an odd multiple of its alignment, as on the CPU. Its last word of 16 bytes ends a CUDA allocation,
    so that compute-sanitizer detects accesses beyond it.
    """

    def __init__(self) -> None:
        import cupy

        super().__init__()
        self._cupy = cupy
        self._held: list[Any] = []

    def allocate(self, nbytes: int) -> Any:
        return self._cupy.cuda.Memory(nbytes)

    def put(self, array: np.ndarray, *, align: int = 256) -> int:
        # Kernels load whole words of 16 bytes.
        memory = self.allocate(align + -(-array.nbytes // 16) * 16)
        self._held.append(memory)
        # CUDA returns multiples of 256, in practice of 512.
        assert memory.ptr % align == 0
        address = memory.ptr if memory.ptr // align % 2 else memory.ptr + align
        data = np.ascontiguousarray(array)
        if data.nbytes:
            # cudaMemcpyDefault: CUDA derives the direction from the addresses.
            self._cupy.cuda.runtime.memcpy(address, data.ctypes.data, data.nbytes, 4)
        return address

    def get(self, address: int, shape: Any, dtype: Any) -> np.ndarray:
        array = np.empty(shape, dtype)
        self._cupy.cuda.runtime.deviceSynchronize()
        if array.nbytes:
            self._cupy.cuda.runtime.memcpy(array.ctypes.data, address, array.nbytes, 2)
        return array

    def collect_blocks(self, pinned: bool) -> int:
        return self.blocks

    def clear(self) -> None:
        self._cupy.cuda.runtime.deviceSynchronize()
        self._held.clear()


class PinnedRunner(GpuRunner):
    """The same, with all inputs in pinned host memory.

    The device reads them in place.
    """

    def allocate(self, nbytes: int) -> Any:
        return self._cupy.cuda.PinnedMemory(nbytes, self._cupy.cuda.runtime.hostAllocPortable)
