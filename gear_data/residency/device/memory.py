"""Memory that a GPU reads: device memory, and pinned memory of this machine."""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.extras import import_extra
from gear_data.errors import DeviceError, DeviceMemoryError, HostMemoryError
from gear_data.kernels.cuda.launcher import cuda_errors
from gear_data.residency.available_memory import available_memory

#: cudaHostAllocPortable: every device can read the memory.
_PORTABLE = 1
#: cudaHostRegisterPortable, cudaHostRegisterMapped and cudaHostRegisterReadOnly; CuPy has no names for them.
_REGISTER_READ_ONLY = 1 | 2 | 8
#: cudaMemcpyHostToDevice and cudaMemcpyDeviceToHost.
TO_DEVICE, TO_HOST = 1, 2
#: Bytes of columns that are copied at a time.
PIECE_BYTES = 32 << 20
#: The hint for too little host memory.
_TIERED = "use ds.place(ds.residency_plan(...)): columns that do not fit stay on disk"


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
        cupy = import_extra("cupy", "gpu")
        with cuda_errors(f"{size:,} bytes of device memory"):
            self._memory = cupy.cuda.Memory(max(1, size + alignment - 1))
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
        with _host_errors(f"{size:,} bytes of pinned memory"):
            self._memory = cupy.cuda.PinnedMemory(max(1, size), _PORTABLE)
        self.address, self.size = int(self._memory.ptr), size
        self.__array_interface__ = {"data": (self.address, False), "shape": (size,), "typestr": "|u1", "version": 3}

    def array(self) -> npt.NDArray[np.uint8]:
        """Returns the memory as uint8 [size]. The array keeps the memory alive."""
        return np.asarray(self)


class RegisteredMemory:
    """A read-only mapping of this process, registered for devices to read.

    The mapping is registered as long as this object lives.

    A forked child has the mapping, but must not use it on a device.

    Attributes:
        shift: address on the device minus address in this process.

    Raises:
        DeviceError: the device or its driver does not register such memory.
        HostMemoryError: the machine does not allow this much pinned memory.
    """

    def __init__(self, buffer: pa.Buffer) -> None:
        runtime = import_extra("cupy", "gpu").cuda.runtime
        with _host_errors("registering the columns in host memory"):
            # Older drivers register whole pages only; a mapping has whole pages.
            size = -(-buffer.size // mmap.PAGESIZE) * mmap.PAGESIZE
            runtime.hostRegister(buffer.address, size, _REGISTER_READ_ONLY)
        # The finalizer holds `buffer`, so the memory is unregistered before it is unmapped.
        self.close = weakref.finalize(self, _unregister, runtime, buffer, os.getpid())
        self.close.atexit = False
        _registered.add(self)
        with cuda_errors("registering the columns in host memory"):
            pointer = int(runtime.pointerGetAttributes(buffer.address).devicePointer)
        if not pointer:
            raise DeviceError("the columns in host memory are registered, but have no address on the device")
        self.shift = pointer - buffer.address


@contextlib.contextmanager
def _host_errors(doing: str) -> Iterator[None]:
    """Like `cuda_errors`, but too little memory raises HostMemoryError."""
    try:
        with cuda_errors(doing):
            yield
    except DeviceMemoryError as error:
        raise HostMemoryError(error.message, hint=f"{_TIERED}; `ulimit -l` limits pinned memory") from error


def _unregister(runtime: Any, buffer: pa.Buffer, process: int) -> None:
    if os.getpid() == process:
        # After an error that ends the CUDA context there is nothing left to unregister.
        with contextlib.suppress(runtime.CUDARuntimeError):
            runtime.deviceSynchronize()
            runtime.hostUnregister(buffer.address)


#: Registered memory, to unregister before the CUDA context ends. Exit handlers run in reverse order. This module is
#: imported before modules that start threads which launch kernels, so these threads have ended by then.
_registered: weakref.WeakSet[RegisteredMemory] = weakref.WeakSet()


@atexit.register
def _unregister_all() -> None:
    for memory in list(_registered):
        memory.close()


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
