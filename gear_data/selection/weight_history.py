"""WeightHistory: weights that change at given steps.

The weights of any step can be restored.
"""

from __future__ import annotations

import base64
import bisect
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError, StateMismatchError
from gear_data.selection.weight_tree import WeightTree
from gear_data.selection.windows import Float64Array, Int64Array

#: The hint for a state that cannot be loaded.
OTHER_STATE = "load a state that a loader of the same dataset saved, unchanged"


#: Rows, int64 [m]; values, float64 [m]; the replaced weights, float64 [m]; the scale's exponent before and after. A
#: tuple without names: making it runs no Python code.
_Update: TypeAlias = tuple[Int64Array, Float64Array, Float64Array, int, int]


class WeightHistory:
    """A tree of weights that can be moved to the version of any step.

    Version v holds the first v updates. `compact` folds old updates into the base, the weights before all kept updates;
    earlier steps are then no longer available.

    Not thread-safe: the caller must hold a lock from `go_to` until the windows are drawn.

    Args:
        initial: float64 [k], the weights of version 0; not changed.
        prefix, by_anchor, exponent: as for WeightTree.

    Attributes:
        soonest: the first step from which another update may hold: updates come in the order of their steps.
    """

    def __init__(self, initial: Float64Array, prefix: Int64Array, by_anchor: bool, exponent: int) -> None:
        self._initial = initial
        self._initial_exponent = exponent
        self.tree = WeightTree(initial.copy(), prefix, by_anchor, exponent)
        # Updates that are not folded, the first step of each, and the number of them that the tree holds.
        self._updates: list[_Update] = []
        self._from_steps: list[int] = []
        self._applied = 0
        # The number of folded updates, the first step after them, and the episodes whose weights they changed.
        self._folded = 0
        self._first_step = self.soonest = 0
        self._changed: npt.NDArray[np.bool_] = np.zeros(len(initial), np.bool_)

    def _updates_at(self, step: int) -> int:
        if step < self._first_step:
            raise InvalidArgumentError(
                f"the weights of step {step} are no longer kept; the earliest step with weights is {self._first_step}",
                hint="continue the current iteration, or load a saved state",
            )
        return bisect.bisect_right(self._from_steps, step)

    @property
    def last_version(self) -> int:
        """The number of all updates."""
        return self._folded + len(self._updates)

    def version(self, step: int) -> int:
        """Returns the number of updates that hold at a step.

        Raises:
            InvalidArgumentError: the weights of the step are no longer available.
        """
        return self._folded + self._updates_at(step)

    def after(self, step: int) -> list[tuple[int, Int64Array, Float64Array]]:
        """Returns the updates that do not hold at a step yet: their first steps, rows and values.

        Raises:
            InvalidArgumentError: the weights of the step are no longer available.
        """
        first = self._updates_at(step)
        return [
            (from_step, rows, values)
            for from_step, (rows, values, *_) in zip(self._from_steps[first:], self._updates[first:], strict=True)
        ]

    def go_to(self, step: int) -> None:
        """Moves the tree to the weights of a step.

        Raises:
            InvalidArgumentError: the weights of the step are no longer available.
        """
        target = self._updates_at(step)
        if target != self._applied:
            self._move(target)

    def go_to_last(self) -> None:
        """Moves the tree to the weights after the last update."""
        self._move(len(self._updates))

    def _move(self, target: int) -> None:
        while self._applied < target:
            rows, values, _, _, exponent = self._updates[self._applied]
            self._put(rows, values, exponent)
            self._applied += 1
        while self._applied > target:
            rows, _, before, exponent, _ = self._updates[self._applied - 1]
            # In reverse order: if an episode occurs twice, its first replaced weight is put back last.
            self._put(rows[::-1].copy(), before[::-1].copy(), exponent)
            self._applied -= 1

    def _put(self, rows: Int64Array, values: Float64Array, exponent: int) -> None:
        self.tree.put(rows, values)
        if exponent != self.tree.exponent:
            self.tree.rescale(exponent)

    def update(self, from_step: int, rows: Int64Array, values: Float64Array, keep_from: int = 0) -> None:
        """Sets weights from a step on.

        If the total leaves its range, a new scale is chosen.

        Args:
            from_step: not before the last update's step.
            rows: int64 [m], indices of episodes; if an index occurs twice, its last value counts. Kept.
            values: float64 [m], finite, not negative. Kept.
            keep_from: see `compact`.

        Raises:
            InvalidArgumentError: a step before the last update's, or no weight would be positive. Nothing is changed.
            ValueError: see `WeightTree.put`. Nothing is changed.
        """
        if from_step < self.soonest:
            raise InvalidArgumentError(
                f"from_step is {from_step}, but weights are already set from step {self.soonest} on",
                hint=f"give from_step={self.soonest} or more",
            )
        if self._applied < len(self._updates):
            self.go_to_last()
        tree = self.tree
        old = tree.exponent
        before, in_range = tree.put(rows, values)
        if not in_range:
            try:
                tree.rescale(tree.fresh_exponent())
            except InvalidArgumentError:
                tree.weights[rows[::-1]] = before[::-1]
                tree.rescale(old)
                raise
        self._updates.append((rows, values, before, old, tree.exponent))
        self._from_steps.append(from_step)
        self._applied += 1
        self.soonest = from_step
        if keep_from > self._first_step:
            self.compact(keep_from)

    def take_back(self) -> None:
        """Undoes the last update, which is not folded."""
        self._move(len(self._updates) - 1)
        del self._updates[-1], self._from_steps[-1]
        self.soonest = self._from_steps[-1] if self._from_steps else self._first_step

    def compact(self, step: int) -> None:
        """Folds the updates that hold at `step` into the base.

        Earlier steps are no longer available.
        """
        if step <= self._first_step:
            return
        self._first_step = step
        count = bisect.bisect_right(self._from_steps, step)
        if count:
            if count > self._applied:
                self._move(count)
            for rows, *_ in self._updates[:count]:
                self._changed[rows] = True
            del self._updates[:count], self._from_steps[:count]
            self._applied -= count
            self._folded += count
        if not self._updates:
            self.soonest = step

    def state(self) -> dict[str, Any]:
        """Returns the changed base weights, and the updates since, JSON-able."""
        self._move(0)
        changed = np.flatnonzero(self._changed)
        return {
            "first_step": self._first_step,
            "folded": self._folded,
            "exponent": self.tree.exponent,
            "rows": encoded(changed, "<i8"),
            "values": encoded(self.tree.weights[changed], "<f8"),
            "updates": [
                {
                    "from_step": from_step,
                    "rows": encoded(rows, "<i8"),
                    "values": encoded(values, "<f8"),
                }
                for from_step, (rows, values, *_) in zip(self._from_steps, self._updates, strict=True)
            ],
        }

    def reset(self) -> None:
        """Drops all updates."""
        self._begin(np.empty(0, np.int64), np.empty(0), self._initial_exponent, 0, 0)

    def load(self, state: Mapping[str, Any]) -> None:
        """Continues from the state of a history with the same initial weights.

        The current updates are dropped.

        Raises:
            StateMismatchError: a malformed state, or the state of other episodes.
        """
        try:
            rows, values = decoded(state["rows"], "<i8"), decoded(state["values"], "<f8")
            updates = [
                (int(update["from_step"]), decoded(update["rows"], "<i8"), decoded(update["values"], "<f8"))
                for update in state["updates"]
            ]
            exponent, folded, first_step = int(state["exponent"]), int(state["folded"]), int(state["first_step"])
        except (KeyError, TypeError, ValueError) as error:
            raise StateMismatchError(
                f"the state of the weights is malformed: {type(error).__name__}: {error}", hint=OTHER_STATE
            ) from error
        count = len(self._initial)
        for numbers, weights in [(rows, values), *(update[1:] for update in updates)]:
            inside = len(numbers) == len(weights) and ((numbers >= 0) & (numbers < count)).all()
            if not (inside and (weights >= 0).all() and np.isfinite(weights).all()):
                raise StateMismatchError(f"the state of the weights does not fit {count} episodes", hint=OTHER_STATE)
        self._begin(rows, values, exponent, folded, first_step)
        for update in updates:
            self.update(*update)

    def _begin(self, rows: Int64Array, values: Float64Array, exponent: int, folded: int, first_step: int) -> None:
        """Starts from the initial weights with some replaced, and without updates."""
        self._updates, self._from_steps, self._applied = [], [], 0
        self._folded, self._first_step, self.soonest = folded, first_step, first_step
        self._changed[:] = False
        self._changed[rows] = True
        self.tree.weights[:] = self._initial
        self.tree.weights[rows] = values
        self.tree.rescale(exponent)


def encoded(values: npt.NDArray[Any], dtype: str) -> str:
    """Returns an array as text."""
    return base64.b64encode(values.astype(dtype).tobytes()).decode("ascii")


def decoded(text: str, dtype: str) -> npt.NDArray[Any]:
    """Returns the array of `encoded`; raises TypeError or ValueError if the text is another."""
    values = np.frombuffer(base64.b64decode(text, validate=True), dtype)
    return values.astype(values.dtype.newbyteorder("="))
