"""StageBuilders: the batch builders of an iteration, one for each open stage."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from gear_data.common.environment import current_cuda_device
from gear_data.loaders.batch_iterator import BatchIterator
from gear_data.loaders.builders.batch import BatchBuilder, BuiltBatch, RankRows
from gear_data.loaders.metrics import Meter
from gear_data.loaders.passes.progress import Progress
from gear_data.loaders.stages.stage import Stage
from gear_data.loaders.stages.timeline import Stages


class StageBuilders:
    """Finds the builder of a step: see `BuilderLookup`.

    Args:
        stages: the loader's stages.
        rows: the rows of this rank.
        progress: says which batches were taken.

    Attributes:
        group: the most batches of one call of a builder.
    """

    def __init__(self, stages: Stages, rows: RankRows, progress: Progress) -> None:
        self._stages, self._rows, self._progress = stages, rows, progress
        stage = stages.newest
        self.group = stage.batches.group(rows)
        self._current = stage, stage.batches.builder(rows, self.group)
        self._device = current_cuda_device()
        # The builder before the current one: a thread may still need it.
        self._previous: tuple[Stage, BatchBuilder] | None = None

    @property
    def threaded(self) -> bool:
        return self._current[1].threaded

    def at(self, step: int) -> BatchBuilder:
        stage, builder = self._current
        if not stage.from_step <= step < stage.end:
            _, builder = self._found(step)
        # Datasets whose batches were taken are let go.
        if self._previous is not None and self._previous[0].end <= self._progress.next_step:
            self._previous = None
        if self._stages.passed <= self._progress.next_step:
            self._stages.close_passed(self._progress.next_step)
        return builder

    def _found(self, step: int) -> tuple[Stage, BatchBuilder]:
        """Returns the stage of a step, with its builder."""
        stage = self._stages.at(step)
        if self._previous is not None and self._previous[0] is stage:
            return self._previous
        with _on_device(self._device):
            found = stage, stage.batches.builder(self._rows, self.group)
        self._previous, self._current = self._current, found
        return found

    def build(self, steps: Sequence[int]) -> list[BuiltBatch]:
        """Returns the batches of ascending steps; those of one stage are built together."""
        # A thread that works on another device and returns to device 0 would make a context there, which takes memory.
        with _on_device(self._device):
            builder, end = self.at(steps[0]), self._stages.at(steps[0]).end
            if steps[-1] < end:
                return builder.build(steps)
            split = next(place for place, step in enumerate(steps) if step >= end)
            return [*builder.build(steps[:split]), *self.build(steps[split:])]


def _on_device(device: int | None) -> AbstractContextManager[object]:
    """Makes a CUDA device current in this thread. A thread of a prefetcher begins with device 0."""
    if device is None:
        return nullcontext()
    import torch

    return torch.cuda.device(device)


def make_iterator(
    stages: Stages, rows: RankRows, progress: Progress, meter: Meter, starting: threading.Lock, prefetch: int
) -> BatchIterator:
    """Returns the iterator of a pass.

    Args:
        stages: the loader's stages.
        rows: the rows of this rank.
        progress, meter, starting, prefetch: see `BatchIterator`.

    Raises:
        InvalidArgumentError: some ranks would get empty batches.
    """
    builders = StageBuilders(stages, rows, progress)
    return BatchIterator(
        builders, progress=progress, group=builders.group, prefetch=prefetch, meter=meter, starting=starting
    )
