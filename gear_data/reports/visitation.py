"""State visitation: observations in two dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np

from gear_data.reports.episodes import EpisodeFacts
from gear_data.reports.measures import vector_column
from gear_data.reports.numbers import rounded
from gear_data.reports.step_sample import Float64Array, Int64Array, StepSample

_POINTS = 3_000
#: Steps from which the principal components are computed.
_FITTED = 100_000
#: Dimensions that can be chosen.
_DIMENSIONS = 16
#: Positions of points are whole numbers from 0 to this one, between `min` and `max`.
_GRID = 999


def visitation(facts: EpisodeFacts, sample: StepSample) -> dict[str, Any] | None:
    """Returns points of the observations, JSON-able; None without a vector of at least two floats.

    The axes are the two principal components of the standardised observations, and the first dimensions themselves.
    """
    spec = vector_column(sample.dataset.schema, "observations")
    if spec is None or spec.size < 2:
        return None
    values, stride = sample.column(spec, min(20_000_000, _FITTED * spec.size))
    steps = np.arange(0, sample.dataset.num_steps, stride)
    if len(values) != len(steps):  # a mask left steps out
        return None
    good = np.isfinite(values).all(axis=1)
    points, steps = values[good].astype(np.float64), steps[good]
    if len(points) < 3:
        return None
    axes, shares = principal_components(points)
    drawn = np.sort(np.random.default_rng(0).permutation(len(points))[:_POINTS])
    coordinates = np.concatenate([axes[drawn], points[drawn, :_DIMENSIONS]], axis=1)
    low, high = coordinates.min(axis=0), coordinates.max(axis=0)
    grid = np.rint((coordinates - low) / np.where(high > low, high - low, 1) * _GRID).astype(np.int64)
    episode = np.searchsorted(sample.starts, steps[drawn], side="right") - 1
    rows = sample.positions[episode]
    names = ["principal component 1", "principal component 2"]
    return {
        "column": spec.name,
        "axes": names + [f"{spec.name}[{i}]" for i in range(min(_DIMENSIONS, spec.size))],
        "variance": rounded(shares),
        "steps": len(points),
        "min": rounded(low),
        "max": rounded(high),
        "grid": _GRID,
        "points": grid.T.tolist(),
        "return": rounded(facts.returns[rows]),
        "episode": facts.ids[rows].tolist(),
    }


def principal_components(values: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Returns the first two principal components of standardised values, [n, 2], and their shares of the variance.

    The largest weight of each component is positive. Constant dimensions have no weight.
    """
    std = values.std(axis=0)
    standard = (values - values.mean(axis=0)) / np.where(std > 0, std, 1)
    variances, vectors = np.linalg.eigh(standard.T @ standard / len(standard))
    first: Int64Array = np.argsort(-variances)[:2]
    weights = vectors[:, first]
    weights = weights * np.where(np.take_along_axis(weights, np.abs(weights).argmax(axis=0)[None], 0) < 0, -1, 1)
    total = variances.sum()
    return standard @ weights, variances[first] / total if total > 0 else np.zeros(2)
