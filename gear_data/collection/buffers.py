"""Memory for batches: buffers that a pool lends and uses again.

A lease ends when the last array over its buffer is gone, in whatever thread that happens. Arrays, tensors and views of
them keep the lease alive, so the memory of a batch is never overwritten while a consumer holds it.

Why: docs/explanation/decisions/leased-buffers.md
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
#: Number of bytes -> new memory of this size, uint8.
Allocate = Callable[[int], npt.NDArray[np.uint8]]

#: Buffers, and the arrays in them, begin at multiples of this many bytes.
ALIGNMENT = 256
#: The most idle buffers that a pool keeps. Prefetching holds more for a moment; those need not stay in memory.
IDLE_BUFFERS = 8


class GiveBack(weakref.ref[Any], Generic[T]):
    """A weak reference that enters a deque when its object dies, without Python code.

    Signal handlers run between the instructions of Python code. A KeyboardInterrupt that is raised inside `__del__`, or
    inside a callback written in Python, is printed and lost. So the death of an object must not run such code in the
    main thread.

    It must itself live until then, so the object refers to it. An array cannot be the object: the attributes of an
    array, of a class that derives from `numpy.ndarray`, die before its weak references are called.

    Attributes:
        item: what is given back.
    """

    __slots__ = ("item",)
    item: T


def give_back(item: T, to: deque[GiveBack[T]], when_dead: Any) -> GiveBack[T]:
    """Returns a reference that enters the deque `to` when `when_dead` dies.

    The object may die in any thread. `deque.append` is compiled code, so nothing can interrupt it.
    """
    reference: GiveBack[T] = GiveBack(when_dead, to.append)
    reference.item = item
    return reference


def plain_memory(size: int) -> npt.NDArray[np.uint8]:
    """Returns new memory of this process, uint8 [size]."""
    return np.empty(size, np.uint8)


class _Memory(np.ndarray[Any, Any]):
    """The memory of a buffer: uint8 [size], aligned to `ALIGNMENT`.

    NumPy collapses the chain of bases of a view while the bases have the same class. This separate class stops that.
    Otherwise, a lease would have the owner of the memory as its base.
    """


class _Loan:
    """Dies with the lease that keeps it, which gives the buffer back.

    Weak references to a lease itself would not do: the attributes of an array die before the array, and with them the
    reference. The slots of this object die after its references were called.
    """

    __slots__ = ("__weakref__", "given_back")
    given_back: GiveBack[tuple[npt.NDArray[np.uint8], Any]]


class _Lease(np.ndarray[Any, Any]):
    """A view of a lent buffer, which the lent array has as its base.

    Arrays over the lent array, or over this view, keep the loan.
    """

    loan: _Loan


class BufferPool(Generic[T]):
    """Buffers of one size, lent last in, first out.

    The buffer that was used last is probably still in the processor's cache.

    Args:
        size: bytes of a buffer.
        describe: called once for each new buffer with its memory, uint8 [size]. Every lease comes with the result.
        reuse: False gives every lease new memory, for batches that other processes receive.
        allocate: number of bytes -> new memory of this size.
    """

    def __init__(
        self, size: int, describe: Callable[[npt.NDArray[np.uint8]], T], *, reuse: bool,
        allocate: Callable[[int], npt.NDArray[np.uint8]] = plain_memory,
    ) -> None:  # fmt: skip
        self._size = size
        self._new_memory = allocate
        self._describe = describe
        self._reuse = reuse
        # append and pop are atomic: leases end in any thread. Beyond the limit, the buffer that idles longest is freed.
        self._idle: deque[GiveBack[tuple[npt.NDArray[np.uint8], T]]] = deque(maxlen=IDLE_BUFFERS)

    def lease(self) -> tuple[npt.NDArray[np.uint8], T]:
        """Lends a buffer.

        Returns:
            uint8 [size], and the description of the buffer. The pool does not use the memory again while the array or
            a view of it lives.
        """
        try:
            buffer = self._idle.pop().item
        except IndexError:
            buffer = self._allocate()
        memory, description = buffer
        if not self._reuse:
            return memory, description
        lease = memory.view(_Lease)
        lease.loan = loan = _Loan()
        loan.given_back = give_back(buffer, self._idle, loan)
        return np.ndarray(self._size, np.uint8, lease), description

    def _allocate(self) -> tuple[npt.NDArray[np.uint8], T]:
        raw = self._new_memory(self._size + ALIGNMENT)
        skip = -raw.ctypes.data % ALIGNMENT
        memory = raw[skip : skip + self._size].view(_Memory)
        return memory, self._describe(memory)


def is_leased(array: npt.NDArray[Any]) -> bool:
    """Returns whether an array keeps a lease alive: nobody else writes to its memory."""
    base: Any = array
    while base is not None:
        if isinstance(base, _Lease):
            return True
        base = getattr(base, "base", None)
    return False


def pooled_memory(leased: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8] | None:
    """Returns the whole buffer behind a lease, or None.

    The result is the same array for every lease of the buffer. It is None if the pool does not use the memory again.
    """
    lease: Any = leased.base
    return lease.loan.given_back.item[0] if isinstance(lease, _Lease) else None
