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
from gear_data.kernels.window_plan import WITHIN_DRAWN, WITHIN_QUOTIENT
from gear_data.selection.anchors import Anchors
from gear_data.selection.integer_weights import check_weights, int_weight_prefix, int_weight_scale
from gear_data.selection.prefix_table import PrefixTable
from gear_data.selection.samplers.sampler import Candidates, check_by
from gear_data.selection.weight_history import WeightHistory
from gear_data.selection.window_sampler import IntWeightTable, SamplingPlan, WindowSampler
from gear_data.selection.windows import Float64Array, Int64Array, Windows

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, eq=False)
class Weighted:
    """Draws episodes, or steps, in proportion to weights.

    Attributes:
        expression: the weight of an episode over the episode table, a Polars expression or SQL; finite, not negative.
        by: `episode`: an episode is drawn in proportion to its weight, and then each of its anchors is equally likely;
            `step`: each anchor is drawn in proportion to the weight of its episode.
        replacement: False: no episode occurs twice in one batch. Slots then take episodes one after another, in
            proportion to the weights of the episodes that are left.

    Raises:
        UnknownNameError: another `by`.
    """

    expression: str | pl.Expr
    by: str = "episode"
    replacement: bool = True
    name = "weighted"

    def __post_init__(self) -> None:
        check_by(self.by)

    def bind(self, candidates: Candidates, seed: int) -> WeightedSelector:
        """Returns the selector for these candidates.

        Raises:
            InvalidArgumentError: a weight is null, NaN, infinite or negative, or all weights are zero.
        """
        weights = candidates.evaluate(self.expression, "weight")
        check_weights(weights, "weight", candidates.anchors.ids)
        return WeightedSelector(candidates.anchors, weights, seed, self.by == "step", self.replacement)


class WeightedSelector:
    """A `Weighted` sampler bound to anchors, weights and a seed.

    The weights are a static table until the first update, and a tree afterwards; both draw the same windows. Threads
    may select and update at the same time.

    Args:
        anchors: the episodes and their anchors.
        weights: float64 [k], finite, not negative; not changed.
        seed: 0 to 2^64 - 1.
        by_step: True: a weight applies to each anchor of an episode; False: to the episode.
        replacement: False: no episode occurs twice in one batch.

    Raises:
        InvalidArgumentError: no episode with an anchor has a positive weight.
    """

    def __init__(self, anchors: Anchors, weights: Float64Array, seed: int, by_step: bool, replacement: bool) -> None:
        self._anchors = anchors
        self._weights = weights
        self._seed = seed
        self._by_step = by_step
        self._replacement = replacement
        self._scale = int_weight_scale(weights, anchors.prefix, by_step)
        # None after the first update.
        self._table: PrefixTable | None = PrefixTable(int_weight_prefix(weights, anchors.prefix, by_step, self._scale))
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
        within = WITHIN_QUOTIENT if self._by_step else WITHIN_DRAWN
        domain = cpu.random.DOMAIN_EPISODE
        return WindowSampler(self._anchors, table, self._seed, domain, within, not self._replacement, True)

    def select(self, step: int, count: int, position: int) -> Windows:
        """Selects the windows of slots 0 to count - 1 of batch `step`.

        The weights that hold at that step are used.

        Raises:
            InvalidArgumentError: without replacement, more slots than episodes; or a step that `compact` removed.
        """
        with self._lock:
            positive = self._scale.positive
            if self._history is not None:
                self._history.go_to(step)
                positive = self._history.tree.positive
            if not self._replacement and count > positive:
                raise InvalidArgumentError(
                    f"{count} slots without replacement, but {positive} episodes have a positive weight and a window",
                    hint="take a smaller batch, or replacement=True",
                )
            return self._sampler.draw(step, count)

    def sampling_plan(self, count: int) -> SamplingPlan | None:
        """Returns None after an update, or if `select` refuses `count` slots."""
        with self._lock:
            if self._history is not None or (not self._replacement and count > self._scale.positive):
                return None
            return SamplingPlan(self._sampler)

    def shares(self) -> Float64Array:
        with self._lock:
            if self._history is not None:
                self._history.go_to_last()
            return self._sampler.shares()

    def epoch_slots(self, epochs: int) -> int | None:
        return None

    def identity(self) -> dict[str, Any]:
        """Returns everything that windows depend on before any update, JSON-able."""
        return {
            "name": "weighted",
            "by": "step" if self._by_step else "episode",
            "replacement": self._replacement,
            "weights": self._digest,
        }

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
        """The number of episodes whose integer weight was raised from 0 to 1.

        Only the initial weights count.
        """
        return self._scale.raised

    def effective_sample_size(self) -> float:
        """Returns 1 / the sum of the squared probabilities of the episodes.

        The probabilities are those after the last update. Draws from this many episodes of equal weight would have the
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

    def update(self, from_step: int, ids: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Sets the weights of some episodes from a step on.

        An error leaves all weights unchanged.

        Args:
            from_step: not before the step of any earlier update.
            ids: int [m], episode ids; if an id occurs twice, its last value counts.
            values: float [m], finite, not negative.

        Raises:
            InvalidArgumentError: an unknown id; a value that is NaN, infinite or negative; a step before an earlier
                update's; or no positive weight would be left.
        """
        rows, weights = self._rows(np.asarray(ids)), np.array(values, np.float64)
        if rows.shape != weights.shape:
            raise InvalidArgumentError(
                f"the update has {rows.shape} episode ids, but {weights.shape} weights",
                hint="give one weight for each episode id",
            )
        check_weights(weights, "weight", np.asarray(ids, np.int64))
        with self._lock:
            self._start_history().update(from_step, rows, weights)

    def _start_history(self) -> WeightHistory:
        if self._history is None:
            # The digest must be computed before the table goes. The table goes first, to save memory.
            self.identity()
            del self._sampler
            self._table = None
            history = WeightHistory(self._weights, self._anchors.prefix, self._by_step, self._scale.exponent)
            self._sampler = self._make_sampler(history.tree)
            self._history = history
        return self._history

    def _rows(self, ids: npt.NDArray[Any]) -> Int64Array:
        """Returns int64 [m], the index of each episode id among the anchors' episodes.

        Raises:
            InvalidArgumentError: `ids` is not an integer array [m], or an id is unknown.
        """
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise InvalidArgumentError(f"episode ids are {ids.dtype} {list(ids.shape)}, not integers [m]")
        ids = ids.astype(np.int64)
        if self._anchors.ids is None:
            rows, known = ids, (ids >= 0) & (ids < len(self._anchors))
        else:
            sorted_ids, order = self._sorted_ids
            found = np.minimum(np.searchsorted(sorted_ids, ids), len(sorted_ids) - 1)
            rows, known = order[found], sorted_ids[found] == ids
        if not known.all():
            raise InvalidArgumentError(
                f"there is no episode {ids[np.argmin(known)]} in the dataset or view",
                row=int(np.argmin(known)),
                hint="give ids of the loader's dataset; a view keeps the ids of the whole dataset",
            )
        return rows

    @cached_property
    def _sorted_ids(self) -> tuple[Int64Array, Int64Array]:
        """(the episodes' ids in ascending order, the index of each)."""
        ids = np.arange(len(self._anchors)) if self._anchors.ids is None else self._anchors.ids
        order = np.argsort(ids, kind="stable")
        return ids[order], order

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
