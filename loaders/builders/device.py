"""DeviceBatchBuilder: builds batches in a GPU's memory, with the GPU's kernels."""

from __future__ import annotations

import functools
import itertools
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
from gear_data.kernels.cuda.launch_arguments import Slots
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
    """Windows of batches that the device samples when it collects them.

    Attributes:
        dataset: the number of their dataset.
        places: the batches' places among the batches that are built together.
        sampler: samples the windows on the device.
        slots: this rank's slots of the batches. Their step is the step at which the dataset's selector is asked.
        position: slots of the dataset before the first batch.
    """

    dataset: int
    places: list[int]
    sampler: DeviceWindowSampler
    slots: Slots
    position: int

    def follows(self, slots: Slots, position: int) -> bool:
        """Returns whether a batch's windows can be sampled with these: it is the batch after the last one."""
        own = self.slots
        return (
            slots.step == own.step + own.batches
            and position == self.position + own.batches * own.whole
            and (slots.first, slots.count) == (own.first, own.count)
        )


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
                [sources[i] for i in group], plan, max_rows, max_batches, device=device_number(device),
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
            staged, plan, rows * len(keys), 1, device=device_number(self._device), sm_budget=sm_budget, most=most,
            sampling_plan=None, slots=0,
        )  # fmt: skip
        return DeviceGoals(collector, plan, keys, Relabelling(components))

    @property
    def threaded(self) -> bool:
        """Whether the CPU samples windows, or will after an update of weights."""
        updated = any(component.has_own_weights for component in self._components)
        return updated or any(collector.sampler is None for collector in self.collectors)

    def build(self, steps: Sequence[int]) -> list[BuiltBatch]:
        """Builds the batches of these steps."""
        runs, others = self._deferred(steps)
        if not runs:
            return self._collect(steps)
        batches: dict[int, BuiltBatch] = {}
        for run in runs:
            built = self._sample_and_collect([steps[place] for place in run.places], run)
            batches |= zip(run.places, built, strict=True)
        if others:
            batches |= zip(others, self._collect([steps[place] for place in others]), strict=True)
        return [batches[place] for place in range(len(steps))]

    def _deferred(self, steps: Sequence[int]) -> tuple[list[DeferredWindows], list[int]]:
        """Returns the windows that the device samples, and the places of the steps whose windows the CPU samples."""
        whole = self._rows.batch_size
        samplers: dict[int, DeviceWindowSampler | None] = {}
        runs: dict[int, list[DeferredWindows]] = {}
        others = []
        for place, step in enumerate(steps):
            dataset, selector_step = self.source.turn(step)
            if dataset is not None and dataset not in samplers:
                samplers[dataset] = self._sampler(dataset, whole)
            sampler = None if dataset is None else samplers[dataset]
            if dataset is None or sampler is None:
                others.append(place)
                continue
            first, last = self._rows.bounds(step, whole)
            slots, position = Slots(selector_step, first, last - first, whole), self.source.first_slot(step, whole)
            of_dataset = runs.setdefault(dataset, [])
            if of_dataset and of_dataset[-1].follows(slots, position):
                of_dataset[-1].slots.batches += 1
                of_dataset[-1].places.append(place)
            else:
                of_dataset.append(DeferredWindows(dataset, [place], sampler, slots, position))
        return list(itertools.chain(*runs.values())), others

    def _sampler(self, dataset: int, slots: int) -> DeviceWindowSampler | None:
        """Returns what samples the windows of a dataset on the device; None: the CPU samples them."""
        sampler = self.collectors[dataset].sampler
        if sampler is None:
            return None
        # After an update of weights the selector has another sampler, or none.
        plan = self._components[dataset].selector.sampling_plan(slots)
        return sampler if plan is not None and plan.sampler is sampler.plan.sampler else None

    def _sample_and_collect(self, steps: Sequence[int], deferred: DeferredWindows) -> list[BuiltBatch]:
        """Builds batches of one dataset whose windows the device samples."""
        number, rows = deferred.dataset, deferred.slots.count
        facts = [self._facts(step, number, rows) for step in steps]
        together: WindowFacts = {name: np.concatenate([each[name] for each in facts]) for name in facts[0]}
        collected = self.collectors[number].draw_and_collect(
            deferred.sampler, deferred.slots, deferred.position, together
        )
        kinds = {
            name: "f" if name == "probability" else "i"
            for name in collected.facts
            if self._facts.window_ids or name not in WINDOW_IDS
        }
        batches = self._tensors(number, collected, rows, kinds)
        for own, built in zip(facts, batches, strict=True):
            built.dataset_counts = self._facts.counts(own)
        return batches

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
        count, plan = len(collected.valid_bytes), self._plans[number]
        arrays = {
            each.key: _views_of(typed[each.dtype], count, (rows, *each.shape), each.strides, each.offset)
            for each in self._layouts[number]
        }
        for name, kind in kinds.items():
            arrays[name] = _views_of(typed[_NUMBERS[kind]], count, (rows,), (1,), collected.facts[name] // 8)
        keys = frozenset(arrays)
        batches = []
        views = zip(*arrays.values(), strict=True)
        for place, (own, valid_bytes) in enumerate(zip(views, collected.valid_bytes, strict=True)):
            taken = _steps_to_take(plan, collected.memory, place, rows) if plan.lists[0].arrays else ()
            deliver = functools.partial(self._deliver, self.collectors[number], collected, keys, taken)
            batch: Batch = dict(zip(arrays, own, strict=True))
            batches.append(BuiltBatch(batch, rows, rows * plan.row_bytes[0], valid_bytes, deliver=deliver))
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


def _views_of(
    memory: torch.Tensor, count: int, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> Sequence[torch.Tensor]:
    """Returns views of an array of each batch, one batch after another in memory.

    Args:
        memory: of the array's dtype, whose items the numbers below count.
        count: number of batches.
        shape, strides, offset: of the first batch's array, whose strides begin with the size of a row.
    """
    if count == 1:
        return (memory.as_strided(shape, strides, offset),)
    return memory.as_strided((count, *shape), (shape[0] * strides[0], *strides), offset).unbind()


def _steps_to_take(plan: BatchPlan, memory: torch.Tensor, number: int, rows: int) -> _StepsToTake:
    """Returns the arrays of listed steps of batch `number`, and their parts."""
    found = []
    # All datasets of a batch list the same steps here: see `resolve_backend`.
    for each in plan.lists[0].arrays:
        views, step_bytes = [], each.output.step_bytes
        for array in (each.span, each.whole):
            size = rows * array.row_bytes
            first = array.offset + number * size
            views.append(memory[first : first + size].view(rows, array.row_bytes // step_bytes, step_bytes))
        found.append(([views[0][:, place] for place in each.output.places], views[1]))
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

    Returns None if the CPU has to sample them: for a joined batch, text, facts, cameras or goals, for selectors without
    such a plan, and for ids of episodes that are not their rows.
    """
    component = components[0]
    on_cpu = len(components) > 1 or bool(component.variable or component.facts or component.cameras)
    on_cpu = on_cpu or bool(component.choices) or component.goals is not None
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
