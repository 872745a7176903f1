"""Memory that a GPU reads: device memory, and pinned memory of this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gear_data.common.extras import import_extra
from gear_data.errors import DeviceMemoryError, HostMemoryError
from gear_data.kernels.cuda.launcher import cuda_errors
from gear_data.residency.available_memory import available_memory

T = TypeVar("T")
#: cudaHostAllocPortable: every device can read the memory.
_PORTABLE = 1
#: cudaMemcpyHostToDevice and cudaMemcpyDeviceToHost.
TO_DEVICE, TO_HOST = 1, 2
#: Bytes of columns that are copied at a time.
PIECE_BYTES = 32 << 20
#: The hint for too little host memory.
_TIERED = "use ds.place(ds.residency_plan(...)): columns that do not fit stay on disk"


def allocated(allocate: Callable[[], T]) -> T:
    """Allocates device memory, if necessary after torch has given up the memory that it holds idle.

    torch keeps memory of dead tensors for itself, often most of the device. The driver does not know that it is idle.

    Args:
        allocate: allocates.

    Raises:
        DeviceMemoryError: the device has too little memory.
    """
    try:
        return allocate()
    except DeviceMemoryError:
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            raise
        with suppress(RuntimeError):  # another thread captures a graph
            torch.cuda.empty_cache()
    return allocate()


def _device_memory(size: int, alignment: int) -> Any:
    cupy = import_extra("cupy", "gpu")
    with cuda_errors(f"{size:,} bytes of device memory"):
        return cupy.cuda.Memory(max(1, size + alignment - 1))


class DeviceBuffer:
    """Memory of the current device.

    Freeing it waits until the device has done all its work.

    The memory does not come from CuPy's pool. The pool would lend it to another stream while a consumer's stream still
    reads it.

    Args:
        size: bytes.
        alignment: the address is a multiple of this.

    Attributes:
        address: the address on the device.
        size: bytes.

    Raises:
        DeviceMemoryError: the device has too little memory.
    """

    def __init__(self, size: int, alignment: int = 1) -> None:
        self._memory = allocated(lambda: _device_memory(size, alignment))
        self.address, self.size = -(-int(self._memory.ptr) // alignment) * alignment, size


class PinnedBuffer:
    """Pinned memory of this machine.

    Every device reads it at its address in this process.

    Attributes:
        address: the address.
        size: bytes.

    Raises:
        HostMemoryError: the machine has too little memory.
    """

    def __init__(self, size: int) -> None:
        cupy = import_extra("cupy", "gpu")
        available = available_memory()
        if size > available:
            raise HostMemoryError(
                f"{size:,} bytes of pinned memory are needed, {available:,} are available", hint=_TIERED
            )
        try:
            with cuda_errors(f"{size:,} bytes of pinned memory"):
                self._memory = cupy.cuda.PinnedMemory(max(1, size), _PORTABLE)
        except DeviceMemoryError as error:
            raise HostMemoryError(error.message, hint=_TIERED) from error
        self.address, self.size = int(self._memory.ptr), size
        self.__array_interface__ = {"data": (self.address, False), "shape": (size,), "typestr": "|u1", "version": 3}

    def array(self) -> npt.NDArray[np.uint8]:
        """Returns the memory as uint8 [size]. The array keeps the memory alive."""
        return np.asarray(self)


class Uploader:
    """Copies arrays to the current device through two pinned buffers.

    One buffer is filled while the other is sent.

    Args:
        size: bytes of each buffer.
    """

    def __init__(self, size: int = PIECE_BYTES) -> None:
        self._cuda = import_extra("cupy", "gpu").cuda
        self._size = size
        with cuda_errors("copying to the device"):
            self._stream = self._cuda.Stream(non_blocking=True)
            self._buffers = [(PinnedBuffer(size), self._cuda.Event(disable_timing=True)) for _ in range(2)]

    def send(self, values: npt.NDArray[Any], target: int) -> None:
        """Copies a contiguous array to address `target`.

        The array may be changed after this call.
        """
        data = values.reshape(-1).view(np.uint8)
        for first in range(0, len(data), self._size):
            piece = data[first : first + self._size]
            self._buffers.reverse()
            buffer, sent = self._buffers[0]
            with cuda_errors("copying to the device"):
                # An event that was never recorded counts as done.
                sent.synchronize()
                buffer.array()[: len(piece)] = piece
                self._cuda.runtime.memcpyAsync(target + first, buffer.address, len(piece), TO_DEVICE, self._stream.ptr)
                sent.record(self._stream)

    def finish(self) -> None:
        """Waits until everything is copied."""
        with cuda_errors("copying to the device"):
            self._stream.synchronize()
