"""ScheduledTurns: deals turns to parts whose shares depend on the step.

Each step has a fixed number of turns. At each step every part is owed its share of them. Then each turn goes to the
part that is owed most. After any step, a part of m is owed at most H = 1/2 + 1/3 + ... + 1/m turns (0.5 for two parts,
0.83 for three), and has less than one turn too many.

Proof. After a step, the sum of what all parts are owed is 0. Let S(k) bound the sum over any k parts. If all turns of a
step go to parts of a set K, its sum does not grow. Otherwise take the last turn that goes to a part c outside K. Before
this turn, c is owed at least the mean of K. So the sum over K is at most k / (k + 1) of the sum over K and c, and the
turn takes one from that: S(k) = (S(k + 1) + 1) k / (k + 1). With S(m) = 0 this gives S(1) = H. A part that gets a turn
is owed at least the mean of all parts before it, and this mean is positive.

Amounts are integers, so that they are the same on every machine: a turn is 2^36.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.fork_lock import fork_safe_lock
from gear_data.errors import InvalidArgumentError
from gear_data.kernels import cpu
from gear_data.selection.schedule import CheckedSchedule, checked_schedule, last_change, schedule_json, values_between
from gear_data.selection.turns import Cycle
from gear_data.selection.windows import Float64Array, Int64Array

#: Steps that are dealt at once.
_BLOCK = 4096
_NAME = "a proportion"


class ScheduledTurns:
    """Turns 0, 1, 2, ... dealt to m parts; the interface of `Cycle`.

    A table has the turns of each part before each step, up to the last step that was asked for. It takes 8 m bytes a
    step. From the last breakpoint on, the shares stay the same, and a `Cycle` continues the table.

    Args:
        schedules: for each part its proportion as a schedule of the step; only ratios matter.
        per_step: turns of a step.

    Raises:
        InvalidArgumentError: at some step all proportions are 0; or a function returns a wrong value.
    """

    def __init__(self, schedules: Sequence[CheckedSchedule], per_step: int) -> None:
        self._schedules = tuple(schedules)
        self._per_step = per_step
        changes = [last_change(each) for each in schedules]
        known = [each for each in changes if each is not None]
        #: The step from which the shares stay the same; None if a function never says.
        self._fixed_from = max(known) if len(known) == len(changes) else None
        self._owed = np.zeros(len(schedules), np.int64)
        self._before = np.zeros((1, len(schedules)), np.int64)
        self._lock = fork_safe_lock()
        if self._fixed_from is not None:
            final = self._shares(self._fixed_from, self._fixed_from + 1)[0]
            self._last_parts = np.flatnonzero(final > 0)
            self._cycle = Cycle(final[self._last_parts].tolist())
            # Between breakpoints all proportions are 0 only if they are 0 at both.
            for step in sorted({step for each in schedules if isinstance(each, tuple) for step, _ in each}):
                self._shares(step, step + 1)
        self._table(1)

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = fork_safe_lock()

    def identity(self) -> dict[str, Any]:
        """Returns the schedules, JSON-able; of a function only its name."""
        return {"schedules": [schedule_json(each) for each in self._schedules], "turns_of_a_step": self._per_step}

    def turn(self, number: int) -> tuple[int, int]:
        """Returns (the part that has turn `number`, the part's number of earlier turns)."""
        part, before = self.turns(number, 1)
        return int(part[0]), int(before[0])

    def count_before(self, part: int, number: int) -> int:
        """Returns the number of turns that a part has before turn `number`."""
        step, place = divmod(number, self._per_step)
        within = 0
        if place:
            parts, _ = self.turns(step * self._per_step, place)
            within = int(np.count_nonzero(parts == part))
        return int(self._turns_before(step)[part]) + within

    def turn_after(self, part: int, count: int) -> int:
        """Returns a turn before which a part has `count` turns.

        The part must have `count` turns at some time. This is the inverse of `count_before`, for one turn a step.
        """
        last = 1
        while int(self._turns_before(last)[part]) < count:
            last *= 2
        low, high = 0, last
        while low < high:
            middle = (low + high) // 2
            if int(self._turns_before(middle)[part]) < count:
                low = middle + 1
            else:
                high = middle
        return low * self._per_step

    def turns(self, first: int, count: int) -> tuple[Int64Array, Int64Array]:
        """Returns the results of `turn` for several turns of one step.

        The turns are first to first + count - 1. Both results are int64 [count].
        """
        step, place = divmod(first, self._per_step)
        if self._fixed_from is not None and step >= self._fixed_from:
            part, before = self._cycle.turns(first - self._fixed_from * self._per_step, count)
            part = np.asarray(self._last_parts[part])
            return part, np.asarray(before + self._table(self._fixed_from)[self._fixed_from][part])
        counts, base = np.diff(self._table(step + 1)[step : step + 2], axis=0)[0], self._turns_before(step)
        # The turns of a step are spread evenly over its slots, so that every rank has rows of every part.
        order, earlier = np.zeros(self._per_step, np.int64), np.arange(self._per_step)
        present = np.flatnonzero(counts)
        if len(present) > 1:
            cpu.turns.deal(counts[present], order, earlier)
        part = present[order]
        earlier = base[part] + earlier
        return part[place : place + count], earlier[place : place + count]

    def _turns_before(self, step: int) -> Int64Array:
        """Returns the turns of each part before a step, int64 [m]."""
        fixed = self._fixed_from
        if fixed is None or step <= fixed:
            row: Int64Array = self._table(step)[step]
            return row
        result: Int64Array = np.array(self._table(fixed)[fixed])
        for index, part in enumerate(self._last_parts.tolist()):
            result[part] += self._cycle.count_before(index, (step - fixed) * self._per_step)
        return result

    def _table(self, last: int) -> Int64Array:
        """Returns the turns of each part before the steps 0 to `last`, or later ones."""
        with self._lock:
            have = len(self._before) - 1
            if have < last:
                # At least doubled, so that the copies take linear time in all.
                until = max(last, 2 * have, _BLOCK)
                if self._fixed_from is not None:
                    until = max(last, min(until, self._fixed_from))
                blocks: list[Int64Array] = [self._before]
                owed = self._owed.copy()
                for first in range(have, until, _BLOCK):
                    shares = self._shares(first, min(first + _BLOCK, until))
                    before = np.empty(shares.shape, np.int64)
                    cpu.turns.deal_steps(_units(shares), self._per_step, owed, np.asarray(blocks[-1][-1]), before)
                    blocks.append(before)
                self._before, self._owed = np.concatenate(blocks), owed
            return self._before

    def _shares(self, first: int, last: int) -> Float64Array:
        """Returns the share of each part at some steps.

        The steps are first to last - 1. The result is float64 [steps, m].
        """
        names = [f"the proportion of dataset {number}" for number in range(len(self._schedules))]
        values = [values_between(name, each, first, last) for name, each in zip(names, self._schedules, strict=True)]
        total = np.zeros(last - first)
        # One after another: the order of a sum decides its last bit.
        for value in values:
            total += value
        if not (total > 0).all() or np.isinf(total).any():
            step = first + int(np.argmin((total > 0) & np.isfinite(total)))
            raise InvalidArgumentError(
                f"the proportions at step {step} are {[float(value[step - first]) for value in values]}",
                hint="give one dataset at least a proportion above 0 at every step",
            )
        return np.stack([value / total for value in values], axis=1)


def _units(shares: Float64Array) -> npt.NDArray[np.int64]:
    """Returns the shares in units of 2^-36 turns. Each row adds up to one turn."""
    units: npt.NDArray[np.int64] = np.floor(shares * cpu.turns.TURN).astype(np.int64)
    rest = cpu.turns.TURN - units.sum(axis=1)
    units[np.arange(len(units)), units.argmax(axis=1)] += rest
    return units


def dealt_turns(proportions: Sequence[CheckedSchedule], per_step: int) -> Cycle | ScheduledTurns:
    """Returns the turns of parts: a cycle if all proportions are numbers.

    Args:
        proportions: for each part a number or a schedule of the step.
        per_step: turns of a step.

    Raises:
        InvalidArgumentError: see `Cycle` and `ScheduledTurns`.
    """
    numbers = [each for each in proportions if not callable(each) and not isinstance(each, tuple)]
    if len(numbers) == len(proportions):
        return Cycle(numbers)
    return ScheduledTurns([checked_schedule(_NAME, each) for each in proportions], per_step)
