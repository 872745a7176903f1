"""Memory that a GPU reads: its own, and memory of this machine whose pages are pinned."""

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

#: cudaHostAllocPortable: every device reads it.
_PORTABLE = 1
#: cudaHostRegisterPortable, cudaHostRegisterMapped and cudaHostRegisterReadOnly; CuPy has no names for them.
_REGISTER_READ_ONLY = 1 | 2 | 8
#: cudaMemcpyHostToDevice and cudaMemcpyDeviceToHost.
TO_DEVICE, TO_HOST = 1, 2
#: Bytes of columns that are copied at once.
PIECE_BYTES = 32 << 20


#: What to do about too little host memory.
_TIERED = "ds.place(ds.residency_plan(...)) leaves on disk what does not fit"


class DeviceBuffer:
    """Memory of the current device, freed with this, once all that the device does then is done.

    Not from CuPy's pool: that would give it to another stream while a consumer's own still reads it.

    Args:
        alignment: of the address.

    Attributes:
        address, size: where, and bytes.

    Raises:
        DeviceMemoryError: the device has too little.
    """

    def __init__(self, size: int, alignment: int = 1) -> None:
        cupy = import_extra("cupy", "gpu")
        with cuda_errors(f"{size:,} bytes of device memory"):
            self._memory = cupy.cuda.Memory(max(1, size + alignment - 1))
        self.address, self.size = -(-int(self._memory.ptr) // alignment) * alignment, size


class PinnedBuffer:
    """Pinned memory of this machine, which every device reads at the address it has here.

    Attributes:
        address, size: where, and bytes.

    Raises:
        HostMemoryError: the machine has too little.
    """

    def __init__(self, size: int) -> None:
        cupy = import_extra("cupy", "gpu")
        available = available_memory()
        if size > available:
            raise HostMemoryError(f"{size:,} bytes of pinned memory are wanted, {available:,} available", hint=_TIERED)
        with _host_errors(f"{size:,} bytes of pinned memory"):
            self._memory = cupy.cuda.PinnedMemory(max(1, size), _PORTABLE)
        self.address, self.size = int(self._memory.ptr), size
        self.__array_interface__ = {"data": (self.address, False), "shape": (size,), "typestr": "|u1", "version": 3}

    def array(self) -> npt.NDArray[np.uint8]:
        """uint8 [size]; keeps the memory."""
        return np.asarray(self)


class RegisteredMemory:
    """Memory that is mapped read-only here, registered for devices to read as long as this lives.

    A process that is forked off has the mapping, but must not use it on a device.

    Attributes:
        shift: what an address here has to be added to be the device's.

    Raises:
        DeviceError: the device or its driver does not register such memory.
        HostMemoryError: the machine does not let so much be pinned.
    """

    def __init__(self, buffer: pa.Buffer) -> None:
        runtime = import_extra("cupy", "gpu").cuda.runtime
        with _host_errors("registering the columns in host memory"):
            # Whole pages, as older drivers want it: those of a mapping are.
            size = -(-buffer.size // mmap.PAGESIZE) * mmap.PAGESIZE
            runtime.hostRegister(buffer.address, size, _REGISTER_READ_ONLY)
        # Before the memory is unmapped, which `buffer` is kept for.
        self.close = weakref.finalize(self, _unregister, runtime, buffer, os.getpid())
        self.close.atexit = False
        _registered.add(self)
        with cuda_errors("registering the columns in host memory"):
            pointer = int(runtime.pointerGetAttributes(buffer.address).devicePointer)
        if not pointer:
            raise DeviceError("the columns in host memory are registered, but the device has no address for them")
        self.shift = pointer - buffer.address


@contextlib.contextmanager
def _host_errors(doing: str) -> Iterator[None]:
    """As `cuda_errors`; memory that runs out is the host's."""
    try:
        with cuda_errors(doing):
            yield
    except DeviceMemoryError as error:
        raise HostMemoryError(error.message, hint=f"{_TIERED}; `ulimit -l` limits what is pinned") from error


def _unregister(runtime: Any, buffer: pa.Buffer, process: int) -> None:
    if os.getpid() == process:
        # After an error that the context does not survive there is nothing left to unregister.
        with contextlib.suppress(runtime.CUDARuntimeError):
            runtime.deviceSynchronize()
            runtime.hostUnregister(buffer.address)


#: To unregister before the CUDA context goes. Of what runs at exit, what was registered first comes last: this module
#: is imported before any that starts threads which launch kernels, so those have ended then.
_registered: weakref.WeakSet[RegisteredMemory] = weakref.WeakSet()


@atexit.register
def _unregister_all() -> None:
    for memory in list(_registered):
        memory.close()


class Uploader:
    """Copies arrays to memory of the current device, through two pinned buffers: one is filled while the other is sent.

    Args:
        size: bytes of each.
    """

    def __init__(self, size: int = PIECE_BYTES) -> None:
        self._cuda = import_extra("cupy", "gpu").cuda
        self._size = size
        with cuda_errors("copying to the device"):
            self._stream = self._cuda.Stream(non_blocking=True)
            self._stages = [(PinnedBuffer(size), self._cuda.Event(disable_timing=True)) for _ in range(2)]

    def send(self, values: npt.NDArray[Any], target: int) -> None:
        """values: contiguous; they may be changed when this returns."""
        data = values.reshape(-1).view(np.uint8)
        for first in range(0, len(data), self._size):
            piece = data[first : first + self._size]
            self._stages.reverse()
            stage, sent = self._stages[0]
            with cuda_errors("copying to the device"):
                # An event that was never recorded has happened.
                sent.synchronize()
                stage.array()[: len(piece)] = piece
                self._cuda.runtime.memcpyAsync(target + first, stage.address, len(piece), TO_DEVICE, self._stream.ptr)
                sent.record(self._stream)

    def finish(self) -> None:
        """Waits for all of it."""
        with cuda_errors("copying to the device"):
            self._stream.synchronize()
