"""Units: the things that have one weight each, episodes or steps."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError
from gear_data.kernels import cpu
from gear_data.kernels.window_plan import WITHIN_DRAWN, WITHIN_QUOTIENT, WITHIN_STEP
from gear_data.selection.anchors import Anchors
from gear_data.selection.integer_weights import check_weights
from gear_data.selection.windows import Float64Array, Int64Array


class WeightUnits(Protocol):
    """The u units that have a weight.

    Attributes:
        name: the plural of a unit, for messages.
        prefix: int64 [u + 1], anchors before each unit.
        by_anchor: whether a weight applies to each anchor of a unit.
        within: WITHIN_... of `gear_data.kernels.window_plan`.
    """

    @property
    def name(self) -> str: ...
    @property
    def prefix(self) -> Int64Array: ...
    @property
    def by_anchor(self) -> bool: ...
    @property
    def within(self) -> int: ...

    def check(self, weights: Float64Array) -> None:
        """Checks weights of all units, float64 [u].

        Raises:
            InvalidArgumentError: a weight is NaN, infinite or negative.
        """

    def rows(self, ids: npt.NDArray[Any], steps: npt.NDArray[Any] | None) -> Int64Array:
        """Returns the indices of units, int64 [m].

        Args:
            ids: int [m], episode ids.
            steps: int [m], steps of these episodes, if steps have weights; else None.

        Raises:
            InvalidArgumentError: an unknown episode or step, or `steps` does not fit.
        """

    def known(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Returns whether there is an episode with each id, bool [m]."""

    def episode_sums(self, values: Float64Array) -> Float64Array:
        """Sums the values of units, [u], for each of the k episodes, [k]."""

    def of_episodes(self, values: Float64Array, rows: Int64Array) -> Float64Array:
        """Returns the values of the units of some episodes, given the episodes' indices."""

    def carried(self, values: Float64Array, anchors: Anchors, fill: float) -> tuple[WeightUnits, Float64Array]:
        """Returns the units of other episodes, and their values.

        Args:
            values: float64 [u], the values of these units.
            anchors: the other episodes.
            fill: the value of units that are not among these units.
        """


class EpisodeUnits:
    """Episodes as units: see `WeightUnits`.

    Args:
        anchors: the k episodes.
        by_step: whether a weight applies to each anchor of an episode.
    """

    name = "episodes"

    def __init__(self, anchors: Anchors, by_step: bool) -> None:
        self._anchors = anchors
        self.prefix = anchors.prefix
        self.by_anchor = by_step
        self.within = WITHIN_QUOTIENT if by_step else WITHIN_DRAWN

    def check(self, weights: Float64Array) -> None:
        check_weights(weights, "weight", self._anchors.names)

    def rows(self, ids: npt.NDArray[Any], steps: npt.NDArray[Any] | None) -> Int64Array:
        if steps is not None:
            raise InvalidArgumentError(
                "this sampler has one weight an episode, and the update names steps",
                hint="leave steps out, or make the sampler with one weight a step: Weighted(array)",
            )
        return self.episode_rows(ids)

    def episode_rows(self, ids: npt.NDArray[Any]) -> Int64Array:
        """Returns int64 [m], the index of each episode id among the anchors' episodes.

        Raises:
            InvalidArgumentError: `ids` is not an integer array [m], or an id is unknown.
        """
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise InvalidArgumentError(f"episode ids are {ids.dtype} {list(ids.shape)}, not integers [m]")
        rows = ids.astype(np.int64)
        if self._anchors.names is None:
            # One call: the arithmetic of arrays costs more than the rest of a small update.
            unknown = cpu.integer_weights.first_outside(rows, len(self._anchors))
        else:
            rows, known = self._find(rows)
            unknown = -1 if known.all() else int(np.argmin(known))
        if unknown >= 0:
            raise InvalidArgumentError(
                f"there is no episode {ids[unknown]} in the dataset or view",
                row=unknown,
                hint="give ids of the loader's dataset; a view keeps the ids of the whole dataset",
            )
        return rows

    def known(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return self._find(ids)[1]

    def _find(self, ids: Int64Array) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
        """Returns the index of each id, and whether there is such an episode."""
        if self._anchors.names is None:
            return ids, (ids >= 0) & (ids < len(self._anchors))
        sorted_ids, order = self._sorted_ids
        found = np.minimum(np.searchsorted(sorted_ids, ids), len(sorted_ids) - 1)
        return order[found], sorted_ids[found] == ids

    @cached_property
    def _sorted_ids(self) -> tuple[Int64Array, Int64Array]:
        """(the episodes' ids in ascending order, the index of each)."""
        ids = np.arange(len(self._anchors)) if self._anchors.names is None else self._anchors.names
        if (ids[1:] > ids[:-1]).all():  # as in every dataset and view
            return ids, np.arange(len(ids))
        order = np.argsort(ids, kind="stable")
        return ids[order], order

    def episode_sums(self, values: Float64Array) -> Float64Array:
        return values

    def of_episodes(self, values: Float64Array, rows: Int64Array) -> Float64Array:
        return values[rows]

    def carried(self, values: Float64Array, anchors: Anchors, fill: float) -> tuple[WeightUnits, Float64Array]:
        before, after = shared_episodes(self._anchors, anchors)
        result = np.full(len(anchors), fill)
        result[after] = values[before]
        return EpisodeUnits(anchors, self.by_anchor), result


class StepUnits:
    """Steps as units: see `WeightUnits`.

    The units are all steps of the episodes, one episode after another. A step that is no anchor is never drawn.

    Args:
        anchors: the k episodes, and their anchors.
    """

    name = "steps"
    by_anchor = False
    within = WITHIN_STEP

    def __init__(self, anchors: Anchors) -> None:
        self._anchors = anchors
        self._episodes = EpisodeUnits(anchors, False)
        self.prefix = np.zeros(int(anchors.offsets[-1]) + 1, np.int64)
        np.cumsum(anchors.flags(), out=self.prefix[1:])

    def check(self, weights: Float64Array) -> None:
        row = cpu.integer_weights.first_wrong(weights)
        if row >= 0:
            anchors = self._anchors
            index = int(np.searchsorted(anchors.offsets, row, side="right")) - 1
            episode = index if anchors.names is None else int(anchors.names[index])
            raise InvalidArgumentError(
                f"the weight of step {row - int(anchors.offsets[index])} of episode {episode} is {weights[row]}",
                row=row,
                hint="weights must be finite and not negative",
            )

    def rows(self, ids: npt.NDArray[Any], steps: npt.NDArray[Any] | None) -> Int64Array:
        if steps is None:
            raise InvalidArgumentError(
                "this sampler has one weight a step, and the update names no steps",
                hint='give steps=, the step of each weight in its episode, for example batch["start"]',
            )
        if steps.shape != ids.shape or (steps.size and steps.dtype.kind not in "iu"):
            raise InvalidArgumentError(
                f"the update has {list(ids.shape)} episode ids, but {steps.dtype} {list(steps.shape)} steps",
                hint="give one integer step for each episode id",
            )
        episodes, offsets = self._episodes.episode_rows(ids), self._anchors.offsets
        steps = steps.astype(np.int64)
        lengths = offsets[episodes + 1] - offsets[episodes]
        outside = (steps < 0) | (steps >= lengths)
        if outside.any():
            row = int(np.argmax(outside))
            raise InvalidArgumentError(
                f"episode {ids[row]} has {lengths[row]} steps, and the update names step {steps[row]}",
                row=row,
                hint="count steps from 0 at the start of the episode",
            )
        return np.asarray(offsets[episodes] + steps)

    def episode_sums(self, values: Float64Array) -> Float64Array:
        # No episode is empty.
        return np.add.reduceat(values, self._anchors.offsets[:-1])

    def of_episodes(self, values: Float64Array, rows: Int64Array) -> Float64Array:
        offsets = self._anchors.offsets
        return np.concatenate([values[offsets[row] : offsets[row + 1]] for row in rows.tolist()])

    def known(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return self._episodes.known(ids)

    def carried(self, values: Float64Array, anchors: Anchors, fill: float) -> tuple[WeightUnits, Float64Array]:
        before, after = shared_episodes(self._anchors, anchors)
        result = np.full(int(anchors.offsets[-1]), fill)
        result[_steps_of(anchors, after)] = values[_steps_of(self._anchors, before)]
        return StepUnits(anchors), result


#: Indices of episodes or steps, in ascending order.
_Rows = slice | npt.NDArray[np.int64]


def shared_episodes(before: Anchors, after: Anchors) -> tuple[_Rows, _Rows]:
    """Returns the indices of the episodes that two generations share.

    The first result has their indices in `before`, the second their indices in `after`. Ids ascend in both.
    """
    old, new = (np.arange(len(each)) if each.names is None else each.names for each in (before, after))
    first = int(np.searchsorted(old, new[0]))
    count = min(len(old) - first, len(new))
    # New episodes come last, and mostly the oldest ones go.
    if count and len(old) - first <= len(new) and np.array_equal(old[first:], new[:count]):
        return slice(first, first + count), slice(0, count)
    _, rows, new_rows = np.intersect1d(old, new, assume_unique=True, return_indices=True)
    return rows, new_rows


def _steps_of(anchors: Anchors, rows: _Rows) -> _Rows:
    """Returns the indices of all steps of some episodes."""
    offsets = anchors.offsets
    if isinstance(rows, slice):
        return slice(int(offsets[rows.start]), int(offsets[rows.stop]))
    lengths = offsets[rows + 1] - offsets[rows]
    steps: Int64Array = np.arange(int(lengths.sum())) + np.repeat(offsets[rows] - np.cumsum(lengths) + lengths, lengths)
    return steps


def array_weights(values: Any, anchors: Anchors) -> Float64Array:
    """Returns an array of weights as float64, [episodes] or [steps].

    Raises:
        InvalidArgumentError: the array has another length, or does not hold numbers.
    """
    try:
        weights = np.array(values, np.float64)
    except (TypeError, ValueError, RuntimeError) as error:  # torch's, for a tensor with a gradient
        raise InvalidArgumentError(f"weights must be numbers: {error}") from error
    episodes, steps = len(anchors), int(anchors.offsets[-1])
    if weights.ndim != 1 or len(weights) not in (episodes, steps):
        raise InvalidArgumentError(
            f"there are {'x'.join(map(str, weights.shape))} weights, and the dataset or view has {episodes} episodes "
            f"and {steps} steps",
            hint=f"give {episodes} weights, one an episode, or {steps} weights, one a step",
        )
    return weights
