"""WeightedSelector: windows in proportion to weights of their episodes, which may change from a step on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.fork_lock import fork_safe_lock
from gear_data.errors import InvalidArgumentError
from gear_data.selection.anchors import Anchors
from gear_data.selection.integer_weights import check_weights, int_weight_prefix, int_weight_scale
from gear_data.selection.prefix_table import PrefixTable
from gear_data.selection.weight_history import WeightHistory
from gear_data.selection.window_sampler import IntWeightTable, SamplingPlan, WindowSampler
from gear_data.selection.windows import Float64Array, Int64Array, Windows


class WeightedSelector:
    """A `Weighted` sampler bound to anchors, weights and a seed.

    The weights are a static table until the first update, and a tree from then on; both draw alike. Threads may select
    and update at once.

    Args:
        anchors: the episodes and their anchors.
        weights: float64 [k], finite, not negative; not changed.
        seed: 0 to 2^64 - 1.
        by_step: a weight is of each anchor of an episode; else of the episode.
        replacement: if not, no episode comes twice in one batch.

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
        # None from the first update on.
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

    def _make_sampler(self, source: IntWeightTable) -> WindowSampler:
        from gear_data.kernels.cpu.random import DOMAIN_EPISODE
        from gear_data.kernels.cpu.windows import WITHIN_DRAWN, WITHIN_QUOTIENT

        within = WITHIN_QUOTIENT if self._by_step else WITHIN_DRAWN
        return WindowSampler(self._anchors, source, self._seed, DOMAIN_EPISODE, within, not self._replacement, True)

    def select(self, step: int, count: int, position: int) -> Windows:
        """The windows of slots 0 to count - 1 of batch `step`, by the weights that hold there.

        Raises:
            InvalidArgumentError: without replacement, more slots than episodes; or a step before a `compact`.
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
        """None after an update, or where `select` refuses so many slots."""
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
        """JSON-able: what the windows of steps before any update depend on."""
        return {
            "name": "weighted",
            "by": "step" if self._by_step else "episode",
            "replacement": self._replacement,
            "weights": self._digest,
        }

    @cached_property
    def _digest(self) -> str:
        """xxh3-128 of the initial integer weights; asked for while the table is there."""
        import xxhash

        return xxhash.xxh3_128(self._initial_table().prefix.astype("<i8", copy=False).data).hexdigest()

    def _initial_table(self) -> PrefixTable:
        if self._table is None:
            raise RuntimeError("the table of the initial weights is gone")
        return self._table

    @property
    def raised(self) -> int:
        """How many episodes have one quantum although their initial weight is worth less than half of one."""
        return self._scale.raised

    def effective_sample_size(self) -> float:
        """1 / the sum of the squares of the episodes' probabilities, by the last weights: so many episodes of equal
        weight would vary as much."""
        with self._lock:
            if self._history is None:
                return self._initial_sample_size
            self._history.go_to_last()
            return self._history.tree.effective_sample_size()

    @cached_property
    def _initial_sample_size(self) -> float:
        from gear_data.kernels.cpu.integer_weights import squares_between

        prefix = self._initial_table().prefix
        return float(prefix[-1]) ** 2 / float(squares_between(prefix))

    def update(self, from_step: int, ids: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Sets the weights of some episodes from a step on.

        Args:
            from_step: not below that of any update before.
            ids: int [m], episode ids; of one that comes twice the last value counts.
            values: float [m], finite, not negative.

        Raises:
            InvalidArgumentError: an id that is not among the episodes, a value that is NaN, infinite or negative, a
                step that is too early, or no positive weight left. Nothing is changed then.
        """
        rows, weights = self._rows(np.asarray(ids)), np.array(values, np.float64)
        if rows.shape != weights.shape:
            raise InvalidArgumentError(f"{rows.shape} episode ids, but {weights.shape} weights")
        check_weights(weights, "weight", np.asarray(ids, np.int64))
        with self._lock:
            self._start_history().update(from_step, rows, weights)

    def _start_history(self) -> WeightHistory:
        if self._history is None:
            # The identity stays what it was. The table goes first: both would be much memory.
            self.identity()
            del self._sampler
            self._table = None
            history = WeightHistory(self._weights, self._anchors.prefix, self._by_step, self._scale.exponent)
            self._sampler = self._make_sampler(history.tree)
            self._history = history
        return self._history

    def _rows(self, ids: npt.NDArray[Any]) -> Int64Array:
        """Places of episodes among the anchors'."""
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise InvalidArgumentError(f"episode ids are {ids.dtype} {list(ids.shape)}, not integers [m]")
        ids = ids.astype(np.int64)
        if self._anchors.ids is None:
            rows, known = ids, (ids >= 0) & (ids < len(self._anchors))
        else:
            places, order = self._places
            found = np.minimum(np.searchsorted(places, ids), len(places) - 1)
            rows, known = order[found], places[found] == ids
        if not known.all():
            raise InvalidArgumentError(f"there is no episode {ids[np.argmin(known)]} here", row=int(np.argmin(known)))
        return rows

    @cached_property
    def _places(self) -> tuple[Int64Array, Int64Array]:
        """(the episodes' ids in ascending order, the place of each)."""
        ids = np.arange(len(self._anchors)) if self._anchors.ids is None else self._anchors.ids
        order = np.argsort(ids, kind="stable")
        return ids[order], order

    def version(self, step: int) -> int:
        """How many updates hold at a step. Raises InvalidArgumentError for a step before a `compact`."""
        with self._lock:
            return 0 if self._history is None else self._history.version(step)

    @property
    def soonest(self) -> int:
        """The first step that another update may hold from: that of the last one."""
        with self._lock:
            return 0 if self._history is None else self._history.soonest

    def compact(self, step: int) -> None:
        """Frees what is kept of the updates up to `step`: steps before it cannot be selected any more."""
        with self._lock:
            if self._history is not None:
                self._history.compact(step)

    def state(self) -> dict[str, Any] | None:
        """JSON-able: the weights that differ from the initial ones, and the updates since; None if there were none."""
        with self._lock:
            return None if self._history is None else self._history.state()

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Goes on from the state of a selector with the same `identity`, whatever came before.

        Raises:
            StateMismatchError: a malformed state, or one of other episodes.
        """
        with self._lock:
            if state is not None:
                self._start_history().load(state)
            elif self._history is not None:
                self._history.reset()
