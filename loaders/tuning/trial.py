"""Trials: the seconds of a training step with one setting."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from typing import Any

from gear_data.dataset.dataset import Dataset
from gear_data.errors import GearError, WorkerError
from gear_data.loaders.batch_iterator import BatchIterator
from gear_data.loaders.builders.batch import Batch
from gear_data.loaders.mixture import Mixture
from gear_data.loaders.sequence_loader import SequenceLoader
from gear_data.loaders.tuning.config_file import reopen_with
from gear_data.loaders.tuning.setting import Setting
from gear_data.loaders.tuning.training_step import TrainingStep

#: Fewest steps that a run measures.
MIN_STEPS = 5


class Trials:
    """Measures training steps over a dataset.

    Each run makes its own loader. So all runs read the same batches, and no run leaves threads, workers or batches
    behind. Datasets that were opened stay open until the trials end.

    Args:
        dataset: the dataset, as it was opened.
        arguments: the loader's arguments, without the tuned ones.
        step: the training step.
    """

    def __init__(self, dataset: Dataset | Mixture, arguments: Mapping[str, Any], step: TrainingStep) -> None:
        self._dataset, self._arguments, self._step = dataset, arguments, step
        self._opened: dict[tuple[Any, ...], Dataset | Mixture] = {}

    def loader(self, setting: Setting) -> SequenceLoader:
        """Returns a new loader with a setting.

        Raises:
            GearError: this machine cannot do it, for example because a residency needs more memory.
        """
        key = setting.residency, setting.queue_pairs
        if key not in self._opened:
            self._opened[key] = reopen_with(self._dataset, *key)
        return SequenceLoader(self._opened[key], **setting.applied_to(self._arguments))

    def bare(self, seconds: float) -> float:
        """Returns the seconds of a step that always has the same batch.

        seconds: length of the measurement.
        """
        batch = self.loader(Setting(prefetch=0)).batch(0)
        return self._measure(_repeated(batch), 1, seconds)

    def measure(self, setting: Setting, seconds: float) -> float:
        """Returns the seconds of a step with a setting.

        A step is waiting for a batch, and training on it.

        Args:
            setting: the setting.
            seconds: length of the measurement, after the batches that were built ahead at the start are used up.

        Raises:
            GearError: see `loader`; or workers cannot run here.
        """
        loader = self.loader(setting)
        batches: Any = _start_workers(loader, setting.num_workers) if setting.num_workers else iter(loader)
        try:
            # Otherwise a run would count batches that were built before its first step.
            end = time.perf_counter() + seconds
            for _ in range(2 * setting.batches_ahead + 2):
                next(batches)
                if time.perf_counter() > end:
                    break
            return self._measure(batches, setting.batches_at_once or 1, seconds)
        finally:
            if isinstance(batches, BatchIterator):
                batches.close()
            del batches  # ends a DataLoader's workers

    def _measure(self, batches: Iterator[Batch], group: int, seconds: float) -> float:
        """Measures whole groups of steps.

        The first batch of a group takes longer than the others.
        """
        run, finish = self._step.run, self._step.finish
        for _ in range(2):
            run(next(batches))
        finish()
        steps, began = 0, time.perf_counter()
        end = began + seconds
        while steps < MIN_STEPS or time.perf_counter() < end:
            for _ in range(group):
                run(next(batches))
            steps += group
        finish()
        return (time.perf_counter() - began) / steps


def _start_workers(loader: SequenceLoader, count: int) -> Iterator[Batch]:
    """Returns the batches of a DataLoader, after the first one.

    All workers have started then.

    Raises:
        WorkerError: workers cannot run here.
    """
    try:
        batches = iter(loader.dataloader(count))
        next(batches)
    except GearError:
        raise
    except Exception as error:  # for example a transform that cannot be pickled, or too little shared memory
        raise WorkerError(f"workers do not run here: {error}", hint="give num_workers=0") from error
    return batches


def _repeated(batch: Batch) -> Iterator[Batch]:
    while True:
        yield copy.copy(batch)  # a step may take keys out of its batch
