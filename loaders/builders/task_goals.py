"""TaskGoals: the observations of later steps, as the goals of Octo's tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.collector import Collector
from gear_data.loaders.component import LoaderComponent
from gear_data.loaders.presets.choices import drawn_numbers
from gear_data.loaders.presets.policies.octo import GOAL_STEPS, LAST_STEPS
from gear_data.selection.windows import Windows

if TYPE_CHECKING:
    from gear_data.loaders.video.camera_collector import CameraCollector


def goal_component(component: LoaderComponent) -> LoaderComponent:
    """Returns the component whose arrays are the goals of a dataset's windows."""
    return dataclasses.replace(component, outputs=component.task_goals, choices=(), hidden=frozenset())


class TaskGoals:
    """Adds goals to batches: the observations of a step from the window's own to the episode's last, drawn uniformly.

    The step is a function of the seed, the batch's step and the row in the global batch. Safe to call from several
    threads.

    Args:
        components: the datasets of a batch, all with goals.
        seed: seed of the loader.
        max_rows: the most windows of a batch.
        reuse, allocate: see `Collector`.
        cameras: adds the cameras of goals; None: there are none.
    """

    def __init__(
        self, components: Sequence[LoaderComponent], seed: int, max_rows: int, *, reuse: bool,
        allocate: Callable[[int], npt.NDArray[np.uint8]], cameras: CameraCollector | None,
    ) -> None:  # fmt: skip
        self._lengths = [component.dataset.store.lengths for component in components]
        self._seed, self._cameras = seed, cameras
        sources = [goal_component(component).collect_source() for component in components]
        self._collector = Collector(sources, max_rows, reuse=reuse, allocate=allocate)

    def add(self, step: int, windows: Windows, arrays: dict[str, Any]) -> tuple[int, int]:
        """Adds the goals of a batch to its arrays, and the last steps of episodes.

        Returns:
            The bytes of the goals, and of those that are not padding.
        """
        totals = windows.episode_steps(self._lengths)
        later = drawn_numbers(self._seed, GOAL_STEPS, step, windows.row, totals - windows.start)
        own = Windows(
            windows.episode_id, windows.start + later, np.ones(len(windows), np.int64), source=windows.source,
            row=windows.row,
        )  # fmt: skip
        collected = self._collector(own)
        padded, valid = collected.padded_bytes, collected.valid_bytes
        if self._cameras is not None:
            of_cameras = self._cameras.add(step, own, collected.arrays)
            padded, valid = padded + of_cameras[0], valid + of_cameras[1]
        arrays.update(collected.arrays)
        arrays[LAST_STEPS] = totals - 1
        return padded, valid
