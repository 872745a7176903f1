"""WeightedSelector: draws units in proportion to weights that may change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from gear_data.common.fork_lock import fork_safe_lock
from gear_data.errors import InvalidArgumentError
from gear_data.kernels import cpu
from gear_data.kernels.window_plan import WITHIN_DRAWN, WITHIN_STEP
from gear_data.selection.anchors import Anchors
from gear_data.selection.importance import ImportanceWeights
from gear_data.selection.integer_weights import check_weights, int_weight_prefix, int_weight_scale
from gear_data.selection.prefix_table import PrefixTable
from gear_data.selection.units import EpisodeUnits, WeightUnits
from gear_data.selection.weight_history import WeightHistory, encoded
from gear_data.selection.window_sampler import IntWeightTable, SamplingPlan, WindowSampler
from gear_data.selection.windows import Float64Array, Int64Array, Windows
from gear_data.words import By


class WeightedSelector:
    """A `Weighted` sampler bound to anchors, weights and a seed.

    The weights are a static table until the first update, and a tree afterwards; both draw the same windows. Threads
    may select and update at the same time.

    Args:
        anchors: the episodes and their anchors.
        units: the units that have weights: the episodes, or their steps.
        weights: float64, one for each unit, finite, not negative; not changed.
        seed: 0 to 2^64 - 1.
        replacement: False: no unit occurs twice in one batch.
        importance: computes importance weights; None: windows have none.
        explicit: whether the weights are given numbers, and not the values of an expression.
        first_version: number of updates before these weights. If there were any, the weights are a tree at once.

    Raises:
        InvalidArgumentError: no unit with an anchor has a positive weight.
    """

    def __init__(
        self,
        anchors: Anchors,
        units: WeightUnits,
        weights: Float64Array,
        seed: int,
        replacement: bool,
        importance: ImportanceWeights | None,
        *,
        explicit: bool = False,
        first_version: int = 0,
    ) -> None:
        self._anchors = anchors
        self._units = units
        self._weights = weights
        self._seed = seed
        self._replacement = replacement
        self.importance = importance
        self._explicit, self._first_version = explicit, first_version
        self._ids_are_rows = isinstance(units, EpisodeUnits) and anchors.names is None
        self._scale = int_weight_scale(weights, units.prefix, units.by_anchor)
        # None after the first update.
        self._table: PrefixTable | None = None
        self._history: WeightHistory | None = None
        if first_version:
            self._history = self._make_history()
            self._sampler = self._make_sampler(self._history.tree)
        else:
            self._table = PrefixTable(int_weight_prefix(weights, units.prefix, units.by_anchor, self._scale))
            self._sampler = self._make_sampler(self._table)
        self._lock = fork_safe_lock()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = fork_safe_lock()

    def _make_sampler(self, table: IntWeightTable) -> WindowSampler:
        domain, distinct = cpu.random.DOMAIN_EPISODE, not self._replacement
        return WindowSampler(self._anchors, table, self._seed, domain, self._units.within, distinct, True)

    def select(self, step: int, count: int, position: int) -> Windows:
        """Selects the windows of slots 0 to count - 1 of batch `step`.

        The weights that hold at that step are used.

        Raises:
            InvalidArgumentError: without replacement, more slots than units; or a step before `keep_from` of an update.
        """
        with self._lock:
            if self._history is not None:
                self._history.go_to(step)
            if not self._replacement:
                self._check_slots(count)
            windows = self._sampler.draw(step, count)
        if self.importance is not None and windows.probability is not None:
            windows.importance = self.importance(step, windows.probability)
        return windows

    def _check_slots(self, count: int) -> None:
        positive = (self._scale if self._history is None else self._history.tree).positive
        if count > positive:
            raise InvalidArgumentError(
                f"{count} slots without replacement, but {positive} {self._units.name} have a positive weight and a "
                "window",
                hint="take a smaller batch, or replacement=True",
            )

    def sampling_plan(self, count: int) -> SamplingPlan | None:
        """Returns None after an update, or if `select` refuses `count` slots.

        Devices have neither tables of steps nor importance weights.
        """
        if self._units.within == WITHIN_STEP or self.importance is not None:
            return None
        with self._lock:
            if self._history is not None or (not self._replacement and count > self._scale.positive):
                return None
            return SamplingPlan(self._sampler)

    def shares(self) -> Float64Array:
        with self._lock:
            if self._history is not None:
                self._history.go_to_last()
            return self._units.episode_sums(self._sampler.shares())

    def epoch_slots(self, epochs: int) -> int | None:
        return None

    def identity(self) -> dict[str, Any]:
        """Returns everything that windows depend on before any update, JSON-able."""
        return {
            "name": "weighted",
            "by": self.by,
            "replacement": self._replacement,
            "weights": self._digest,
        }

    @property
    def by(self) -> By:
        """The field of `Weighted`, resolved."""
        return "episode" if self._units.within == WITHIN_DRAWN else "step"

    @cached_property
    def _digest(self) -> str:
        """The xxh3-128 of the initial integer weights; of weights with earlier updates, of their floats.

        Computed before the first update removes the table of integer weights.
        """
        if self._first_version:
            return xxhash.xxh3_128(self._weights.astype("<f8", copy=False).data).hexdigest()
        return xxhash.xxh3_128(self._initial_table().prefix.astype("<i8", copy=False).data).hexdigest()

    def _initial_table(self) -> PrefixTable:
        if self._table is None:
            raise RuntimeError("the table of the initial weights was removed by an update")
        return self._table

    @property
    def raised(self) -> int:
        """The number of units whose integer weight was raised from 0 to 1.

        Only the initial weights count.
        """
        return self._scale.raised

    def effective_sample_size(self) -> float:
        """Returns 1 / the sum of the squared probabilities of the units.

        The probabilities are those after the last update. Draws from this many units of equal weight would have the
        same variance.
        """
        with self._lock:
            if self._history is None:
                return self._initial_sample_size
            self._history.go_to_last()
            return self._history.tree.effective_sample_size()

    @cached_property
    def _initial_sample_size(self) -> float:
        prefix = self._initial_table().prefix
        return float(prefix[-1]) ** 2 / float(cpu.integer_weights.squares_between(prefix))

    def update(
        self, from_step: int, ids: npt.ArrayLike, values: npt.ArrayLike, steps: npt.ArrayLike | None = None,
        keep_from: int = 0,
    ) -> None:  # fmt: skip
        """Sets the weights of some units from a step on.

        An error leaves all weights unchanged.

        Args:
            from_step: not before the step of any earlier update.
            ids: int [m], episode ids; if a unit occurs twice, its last value counts.
            values: float [m], finite, not negative.
            steps: int [m], steps of these episodes, if steps have weights.
            keep_from: afterwards, earlier steps can no longer be selected, which frees memory.

        Raises:
            InvalidArgumentError: an unknown id or step; a value that is NaN, infinite or negative; a step before an
                earlier update's; or no positive weight would be left.
        """
        episodes, weights = np.asarray(ids), np.array(values, np.float64)
        with self._lock:
            history = self._history
            if (
                history is None or not self._ids_are_rows or steps is not None or episodes.dtype.kind not in "iu"
                or not episodes.shape == weights.shape == (episodes.size,)
            ):  # fmt: skip
                rows = self._checked_rows(episodes, weights, steps)
                history = self._start_history()
            else:
                rows = episodes.astype(np.int64)  # the kernel checks them
            try:
                history.update(from_step, rows, weights, keep_from)
            except ValueError:
                self._checked_rows(episodes, weights, steps)  # names what the kernel refused
                raise

    def take_back(self) -> None:
        """Undoes the last update, whose step is still to come."""
        with self._lock:
            if self._history is not None:
                self._history.take_back()

    def _checked_rows(
        self, episodes: npt.NDArray[Any], weights: Float64Array, steps: npt.ArrayLike | None
    ) -> Int64Array:
        """Returns the indices of the units of an update, after all checks."""
        rows = self._units.rows(episodes, None if steps is None else np.asarray(steps))
        if rows.shape != weights.shape:
            raise InvalidArgumentError(
                f"the update has {rows.shape} episode ids, but {weights.shape} weights",
                hint="give one weight for each episode id",
            )
        check_weights(weights, "weight", episodes)
        return rows

    def known(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Returns whether there is an episode with each id, bool [m]."""
        return self._units.known(ids)

    @property
    def has_own_weights(self) -> bool:
        """Whether the weights are more than the values of an expression.

        They were given as an array, or updated.
        """
        with self._lock:
            # A refused update, or a state without updates, leaves a history without any.
            return self._explicit or (self._history is not None and self._history.last_version > 0)

    def carried(self, anchors: Anchors, step: int | None = None) -> WeightedSelector:
        """Returns the selector of a later generation of the dataset.

        Units keep their last weights. A unit that is not among this selector's units gets the largest of all weights,
        as in prioritized experience replay (Schaul et al., 2016).

        Args:
            anchors: the episodes of the later generation, and their anchors.
            step: updates that hold from a later step only hold from that step; None: there is no such update.
        """
        later: list[tuple[int, Int64Array, Float64Array]] = []
        with self._lock:
            weights, version, history = self._weights, self._first_version, self._history
            if history is not None:
                history.go_to_last()
                weights, version = history.tree.weights, version + history.last_version
            largest = float(weights.max())
            if history is not None and step is not None:
                later = history.after(step)
                history.go_to(step)
                version -= len(later)
            units, weights = self._units.carried(weights, anchors, largest)
        importance = None
        if self.importance is not None:
            importance = dataclasses.replace(self.importance, anchors=anchors.total)
        selector = WeightedSelector(
            anchors, units, weights, self._seed, self._replacement, importance, explicit=True, first_version=version
        )
        if later:
            # The index there of each unit of this selector; -1: it has left.
            rows = np.full(len(self._weights), -1, np.int64)
            _, places = self._units.carried(np.arange(len(rows), dtype=np.float64), anchors, -1.0)
            stays = places >= 0
            rows[places[stays].astype(np.int64)] = np.flatnonzero(stays)
            for from_step, changed, values in later:
                known = rows[changed] >= 0
                selector._start_history().update(from_step, rows[changed][known], values[known])
        return selector

    def weights_of(self, rows: Int64Array) -> Float64Array:
        """Returns the initial weights of the units of the episodes with indices `rows`."""
        return self._units.of_episodes(self._weights, rows)

    def _start_history(self) -> WeightHistory:
        if self._history is None:
            # The digest must be computed before the table goes. The table goes first, to save memory.
            self.identity()
            del self._sampler
            self._table = None
            self._history = self._make_history()
            self._sampler = self._make_sampler(self._history.tree)
        return self._history

    def _make_history(self) -> WeightHistory:
        return WeightHistory(self._weights, self._units.prefix, self._units.by_anchor, self._scale.exponent)

    def version(self, step: int) -> int:
        """Returns the number of updates that hold at a step.

        Raises:
            InvalidArgumentError: a step before `keep_from` of an update.
        """
        with self._lock:
            return self._first_version + (0 if self._history is None else self._history.version(step))

    @property
    def soonest(self) -> int:
        """The first step from which another update may hold: the step of the last update."""
        history = self._history  # no lock: no update is in progress, see `update_weights`
        return 0 if history is None else history.soonest

    def state(self) -> dict[str, Any] | None:
        """Returns the changed weights and the later updates, JSON-able.

        Returns None if there were no updates.
        """
        with self._lock:
            return None if self._history is None else self._history.state()

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Continues from the state of a selector with the same `identity`.

        The current state is dropped.

        Raises:
            StateMismatchError: a malformed state, or the state of other episodes.
        """
        with self._lock:
            if state is not None:
                self._start_history().load(state)
            elif self._history is not None:
                self._history.reset()

    def whole_state(self) -> dict[str, Any]:
        """Returns all weights, JSON-able: those that an expression does not give, and their updates."""
        return {
            "units": self._units.name,
            "initial": encoded(self._weights, "<f8") if self._explicit else None,
            "first_version": self._first_version,
            "updates": self.state(),
        }
