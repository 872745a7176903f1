"""Comparison of two datasets: drift of each column, by the two-sample Kolmogorov-Smirnov statistic."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.paths import without_folders
from gear_data.dataset.dataset import Dataset
from gear_data.reports.distributions import (
    counts_between,
    dimension_labels,
    dimensions_of,
    histogram_edges,
    sorted_finite,
)
from gear_data.reports.facts import finite_returns, summarize
from gear_data.reports.numbers import number, rounded
from gear_data.reports.step_sample import StepSample, draw_sample
from gear_data.schema import ColumnSpec

#: Steps of each dataset that are compared.
_STEPS = 100_000
#: Statistic from which on a dimension has drifted.
DRIFT = 0.1


def compare(sample: StepSample, other: Dataset) -> dict[str, Any]:
    """Returns the differences of two datasets, JSON-able.

    Each dimension has the two-sample Kolmogorov-Smirnov statistic: the largest difference between the two cumulative
    distributions, 0 to 1. There is no p-value: steps of an episode depend on each other, which the test excludes.

    Args:
        sample: the steps of the first dataset.
        other: the second dataset.
    """
    first, second = sample.dataset, draw_sample(other)
    ours = {spec.name: spec for spec in first.schema.fixed_columns}
    theirs = {spec.name: spec for spec in other.schema.fixed_columns}
    alike = [name for name, spec in ours.items() if name in theirs and spec.shape == theirs[name].shape]
    rows = [
        _difference("return of an episode", np.sort(finite_returns(first)), np.sort(finite_returns(second.dataset))),
        _difference("length of an episode", np.sort(first.lengths), np.sort(second.dataset.lengths)),
    ]
    for name in alike:
        mine, yours = _dimensions(sample, ours[name]), _dimensions(second, theirs[name])
        for label, one, two in zip(dimension_labels(ours[name]), mine, yours, strict=True):
            rows.append(_difference(label, one, two))
    summary = summarize(other, folders=False)
    names = ("episodes", "steps", "fingerprint", "source", "format", "bytes", "return", "length")
    return {
        "path": without_folders(str(other.path), is_path=True),
        "facts": {name: summary[name] for name in names},
        "sampled": not (sample.complete and second.complete),
        "drift": DRIFT,
        "only_here": sorted(set(first.schema.names) - set(other.schema.names)),
        "only_there": sorted(set(other.schema.names) - set(first.schema.names)),
        "other_shape": sorted((set(ours) & set(theirs)) - set(alike)),
        "rows": [row for row in rows if row is not None],
    }


def kolmogorov_smirnov(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> float:
    """Returns the largest difference between the cumulative distributions of two ascending samples."""
    values = np.concatenate([first, second])
    below_first = np.searchsorted(first, values, side="right") / len(first)
    below_second = np.searchsorted(second, values, side="right") / len(second)
    return float(np.abs(below_first - below_second).max())


def _dimensions(sample: StepSample, spec: ColumnSpec) -> list[npt.NDArray[Any]]:
    values, _ = sample.column(spec, _STEPS * max(1, spec.size))
    return [sorted_finite(each)[0] for each in dimensions_of(values, spec)]


def _difference(name: str, one: npt.NDArray[Any], two: npt.NDArray[Any]) -> dict[str, Any] | None:
    """Returns the statistic, the moments and the histograms of two ascending samples; None if one is empty."""
    if not (len(one) and len(two)):
        return None
    means, stds = [], []
    for values in (one, two):
        means.append(float(values.mean(dtype=np.float64)))
        stds.append(float(values.std(dtype=np.float64)))
    pooled = float(np.sqrt((stds[0] ** 2 + stds[1] ** 2) / 2))
    both = np.sort(np.concatenate([one, two]))
    edges = histogram_edges(both)
    statistic = kolmogorov_smirnov(one, two)
    return {
        "name": name,
        "statistic": round(statistic, 6),
        "drifted": statistic >= DRIFT,
        "mean": rounded(means),
        "std": rounded(stds),
        "shift": number((means[1] - means[0]) / pooled, 4) if pooled > 0 else None,
        "edges": rounded(edges, 6),
        "counts": [counts_between(one, edges), counts_between(two, edges)],
        "values": [len(one), len(two)],
    }
