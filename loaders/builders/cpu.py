"""CpuBatchBuilder: builds batches in this machine's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gear_data.collection.buffers import plain_memory
from gear_data.collection.collector import CollectedBatch, Collector
from gear_data.loaders.builders.batch import BuiltBatch, RankRows
from gear_data.loaders.builders.goals import GoalCollector
from gear_data.loaders.builders.grouping import are_alike, concatenated
from gear_data.loaders.builders.packed_keys import PackedKeys
from gear_data.loaders.builders.postprocess import Postprocessor
from gear_data.loaders.builders.task_goals import TaskGoals
from gear_data.loaders.builders.token_parts import dataset_parts
from gear_data.loaders.builders.window_facts import SourceFacts, sampled_facts
from gear_data.loaders.component import LoaderComponent
from gear_data.loaders.frameworks.framework import Change
from gear_data.loaders.presets.packed import SEGMENT_IDS
from gear_data.loaders.window_source import WindowSource
from gear_data.selection.windows import Windows

if TYPE_CHECKING:
    from gear_data.loaders.video.camera_collector import CameraCollector


class CpuBatchBuilder:
    """Builds batches on the CPU: see `BatchBuilder`.

    Args:
        components: the loader's datasets.
        source: samples the windows of global batches.
        rows: the rows of this rank.
        postprocess: turns collected arrays into a batch.
        joined: whether one batch has windows of several datasets.
        max_rows: the most rows of a batch of this rank.
        max_batches: the most steps in one call of `build`.
        reuse: whether the memory of a batch is used again after the batch is gone; see `BufferPool`.
        allocate: makes the memory of batches; see `BufferPool`.
        deliver: applied to each batch in the consumer's thread; None: nothing.
        cameras: for each collector, what adds cameras to its batches; None: they have none.
        goal_cameras: the same for cameras of the goals of tasks.
    """

    threaded = True

    def __init__(
        self, components: Sequence[LoaderComponent], source: WindowSource, rows: RankRows, postprocess: Postprocessor,
        *, joined: bool, max_rows: int, max_batches: int, reuse: bool, deliver: Change | None,
        cameras: Sequence[CameraCollector | None], goal_cameras: Sequence[CameraCollector | None],
        allocate: Callable[[int], npt.NDArray[np.uint8]] = plain_memory,
    ) -> None:  # fmt: skip
        self.source, self._components = source, components
        self.postprocess = postprocess
        self._rows = rows
        self._slots, self._whole = rows.batch_size, rows.whole
        self._facts = SourceFacts(components, source)
        packs = [0 if each.rows is None else each.rows.steps for each in components]
        sources = [component.collect_source() for component in components]
        # Tokens of several datasets are joined, and not their arrays.
        self._by_part = joined and components[0].batch_format.tokens is not None
        joined = joined and not self._by_part
        groups = [sources] if joined else [[each] for each in sources]
        self.collectors = [
            Collector(group, max_rows, batches=max_batches, pack=pack, reuse=reuse, allocate=allocate)
            for group, pack in zip(groups, packs, strict=False)
        ]
        components_of = [list(components)] if joined else [[each] for each in components]
        self._packed_keys = [
            None
            if each.rows is None
            else PackedKeys(max_rows, each.rows.tokens, each.rows.unit, reuse=reuse, allocate=allocate)
            for each in components[: len(groups)]
        ]
        self._goals = [
            None
            if each[0].goals is None
            else GoalCollector(each, max_rows, max_batches, reuse=reuse, allocate=allocate)
            for each in components_of
        ]
        self._task_goals = [
            TaskGoals(each, postprocess.seed, max_rows, reuse=reuse, allocate=allocate, cameras=of_cameras)
            if each[0].task_goals
            else None
            for each, of_cameras in zip(components_of, goal_cameras, strict=True)
        ]
        self._deliver = deliver
        self._cameras = cameras

    def build(self, steps: Sequence[int]) -> list[BuiltBatch]:
        """Builds the batches of these steps."""
        if self._by_part:
            return [self._build_by_part(step) for step in steps]
        if len(steps) > 1:
            return self._build_together(steps)
        batches = []
        for step in steps:
            windows = self.source.sample(step, self._slots)
            if not self._whole:
                windows = self._own_rows(step, windows)
            # Each dataset has a collector, or one collector serves all datasets of joined batches.
            # `windows.dataset`, without a call in every batch.
            number = windows.source if isinstance(windows.source, int) else 0
            collected = self.collectors[number](windows)
            goals = self._goals[number]
            if goals is not None:
                goals.add([windows], [collected])
            batches.append(self._finished(number, step, windows, collected))
        return batches

    def _build_by_part(self, step: int) -> BuiltBatch:
        """Builds a batch of tokens of several datasets."""
        windows = self.source.sample(step, self._slots)
        if not self._whole:
            windows = self._own_rows(step, windows)
        parts = dataset_parts(windows, self._components)
        padded = valid = 0
        arrays = {} if self._packed_keys[0] is None else self._packed_keys[0](windows)
        for part in parts:
            collected = self.collectors[part.number](part.windows)
            part.arrays, cameras = collected.arrays, self._cameras[part.number]
            of_cameras = (0, 0) if cameras is None else cameras.add(step, part.windows, part.arrays)
            padded += collected.padded_bytes + of_cameras[0]
            valid += collected.valid_bytes + of_cameras[1]
            part.arrays["valid_count"] = part.windows.length
            if SEGMENT_IDS in arrays:
                part.arrays[SEGMENT_IDS] = arrays[SEGMENT_IDS][part.rows]
        facts = sampled_facts(windows, self._components)
        facts.update(self._facts(step, windows.source, len(windows)))
        arrays.update(facts)
        batch = self.postprocess(step, windows, arrays, parts)
        return BuiltBatch(batch, len(windows), padded, valid, self._facts.counts(facts), self._deliver)

    def _own_rows(self, step: int, windows: Windows) -> Windows:
        """Returns this rank's windows of a global batch."""
        if windows.packing is not None:
            return windows.of_rows(*self._rows.bounds(step, windows.packing.rows))
        first, last = self._rows.bounds(step, len(windows))
        return windows[first:last]

    def _build_together(self, steps: Sequence[int]) -> list[BuiltBatch]:
        """Builds several batches with one read.

        One read is possible if all batches are of one dataset and have the same number of rows. Otherwise each batch is
        built separately. With one read, the kernel runs longer without the interpreter lock, and other nodes get one
        request for all batches.
        """
        windows = [self.source.sample(step, self._slots) for step in steps]
        if not self._whole:
            windows = [self._own_rows(step, each) for step, each in zip(steps, windows, strict=True)]
        if not are_alike(windows):
            return [built for step in steps for built in self.build([step])]
        number = windows[0].dataset
        collected = self.collectors[number].collect_together(concatenated(windows), len(steps))
        goals = self._goals[number]
        if goals is not None:
            goals.add(windows, collected)
        return [self._finished(number, *each) for each in zip(steps, windows, collected, strict=True)]

    def _finished(self, number: int, step: int, windows: Windows, collected: CollectedBatch) -> BuiltBatch:
        """Turns collected arrays, and the numbers of the windows, into a batch.

        number: the number of the collector that collected them.
        """
        arrays = collected.arrays
        cameras = self._cameras[number]
        if cameras is not None:
            padded, valid = cameras.add(step, windows, arrays)
            collected.padded_bytes += padded
            collected.valid_bytes += valid
        task_goals = self._task_goals[number]
        if task_goals is not None:
            padded, valid = task_goals.add(step, windows, arrays)
            collected.padded_bytes += padded
            collected.valid_bytes += valid
        packed_keys = self._packed_keys[number]
        if packed_keys is not None:
            arrays.update(packed_keys(windows))
        facts = sampled_facts(windows, self._components)
        dataset_counts = None
        if not self._facts.empty:
            facts.update(self._facts(step, windows.source, len(windows)))
            dataset_counts = self._facts.counts(facts)
        arrays.update(facts)
        batch = self.postprocess(step, windows, arrays)
        return BuiltBatch(
            batch, len(windows), collected.padded_bytes, collected.valid_bytes, dataset_counts, self._deliver
        )
