"""Measures of each episode that show odd ones: jerk, idle share, jumps between steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.dataset.curation.outliers import center_and_scale
from gear_data.reports.step_sample import Float64Array, StepSample
from gear_data.schema import ColumnSpec, Schema

#: A step is idle if every element moves less than this share of its standard deviation.
_IDLE = 1e-3
#: Wider vectors are images or feature maps, whose elements do not move like a body's coordinates.
_MAX_ELEMENTS = 512
#: Values from which the standard deviations are taken.
_SCALE_VALUES = 2_000_000
#: Modified z-score (Iglewicz and Hoaglin, 1993) from which on an episode is an outlier.
OUTLIER_SCORE = 3.5


@dataclass(frozen=True)
class Bounds:
    """Usual values of a measure.

    Attributes:
        low, high: the smallest and the largest value that is no outlier. Infinite: there is no bound on this side.
    """

    low: float
    high: float

    def exceeded(self, values: Float64Array) -> npt.NDArray[np.bool_]:
        """Returns which values are outliers, bool [n]. NaN is none."""
        return (values < self.low) | (values > self.high)


def episode_measures(sample: StepSample) -> dict[str, Float64Array]:
    """Returns measure -> its value for each episode of the sample, float64 [k]; NaN where it is not defined.

    - `jerk`: mean length of the third difference of the actions.
    - `idle`: share of the steps in which the observations do not move. Without an observation vector: the actions.
    - `jump`: longest move of the observations between two steps.

    Each element is divided by its standard deviation, and lengths by the root of the number of elements. A measure is
    absent if the dataset has no vector of floats for it.
    """
    schema = sample.dataset.schema
    actions, observations = vector_column(schema, "actions"), vector_column(schema, "observations")
    found: dict[str, Float64Array] = {}
    if actions is not None:
        found["jerk"] = _per_episode(sample, actions, _third_differences, np.add)
    moving = observations or actions
    if moving is not None:
        found["idle"] = _per_episode(sample, moving, _idle, np.add)
    if observations is not None:
        found["jump"] = _per_episode(sample, observations, _moves, np.maximum)
    return found


def vector_column(schema: Schema, name: str) -> ColumnSpec | None:
    """Returns the column `name`, or its first `name.PART`, that is a vector of floats; None if there is none."""
    for spec in sorted(schema.fixed_columns, key=lambda each: each.name != name):
        named = spec.name == name or spec.name.startswith(f"{name}.")
        if named and spec.numpy_dtype.kind == "f" and len(spec.shape) < 2 and spec.size <= _MAX_ELEMENTS:
            return spec
    return None


def find_bounds(values: Float64Array, *, low: bool, high: bool) -> Bounds:
    """Returns the usual values of a measure, by the modified z-score.

    The score is that of `Dataset.drop_outliers`.

    Args:
        values: float64 [n]; NaN and infinities are ignored.
        low, high: whether unusually small and large values are outliers.
    """
    middle, scale = center_and_scale(values)
    reach = OUTLIER_SCORE * scale if scale > 0 else np.inf
    return Bounds(middle - reach if low else -np.inf, middle + reach if high else np.inf)


#: Measure -> (whether small values are outliers, whether large values are).
SIDES: Mapping[str, tuple[bool, bool]] = {
    "length": (True, True),
    "return": (True, True),
    "jerk": (False, True),
    "idle": (False, True),
    "jump": (False, True),
}


def _per_episode(sample: StepSample, spec: ColumnSpec, score: Any, reduce: np.ufunc) -> Float64Array:
    """Returns the sum or maximum of the steps' scores in each episode; the sum is divided by the number of scores.

    `score(values)` returns the scores, float64 [steps], and the number of steps without one at the beginning of an
    episode. Scores across the beginning of an episode are ignored.
    """
    some, _ = sample.column(spec, _SCALE_VALUES)
    with np.errstate(invalid="ignore", over="ignore"):
        scale = np.nanstd(np.where(np.isfinite(some), some, np.nan).astype(np.float64), axis=0)
    moving = np.flatnonzero(np.isfinite(scale) & (scale > 0))
    result = np.full(len(sample.dataset), np.nan)
    if not len(moving):
        return result
    lengths = sample.dataset.lengths
    for first, last, values in sample.blocks(spec):
        own = lengths[first:last]
        starts = np.cumsum(own) - own
        places = np.arange(len(values)) - np.repeat(starts, own)
        with np.errstate(invalid="ignore", over="ignore"):
            scores, lost = score(values[:, moving] / scale[moving].astype(np.float32))
        scores[places < lost] = 0
        total = reduce.reduceat(scores, starts)
        count = own - lost
        if reduce is np.add:
            total = total / np.maximum(count, 1)
        result[first:last] = np.where(count > 0, total, np.nan)
    return result


def _moves(values: npt.NDArray[Any]) -> tuple[Float64Array, int]:
    """Returns the length of each step's move from the step before."""
    return _lengths(values[1:] - values[:-1], len(values)), 1


def _third_differences(values: npt.NDArray[Any]) -> tuple[Float64Array, int]:
    """Returns the length of each step's third difference."""
    return _lengths(values[3:] - 3 * values[2:-1] + 3 * values[1:-2] - values[:-3], len(values)), 3


def _idle(values: npt.NDArray[Any]) -> tuple[Float64Array, int]:
    """Returns 1 for each step that did not move from the step before, else 0."""
    idle = np.zeros(len(values))
    idle[1:] = np.abs(values[1:] - values[:-1]).max(axis=1) <= _IDLE
    return idle, 1


def _lengths(differences: npt.NDArray[Any], steps: int) -> Float64Array:
    """Returns the root mean square of each row, after zeros for the first steps. NaN counts as 0."""
    finite = np.nan_to_num(differences, nan=0.0, posinf=0.0, neginf=0.0)
    squares = np.einsum("ij,ij->i", finite, finite, dtype=np.float64)
    return np.concatenate([np.zeros(steps - len(squares)), np.sqrt(squares / max(1, differences.shape[1]))])
