"""LocalMemory: memory of this process that READs write to.

It is registered on first use.
"""

from __future__ import annotations

import threading
import weakref

import numpy as np
import numpy.typing as npt

from gear_data.cluster.rdma.device import Device, Region
from gear_data.cluster.rdma.gpu_memory import register_gpu_memory
from gear_data.collection.buffers import BufferPool, pooled_memory
from gear_data.residency.device.memory import DeviceBuffer, PinnedBuffer

#: Memory that rows are written to: of this machine, or of a GPU.
Memory = npt.NDArray[np.uint8] | PinnedBuffer | DeviceBuffer

#: Size of a pooled buffer for packed rows. A larger response gets a new buffer, which is not reused.
_STAGING_BYTES = 8 << 20


class LocalMemory:
    """Registered memory of one device. Thread-safe.

    Args:
        device: the device; it must be closed after this object.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._access = device.library.enums.IBV_ACCESS_LOCAL_WRITE
        self._regions: dict[int, Region] = {}
        self._lock = threading.Lock()
        self._staging = BufferPool(_STAGING_BYTES, lambda _: None, reuse=True)

    def region(self, memory: Memory) -> Region:
        """Returns the region of some memory, and registers the memory on first use.

        The memory stays registered as long as it lives.

        Raises:
            DeviceError: the memory cannot be registered.
        """
        region = self._regions.get(id(memory))
        if region is None:
            with self._lock:
                region = self._regions.get(id(memory))
                if region is None:
                    region = self._register(memory)
                    self._regions[id(memory)] = region
                    weakref.finalize(memory, _deregister, self._regions, id(memory)).atexit = False
        return region

    def _register(self, memory: Memory) -> Region:
        if isinstance(memory, DeviceBuffer):
            return register_gpu_memory(self._device, memory.address, memory.size, self._access)
        address = memory.address if isinstance(memory, PinnedBuffer) else memory.ctypes.data
        size = memory.size if isinstance(memory, PinnedBuffer) else memory.nbytes
        return Region(self._device.register(address, size, self._access))

    def stage(self, size: int) -> tuple[npt.NDArray[np.uint8], int]:
        """Returns uint8 [size] that READs may write to, and its key.

        Raises:
            DeviceError: the memory cannot be registered.
        """
        leased = self._staging.lease()[0] if size <= _STAGING_BYTES else np.empty(size, np.uint8)
        memory = pooled_memory(leased)
        return leased[:size], self.region(leased if memory is None else memory).key

    def close(self) -> None:
        """Deregisters everything.

        Memory that still lives is registered again on its next use.
        """
        while self._regions:
            self._regions.popitem()[1].close()


def _deregister(regions: dict[int, Region], key: int) -> None:
    # Called just before the memory is freed.
    region = regions.pop(key, None)
    if region is not None:
        region.close()
