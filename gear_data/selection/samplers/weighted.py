"""Weighted: episodes or steps in proportion to weights that may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gear_data.common.keywords import suggest_fields
from gear_data.errors import InvalidArgumentError, StateMismatchError
from gear_data.selection.anchors import Anchors
from gear_data.selection.importance import ImportanceWeights
from gear_data.selection.samplers.sampler import Candidates, check_by
from gear_data.selection.samplers.weighted_selector import WeightedSelector
from gear_data.selection.schedule import Schedule, checked_schedule
from gear_data.selection.units import EpisodeUnits, StepUnits, WeightUnits, array_weights
from gear_data.selection.weight_history import OTHER_STATE, decoded
from gear_data.selection.windows import Float64Array
from gear_data.words import By

if TYPE_CHECKING:
    import polars as pl


@suggest_fields
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
            ("Prioritized Experience Replay", 2016). In a mixture with `join`, each dataset has a largest one.

    Raises:
        UnknownNameError: another `by`.
        InvalidArgumentError: `beta` has another form, or `divide_by_max` is given without `beta`.
    """

    weights: str | pl.Expr | npt.ArrayLike
    by: By | None = None
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
        return self._selector(anchors, units, weights, seed, explicit=self.is_array)

    def restored(self, candidates: Candidates, seed: int, state: Mapping[str, Any]) -> WeightedSelector:
        """Returns the selector whose `whole_state` was saved.

        Raises:
            InvalidArgumentError: as `bind`, if the weights are the values of an expression.
            StateMismatchError: a malformed state, or the state of other episodes.
        """
        anchors = candidates.anchors
        try:
            initial, by_episode, version = state["initial"], state["units"] == EpisodeUnits.name, state["first_version"]
            weights = None if initial is None else decoded(initial, "<f8")
            updates = state["updates"]
        except (KeyError, TypeError, ValueError) as error:
            raise StateMismatchError(
                f"the state of the weights is malformed: {type(error).__name__}: {error}", hint=OTHER_STATE
            ) from error
        if weights is None:
            selector = self.bind(candidates, seed)
        else:
            count = len(anchors) if by_episode else int(anchors.offsets[-1])
            if len(weights) != count or not (np.isfinite(weights) & (weights >= 0)).all() or type(version) is not int:
                raise StateMismatchError(
                    f"the state has {len(weights)} weights, and they do not fit {count} {state['units']}",
                    hint=OTHER_STATE,
                )
            units = EpisodeUnits(anchors, self.by == "step") if by_episode else StepUnits(anchors)
            selector = self._selector(anchors, units, weights, seed, explicit=True, first_version=version)
        selector.load(updates)
        return selector

    def _selector(
        self, anchors: Anchors, units: WeightUnits, weights: Float64Array, seed: int, **origin: Any
    ) -> WeightedSelector:
        importance = None
        if self.beta is not None:
            beta = checked_schedule("beta", self.beta)
            importance = ImportanceWeights(anchors.total, beta, self.divide_by_max)
        return WeightedSelector(anchors, units, weights, seed, self.replacement, importance, **origin)

    def _units(self, anchors: Anchors, count: int) -> WeightUnits:
        if count == len(anchors):
            return EpisodeUnits(anchors, self.by == "step")
        if self.by == "episode":
            raise InvalidArgumentError(
                f"by='episode' takes one weight an episode, {len(anchors)} in all, and there are {count}, one a step",
                hint="leave by out",
            )
        return StepUnits(anchors)
