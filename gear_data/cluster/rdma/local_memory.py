"""Memory of this process that READs write to, registered when it is first used for that."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import numpy.typing as npt

from gear_data.cluster.rdma.device import Device, Region
from gear_data.cluster.rdma.gpu_memory import register_gpu_memory
from gear_data.collection.buffers import BufferPool, pooled_memory
from gear_data.residency.device.memory import DeviceBuffer, PinnedBuffer

#: What rows go to: of this machine, or of a GPU.
Memory = npt.NDArray[np.uint8] | PinnedBuffer | DeviceBuffer

#: Of a buffer for rows that are to be packed; what is larger has one of its own that is not used again.
_STAGING_BYTES = 8 << 20


class LocalMemory:
    """Safe to use from several threads.

    Args:
        device: that it is registered with. To be closed after this.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._access = device.library.enums.IBV_ACCESS_LOCAL_WRITE
        self._regions: dict[int, Region] = {}
        self._lock = threading.Lock()
        self._staging = BufferPool(_STAGING_BYTES, lambda _: None, reuse=True)

    def region(self, memory: Memory) -> Region:
        """That of memory, which is registered as long as it lives. Raises DeviceError."""
        region = self._regions.get(id(memory))
        if region is None:
            with self._lock:
                region = self._regions.get(id(memory))
                if region is None:
                    region = self._registered(memory)
                    self._regions[id(memory)] = region
                    weakref.finalize(memory, _withdraw, self._regions, id(memory)).atexit = False
        return region

    def _registered(self, memory: Memory) -> Region:
        if isinstance(memory, DeviceBuffer):
            return register_gpu_memory(self._device, memory.address, memory.size, self._access)
        at = memory.address if isinstance(memory, PinnedBuffer) else memory.ctypes.data
        size = memory.size if isinstance(memory, PinnedBuffer) else memory.nbytes
        return Region(self._device.register(at, size, self._access))

    def stage(self, size: int) -> tuple[npt.NDArray[np.uint8], int]:
        """uint8 [size] for a READ to write to, and its key. Raises DeviceError."""
        leased = self._staging.lease()[0] if size <= _STAGING_BYTES else np.empty(size, np.uint8)
        memory = pooled_memory(leased)
        return leased[:size], self.region(leased if memory is None else memory).key

    def close(self) -> None:
        """Withdraws all of it; what lives still is registered anew when it is used again."""
        while self._regions:
            self._regions.popitem()[1].close()


def _withdraw(regions: dict[int, Region], key: int) -> None:
    # Before the memory is given back, which is when this is called.
    region = regions.pop(key, None)
    if region is not None:
        region.close()
