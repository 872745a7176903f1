"""DeviceCollector: fills batches in device memory, on the stream of this process's loaders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gear_data.collection.buffers import ALIGNMENT
from gear_data.collection.plan import BatchPlan
from gear_data.common.extras import import_extra
from gear_data.kernels.cuda import launch_arguments as launches
from gear_data.kernels.cuda.launcher import CudaLauncher, cuda_errors
from gear_data.residency.device.buffers import BatchInputs, DeferredCount, DeferredCounts, InputPool, wait_before_free
from gear_data.residency.device.columns import DeviceColumns
from gear_data.residency.device.reader import DeviceReader, LaunchArguments
from gear_data.residency.device.staging import StagingBuffer, StagingReader
from gear_data.residency.device.stream import batch_memory, hand_over, loader_stream
from gear_data.residency.device.window_sampler import DeviceWindowSampler
from gear_data.selection.window_sampler import SamplingPlan
from gear_data.selection.windows import Int64Array, Windows

#: The most keys of the argument `facts` of `DeviceCollector.collect`.
MAX_FACTS = 8


@dataclass(slots=True)  # not frozen: see Windows
class DeviceBatches:
    """Batches in device memory, in the layout of a `BatchPlan`.

    Attributes:
        memory: uint8, the whole memory of the batches.
        facts: key of the window facts -> offset of its numbers in the memory.
        valid_bytes: bytes of each batch without padding.
        inputs: what this machine holds until the batches are complete.
        waiting: number of batches that were not handed over yet.
        stream: the handle of the stream to which the last batch was handed over; None: no batch was.
    """

    memory: torch.Tensor
    facts: dict[str, int]
    valid_bytes: Sequence[int | DeferredCount]
    inputs: BatchInputs
    waiting: int
    stream: int | None = None


class DeviceCollector:
    """Fills batches on a device, on the stream of this process's loaders.

    Safe to call from several threads.

    Args:
        sources: for each dataset, the reader of rows that kernels cannot read in place, and the columns that they can.
        plan: the outputs.
        rows, batches: the most windows of a batch, and the most batches that are collected together.
        device: the device's number.
        sm_budget: see `CudaLauncher`.
        most: collections in progress; with more, a collection waits for the oldest.
        sampling_plan: the plan by which the device draws windows of the first dataset; None: the CPU draws them.
        slots: slots of a batch, of which the device draws at most `rows`.

    Attributes:
        sampler: draws windows on the device; None: the CPU draws them, or some column cannot be read in place.

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
        batches: int,
        *,
        device: int,
        sm_budget: float,
        most: int,
        sampling_plan: SamplingPlan | None,
        slots: int,
    ) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._process = os.getpid()
        cupy = import_extra("cupy", "gpu")
        self._runtime = cupy.cuda.runtime
        self._launcher = CudaLauncher(device, sm_budget)
        self._plan, self._device = plan, torch.device("cuda", device)
        with cuda_errors(f"CUDA device {device}"), cupy.cuda.Device(device):
            self._stream = loader_stream(device)
            self._handle = self._stream.cuda_stream
            self._kernel_stream = cupy.cuda.ExternalStream(self._handle)
            self._readers = [
                DeviceReader(reader, columns, each, offsets, self._launcher)
                for (reader, columns), each, offsets in zip(sources, plan.plans, plan.offsets, strict=True)
            ]
            self.sampler = None
            first = self._readers[0]
            if sampling_plan is not None and first.reads_in_place:
                self.sampler = DeviceWindowSampler(sampling_plan, slots)
        windows = rows * batches
        words = windows * (max(reader.words for reader in self._readers) + MAX_FACTS)
        # The memory of batches: the arrays, the uploaded numbers, the drawn windows.
        self._upload = -(-plan.size // ALIGNMENT) * ALIGNMENT
        self._drawn = self._upload + 8 * words
        drawn = 0 if self.sampler is None else self.sampler.rows * windows + self.sampler.work * batches
        self._size = self._drawn + 8 * drawn
        staged_bytes = windows * max(reader.staged_bytes for reader in self._readers)
        staged_bytes += ALIGNMENT * sum(reader.staged_parts for reader in self._readers)
        on_device = all(reader.stages_on(device) for reader, _ in sources)
        make_staging = partial(StagingBuffer, staged_bytes, on_device=on_device)
        # Without a reference to self: a cycle would keep the memory until a garbage collection.
        self._inputs = InputPool(partial(BatchInputs, words, batches * self._launcher.blocks, make_staging), most)

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
        with self._collecting() as (memory, inputs):
            address = memory.data_ptr()
            offsets = {name: inputs.upload.put(values) - address for name, values in facts.items()}
            prepared: list[tuple[DeviceReader, LaunchArguments]] = []
            for number, reader in enumerate(self._readers):
                rows = None if source is None else np.flatnonzero(source == number)
                of_dataset = windows if rows is None else windows[rows]
                if not len(of_dataset):
                    continue
                counted = np.empty(batches, np.int64)
                reader.count_valid(of_dataset, max(1, len(windows) // batches), counted)
                valid += counted
                prepared.append((reader, reader.prepare(of_dataset, rows, inputs.upload, inputs.staging)))
            inputs.upload.send(self._runtime, self._handle)
            for reader, arguments in prepared:
                reader.launch(self._launcher, arguments, address)
        return DeviceBatches(memory, offsets, valid.tolist(), inputs, batches)

    def draw_and_collect(
        self,
        sampler: DeviceWindowSampler,
        slots: launches.Slots,
        position: int,
        facts: Mapping[str, npt.NDArray[Any]],
    ) -> DeviceBatches:
        """Draws the windows of batches on the device, and collects them.

        The `facts` of the result has the keys of the argument, `valid_count`, `episode_id`, `start`, and for weighted
        windows `probability`.

        Args:
            sampler: this collector's sampler.
            slots: the windows' slots.
            position: slots before the first batch.
            facts: see `collect`.
        """
        reader, windows = self._readers[0], slots.batches * slots.count
        row = 8 * windows
        with self._collecting() as (memory, inputs):
            address = memory.data_ptr()
            offsets = {name: inputs.upload.put(values) - address for name, values in facts.items()}
            begin = self._drawn
            offsets["episode_id"], offsets["start"], offsets["valid_count"] = begin, begin + row, begin + 2 * row
            if sampler.rows == 4:
                offsets["probability"] = begin + 3 * row
            inputs.upload.send(self._runtime, self._handle)
            at = address + begin
            parts = sampler.draw(self._launcher, slots, position, at, reader.counting(inputs.sums_address))
            drawn = reader.prepare_drawn(launches.WindowRows.drawn(at, windows), inputs.upload)
            reader.launch(self._launcher, drawn, address)
        sums = inputs.sums[: slots.batches * parts].reshape(slots.batches, parts)
        counts = inputs.valid_counts = DeferredCounts(sums, inputs.collected)
        valid = [DeferredCount(counts, place) for place in range(slots.batches)]
        return DeviceBatches(memory, offsets, valid, inputs, slots.batches)

    @contextmanager
    def _collecting(self) -> Iterator[tuple[torch.Tensor, BatchInputs]]:
        """Yields memory of batches and inputs, and records when the work on them is done.

        Launches inside the `with` run on the loaders' stream.
        """
        with cuda_errors("collecting a batch"), torch.cuda.stream(self._stream), self._kernel_stream:
            memory = batch_memory(self._size, self._device)
            inputs = self._inputs.take()
            inputs.clear(memory.data_ptr() + self._upload)
            try:
                yield memory, inputs
            finally:
                inputs.collected.record(self._stream)

    def hand_over(self, batches: DeviceBatches) -> None:
        """Hands one of the batches over to torch's current stream: see `stream.hand_over`.

        All batches have one event and one memory, so a stream that has one of them has all.
        """
        stream = torch.cuda.current_stream(self._device)
        handle: int = stream.cuda_stream
        if handle != batches.stream:
            with cuda_errors("waiting for a batch"):
                hand_over(stream, batches.inputs.collected, batches.memory)
            batches.stream = handle
        batches.waiting -= 1
        if not batches.waiting:
            self._inputs.give_back(batches.inputs)
