"""WindowSource: the windows of any step, from one dataset or from a mixture.

The windows of a step are a pure function of the step: not of the rank, the worker or the batches before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from gear_data.selection.samplers import Selector
from gear_data.selection.turns import Cycle
from gear_data.selection.windows import Windows


class WindowSource(Protocol):
    """Samples the windows of any step."""

    def sample(self, step: int, count: int) -> Windows:
        """Samples the windows of the global batch of a step.

        Args:
            step: the loader's step.
            count: slots of the batch. A node-local selector returns fewer windows than slots.
        """

    def turn(self, step: int) -> tuple[int | None, int]:
        """Returns (dataset, selector step) of a step's batch.

        The dataset is the number of the batch's only dataset; None if the batch has windows of several datasets. The
        selector step is the argument `step` of the selectors' `select`.
        """

    def selector_step(self, dataset: int, step: int) -> int:
        """Converts a step of the loader to the step of one dataset's selector."""

    def loader_step(self, dataset: int, selector_step: int) -> int:
        """Returns the first loader step with a selector step of at least `selector_step`."""

    def epoch_slots(self, epochs: int) -> int | None:
        """Returns the exact number of windows in `epochs` epochs.

        Returns None if epochs have no exact end.
        """

    def identity(self) -> dict[str, Any]:
        """Returns everything else that the windows depend on, JSON-able.

        The seed and the datasets are not included.
        """


class SingleSource:
    """The windows of one dataset."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector

    def sample(self, step: int, count: int) -> Windows:
        return self._selector.select(step, count, step * count)

    def turn(self, step: int) -> tuple[int | None, int]:
        return 0, step

    def selector_step(self, dataset: int, step: int) -> int:
        return step

    def loader_step(self, dataset: int, selector_step: int) -> int:
        return selector_step

    def epoch_slots(self, epochs: int) -> int | None:
        return self._selector.epoch_slots(epochs)

    def identity(self) -> dict[str, Any]:
        return {"selection": self._selector.identity()}


class AlternatingMixture:
    """A mixture in which every batch has the windows of one dataset.

    Each dataset counts its own steps, so its windows do not depend on the other datasets.
    """

    def __init__(self, selectors: tuple[Selector, ...], cycle: Cycle) -> None:
        self._selectors = selectors
        self._cycle = cycle

    def sample(self, step: int, count: int) -> Windows:
        number, selector_step = self._cycle.turn(step)
        windows = self._selectors[number].select(selector_step, count, selector_step * count)
        windows.source = number
        return windows

    def turn(self, step: int) -> tuple[int | None, int]:
        return self._cycle.turn(step)

    def selector_step(self, dataset: int, step: int) -> int:
        return self._cycle.count_before(dataset, step)

    def loader_step(self, dataset: int, selector_step: int) -> int:
        return self._cycle.turn_after(dataset, selector_step)

    def epoch_slots(self, epochs: int) -> int | None:
        return None

    def identity(self) -> dict[str, Any]:
        return _mixture_identity(self._selectors, self._cycle, join=False)


class InterleavedMixture:
    """A mixture in which every batch has windows of all datasets.

    The datasets take turns window by window.
    """

    def __init__(self, selectors: tuple[Selector, ...], cycle: Cycle) -> None:
        self._selectors = selectors
        self._cycle = cycle

    def sample(self, step: int, count: int) -> Windows:
        source, before = self._cycle.turns(step * count, count)
        columns = np.empty((3, count), np.int64)
        probability, importance = np.full(count, np.nan), np.ones(count)
        weighted = corrected = False
        for number, selector in enumerate(self._selectors):
            rows = np.flatnonzero(source == number)
            if not len(rows):
                continue
            windows = selector.select(step, len(rows), int(before[rows[0]]))
            columns[:, rows] = windows.episode_id, windows.start, windows.length
            if windows.probability is not None:
                probability[rows], weighted = windows.probability, True
            if windows.importance is not None:
                importance[rows], corrected = windows.importance, True
        episode_id, start, length = columns
        return Windows(
            episode_id, start, length, probability if weighted else None, importance if corrected else None, source
        )

    def turn(self, step: int) -> tuple[int | None, int]:
        return None, step

    def selector_step(self, dataset: int, step: int) -> int:
        return step

    def loader_step(self, dataset: int, selector_step: int) -> int:
        return selector_step

    def epoch_slots(self, epochs: int) -> int | None:
        return None

    def identity(self) -> dict[str, Any]:
        return _mixture_identity(self._selectors, self._cycle, join=True)


def make_window_source(
    selectors: tuple[Selector, ...], proportions: Sequence[float] | None, *, join: bool
) -> WindowSource:
    """Makes the window source of a loader.

    Args:
        selectors: one for each dataset.
        proportions: the proportions of a mixture; None: there is one dataset.
        join: whether the datasets of a mixture share every batch.

    Raises:
        InvalidArgumentError: a proportion is not a positive number.
    """
    if proportions is None:
        return SingleSource(selectors[0])
    return (InterleavedMixture if join else AlternatingMixture)(selectors, Cycle(proportions))


def _mixture_identity(selectors: tuple[Selector, ...], cycle: Cycle, *, join: bool) -> dict[str, Any]:
    return {"selection": [selector.identity() for selector in selectors], "turns": cycle.identity(), "join": join}
