"""Collection on a GPU: batches in device memory, filled on a stream of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.buffers import ALIGNMENT
from gear_data.collection import BatchPlan
from gear_data.extras import import_extra
from gear_data.kernels.cuda import CudaLauncher, cuda_errors
from gear_data.residency.cuda_memory import DeviceBuffer
from gear_data.residency.device_columns import DeviceColumns
from gear_data.residency.device_reader import DeviceReader, Prepared, Stage, Upload
from gear_data.residency.reader import ShardReader
from gear_data.selection.windows import Int64Array, Windows

#: Numbers that a row of a batch comes with beside its arrays, at most: see `DeviceCollector.collect`.
MOST_FACTS = 4


def _wait(queued: Any, process: int, getpid: Callable[[], int] = os.getpid, ignore: Any = suppress) -> None:
    """Before pinned memory is freed: nothing reads it any more. That of the device waits by itself. A forked child has
    nothing to wait for, nor has one whose context is lost; at exit this module's names are gone."""
    if getpid() == process:
        with ignore(Exception):
            queued.synchronize()


class _Buffer:
    """Memory of one batch, or of several that are collected together: their arrays, and what the kernel reads.

    Attributes:
        memory: on the device: the arrays; their addresses; and what is uploaded.
        upload, stage: of this machine, pinned.
        collected: when the arrays are full, and what is pinned is no longer read.
        released: when the consumer's stream let go of the arrays.
    """

    def __init__(self, plan: BatchPlan, words: int, stage_bytes: int, cuda: Any) -> None:
        head = -(-plan.size // ALIGNMENT) * ALIGNMENT
        self.collected, self.released = cuda.Event(disable_timing=True), cuda.Event(disable_timing=True)
        self._process = os.getpid()
        self.memory = DeviceBuffer(head + 8 * (len(plan.fields) + words))
        self.outputs = self.memory.address + head
        self.upload = Upload(len(plan.fields) + words, self.outputs)
        self.stage = Stage(stage_bytes)
        self._places = plan.offsets + self.memory.address

    def __del__(self, wait: Callable[[Any, int], None] = _wait) -> None:
        wait(self.collected, self._process)

    def clear(self) -> None:
        """Makes the pinned memory ready to be written: waits for the collection before, long done as a rule."""
        self.collected.synchronize()
        self.stage.clear()
        self.upload.clear()
        self.upload.put(self._places)


class DevicePool:
    """Buffers of batches, which are used again when their consumer's stream has let go of them.

    Args:
        make: a new buffer.
        keep: how many are kept for reuse.
    """

    def __init__(self, make: Callable[[], _Buffer], keep: int) -> None:
        self._make = make
        self._keep = keep
        # list.append and list.pop are atomic, and leases end in whatever thread drops the last tensor.
        self._idle: list[_Buffer] = []
        self._dropped: list[_Buffer] = []

    def take(self) -> _Buffer:
        try:
            return self._idle.pop()
        except IndexError:
            return self._make()

    def drop(self, buffer: _Buffer) -> None:
        """Nothing of this process refers to its arrays any more; a device may read them still."""
        self._dropped.append(buffer)

    def release(self, runtime: Any, stream: int) -> None:
        """What was dropped is used again after all that is in the stream of this handle now. runtime: CuPy's."""
        while self._dropped:
            buffer = self._dropped.pop()
            runtime.eventRecord(buffer.released.ptr, stream)
            if len(self._idle) < self._keep:
                self._idle.append(buffer)


class _Lease:
    """A buffer lent out. What is made over it holds it; when the last of that dies it goes back to its pool."""

    __slots__ = ("_buffer", "_pool")

    def __init__(self, buffer: _Buffer, pool: DevicePool) -> None:
        self._buffer, self._pool = buffer, pool

    def __del__(self) -> None:
        self._pool.drop(self._buffer)


@dataclass(slots=True)  # made for every batch: see Windows
class OnDevice:
    """Batches in device memory, as `gear_data.collection.BatchPlan` lays them out; full when `collected` has happened.

    Attributes:
        array: uint8, a CuPy array of the buffer; its memory is not used again while it, or what is made of it, lives.
        facts: name -> where in the buffer its numbers begin.
        valid_bytes: int64 [batches], of each without padding.
        collected: an event.
    """

    array: Any
    facts: dict[str, int]
    valid_bytes: Int64Array
    collected: Any


class DeviceCollector:
    """Fills batches on a device, on a stream of its own: it waits for nothing but a buffer's last use. Safe to call
    from several threads.

    Args:
        sources: of each dataset, what reads it on the CPU, and where kernels read it.
        plan: what is collected.
        rows: windows of a full batch, of all batches that share a buffer.
        device: its number.
        sm_budget: see `CudaLauncher`.
        keep: buffers kept for reuse.

    Raises:
        as `CudaLauncher` and `DeviceColumns.check_process`.
        DeviceMemoryError, HostMemoryError: too little memory.
    """

    def __init__(
        self,
        sources: Sequence[tuple[ShardReader, DeviceColumns]],
        plan: BatchPlan,
        rows: int,
        *,
        device: int,
        sm_budget: float,
        keep: int,
    ) -> None:
        self._stream: Any = None
        self._process = os.getpid()
        self._cupy = import_extra("cupy", "gpu")
        self._runtime = self._cupy.cuda.runtime
        self._launcher = CudaLauncher(device, sm_budget)
        self._plan, self._number = plan, device
        with cuda_errors(f"CUDA device {device}"):
            self._device = self._cupy.cuda.Device(device)
            with self._device:
                self._stream = self._cupy.cuda.Stream(non_blocking=True)
                self._readers = [
                    DeviceReader(reader, columns, each)
                    for (reader, columns), each in zip(sources, plan.plans, strict=True)
                ]
        words = rows * (max(reader.words for reader in self._readers) + MOST_FACTS)
        stage = rows * max(reader.stage_bytes for reader in self._readers)
        stage += ALIGNMENT * sum(reader.stage_parts for reader in self._readers)
        # Without a circle of references: memory goes with the last batch, not with a garbage collection.
        self.pool = DevicePool(partial(_Buffer, plan, words, stage, self._cupy.cuda), keep)

    def __del__(self, wait: Callable[[Any, int], None] = _wait) -> None:
        if self._stream is not None:
            wait(self._stream, self._process)

    def collect(
        self, windows: Windows, source: Int64Array | None, facts: Mapping[str, npt.NDArray[Any]], batches: int = 1
    ) -> OnDevice:
        """Batches of windows, a row a window.

        Args:
            windows: of all batches, one after the other, equally many of each.
            source: int64 [B]: the number of each window's dataset; None: all are of the first.
            facts: name -> int64 or float64 [B], `MOST_FACTS` at most, that go to the device with the windows.
            batches: how many.
        """
        valid = np.zeros(batches, np.int64)
        with cuda_errors("collecting a batch"), self._device:
            buffer = self.pool.take()
            # From here on a batch that fails gives its buffer back.
            lease = _Lease(buffer, self.pool)
            buffer.clear()
            places = {name: buffer.upload.put(values) - buffer.memory.address for name, values in facts.items()}
            prepared: list[tuple[DeviceReader, Prepared]] = []
            for number, reader in enumerate(self._readers):
                rows = None if source is None else np.flatnonzero(source == number)
                own = windows if rows is None else windows[rows]
                if not len(own):
                    continue
                counted = np.empty(batches, np.int64)
                reader.valid_bytes(own, max(1, len(windows) // batches), counted)
                valid += counted
                prepared.append((reader, reader.prepare(own, rows, buffer.upload, buffer.stage)))
            self._stream.wait_event(buffer.released)
            buffer.upload.send(self._runtime, self._stream)
            with self._stream:
                for reader, one in prepared:
                    reader.launch(self._launcher, one, buffer.outputs)
            buffer.collected.record(self._stream)
            memory = self._cupy.cuda.UnownedMemory(buffer.memory.address, buffer.memory.size, lease, self._number)
            array = self._cupy.ndarray((buffer.memory.size,), np.uint8, memptr=self._cupy.cuda.MemoryPointer(memory, 0))
        return OnDevice(array, places, valid, buffer.collected)

    def hand_over(self, collected: Any, stream: int) -> None:
        """What comes next in the stream of this handle sees the batch with this event whole. What is in it already is
        the last use of buffers that were let go of."""
        with cuda_errors("waiting for a batch"), self._device:
            self.pool.release(self._runtime, stream)
            self._runtime.streamWaitEvent(stream, collected.ptr)
