"""DeviceGoals: goals of batches in a GPU's memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.plan import BatchPlan
from gear_data.loaders.builders.batch import Batch, BuiltBatch
from gear_data.loaders.builders.goals import Relabelling, goal_windows
from gear_data.loaders.frameworks.torch_tensors import to_tensors
from gear_data.loaders.presets.goals import GOALS
from gear_data.residency.device.collector import DeviceBatches, DeviceCollector
from gear_data.selection.windows import Windows


class DeviceGoals:
    """Adds goals to batches on a device.

    The CPU draws the goals, and the device collects their values.

    Args:
        collector: collects the goals of one call of `add`.
        plan: the plan of the collector, with one output.
        keys: the keys of goals.
        relabelling: the rewards and masks that depend on the goals. The CPU computes and uploads them.
    """

    def __init__(
        self,
        collector: DeviceCollector,
        plan: BatchPlan,
        keys: Sequence[str],
        relabelling: Relabelling,
    ) -> None:
        self._collector = collector
        (self._array,) = plan.arrays
        self._dtype = to_tensors({GOALS: np.empty(0, self._array.dtype)})[GOALS].dtype
        self._keys = keys
        self._relabelling = relabelling

    def add(self, windows: Sequence[Windows], batches: Sequence[BuiltBatch]) -> None:
        """Adds goals to batches, each [B, *shape].

        Rewards and masks of transitions are relabelled.

        Args:
            windows: the windows of each batch.
            batches: the batches of these windows. The function `deliver` of each one is replaced.
        """
        goals = goal_windows(windows)
        source = None if isinstance(goals.source, int) else goals.source
        relabelled = [self._relabelling(each) for each in windows]
        uploads = {f"{key} {i}": _words(own[key]) for i, own in enumerate(relabelled) for key in own}
        collected = self._collector.collect(goals, source, uploads)
        # Each batch hands its own goals over.
        collected.waiting = len(batches)
        whole = collected.memory
        begin, size = self._array.offset, len(goals) * self._array.row_bytes
        values = whole[begin : begin + size].view(self._dtype).view(len(goals), *self._array.shape)
        first = 0
        for i, (each, built) in enumerate(zip(windows, batches, strict=True)):
            own: Batch = {}
            for key in self._keys:
                own[key] = values[first : first + len(each)]
                first += len(each)
            for key, numbers in relabelled[i].items():
                old, at = built.batch[key], collected.facts[f"{key} {i}"]
                own[key] = whole[at : at + numbers.nbytes].view(old.dtype).view(-1, *[1] * (old.ndim - 1))
            if built.deliver is None:
                raise RuntimeError("a batch of the device has no function that delivers it")
            built.deliver = functools.partial(self._deliver, built.deliver, collected, own)
            built.padded_bytes += size // len(batches)
            # The CPU counts the valid bytes of windows that it draws.
            (valid_bytes,) = collected.valid_bytes
            if isinstance(built.valid_bytes, int) and isinstance(valid_bytes, int):
                built.valid_bytes += valid_bytes // len(batches)

    def _deliver(
        self, deliver: Callable[[Batch], Batch], collected: DeviceBatches, goals: Batch, batch: Batch
    ) -> Batch:
        """Delivers a batch with its goals, and makes the consumer's stream wait for them."""
        self._collector.hand_over(collected)
        return {**deliver(batch), **goals}


def _words(numbers: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Returns the bytes of an array as int64, padded with zeros."""
    words = np.zeros(-(-numbers.nbytes // 8), np.int64)
    words.view(np.uint8)[: numbers.nbytes] = numbers.view(np.uint8)
    return words
