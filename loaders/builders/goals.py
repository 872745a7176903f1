"""Goals of batches: their values, and the rewards and masks that depend on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.collector import CollectedBatch, Collector
from gear_data.collection.output import NextState, Output
from gear_data.collection.plan import CollectSource
from gear_data.loaders.component import LoaderComponent
from gear_data.loaders.presets.goals import GOALS
from gear_data.loaders.presets.outputs import own_keys
from gear_data.loaders.presets.transitions import MASKS, REWARDS, TERMINATED
from gear_data.selection.goals import GoalSampler
from gear_data.selection.windows import Windows


class GoalCollector:
    """Collects the values of goals with one read for a group of batches.

    Safe to call from several threads.

    Args:
        components: the datasets of a batch, all with goals.
        max_rows: the most windows of a batch.
        max_batches: the most batches of one call.
        reuse, allocate: see `Collector`.
    """

    def __init__(
        self, components: Sequence[LoaderComponent], max_rows: int, max_batches: int, *, reuse: bool,
        allocate: Callable[[int], npt.NDArray[np.uint8]],
    ) -> None:  # fmt: skip
        self._lengths = [component.dataset.store.lengths for component in components]
        goals = samplers_of(components)[0].goals
        self._keys = goals.keys
        rows = max_rows * max_batches * len(goals.keys)
        self._collector = Collector(goal_sources(components), rows, reuse=reuse, allocate=allocate)
        self._final_collector = None
        if goals.future:
            finals = goal_sources(components, final=True)
            self._final_collector = Collector(finals, rows, reuse=reuse, allocate=allocate)
        self._relabelling = Relabelling(components)

    def add(self, windows: Sequence[Windows], batches: Sequence[CollectedBatch]) -> None:
        """Adds goals to the arrays of batches, each [B, *shape].

        Rewards and masks of transitions are relabelled.

        Args:
            windows: the windows of each batch.
            batches: the batches, collected from these windows.
        """
        collected = self._collect(goal_windows(windows))
        values, first = collected.arrays[GOALS], 0
        for each, batch in zip(windows, batches, strict=True):
            for key in self._keys:
                batch.arrays[key] = values[first : first + len(each)]
                first += len(each)
            for key, relabelled in self._relabelling(each).items():
                array = batch.arrays[key]
                array[...] = relabelled.reshape(-1, *[1] * (array.ndim - 1))
            batch.padded_bytes += collected.padded_bytes // len(batches)
            batch.valid_bytes += collected.valid_bytes // len(batches)

    def _collect(self, goals: Windows) -> CollectedBatch:
        if self._final_collector is None:
            return self._collector(goals)
        steps = goals.episode_steps(self._lengths)
        at_final = np.flatnonzero(goals.start == steps)
        goals.start = np.minimum(goals.start, steps - 1)
        collected = self._collector(goals)
        if len(at_final):
            collected.arrays[GOALS][at_final] = self._final_collector(goals[at_final]).arrays[GOALS]
        return collected


class Relabelling:
    """The rewards and masks of transitions, as their value goals say.

    Args:
        components: the datasets of a batch, all with goals.
    """

    def __init__(self, components: Sequence[LoaderComponent]) -> None:
        component = components[0]
        self._sampler = samplers_of(components)[0]
        goals = self._sampler.goals
        # Key -> the values elsewhere and at the goal.
        self._values: dict[str, npt.NDArray[Any]] = {}
        if component.batch_format.transitions is None:
            return
        # The options of the preset may have given the rewards another key.
        rewards = own_keys(component.batch_format, component.request).get(REWARDS, REWARDS)
        numbers = {rewards: np.array([-1.0, 0.0] if goals.negative else [0.0, 1.0], np.float32)}
        if not goals.future:
            numbers[MASKS] = np.array([1.0, 0.0], np.float32)
        for output in component.outputs:
            if output.key in numbers:
                self._values[output.key] = numbers[output.key].astype(output.array_dtype)

    def __call__(self, windows: Windows) -> dict[str, npt.NDArray[Any]]:
        """Returns key -> values [B], in the dtype of the collected array."""
        if not self._values:
            return {}
        at_goal = self._sampler.reached(windows).astype(np.intp)
        return {key: values[at_goal] for key, values in self._values.items()}


def samplers_of(components: Sequence[LoaderComponent]) -> list[GoalSampler]:
    """Returns the samplers of goals, one for each dataset."""
    return [component.goals.sampler for component in components if component.goals is not None]


def goal_sources(components: Sequence[LoaderComponent], *, final: bool = False) -> list[CollectSource]:
    """Returns the sources of a collector of goals.

    Args:
        components: the datasets, all with goals.
        final: whether each goal is the state after its window's step.
    """
    sources = []
    for component in components:
        if component.goals is not None:
            outputs: tuple[Output, ...] = (component.goals.output,)
            if final:
                ends = component.rename.get(TERMINATED, TERMINATED)  # the flags of the dataset, under any name
                state = NextState(1, ends, outputs[0].source)
                # The next state depends on the flags. Another node sends them only if an output reads them.
                flags = Output(TERMINATED, ends, "bool", (), 0, 1, squeeze_time=True)
                outputs = dataclasses.replace(outputs[0], shift=1, next_state=state), flags
            sources.append(component.collect_source(outputs))
    return sources


def goal_windows(windows: Sequence[Windows]) -> Windows:
    """Returns the goals of several batches as windows of one step.

    Their order is batch by batch, and kind by kind.
    """
    drawn = [each.goals for each in windows if each.goals is not None]
    episode_id, step = np.concatenate([goals.reshape(2, -1) for goals in drawn], axis=1)
    source = windows[0].source
    if not isinstance(source, int):
        source = np.concatenate([np.tile(each.source, drawn[0].shape[1]) for each in windows])
    return Windows(episode_id, step, np.ones(len(step), np.int64), source=source)
