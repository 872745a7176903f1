"""DeviceCollector: fills batches in device memory, on a stream of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.buffers import ALIGNMENT
from gear_data.collection.plan import BatchPlan
from gear_data.common.extras import import_extra
from gear_data.kernels.cuda import launch_arguments as launches
from gear_data.kernels.cuda.launcher import CudaLauncher, cuda_errors
from gear_data.residency.device.buffers import BatchBuffer, BatchLease, DeferredCount, DevicePool, wait_before_free
from gear_data.residency.device.columns import DeviceColumns
from gear_data.residency.device.memory import TO_HOST
from gear_data.residency.device.reader import DeviceReader, LaunchArguments
from gear_data.residency.device.staging import StagingBuffer, StagingReader
from gear_data.residency.device.window_sampler import DeviceWindowSampler
from gear_data.selection.window_sampler import SamplingPlan
from gear_data.selection.windows import Int64Array, Windows

#: The most keys of the argument `facts` of `DeviceCollector.collect`.
MAX_FACTS = 7


@dataclass(slots=True)  # not frozen: see Windows
class DeviceBatches:
    """Batches in device memory, in the layout of a `BatchPlan`.

    Attributes:
        array: uint8, a CuPy array of the buffer. Its memory is not used again while the array, or a view of it, lives.
        facts: key of the window facts -> offset of its numbers in the buffer.
        valid_bytes: bytes of each batch without padding.
        collected: the event after which the batches are complete.
    """

    array: Any
    facts: dict[str, int]
    valid_bytes: Sequence[int | DeferredCount]
    collected: Any


class DeviceCollector:
    """Fills batches on a device, on a stream of its own.

    Safe to call from several threads.

    The only work that the stream waits for is the last use of a buffer.

    Args:
        sources: for each dataset, the reader of rows that kernels cannot read in place, and the columns that they can.
        plan: the outputs.
        rows: windows of a full buffer: of all batches that share it.
        device: the device's number.
        sm_budget: see `CudaLauncher`.
        keep: idle buffers that are kept for reuse.
        sampling_plan: the plan by which the device draws windows of the first dataset; None: the CPU draws them.
        slots: windows of a batch that the device draws.

    Attributes:
        sampler: draws windows on the device; None: the CPU draws them, some column cannot be read in place, or a copy
            engine copies rows of windows.

    Raises:
        InvalidArgumentError, MissingExtraError: see `CudaLauncher`.
        DeviceError: see `CudaLauncher` and `DeviceColumns.check_process`.
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
                DeviceReader(reader, columns, each, self._launcher)
                for (reader, columns), each in zip(sources, plan.plans, strict=True)
            ]
            self.sampler = None
            first = self._readers[0]
            if sampling_plan is not None and first.reads_in_place and not first.copies_windows:
                self.sampler = DeviceWindowSampler(sampling_plan, slots)
        drawn_words = 0 if self.sampler is None else self.sampler.words
        words = rows * (max(reader.words for reader in self._readers) + MAX_FACTS)
        staged_bytes = rows * max(reader.staged_bytes for reader in self._readers)
        staged_bytes += ALIGNMENT * sum(reader.staged_parts for reader in self._readers)
        on_device = all(reader.stages_on(device) for reader, _ in sources)
        make_staging = partial(StagingBuffer, staged_bytes, on_device=on_device)
        # Without a reference to self: a cycle would keep the memory until a garbage collection.
        self.pool = DevicePool(partial(BatchBuffer, plan, words, drawn_words, make_staging, self._cupy.cuda), keep)

    def __del__(self, wait: Callable[[Any, int], None] = wait_before_free) -> None:
        if self._stream is not None:
            wait(self._stream.synchronize, self._process)

    def collect(
        self, windows: Windows, source: Int64Array | None, facts: Mapping[str, npt.NDArray[Any]], batches: int = 1
    ) -> DeviceBatches:
        """Collects batches of windows, one row for each window.

        Args:
            windows: of all batches, one batch after another, all of one size.
            source: int64 [B], the number of each window's dataset; None: all windows are of the first dataset.
            facts: key -> int64 or float64 [B], at most `MAX_FACTS` keys, uploaded with the windows.
            batches: number of batches.
        """
        valid = np.zeros(batches, np.int64)
        with cuda_errors("collecting a batch"), self._device():
            lease = self._lease()
            buffer = lease.buffer
            offsets = {name: buffer.upload.put(values) - buffer.memory.address for name, values in facts.items()}
            prepared: list[tuple[DeviceReader, LaunchArguments]] = []
            for number, reader in enumerate(self._readers):
                rows = None if source is None else np.flatnonzero(source == number)
                of_dataset = windows if rows is None else windows[rows]
                if not len(of_dataset):
                    continue
                counted = np.empty(batches, np.int64)
                reader.count_valid(of_dataset, max(1, len(windows) // batches), counted)
                valid += counted
                prepared.append(
                    (reader, reader.prepare(of_dataset, rows, buffer.upload, buffer.staging, buffer.addresses))
                )
            with self._filling(buffer):
                for reader, arguments in prepared:
                    reader.launch(self._launcher, arguments, buffer.outputs)
            return DeviceBatches(self._array(lease), offsets, valid.tolist(), buffer.collected)

    def draw_and_collect(
        self, sampler: DeviceWindowSampler, slots: tuple[int, int, int, int], facts: Mapping[str, npt.NDArray[Any]]
    ) -> DeviceBatches:
        """Draws the windows of a batch on the device, and collects them.

        The `facts` of the result has the keys of the argument, `valid_count`, `episode_id`, `start`, and for weighted
        windows `probability`.

        Args:
            sampler: this collector's sampler.
            slots: the batch's step, the number of slots before the batch, and the first and last slot to collect.
            facts: see `collect`.
        """
        step, position, first, last = slots
        with cuda_errors("collecting a batch"), self._device():
            lease = self._lease()
            buffer = lease.buffer
            offsets = {name: buffer.upload.put(values) - buffer.memory.address for name, values in facts.items()}
            windows = launches.WindowRows.drawn(buffer.drawn, sampler.count)
            begin = 8 * first
            windows = replace(
                windows, episode=windows.episode + begin, start=windows.start + begin, length=windows.length + begin,
                count=last - first,
            )  # fmt: skip
            offsets["valid_count"] = windows.length - buffer.memory.address
            offsets["episode_id"] = windows.episode - buffer.memory.address
            offsets["start"] = windows.start - buffer.memory.address
            if sampler.rows == 4:
                offsets["probability"] = offsets["valid_count"] + 8 * sampler.count
            with self._filling(buffer):
                self._runtime.memsetAsync(buffer.valid, 0, 8, self._stream.ptr)
                sampler.draw(self._launcher, step, position, buffer.drawn)
                reader = self._readers[0]
                reader.launch(
                    self._launcher, reader.prepare_drawn(windows, buffer.upload), buffer.outputs, buffer.valid
                )
                self._runtime.memcpyAsync(buffer.upload.answer.ctypes.data, buffer.valid, 8, TO_HOST, self._stream.ptr)
            buffer.valid_count = DeferredCount(buffer.upload.answer, buffer.collected)
            return DeviceBatches(self._array(lease), offsets, [buffer.valid_count], buffer.collected)

    def _device(self) -> Any:
        # A new object each time: threads that share one would restore each other's current device.
        return self._cupy.cuda.Device(self._number)

    def _lease(self) -> BatchLease:
        """Leases a buffer that can be written.

        If the batch fails, the buffer goes back to the pool.
        """
        lease = self.pool.lease()
        lease.buffer.clear()
        return lease

    @contextmanager
    def _filling(self, buffer: BatchBuffer) -> Iterator[None]:
        """Uploads a buffer's inputs, and records when the launches inside are done.

        Launches inside the `with` run on this collector's stream.
        """
        self._stream.wait_event(buffer.released)
        try:
            buffer.upload.send(self._runtime, self._stream)
            with self._stream:
                yield
        finally:
            buffer.collected.record(self._stream)

    def _array(self, lease: BatchLease) -> Any:
        """Returns a CuPy array, uint8, over the whole buffer of a lease."""
        buffer = lease.buffer.memory
        memory = self._cupy.cuda.UnownedMemory(buffer.address, buffer.size, lease, self._number)
        return self._cupy.ndarray((buffer.size,), np.uint8, memptr=self._cupy.cuda.MemoryPointer(memory, 0))

    def hand_over(self, collected: Any, stream: int) -> None:
        """Makes a stream wait for a batch.

        Dropped buffers are released after everything that the stream holds now.

        Args:
            collected: the batch's event.
            stream: the handle of the consumer's stream.
        """
        with cuda_errors("waiting for a batch"), self._device():
            self.pool.release(self._runtime, stream)
            self._runtime.streamWaitEvent(stream, collected.ptr)
