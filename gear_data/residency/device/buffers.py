"""Pinned memory of this machine for the inputs of a batch, used again when the device has collected the batch."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gear_data.kernels.cuda.launcher import cuda_errors
from gear_data.residency.device.memory import TO_DEVICE, PinnedBuffer
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


class DeferredCounts:
    """Numbers that the device returns when its queued work is done.

    Nothing waits for the numbers until one is needed, or until their memory is used again.

    Args:
        parts: int64 [N, parts], pinned memory that receives the parts of N numbers. A number is the sum of its parts.
        event: the event after which they are there.
    """

    def __init__(self, parts: Int64Array, event: torch.cuda.Event) -> None:
        self._pending: tuple[Int64Array, torch.cuda.Event] | None = (parts, event)
        self._numbers: list[int] = []
        self._lock = threading.Lock()

    @property
    def known(self) -> bool:
        """Whether `wait` returns at once."""
        return self._pending is None

    def wait(self) -> list[int]:
        """Waits for the numbers, and returns them.

        Raises:
            DeviceError: the device fails.
        """
        with self._lock:
            if self._pending is not None:
                parts, event = self._pending
                with cuda_errors("waiting for a batch"):
                    event.synchronize()
                self._numbers, self._pending = parts.sum(1).tolist(), None
            return self._numbers


@dataclass(slots=True)  # not frozen: see gear_data.selection.windows
class DeferredCount:
    """One of several numbers that the device returns later.

    Attributes:
        counts: all of them.
        place: the place of this one.
    """

    counts: DeferredCounts
    place: int

    @property
    def known(self) -> bool:
        """Whether `wait` returns at once."""
        return self.counts.known

    def wait(self) -> int:
        """Waits for the number, and returns it."""
        return self.counts.wait()[self.place]


class UploadBuffer:
    """Pinned memory for the inputs of a launch, sent to the device in one copy.

    The inputs are arrays of eight-byte numbers.

    Args:
        words: the most numbers.
    """

    def __init__(self, words: int) -> None:
        self._memory = PinnedBuffer(8 * words)
        self._words = self._memory.array().view(np.int64)
        self._address = self._used = 0

    def clear(self, address: int) -> None:
        """Empties the buffer. The last copy must have ended.

        address: the address on the device to which the next copy goes.
        """
        self._address, self._used = address, 0

    def put(self, values: npt.NDArray[Any]) -> int:
        """Adds a contiguous array, and returns its address on the device."""
        first, self._used = self._used, self._used + values.size
        self._words[first : self._used] = values.reshape(-1).view(np.int64)
        return self._address + 8 * first

    def reserve(self, count: int) -> int:
        """Returns the address of memory on the device for `count` numbers, whose values are undefined."""
        first, self._used = self._used, self._used + count
        return self._address + 8 * first

    def send(self, runtime: Any, stream: int) -> None:
        """Starts the copy, if there is anything to copy.

        Args:
            runtime: CuPy's module `cuda.runtime`.
            stream: the handle of a stream.
        """
        if self._used:
            runtime.memcpyAsync(self._address, self._memory.address, 8 * self._used, TO_DEVICE, stream)


class BatchInputs:
    """What this machine holds for batches that are collected together.

    Args:
        words: the most numbers that are uploaded.
        sums: the most sums that the device returns.
        make_staging: creates the staging buffer.

    Attributes:
        upload: the uploaded numbers.
        staging: memory for rows that no kernel reads in place.
        sums: int64 [sums], pinned memory for sums of bytes that the device returns.
        sums_address: its address.
        valid_counts: the numbers of which these sums are parts; None: the device returned none for these batches.
        collected: an event: the batches are complete, and the pinned memory is no longer read.
    """

    def __init__(self, words: int, sums: int, make_staging: Callable[[], StagingBuffer]) -> None:
        self._process = os.getpid()
        self.collected = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.valid_counts: DeferredCounts | None = None
        self.upload = UploadBuffer(words)
        memory = PinnedBuffer(8 * sums)
        self.sums: Int64Array = memory.array().view(np.int64)
        self.sums_address = memory.address
        self.staging = make_staging()

    def __del__(self, wait: Callable[[Any, int], None] = wait_before_free) -> None:
        wait(self.collected.synchronize, self._process)
        if self.valid_counts is not None:  # a batch may hold them, and they hold the pinned memory until they are read
            wait(self.valid_counts.wait, self._process)

    def clear(self, address: int) -> None:
        """Prepares the pinned memory for the next batch, and waits for the last one.

        address: the address on the device to which numbers are uploaded.
        """
        if self.valid_counts is not None:
            self.valid_counts.wait()
            # They say nothing about a later collection, whose windows the CPU may draw.
            self.valid_counts = None
        else:
            self.collected.synchronize()
        self.staging.clear()
        self.upload.clear(address)


class InputPool:
    """Inputs of batches, used again after the batches were handed over.

    Args:
        make: creates inputs.
        most: the number from which on a lease waits for the device.
    """

    def __init__(self, make: Callable[[], BatchInputs], most: int) -> None:
        self._make, self._most, self._made = make, most, 0
        # First in, first out: the collection of the oldest has usually ended. append and popleft are atomic.
        self._idle: deque[BatchInputs] = deque()

    def take(self) -> BatchInputs:
        """Returns inputs that the device no longer reads, or new ones."""
        try:
            oldest = self._idle.popleft()
        except IndexError:
            self._made += 1
            return self._make()
        if self._made < self._most and not oldest.collected.query():  # type: ignore[no-untyped-call]
            self._idle.appendleft(oldest)
            self._made += 1
            return self._make()
        return oldest

    def give_back(self, inputs: BatchInputs) -> None:
        """Takes the inputs of batches that were handed over."""
        self._idle.append(inputs)
