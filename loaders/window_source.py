"""WindowSource: the windows of any step, from one dataset or from a mixture.

The windows of a step are a pure function of the step: not of the rank, the worker or the batches before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gear_data.kernels import cpu
from gear_data.loaders.passes.layout import PassLayout
from gear_data.selection.goals import GoalSampler
from gear_data.selection.packing import PackedRows, joined_rows
from gear_data.selection.samplers import Selector
from gear_data.selection.samplers.uniform import WindowSelector
from gear_data.selection.schedule import CheckedSchedule
from gear_data.selection.scheduled_turns import ScheduledTurns, dealt_turns
from gear_data.selection.turns import Cycle
from gear_data.selection.windows import Int64Array, Windows


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

    def first_slot(self, step: int, count: int) -> int:
        """Returns the number of slots of a step's dataset in all batches before the step.

        The batch of the step has windows of one dataset only.

        Args:
            step: the loader's step.
            count: slots of a batch.
        """

    def with_selections(self, selections: tuple[WindowSelection, ...]) -> WindowSource:
        """Returns the source of other windows of the datasets, which have the same turns."""

    def identity(self) -> dict[str, Any]:
        """Returns everything else that the windows depend on, JSON-able.

        The seed and the datasets are not included.
        """


@dataclass(frozen=True)
class WindowSelection:
    """The windows of one dataset, with their goals.

    Attributes:
        selector: selects the windows.
        goals: draws the goals; None: windows have no goals.
    """

    selector: Selector
    goals: GoalSampler | None = None

    @property
    def packed(self) -> bool:
        """Whether it selects packed rows."""
        return isinstance(self.selector, PackedRows)

    def select(self, step: int, count: int, position: int) -> Windows:
        """Selects windows, see `Selector.select`."""
        windows = self.selector.select(step, count, position)
        if self.goals is not None:
            windows.goals = self.goals.draw(step, windows)
        return windows


class SingleSource:
    """The windows of one dataset."""

    def __init__(self, selection: WindowSelection, layout: PassLayout) -> None:
        self._selector, self._goals = selection.selector, selection.goals
        self._layout, self._whole = layout, layout.windows is None

    def sample(self, step: int, count: int) -> Windows:
        # Not by `WindowSelection.select`: one call less for every batch.
        position = step * count if self._whole else self._layout.first_slot(step)
        windows = self._selector.select(step, count, position)
        if self._goals is not None:
            windows.goals = self._goals.draw(step, windows)
        return windows

    def turn(self, step: int) -> tuple[int | None, int]:
        return 0, step

    def selector_step(self, dataset: int, step: int) -> int:
        return step

    def loader_step(self, dataset: int, selector_step: int) -> int:
        return selector_step

    def first_slot(self, step: int, count: int) -> int:
        return self._layout.first_slot(step)

    def with_selections(self, selections: tuple[WindowSelection, ...]) -> WindowSource:
        return SingleSource(selections[0], self._layout)

    def identity(self) -> dict[str, Any]:
        return {"selection": self._selector.identity()}


class AlternatingMixture:
    """A mixture in which every batch has the windows of one dataset.

    Each dataset counts its own steps, so its windows do not depend on the other datasets.
    """

    def __init__(self, selections: tuple[WindowSelection, ...], cycle: Cycle | ScheduledTurns) -> None:
        self._selections = selections
        self._cycle = cycle

    def sample(self, step: int, count: int) -> Windows:
        number, selector_step = self._cycle.turn(step)
        windows = self._selections[number].select(selector_step, count, selector_step * count)
        windows.source = number
        return windows

    def turn(self, step: int) -> tuple[int | None, int]:
        return self._cycle.turn(step)

    def selector_step(self, dataset: int, step: int) -> int:
        return self._cycle.count_before(dataset, step)

    def loader_step(self, dataset: int, selector_step: int) -> int:
        return self._cycle.turn_after(dataset, selector_step)

    def first_slot(self, step: int, count: int) -> int:
        return self._cycle.turn(step)[1] * count

    def with_selections(self, selections: tuple[WindowSelection, ...]) -> WindowSource:
        return AlternatingMixture(selections, self._cycle)

    def identity(self) -> dict[str, Any]:
        return _mixture_identity(self._selections, self._cycle, join=False)


class InterleavedMixture:
    """A mixture in which every batch has windows of all datasets.

    The datasets take turns window by window.
    """

    def __init__(self, selections: tuple[WindowSelection, ...], cycle: Cycle | ScheduledTurns) -> None:
        self._selections = selections
        self._cycle = cycle
        #: See `gear_data.kernels.cpu.windows.draw_each`: the plans that stay the same, and the other datasets.
        self._plans = np.zeros((len(selections), 2), np.int64)
        self._others: list[int] = []
        for number, selection in enumerate(selections):
            if isinstance(selection.selector, WindowSelector) and selection.goals is None:
                self._plans[number] = selection.selector.sampler.plan_address, selection.selector.sampler.rows
            else:
                self._others.append(number)

    def __reduce__(self) -> tuple[Any, ...]:
        # The plans are addresses, so they are noted again.
        return (InterleavedMixture, (self._selections, self._cycle))

    def sample(self, step: int, count: int) -> Windows:
        source, before = self._cycle.turns(step * count, count)
        if self._selections[0].packed:
            return self._packed_rows(step, source, before)
        drawn = np.empty((4, count), np.int64)
        episode_id, start, length = drawn[:3]
        probability, importance = drawn[3].view(np.float64), np.ones(count)
        probability.fill(np.nan)
        goals: Int64Array | None = None
        weighted, others = self._draw(step, source, drawn)
        corrected = False
        for number in others:
            selection = self._selections[number]
            rows = (source == number).nonzero()[0]
            if not len(rows):
                continue
            windows = selection.select(step, len(rows), int(before[rows[0]]))
            episode_id[rows], start[rows], length[rows] = windows.episode_id, windows.start, windows.length
            if windows.probability is not None:
                probability[rows], weighted = windows.probability, True
            if windows.importance is not None:
                importance[rows], corrected = windows.importance, True
            if windows.goals is not None:
                goals = np.empty((*windows.goals.shape[:2], count), np.int64) if goals is None else goals
                goals[:, :, rows] = windows.goals
        return Windows(
            episode_id, start, length, probability if weighted else None, importance if corrected else None, source,
            goals,
        )  # fmt: skip

    def _draw(self, step: int, source: Int64Array, out: Int64Array) -> tuple[bool, list[int]]:
        """Draws the windows of datasets whose slots are independent draws, by one call of a kernel.

        Args:
            step: the batch's step.
            source: int64 [B], the dataset of each window.
            out: int64 [4, B], receives episodes, first steps, lengths, and probabilities (float64) of weighted draws.

        Returns:
            Whether there are weighted draws, and the other datasets.
        """
        plans, others, samplers = self._plans, [], []
        if self._others:
            plans = plans.copy()
            counts = np.bincount(source, minlength=len(plans)).tolist()
            for number in self._others:
                selection = self._selections[number]
                plan = selection.selector.sampling_plan(counts[number]) if selection.goals is None else None
                if plan is None or plan.order is not None:
                    others.append(number)
                else:
                    plans[number] = plan.sampler.plan_address, plan.sampler.rows
                    if counts[number]:
                        samplers.append(plan.sampler)
        cpu.windows.draw_each(plans, step, source, out)
        return any(sampler.rows == 4 for sampler in samplers), others

    def _packed_rows(self, step: int, source: Int64Array, before: Int64Array) -> Windows:
        """Samples packed rows; source, before: int64 [rows], the dataset of each row, and its earlier rows."""
        parts = []
        for number, selection in enumerate(self._selections):
            rows = (source == number).nonzero()[0]
            if len(rows):
                windows = selection.select(step, len(rows), int(before[rows[0]]))
                windows.source = np.full(len(windows), number)
                parts.append((windows, rows))
        return joined_rows(parts, len(source))

    def turn(self, step: int) -> tuple[int | None, int]:
        return None, step

    def selector_step(self, dataset: int, step: int) -> int:
        return step

    def loader_step(self, dataset: int, selector_step: int) -> int:
        return selector_step

    def first_slot(self, step: int, count: int) -> int:
        return step * count

    def with_selections(self, selections: tuple[WindowSelection, ...]) -> WindowSource:
        return InterleavedMixture(selections, self._cycle)

    def identity(self) -> dict[str, Any]:
        return _mixture_identity(self._selections, self._cycle, join=True)


def make_window_source(
    selections: tuple[WindowSelection, ...],
    layout: PassLayout,
    proportions: Sequence[CheckedSchedule] | None,
    *,
    join: bool,
) -> WindowSource:
    """Makes the window source of a loader.

    Args:
        selections: one for each dataset.
        layout: the windows of each pass.
        proportions: the proportions of a mixture; None: there is one dataset.
        join: whether the datasets of a mixture share every batch.

    Raises:
        InvalidArgumentError: a proportion is not a positive number.
    """
    if proportions is None:
        return SingleSource(selections[0], layout)
    turns = dealt_turns(proportions, layout.batch_size if join else 1)
    return (InterleavedMixture if join else AlternatingMixture)(selections, turns)


def window_table(
    windows: Windows, goal_keys: Sequence[str], ids: Callable[[int | Int64Array, Int64Array], Int64Array]
) -> dict[str, Int64Array]:
    """Returns the numbers of windows, see `SequenceLoader.windows`.

    Args:
        windows: B windows.
        goal_keys: the keys of their goals.
        ids: ids(dataset, rows) -> the ids of the episodes at some rows of a dataset.
    """
    table = {
        "dataset": np.broadcast_to(np.asarray(windows.source, np.int64), len(windows)).copy(),
        "episode_id": ids(windows.source, windows.episode_id),
        "start": windows.start,
        "length": windows.length,
    }
    if windows.packing is not None:
        table["row"], table["place"] = np.divmod(windows.packing.place, windows.packing.steps)
    if windows.goals is not None:
        for key, episode_id, step in zip(goal_keys, *windows.goals, strict=True):
            table |= {f"{key}_episode_id": ids(windows.source, episode_id), f"{key}_step": step}
    return table


def _mixture_identity(
    selections: tuple[WindowSelection, ...], cycle: Cycle | ScheduledTurns, *, join: bool
) -> dict[str, Any]:
    return {"selection": [each.selector.identity() for each in selections], "turns": cycle.identity(), "join": join}
