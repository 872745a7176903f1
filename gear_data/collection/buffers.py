"""Memory for batches, lent out and used again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: Where arrays of a buffer begin: at multiples of it.
ALIGNMENT = 256
#: Buffers kept for reuse; more than prefetching holds at once need not stay hot.
IDLE_BUFFERS = 8


class _Lease:
    """A buffer lent out. Arrays made over it hold it; when the last of them dies it goes back to its pool."""

    __slots__ = ("__array_interface__", "_buffer", "_idle")

    def __init__(self, buffer: _Buffer, idle: list[_Buffer]) -> None:
        self._buffer = buffer
        self._idle = idle
        self.__array_interface__ = buffer.memory.__array_interface__

    def __del__(self, limit: int = IDLE_BUFFERS) -> None:
        # `limit` is bound here since a module's names are gone when leases end at interpreter exit.
        if len(self._idle) < limit:
            self._idle.append(self._buffer)


@dataclass(frozen=True)
class _Buffer:
    """uint8 [size], aligned to 256 bytes, and int64 [parts]: the address of each part of it."""

    memory: npt.NDArray[np.uint8]
    addresses: npt.NDArray[np.int64]


class BufferPool:
    """Buffers of one size, last in first out: the one used last is the one still in the cache.

    Args:
        size: bytes.
        parts: int64, where in the buffer its parts begin.
        reuse: False gives every batch memory of its own, for batches handed to other processes.
    """

    def __init__(self, size: int, parts: npt.NDArray[np.int64], *, reuse: bool) -> None:
        self._size = size
        self._parts = parts
        self._reuse = reuse
        # list.append and list.pop are atomic, and leases end in whatever thread drops the last array.
        self._idle: list[_Buffer] = []

    def lease(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        """uint8 [size], whose memory is not used again while it or a view of it lives, and its parts' addresses."""
        try:
            buffer = self._idle.pop()
        except IndexError:
            raw = np.empty(self._size + ALIGNMENT, np.uint8)
            skip = -raw.ctypes.data % ALIGNMENT
            buffer = _Buffer(raw[skip : skip + self._size], self._parts + (raw.ctypes.data + skip))
        return np.asarray(_Lease(buffer, self._idle)) if self._reuse else buffer.memory, buffer.addresses


def pooled_memory(leased: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8] | None:
    """The whole buffer that a pool lent, the same array each time it does; None if it is not used again."""
    lease = leased.base
    return lease._buffer.memory if isinstance(lease, _Lease) else None
