"""Weighted: episodes or steps in proportion to weights that may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

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
from gear_data.selection.samplers.sampler import Candidates, check_by
from gear_data.selection.schedule import Schedule, checked_schedule
from gear_data.selection.units import EpisodeUnits, StepUnits, WeightUnits, array_weights
from gear_data.selection.weight_history import WeightHistory
from gear_data.selection.window_sampler import IntWeightTable, SamplingPlan, WindowSampler
from gear_data.selection.windows import Float64Array, Int64Array, Windows

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, eq=False)
class Weighted:
    """Draws episodes, or steps, in proportion to weights.

    Attributes:
        weights: finite and not negative. An expression over the episode table (Polars or SQL) gives the weight of each
            episode. An array has one weight an episode, or one weight a step: the steps of all episodes of the dataset
            or view, one episode after another. With one weight a step, each anchor is drawn in proportion to its own
            weight.
        by: with one weight an episode, `episode`: an episode is drawn in proportion to its weight, and then each of its
            anchors is equally likely; `step`: each anchor is drawn in proportion to the weight of its episode. None:
            `episode`; with one weight a step, `step`.
        replacement: False: no episode (with one weight a step: no step) occurs twice in one batch. Slots then take
            episodes one after another, in proportion to the weights of the episodes that are left.
        beta: adds `importance_weights` to the batch: (N p)^-beta, for N anchors and the probability p of a window's
            anchor. A number of at least 0, breakpoints [(step, beta), ...] with straight lines between them, or a
            function of the step. None: the batch has no such key. In a mixture without `join`, the step is the number
            of earlier batches of the sampler's dataset.
        divide_by_max: whether importance weights are divided by the largest of the global batch, as by Schaul et al.
            ("Prioritized Experience Replay", 2016).

    Raises:
        UnknownNameError: another `by`.
        InvalidArgumentError: `beta` has another form, or `divide_by_max` is given without `beta`.
    """

    weights: str | pl.Expr | npt.ArrayLike
    by: str | None = None
    replacement: bool = True
    beta: Schedule | None = None
    divide_by_max: bool = False
    name = "weighted"

    def __post_init__(self) -> None:
        if self.by is not None:
            check_by(self.by)
        if self.beta is not None:
            checked_schedule("beta", self.beta)
        elif self.divide_by_max:
            raise InvalidArgumentError("divide_by_max=True needs importance weights", hint="give beta= too")

    @property
    def is_array(self) -> bool:
        """Whether the weights are an array, and not an expression."""
        return not isinstance(self.weights, str) and hasattr(self.weights, "__len__")

    def bind(self, candidates: Candidates, seed: int) -> WeightedSelector:
        """Returns the selector for these candidates.

        Raises:
            InvalidArgumentError: a weight is null, NaN, infinite or negative, all weights are zero, or an array has
                another length.
        """
        anchors = candidates.anchors
        if self.is_array:
            weights = candidates.agree(lambda: array_weights(self.weights, anchors))
        else:
            weights = candidates.evaluate(self.weights, "weight")  # type: ignore[arg-type]
        units = self._units(anchors, len(weights))
        units.check(weights)
        importance = None
        if self.beta is not None:
            beta = checked_schedule("beta", self.beta)
            importance = ImportanceWeights(anchors.total, beta, self.divide_by_max)
        return WeightedSelector(anchors, units, weights, seed, self.replacement, importance)

    def _units(self, anchors: Anchors, count: int) -> WeightUnits:
        if count == len(anchors):
            return EpisodeUnits(anchors, self.by == "step")
        if self.by == "episode":
            raise InvalidArgumentError(
                f"by='episode' takes one weight an episode, {len(anchors)} in all, and there are {count}, one a step",
                hint="leave by out",
            )
        return StepUnits(anchors)


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
    ) -> None:
        self._anchors = anchors
        self._units = units
        self._weights = weights
        self._seed = seed
        self._replacement = replacement
        self.importance = importance
        self._scale = int_weight_scale(weights, units.prefix, units.by_anchor)
        # None after the first update.
        self._table: PrefixTable | None = PrefixTable(
            int_weight_prefix(weights, units.prefix, units.by_anchor, self._scale)
        )
        self._history: WeightHistory | None = None
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
            InvalidArgumentError: without replacement, more slots than units; or a step that `compact` removed.
        """
        with self._lock:
            positive = self._scale.positive
            if self._history is not None:
                self._history.go_to(step)
                positive = self._history.tree.positive
            if not self._replacement and count > positive:
                raise InvalidArgumentError(
                    f"{count} slots without replacement, but {positive} {self._units.name} have a positive weight and "
                    "a window",
                    hint="take a smaller batch, or replacement=True",
                )
            windows = self._sampler.draw(step, count)
        if self.importance is not None and windows.probability is not None:
            windows.importance = self.importance(step, windows.probability)
        return windows

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
    def by(self) -> str:
        """The field of `Weighted`, resolved."""
        return "episode" if self._units.within == WITHIN_DRAWN else "step"

    @cached_property
    def _digest(self) -> str:
        """The xxh3-128 of the initial integer weights.

        Computed before the first update removes their table.
        """
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
        self, from_step: int, ids: npt.ArrayLike, values: npt.ArrayLike, steps: npt.ArrayLike | None = None
    ) -> None:
        """Sets the weights of some units from a step on.

        An error leaves all weights unchanged.

        Args:
            from_step: not before the step of any earlier update.
            ids: int [m], episode ids; if a unit occurs twice, its last value counts.
            values: float [m], finite, not negative.
            steps: int [m], steps of these episodes, if steps have weights.

        Raises:
            InvalidArgumentError: an unknown id or step; a value that is NaN, infinite or negative; a step before an
                earlier update's; or no positive weight would be left.
        """
        rows = self._units.rows(np.asarray(ids), None if steps is None else np.asarray(steps))
        weights = np.array(values, np.float64)
        if rows.shape != weights.shape:
            raise InvalidArgumentError(
                f"the update has {rows.shape} episode ids, but {weights.shape} weights",
                hint="give one weight for each episode id",
            )
        check_weights(weights, "weight", np.asarray(ids, np.int64))
        with self._lock:
            self._start_history().update(from_step, rows, weights)

    def weights_of(self, rows: Int64Array) -> Float64Array:
        """Returns the initial weights of the units of the episodes with indices `rows`."""
        return self._units.of_episodes(self._weights, rows)

    def _start_history(self) -> WeightHistory:
        if self._history is None:
            # The digest must be computed before the table goes. The table goes first, to save memory.
            self.identity()
            del self._sampler
            self._table = None
            history = WeightHistory(self._weights, self._units.prefix, self._units.by_anchor, self._scale.exponent)
            self._sampler = self._make_sampler(history.tree)
            self._history = history
        return self._history

    def version(self, step: int) -> int:
        """Returns the number of updates that hold at a step.

        Raises:
            InvalidArgumentError: a step that `compact` removed.
        """
        with self._lock:
            return 0 if self._history is None else self._history.version(step)

    @property
    def soonest(self) -> int:
        """The first step from which another update may hold: the step of the last update."""
        with self._lock:
            return 0 if self._history is None else self._history.soonest

    def compact(self, step: int) -> None:
        """Frees the memory of updates up to `step`.

        Earlier steps can no longer be selected.
        """
        with self._lock:
            if self._history is not None:
                self._history.compact(step)

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
