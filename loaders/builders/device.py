"""DeviceBatchBuilder: builds batches in a GPU's memory, with the GPU's kernels."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gear_data.cluster.client.reader import ClusterReader
from gear_data.collection.joined import ArrayLayout
from gear_data.collection.plan import BatchPlan, CollectSource
from gear_data.collection.reader import ColumnReader
from gear_data.dataset.dataset import Dataset
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.builders.batch import Batch, BuiltBatch, RankRows
from gear_data.loaders.builders.device_goals import DeviceGoals
from gear_data.loaders.builders.goals import Relabelling, goal_sources, samplers_of
from gear_data.loaders.builders.grouping import are_alike, concatenated
from gear_data.loaders.builders.postprocess import Postprocessor
from gear_data.loaders.builders.window_facts import SourceFacts, WindowFacts, sampled_facts
from gear_data.loaders.component import WINDOW_IDS, LoaderComponent
from gear_data.loaders.frameworks.framework import Change
from gear_data.loaders.frameworks.torch_tensors import to_tensors
from gear_data.loaders.video.camera_collector import CameraCollector
from gear_data.loaders.window_source import WindowSource
from gear_data.residency import DeviceColumns, ShardReader
from gear_data.residency.device.collector import DeviceBatches, DeviceCollector
from gear_data.residency.device.staging import StagingReader
from gear_data.residency.device.window_sampler import DeviceWindowSampler
from gear_data.selection.window_sampler import SamplingPlan
from gear_data.selection.windows import Windows

#: Dtype of the numbers that come with windows, by the kind of NumPy's dtype.
_NUMBERS = {"i": torch.int64, "f": torch.float64}


#: For each array of listed steps: n steps [B, bytes] in the array of their range, and the array [B, n, bytes].
_StepsToTake = Sequence[tuple[list[torch.Tensor], torch.Tensor]]


@dataclass(slots=True)  # not frozen: see Windows
class DeferredWindows:
    """Windows that the device samples when it collects them.

    Attributes:
        dataset: the number of their dataset.
        sampler: samples them on the device.
        step: the step at which the dataset's selector is asked.
        position: slots of the dataset before the batch.
        first, last: this rank's slots of the batch, from first to last - 1.
    """

    dataset: int
    sampler: DeviceWindowSampler
    step: int
    position: int
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first


class DeviceBatchBuilder:
    """Builds batches on a CUDA device: see `BatchBuilder`.

    Tensors lie in the memory that the kernel fills, which is torch's: see `gear_data.residency.device.stream`.

    Args:
        components: the loader's datasets.
        source: samples the windows of global batches.
        rows: the rows of this rank.
        postprocess: adds the arrays that the CPU makes.
        joined: whether one batch has windows of several datasets.
        max_rows: the most windows of a batch.
        max_batches: the most batches in one call of `build`.
        device: a CUDA device.
        sm_budget: the share of its multiprocessors that collecting takes.
        most: see `DeviceCollector`.
        upload: copies tensors that the CPU makes to the device, in the consumer's current stream.
        cameras: for each collector, what adds cameras to its batches in memory of the CPU; None: they have none.

    Raises:
        DeviceMemoryError, HostMemoryError: too little memory. Also raises the errors of `DeviceCollector`.
    """

    def __init__(
        self, components: Sequence[LoaderComponent], source: WindowSource, rows: RankRows, postprocess: Postprocessor,
        *, joined: bool, max_rows: int, max_batches: int, device: torch.device, sm_budget: float, most: int,
        upload: Change, cameras: Sequence[CameraCollector | None],
    ) -> None:  # fmt: skip
        self.source = source
        self.postprocess = postprocess
        self._components = components
        self._rows = rows
        self._facts = SourceFacts(components, source)
        self._device, self._cameras = device, cameras
        self._upload = upload
        slots = rows.batch_size
        collect_sources = [component.collect_source() for component in components]
        sources = [
            _staging_source(own, component.dataset) for own, component in zip(collect_sources, components, strict=True)
        ]
        # One collector for each dataset, or one for all that are joined.
        groups = [list(range(len(components)))] if joined else [[number] for number in range(len(components))]
        self._plans = [BatchPlan([collect_sources[i] for i in group], max_rows, max_batches) for group in groups]
        self.collectors = [
            DeviceCollector(
                [sources[i] for i in group], plan, max_rows * max_batches, device=device_number(device),
                sm_budget=sm_budget, most=most, slots=slots,
                sampling_plan=_sampling_plan([components[i] for i in group], slots),
            )
            for group, plan in zip(groups, self._plans, strict=True)
        ]  # fmt: skip
        self._layouts = [_views(plan) for plan in self._plans]
        self._dtypes = [{*_NUMBERS.values(), *(each.dtype for each in layout)} for layout in self._layouts]
        self._goals = [
            self._make_goals([components[i] for i in group], max_rows * max_batches, sm_budget, most)
            for group in groups
        ]

    def _make_goals(
        self, components: Sequence[LoaderComponent], rows: int, sm_budget: float, most: int
    ) -> DeviceGoals | None:
        """Returns what adds goals to batches of these datasets; None: they have no goals."""
        samplers = samplers_of(components)
        if not samplers:
            return None
        keys, sources = samplers[0].goals.keys, goal_sources(components)
        plan = BatchPlan(sources, rows * len(keys))
        staged = [_staging_source(own, each.dataset) for own, each in zip(sources, components, strict=True)]
        collector = DeviceCollector(
            staged, plan, rows * len(keys), device=device_number(self._device), sm_budget=sm_budget, most=most,
            sampling_plan=None, slots=0,
        )  # fmt: skip
        return DeviceGoals(collector, plan, keys, Relabelling(components))

    def build(self, steps: Sequence[int]) -> list[BuiltBatch]:
        """Builds the batches of these steps."""
        deferred = [self._deferred(step) for step in steps]
        if any(each is not None for each in deferred):
            return [
                self._sample_and_collect(step, each) if each is not None else self._collect([step])[0]
                for step, each in zip(steps, deferred, strict=True)
            ]
        return self._collect(steps)

    def _deferred(self, step: int) -> DeferredWindows | None:
        """Returns the windows of a step, for the device to sample.

        Returns None if the CPU has to sample them.
        """
        dataset, selector_step = self.source.turn(step)
        sampler = None if dataset is None else self.collectors[dataset].sampler
        if dataset is None or sampler is None:
            return None
        slots = self._rows.batch_size
        # After an update of weights the selector has another sampler, or none.
        plan = self._components[dataset].selector.sampling_plan(slots)
        if plan is None or plan.sampler is not sampler.plan.sampler:
            return None
        position = self.source.first_slot(step, slots)
        return DeferredWindows(dataset, sampler, selector_step, position, *self._rows.bounds(step, slots))

    def _sample_and_collect(self, step: int, deferred: DeferredWindows) -> BuiltBatch:
        """Builds a batch whose windows the device samples."""
        number, rows = deferred.dataset, len(deferred)
        facts = self._facts(step, number, rows)
        collected = self.collectors[number].draw_and_collect(
            deferred.sampler, (deferred.step, deferred.position, deferred.first, deferred.last), facts
        )
        kinds = {
            name: "f" if name == "probability" else "i"
            for name in collected.facts
            if self._facts.window_ids or name not in WINDOW_IDS
        }
        built = self._tensors(number, collected, rows, kinds)[0]
        built.dataset_counts = self._facts.counts(facts)
        return built

    def _collect(self, steps: Sequence[int]) -> list[BuiltBatch]:
        """Builds batches whose windows the CPU samples."""
        windows = [self._sample(step) for step in steps]
        if len(steps) > 1 and not are_alike(windows):
            return [built for step in steps for built in self._collect([step])]
        facts = [self._facts(step, each.source, len(each)) for step, each in zip(steps, windows, strict=True)]
        numbers = [{**sampled_facts(each, self._components), **own} for each, own in zip(windows, facts, strict=True)]
        together: WindowFacts = {name: np.concatenate([each[name] for each in numbers]) for name in numbers[0]}
        source, number = windows[0].source, windows[0].dataset
        collected = self.collectors[number].collect(
            windows[0] if len(steps) == 1 else concatenated(windows),
            None if isinstance(source, int) else source,
            together,
            len(steps),
        )
        kinds = {name: values.dtype.kind for name, values in together.items()}
        batches = self._tensors(number, collected, len(windows[0]), kinds)
        for step, each, own, built in zip(steps, windows, facts, batches, strict=True):
            built.dataset_counts = self._facts.counts(own)
            cameras = self._cameras[number]
            if cameras is not None:
                frames: Batch = {}
                padded, valid = cameras.add(step, each, frames)
                built.batch.update(to_tensors(frames))
                built.padded_bytes += padded
                if isinstance(built.valid_bytes, int):  # the CPU drew the windows, and counts
                    built.valid_bytes += valid
            if not self.postprocess.only_converts:
                built.batch = self.postprocess(step, each, built.batch)
        goals = self._goals[number]
        if goals is not None:
            goals.add(windows, batches)
        return batches

    def _sample(self, step: int) -> Windows:
        """Samples this rank's windows."""
        windows = self.source.sample(step, self._rows.batch_size)
        if self._rows.whole:
            return windows
        first, last = self._rows.bounds(step, len(windows))
        return windows[first:last]

    def _tensors(self, number: int, collected: DeviceBatches, rows: int, kinds: Mapping[str, str]) -> list[BuiltBatch]:
        """Makes tensors over collected memory.

        Args:
            number: of the collector.
            rows: windows of a batch.
            kinds: name -> kind of the dtype, of the numbers that come with windows.
        """
        # One view for each dtype, of which all arrays are parts: a view takes about a microsecond.
        typed = {dtype: collected.memory.view(dtype) for dtype in self._dtypes[number]}
        batches = []
        for place, valid_bytes in enumerate(collected.valid_bytes):
            batch: Batch = {
                each.key: typed[each.dtype].as_strided(
                    (rows, *each.shape), each.strides, each.offset + place * rows * each.strides[0]
                )
                for each in self._layouts[number]
            }
            for name, kind in kinds.items():
                first = collected.facts[name] // 8 + place * rows
                batch[name] = typed[_NUMBERS[kind]].as_strided((rows,), (1,), first)
            taken = _steps_to_take(self._plans[number], collected.memory, place, rows)
            deliver = functools.partial(self._deliver, self.collectors[number], collected, frozenset(batch), taken)
            padded_bytes = rows * self._plans[number].row_bytes
            batches.append(BuiltBatch(batch, rows, padded_bytes, valid_bytes, deliver=deliver))
        return batches

    def _deliver(
        self, collector: DeviceCollector, collected: DeviceBatches, on_device: frozenset[str], taken: _StepsToTake,
        batch: Batch,
    ) -> Batch:  # fmt: skip
        """Makes the consumer's stream wait for the batch, and takes listed steps there.

        Copies the tensors that the CPU made to the device.
        """
        collector.hand_over(collected)
        for steps, whole in taken:
            torch.stack(steps, 1, out=whole)
        # The CPU makes some tensors, for example with decoders.
        others = {key: value for key, value in batch.items() if key not in on_device}
        return {**batch, **self._upload(others)} if others else batch


def _steps_to_take(plan: BatchPlan, memory: torch.Tensor, number: int, rows: int) -> _StepsToTake:
    """Returns the arrays of listed steps of batch `number`, and their parts."""
    found = []
    for each in plan.takes:
        views = []
        for array in (each.span, each.whole):
            size = rows * array.row_bytes
            first = array.offset + number * size
            views.append(memory[first : first + size].view(rows, array.row_bytes // each.step_bytes, each.step_bytes))
        found.append(([views[0][:, place] for place in each.places], views[1]))
    return found


def staging_reader(reader: ColumnReader) -> StagingReader | None:
    """Returns the reader that stages rows for a GPU's kernels.

    Returns None if the CPU has to collect them.
    """
    if isinstance(reader, ClusterReader):
        return reader.staging()
    return reader if isinstance(reader, ShardReader) else None


def device_number(device: torch.device) -> int:
    """Returns the number of a CUDA device; the name `cuda` means the current device."""
    return torch.cuda.current_device() if device.index is None else device.index


def _staging_source(source: CollectSource, dataset: Dataset) -> tuple[StagingReader, DeviceColumns]:
    reader = staging_reader(source.reader)
    if reader is None:
        raise InvalidArgumentError(
            "backend='cuda' cannot collect steps that other machines send",
            hint="give ExecutionOptions(backend='cpu') or 'auto'",
        )
    return reader, dataset.store.device_columns()


def _sampling_plan(components: Sequence[LoaderComponent], slots: int) -> SamplingPlan | None:
    """Returns the plan by which the device samples windows.

    Returns None if the CPU has to sample them: for a joined batch, text, cameras or goals, for selectors without such a
    plan, and for ids of episodes that are not their rows.
    """
    component = components[0]
    on_cpu = len(components) > 1 or component.variable or component.cameras or component.goals is not None
    on_cpu = on_cpu or (component.window_ids and component.dataset.store.ids is not None)
    return None if on_cpu else component.selector.sampling_plan(slots)


@dataclass(frozen=True)
class _View:
    """The place of an array in the memory of batches.

    Attributes:
        key: key of the batch.
        dtype: the array's dtype, whose items the numbers below count.
        offset: of the first row.
        shape: of a row.
        strides: of the array, beginning with the size of a row.
    """

    key: str
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _views(plan: BatchPlan) -> list[_View]:
    return [_view(array) for array in plan.arrays]


def _view(array: ArrayLayout) -> _View:
    row = to_tensors({"": np.empty((1, *array.shape), array.dtype)})[""]
    return _View(array.key, row.dtype, array.offset // row.element_size(), array.shape, row.stride())
