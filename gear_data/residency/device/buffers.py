"""Memory for batches on a device, lent out and used again."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.buffers import ALIGNMENT
from gear_data.collection.give_back import GiveBack, give_back
from gear_data.collection.plan import BatchPlan
from gear_data.residency.device.memory import TO_DEVICE, DeviceBuffer, PinnedBuffer
from gear_data.residency.device.staging import StagingBuffer
from gear_data.selection.windows import Int64Array


def wait_before_free(
    finish: Callable[[], Any], process: int, getpid: Callable[[], int] = os.getpid, ignore: Any = suppress
) -> None:
    """Waits until the device no longer reads pinned memory that will be freed.

    Device memory needs no wait, because freeing it waits by itself. A forked child, and a process whose context is
    lost, have nothing to wait for. `getpid` and `ignore` are bound as defaults, because a module's names are gone at
    interpreter exit.
    """
    if getpid() == process:
        with ignore(Exception):
            finish()


class DeferredCount:
    """A number that the device returns when its queued work is done.

    Nothing waits for the number until it is needed, or until its memory is used again.

    Args:
        answer: int64 [1], pinned memory that receives the number.
        event: the event after which the number is there.
    """

    def __init__(self, answer: Int64Array, event: Any) -> None:
        self._pending: tuple[Int64Array, Any] | None = (answer, event)
        self._number = 0
        self._lock = threading.Lock()

    @property
    def known(self) -> bool:
        """Whether `wait` returns at once."""
        return self._pending is None

    def wait(self) -> int:
        """Waits for the number, and returns it."""
        with self._lock:
            if self._pending is not None:
                answer, event = self._pending
                event.synchronize()
                self._number, self._pending = int(answer[0]), None
            return self._number


class UploadBuffer:
    """Pinned memory for the inputs of a launch, sent to the device in one copy.

    The inputs are arrays of eight-byte numbers.

    Args:
        words: the most numbers.
        address: their address on the device.

    Attributes:
        answer: int64 [1], pinned memory for a number that the device returns.
    """

    def __init__(self, words: int, address: int) -> None:
        self._memory = PinnedBuffer(8 * words + 8)
        self._words = self._memory.array().view(np.int64)
        self.answer = self._words[-1:]
        self._address = address
        self._used = 0

    def clear(self) -> None:
        """Empties the buffer. The last copy must have ended."""
        self._used = 0

    def put(self, values: npt.NDArray[Any]) -> int:
        """Adds a contiguous array, and returns its address on the device."""
        first, self._used = self._used, self._used + values.size
        self._words[first : self._used] = values.reshape(-1).view(np.int64)
        return self._address + 8 * first

    def reserve(self, count: int) -> int:
        """Returns the address of memory on the device for `count` numbers, whose values are undefined."""
        first, self._used = self._used, self._used + count
        return self._address + 8 * first

    def send(self, runtime: Any, stream: Any) -> None:
        """Starts the copy. runtime, stream: of CuPy."""
        runtime.memcpyAsync(self._address, self._memory.address, 8 * self._used, TO_DEVICE, stream.ptr)


class BatchBuffer:
    """Memory for one batch, or for several batches that are collected together.

    Args:
        plan: the layout of a batch.
        words: the most numbers that are uploaded for a batch, in addition to the arrays' addresses.
        drawn_words: numbers of device memory for drawing windows there.
        make_staging: creates the staging buffer.
        cuda: CuPy's module `cuda`.

    Attributes:
        memory: device memory: the arrays, then the uploaded numbers (at address `outputs`, the arrays' addresses
            first), the bytes of valid rows (`valid`), and the drawn windows (`drawn`).
        addresses: int64 [arrays], the arrays' addresses.
        upload: pinned memory of this machine.
        staging: memory for rows that no kernel reads in place.
        valid_count: the number that the device returns for the last batch; None: the device returns none.
        collected: an event: the arrays are complete, and the pinned memory is no longer read.
        released: an event: the consumer's stream no longer uses the arrays.
    """

    def __init__(
        self, plan: BatchPlan, words: int, drawn_words: int, make_staging: Callable[[], StagingBuffer], cuda: Any
    ) -> None:
        head = -(-plan.size // ALIGNMENT) * ALIGNMENT
        self.collected, self.released = cuda.Event(disable_timing=True), cuda.Event(disable_timing=True)
        self._process = os.getpid()
        self.valid_count: DeferredCount | None = None
        uploaded = len(plan.arrays) + words
        self.memory = DeviceBuffer(head + 8 * (uploaded + 1 + drawn_words))
        self.outputs = self.memory.address + head
        self.upload = UploadBuffer(uploaded, self.outputs)
        self.valid = self.outputs + 8 * uploaded
        self.drawn = self.valid + 8
        self.staging = make_staging()
        self.addresses = plan.offsets + self.memory.address

    def __del__(self, wait: Callable[[Any, int], None] = wait_before_free) -> None:
        wait(self.collected.synchronize if self.valid_count is None else self.valid_count.wait, self._process)

    def clear(self) -> None:
        """Prepares the pinned memory for the next batch.

        Waits for the last collection, which has usually ended.
        """
        self.collected.synchronize()
        if self.valid_count is not None:
            self.valid_count.wait()
        self.staging.clear()
        self.upload.clear()
        self.upload.put(self.addresses)


class DevicePool:
    """Buffers of batches, used again once their consumer's stream has released them.

    Args:
        make: creates a buffer.
        keep: the most idle buffers.
    """

    def __init__(self, make: Callable[[], BatchBuffer], keep: int) -> None:
        self._make = make
        self._keep = keep
        # First in, first out: the collection of the oldest buffer has ended, so nobody waits for its pinned memory.
        self._idle: deque[BatchBuffer] = deque()
        # No object of this process refers to the arrays of these buffers, but a device may still read them. append and
        # popleft are atomic, and leases end in the thread that drops the last tensor.
        self._dropped: deque[GiveBack[BatchBuffer]] = deque()

    def lease(self) -> BatchLease:
        """Lends an idle buffer, or a new one."""
        try:
            buffer = self._idle.popleft()
        except IndexError:
            buffer = self._make()
        return BatchLease(buffer, self._dropped)

    def release(self, runtime: Any, stream: int) -> None:
        """Makes dropped buffers available again, after all work that is now in a stream.

        Args:
            runtime: CuPy's module `cuda.runtime`.
            stream: the stream's handle.
        """
        while self._dropped:
            buffer = self._dropped.popleft().item
            runtime.eventRecord(buffer.released.ptr, stream)
            if len(self._idle) < self._keep:
                self._idle.append(buffer)


class BatchLease:
    """A lent buffer.

    Arrays over the buffer hold the lease. When the last of these arrays dies, the buffer goes back to the pool.
    """

    # Weak references to an object of this class are told of its death before its attributes die.
    __slots__ = ("__weakref__", "_given_back", "buffer")

    def __init__(self, buffer: BatchBuffer, dropped: deque[GiveBack[BatchBuffer]]) -> None:
        self.buffer = buffer
        self._given_back = give_back(buffer, dropped, self)
