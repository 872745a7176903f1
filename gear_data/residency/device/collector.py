"""Collection on a GPU: batches in device memory, filled on a stream of their own."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.buffers import ALIGNMENT
from gear_data.collection.plan import BatchPlan
from gear_data.common.extras import import_extra
from gear_data.kernels.cuda import launches
from gear_data.kernels.cuda.launcher import CudaLauncher, cuda_errors
from gear_data.residency.device.columns import DeviceColumns
from gear_data.residency.device.memory import TO_HOST, DeviceBuffer
from gear_data.residency.device.reader import DeviceReader, LaunchArguments, UploadBuffer
from gear_data.residency.device.staging import StagingBuffer, StagingReader
from gear_data.residency.device.window_sampler import DeviceWindowSampler
from gear_data.selection.window_sampler import SamplingPlan
from gear_data.selection.windows import Int64Array, Windows

#: Numbers that a row of a batch comes with beside its arrays, at most: see `DeviceCollector.collect`.
MOST_FACTS = 4


def _wait(
    finish: Callable[[], Any], process: int, getpid: Callable[[], int] = os.getpid, ignore: Any = suppress
) -> None:
    """Before pinned memory is freed: nothing reads it any more. That of the device waits by itself. A forked child has
    nothing to wait for, nor has one whose context is lost; at exit this module's names are gone."""
    if getpid() == process:
        with ignore(Exception):
            finish()


class Later:
    """A number that a device gives when it has done what is queued now: nobody waits for it before it is asked for, or
    before its memory is used again."""

    def __init__(self, answer: Int64Array, event: Any) -> None:
        self._asked: tuple[Int64Array, Any] | None = (answer, event)
        self._number = 0
        self._lock = threading.Lock()

    @property
    def known(self) -> bool:
        return self._asked is None

    def settle(self) -> int:
        with self._lock:
            if self._asked is not None:
                answer, event = self._asked
                event.synchronize()
                self._number, self._asked = int(answer[0]), None
            return self._number


class _BatchBuffer:
    """Memory of one batch, or of several that are collected together: their arrays, and what the kernel reads.

    Attributes:
        memory: on the device: the arrays; their addresses (at `outputs`), and what else is uploaded; bytes of valid
            rows (`valid`); windows that are drawn there (`drawn`).
        upload: of this machine, pinned.
        stage: for rows that no kernel reads in place.
        later: stands for what the device gives back.
        collected: when the arrays are full, and what is pinned is no longer read.
        released: when the consumer's stream let go of the arrays.
    """

    def __init__(
        self, plan: BatchPlan, words: int, drawn_words: int, stage: Callable[[], StagingBuffer], cuda: Any
    ) -> None:
        head = -(-plan.size // ALIGNMENT) * ALIGNMENT
        self.collected, self.released = cuda.Event(disable_timing=True), cuda.Event(disable_timing=True)
        self._process = os.getpid()
        self.later: Later | None = None
        uploaded = len(plan.arrays) + words
        self.memory = DeviceBuffer(head + 8 * (uploaded + 1 + drawn_words))
        self.outputs = self.memory.address + head
        self.upload = UploadBuffer(uploaded, self.outputs)
        self.valid = self.outputs + 8 * uploaded
        self.drawn = self.valid + 8
        self.stage = stage()
        self._places = plan.offsets + self.memory.address

    def __del__(self, wait: Callable[[Any, int], None] = _wait) -> None:
        wait(self.collected.synchronize if self.later is None else self.later.settle, self._process)

    def clear(self) -> None:
        """Makes the pinned memory ready to be written: waits for the collection before, long done as a rule."""
        self.collected.synchronize()
        if self.later is not None:
            self.later.settle()
        self.stage.clear()
        self.upload.clear()
        self.upload.put(self._places)


class DevicePool:
    """Buffers of batches, which are used again when their consumer's stream has let go of them.

    Args:
        make: a new buffer.
        keep: how many are kept for reuse.
    """

    def __init__(self, make: Callable[[], _BatchBuffer], keep: int) -> None:
        self._make = make
        self._keep = keep
        # The longest unused goes first: its collection has ended, so that nobody waits to write to its pinned memory.
        # append and popleft are atomic, and leases end in whatever thread drops the last tensor.
        self._idle: deque[_BatchBuffer] = deque()
        self._dropped: deque[_BatchBuffer] = deque()

    def take(self) -> _BatchBuffer:
        try:
            return self._idle.popleft()
        except IndexError:
            return self._make()

    def drop(self, buffer: _BatchBuffer) -> None:
        """Nothing of this process refers to its arrays any more; a device may read them still."""
        self._dropped.append(buffer)

    def release(self, runtime: Any, stream: int) -> None:
        """What was dropped is used again after all that is in the stream of this handle now. runtime: CuPy's."""
        while self._dropped:
            buffer = self._dropped.popleft()
            runtime.eventRecord(buffer.released.ptr, stream)
            if len(self._idle) < self._keep:
                self._idle.append(buffer)


class _DeviceLease:
    """A buffer lent out. What is made over it holds it; when the last of that dies it goes back to its pool."""

    __slots__ = ("_buffer", "_pool")

    def __init__(self, buffer: _BatchBuffer, pool: DevicePool) -> None:
        self._buffer, self._pool = buffer, pool

    def __del__(self) -> None:
        self._pool.drop(self._buffer)


@dataclass(slots=True)  # made for every batch: see Windows
class OnDevice:
    """Batches in device memory, as `gear_data.collection.plan.BatchPlan` lays them out; full
    when `collected` has happened.

    Attributes:
        array: uint8, a CuPy array of the buffer; its memory is not used again while it, or what is made of it, lives.
        facts: name -> where in the buffer its numbers begin.
        valid_bytes: of each batch without padding.
        collected: an event.
    """

    array: Any
    facts: dict[str, int]
    valid_bytes: Sequence[int | Later]
    collected: Any


class DeviceCollector:
    """Fills batches on a device, on a stream of its own: it waits for nothing but a buffer's last use. Safe to call
    from several threads.

    Args:
        sources: of each dataset, what reads it where kernels cannot, and where they read it.
        plan: what is collected.
        rows: windows of a full batch, of all batches that share a buffer.
        device: its number.
        sm_budget: see `CudaLauncher`.
        keep: buffers kept for reuse.
        sampling_plan: how batches of windows of the first dataset can be drawn on the device; None: they cannot.
        slots: windows of a batch that is drawn.

    Attributes:
        sampler: draws them there; None: it cannot, or kernels cannot read all columns in place.

    Raises:
        as `CudaLauncher` and `DeviceColumns.check_process`.
        DeviceMemoryError, HostMemoryError: too little memory.
    """

    def __init__(
        self,
        sources: Sequence[tuple[StagingReader, DeviceColumns]],
        plan: BatchPlan,
        rows: int,
        *,
        device: int,
        sm_budget: float,
        keep: int,
        sampling_plan: SamplingPlan | None,
        slots: int,
    ) -> None:
        self._stream: Any = None
        self._process = os.getpid()
        self._cupy = import_extra("cupy", "gpu")
        self._runtime = self._cupy.cuda.runtime
        self._launcher = CudaLauncher(device, sm_budget)
        self._plan, self._number = plan, device
        with cuda_errors(f"CUDA device {device}"), self._device():
            self._stream = self._cupy.cuda.Stream(non_blocking=True)
            self._readers = [
                DeviceReader(reader, columns, each) for (reader, columns), each in zip(sources, plan.plans, strict=True)
            ]
            self.sampler = None
            if sampling_plan is not None and self._readers[0].all_placed:
                self.sampler = DeviceWindowSampler(sampling_plan, slots)
        drawn = 0 if self.sampler is None else self.sampler.words
        words = rows * (max(reader.words for reader in self._readers) + MOST_FACTS)
        size = rows * max(reader.stage_bytes for reader in self._readers)
        size += ALIGNMENT * sum(reader.stage_parts for reader in self._readers)
        stage = partial(StagingBuffer, size, on_device=all(reader.stages_on(device) for reader, _ in sources))
        # Without a circle of references: memory goes with the last batch, not with a garbage collection.
        self.pool = DevicePool(partial(_BatchBuffer, plan, words, drawn, stage, self._cupy.cuda), keep)

    def __del__(self, wait: Callable[[Any, int], None] = _wait) -> None:
        if self._stream is not None:
            wait(self._stream.synchronize, self._process)

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
        with cuda_errors("collecting a batch"), self._device():
            buffer, lease = self._take()
            places = {name: buffer.upload.put(values) - buffer.memory.address for name, values in facts.items()}
            prepared: list[tuple[DeviceReader, LaunchArguments]] = []
            for number, reader in enumerate(self._readers):
                rows = None if source is None else np.flatnonzero(source == number)
                own = windows if rows is None else windows[rows]
                if not len(own):
                    continue
                counted = np.empty(batches, np.int64)
                reader.valid_bytes(own, max(1, len(windows) // batches), counted)
                valid += counted
                prepared.append((reader, reader.prepare(own, rows, buffer.upload, buffer.stage)))
            with self._begun(buffer):
                for reader, one in prepared:
                    reader.launch(self._launcher, one, buffer.outputs)
            return OnDevice(self._array(buffer, lease), places, valid.tolist(), buffer.collected)

    def draw_and_collect(
        self, sampler: DeviceWindowSampler, slots: tuple[int, int, int, int], facts: Mapping[str, npt.NDArray[Any]]
    ) -> OnDevice:
        """A batch whose windows the device draws. Its facts are those given, and `valid_count` and `probability`.

        Args:
            sampler: that of this collector.
            slots: the batch's step, how many slots were before, and the first and last of its slots that are collected.
            facts: see `collect`.
        """
        step, position, first, last = slots
        with cuda_errors("collecting a batch"), self._device():
            buffer, lease = self._take()
            places = {name: buffer.upload.put(values) - buffer.memory.address for name, values in facts.items()}
            count, rows = sampler.count, last - first
            windows = launches.WindowRows.drawn(buffer.drawn, count)
            begin = 8 * first
            windows = replace(
                windows, episode=windows.episode + begin, start=windows.start + begin, length=windows.length + begin,
                count=rows,
            )  # fmt: skip
            places["valid_count"] = windows.length - buffer.memory.address
            if sampler.rows == 4:
                places["probability"] = places["valid_count"] + 8 * count
            with self._begun(buffer):
                self._runtime.memsetAsync(buffer.valid, 0, 8, self._stream.ptr)
                sampler.draw(self._launcher, step, position, buffer.drawn)
                reader = self._readers[0]
                reader.launch(self._launcher, reader.prepared(windows), buffer.outputs, buffer.valid)
                self._runtime.memcpyAsync(buffer.upload.answer.ctypes.data, buffer.valid, 8, TO_HOST, self._stream.ptr)
            buffer.later = Later(buffer.upload.answer, buffer.collected)
            return OnDevice(self._array(buffer, lease), places, [buffer.later], buffer.collected)

    def _device(self) -> Any:
        # A new one: of one that is shared, threads with unlike current devices would give back each other's.
        return self._cupy.cuda.Device(self._number)

    def _take(self) -> tuple[_BatchBuffer, _DeviceLease]:
        """A buffer that can be written; a batch that fails gives it back."""
        buffer = self.pool.take()
        lease = _DeviceLease(buffer, self.pool)
        buffer.clear()
        return buffer, lease

    @contextmanager
    def _begun(self, buffer: _BatchBuffer) -> Iterator[None]:
        """What fills a buffer is launched inside."""
        self._stream.wait_event(buffer.released)
        try:
            buffer.upload.send(self._runtime, self._stream)
            with self._stream:
                yield
        finally:
            buffer.collected.record(self._stream)

    def _array(self, buffer: _BatchBuffer, lease: _DeviceLease) -> Any:
        memory = self._cupy.cuda.UnownedMemory(buffer.memory.address, buffer.memory.size, lease, self._number)
        return self._cupy.ndarray((buffer.memory.size,), np.uint8, memptr=self._cupy.cuda.MemoryPointer(memory, 0))

    def hand_over(self, collected: Any, stream: int) -> None:
        """What comes next in the stream of this handle sees the batch with this event whole. What is in it already is
        the last use of buffers that were let go of."""
        with cuda_errors("waiting for a batch"), self._device():
            self.pool.release(self._runtime, stream)
            self._runtime.streamWaitEvent(stream, collected.ptr)
