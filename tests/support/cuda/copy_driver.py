"""A stand-in for the CUDA driver's cuMemcpyBatchAsync.

It checks the arguments as the driver does. It makes the copies of a batch in reverse order, because CUDA promises no
order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

_INVALID_VALUE = 1


class CopyDriver:
    """The driver's library.

    Args:
        add: queues an operation in a stream.
        readable, writable: return the ranges of addresses (first, last + 1) of pinned memory and of device memory.

    Attributes:
        batches: sizes of the copies of each call.
    """

    def __init__(
        self,
        add: Callable[[int, Callable[[], None]], None],
        readable: Callable[[], list[tuple[int, int]]],
        writable: Callable[[], list[tuple[int, int]]],
    ) -> None:
        self._add, self._readable, self._writable = add, readable, writable
        self.batches: list[list[int]] = []

    def cuMemcpyBatchAsync_v2(
        self, targets: Any, sources: Any, sizes: Any, count: Any, attributes: Any, first: Any, number: Any, stream: Any
    ) -> int:
        copies = np.array([_numbers(pointer, count.value) for pointer in (targets, sources, sizes)], np.int64)
        words = (ctypes.c_uint32 * 6).from_address(ctypes.addressof(attributes._obj))
        valid = [
            count.value > 0,
            # The default stream's handle is 0, of each thread 1 or 2.
            (stream.value or 0) > 2,
            number.value == 1,
            first._obj.value == 0,
            # In the order of the stream; no hints; the copies shall leave the multiprocessors free.
            list(words) == [1, 0, 0, 0, 0, 1],
            (copies[2] > 0).all(),
            _within(copies[0], copies[2], self._writable()),
            _within(copies[1], copies[2], self._readable()),
        ]
        order = np.argsort(copies[0])
        valid.append((copies[0, order[1:]] >= (copies[0] + copies[2])[order[:-1]]).all())
        if not all(valid):
            return _INVALID_VALUE
        self.batches.append(copies[2].tolist())
        made = copies.T[::-1].tolist()
        self._add(stream.value, lambda: [ctypes.memmove(*copy) for copy in made] and None)
        return 0


class OldCopyDriver:
    """The library of CUDA 12.8 and 12.9, whose call also returns the index of a failed copy."""

    def __init__(self, driver: CopyDriver) -> None:
        self._driver = driver

    def cuMemcpyBatchAsync(self, *arguments: Any) -> int:
        *others, failed, stream = arguments
        assert isinstance(failed._obj, ctypes.c_size_t)
        return self._driver.cuMemcpyBatchAsync_v2(*others, stream)


def _numbers(pointer: ctypes.c_void_p, count: int) -> np.ndarray:
    return np.array((ctypes.c_int64 * count).from_address(pointer.value or 0), np.int64)


def _within(addresses: np.ndarray, sizes: np.ndarray, ranges: list[tuple[int, int]]) -> bool:
    inside = np.zeros(len(addresses), np.bool_)
    for first, last in ranges:
        inside |= (addresses >= first) & (addresses + sizes <= last)
    return bool(inside.all())
