"""What a loader draws from: one dataset, or several by turns. Each step's windows are a pure function of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from gear_data.loaders.node_local import NodeLocalSelector
from gear_data.selection.samplers import Selector
from gear_data.selection.turns import Cycle
from gear_data.selection.windows import Int64Array, Windows


@dataclass(slots=True)  # made for every batch: see Windows
class Slots:
    """Windows that nobody has drawn yet: slots first to last - 1 of a batch of `count`, see `Selector.select`."""

    selector: Selector
    step: int
    count: int
    position: int
    first: int
    last: int

    def select(self) -> Windows:
        windows = self.selector.select(self.step, self.count, self.position)
        return windows if len(self) == self.count else windows[self.first : self.last]

    def __len__(self) -> int:
        return self.last - self.first


class Draw:
    """The windows of a batch, drawn when they are first asked for.

    Args:
        windows: [B], or the slots they are of.
        source: the number of the dataset they are of; int64 [B] where they are of several.
        step: what the datasets' selectors were asked for: the batch's step, or the dataset's own.

    Attributes:
        slots: the slots, if they were given, for those who draw them elsewhere.
    """

    __slots__ = ("_windows", "slots", "source", "step")

    def __init__(self, windows: Windows | Slots, source: int | Int64Array, step: int) -> None:
        self.slots = windows if isinstance(windows, Slots) else None
        self._windows = windows
        self.source = source
        self.step = step

    @property
    def windows(self) -> Windows:
        if isinstance(self._windows, Slots):
            self._windows = self._windows.select()
        return self._windows

    def __len__(self) -> int:
        return len(self._windows)

    def rows(self, first: int, last: int) -> Draw:
        source = self.source if isinstance(self.source, int) else self.source[first:last]
        if isinstance(self._windows, Slots):
            slots = self._windows
            part: Windows | Slots = replace(slots, first=slots.first + first, last=slots.first + last)
        else:
            part = self._windows[first:last]
        return Draw(part, source, self.step)


def _slots(selector: Selector, step: int, count: int) -> Windows | Slots:
    """All slots of a batch, which may be drawn elsewhere; or its windows, where the selector alone draws."""
    if selector.sampling_plan(count) is None:
        return selector.select(step, count, step * count)
    return Slots(selector, step, count, step * count, 0, count)


class WindowSource(Protocol):
    """Draws the windows of any step."""

    def draw(self, step: int, count: int) -> Draw:
        """The windows of the batch `step`, of `count` windows."""

    def own_step(self, dataset: int, step: int) -> int:
        """What a step of the loader is to the selector of one dataset."""

    def step_of(self, dataset: int, own_step: int) -> int:
        """The first step of the loader that is this one, or a later one, to the selector of one dataset."""

    def epoch_slots(self, epochs: int) -> int | None:
        """How many windows so many epochs have, exactly; None if epochs have no exact end."""

    def identity(self) -> dict[str, Any]:
        """JSON-able: what the draws depend on beside the seed and the datasets."""


class SingleSource:
    """All windows are of one dataset."""

    def __init__(self, selector: Selector) -> None:
        self._selector = selector

    def draw(self, step: int, count: int) -> Draw:
        return Draw(_slots(self._selector, step, count), 0, step)

    def own_step(self, dataset: int, step: int) -> int:
        return step

    def step_of(self, dataset: int, own_step: int) -> int:
        return own_step

    def epoch_slots(self, epochs: int) -> int | None:
        return self._selector.epoch_slots(epochs)

    def identity(self) -> dict[str, Any]:
        return {"selection": self._selector.identity()}


class OneNode(SingleSource):
    """All windows are of one dataset, and this node's rows alone: fewer than are asked for."""

    def draw(self, step: int, count: int) -> Draw:
        return Draw(self._selector.select(step, count, step * count), 0, step)


class AlternatingMixture:
    """Every batch is of one dataset. A dataset counts its own steps, so what it gives depends on no other."""

    def __init__(self, selectors: tuple[Selector, ...], cycle: Cycle) -> None:
        self._selectors = selectors
        self._cycle = cycle

    def draw(self, step: int, count: int) -> Draw:
        source, own = self._cycle.turn(step)
        return Draw(_slots(self._selectors[source], own, count), source, own)

    def own_step(self, dataset: int, step: int) -> int:
        return self._cycle.count_before(dataset, step)

    def step_of(self, dataset: int, own_step: int) -> int:
        return self._cycle.turn_after(dataset, own_step)

    def epoch_slots(self, epochs: int) -> int | None:
        return None

    def identity(self) -> dict[str, Any]:
        return _mixture_identity(self._selectors, self._cycle, join=False)


class InterleavedMixture:
    """Every batch is of all datasets: window by window they take turns."""

    def __init__(self, selectors: tuple[Selector, ...], cycle: Cycle) -> None:
        self._selectors = selectors
        self._cycle = cycle

    def draw(self, step: int, count: int) -> Draw:
        source, before = self._cycle.turns(step * count, count)
        columns = np.empty((3, count), np.int64)
        probability = np.full(count, np.nan)
        weighted = False
        for number, selector in enumerate(self._selectors):
            rows = np.flatnonzero(source == number)
            if not len(rows):
                continue
            windows = selector.select(step, len(rows), int(before[rows[0]]))
            columns[:, rows] = windows.episode_id, windows.start, windows.length
            if windows.probability is not None:
                probability[rows], weighted = windows.probability, True
        episode_id, start, length = columns
        return Draw(Windows(episode_id, start, length, probability if weighted else None), source, step)

    def own_step(self, dataset: int, step: int) -> int:
        return step

    def step_of(self, dataset: int, own_step: int) -> int:
        return own_step

    def epoch_slots(self, epochs: int) -> int | None:
        return None

    def identity(self) -> dict[str, Any]:
        return _mixture_identity(self._selectors, self._cycle, join=True)


def make_window_source(
    selectors: tuple[Selector, ...], proportions: Sequence[float] | None, *, join: bool
) -> WindowSource:
    """The drawer of a loader's datasets.

    Args:
        selectors: one a dataset.
        proportions: of a mixture's datasets; None: there is one dataset.
        join: whether the datasets of a mixture share every batch.

    Raises:
        InvalidArgumentError: a proportion that is not a positive number.
    """
    if proportions is None:
        return (OneNode if isinstance(selectors[0], NodeLocalSelector) else SingleSource)(selectors[0])
    return (InterleavedMixture if join else AlternatingMixture)(selectors, Cycle(proportions))


def _mixture_identity(selectors: tuple[Selector, ...], cycle: Cycle, *, join: bool) -> dict[str, Any]:
    return {"selection": [selector.identity() for selector in selectors], "turns": cycle.identity(), "join": join}
