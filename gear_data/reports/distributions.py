"""Distributions of the columns: histogram, quantiles and marks of each dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.reports.numbers import number, rounded
from gear_data.reports.step_sample import Float64Array, StepSample
from gear_data.schema import ColumnSpec, Role

#: Probabilities of the quantiles.
PROBABILITIES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
#: Dimensions of one vector column that are shown; the others are counted.
MAX_DIMENSIONS = 64
_BINS = 40
#: A dimension with at most so many different values has a bin for each.
_FEW_VALUES = 40
#: A histogram shows the quantiles 0.001 to 0.999, unless the whole range is less than so many times wider.
_WIDE_RANGE = 4.0
#: Share of values that are equal to the smallest or the largest one, from which on a dimension is clipped.
CLIPPED_SHARE = 0.01
#: Distance from a bound at which an action is saturated, as a share of the range.
_AT_BOUND = 1e-3


@dataclass(frozen=True)
class Dimension:
    """One dimension of a column.

    Attributes:
        count: number of finite values.
        nan, infinite: number of NaN and of infinite values.
        mean, std, min, max: of the finite values; None without finite values.
        quantiles: of the probabilities `PROBABILITIES`.
        edges, counts: histogram; `counts` has one value fewer than `edges`.
        outside: finite values outside the histogram.
        constant: whether all finite values are equal.
        at_min, at_max: share of the finite values that are equal to the smallest and to the largest one.
        clipped: whether values pile up at an end of the range.
        saturated: share of the values within 0.1% of an end of the range, for actions; else None.
    """

    count: int
    nan: int
    infinite: int
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    quantiles: Sequence[float | None]
    edges: list[float]
    counts: list[int]
    outside: int
    constant: bool
    at_min: float
    at_max: float
    clipped: bool
    saturated: float | None


def column_distributions(sample: StepSample) -> list[dict[str, Any]]:
    """Returns each fixed-size column with its dimensions, JSON-able.

    A vector has a dimension for each element, up to `MAX_DIMENSIONS`. Other columns have one for all their elements.
    """
    found = []
    for spec in sample.dataset.schema.fixed_columns:
        values, stride = sample.column(spec)
        found.append(
            {
                "name": spec.name,
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "role": spec.role.value,
                "derived": spec.derived,
                "read": len(values),
                "stride": stride,
                "labels": dimension_labels(spec),
                "dimensions": [asdict(describe(each, spec)) for each in dimensions_of(values, spec)],
            }
        )
    return found


def dimensions_of(values: npt.NDArray[Any], spec: ColumnSpec) -> list[npt.NDArray[Any]]:
    """Returns the values of each dimension, [steps] each; see `column_distributions`."""
    if len(spec.shape) == 1:
        return [values[:, element] for element in range(min(spec.shape[0], MAX_DIMENSIONS))]
    return [values.reshape(-1)]


def dimension_labels(spec: ColumnSpec) -> list[str]:
    """Returns a label of each dimension of a column: the name of the element, or its place in the vector."""
    names = spec.element_names or range(spec.size if len(spec.shape) == 1 else 0)
    return [f"{spec.name}[{name}]" for name in names][:MAX_DIMENSIONS] or [spec.name]


def describe(values: npt.NDArray[Any], spec: ColumnSpec) -> Dimension:
    """Returns the distribution of a dimension's values."""
    finite, nan, infinite = sorted_finite(values)
    if not len(finite):
        nothing = [None] * len(PROBABILITIES)
        return Dimension(
            0, nan, infinite, None, None, None, None, nothing, [], [], 0, False, 0.0, 0.0, False,
            0.0 if spec.role is Role.ACTION else None,
        )  # fmt: skip
    least, most = float(finite[0]), float(finite[-1])
    at_min = int(np.searchsorted(finite, finite[0], side="right")) / len(finite)
    at_max = 1 - int(np.searchsorted(finite, finite[-1], side="left")) / len(finite)
    constant = least == most
    edges = histogram_edges(finite)
    counts = counts_between(finite, edges)
    few = _has_few_values(finite)
    real = finite.dtype.kind == "f"
    saturated = None
    if spec.role is Role.ACTION and real:
        near = (most - least) * _AT_BOUND
        inside = np.searchsorted(finite, most - near, "left") - np.searchsorted(finite, least + near, "right")
        saturated = 0.0 if constant or few else 1 - max(0, int(inside)) / len(finite)
    return Dimension(
        count=len(finite),
        nan=nan,
        infinite=infinite,
        mean=number(finite.mean(dtype=np.float64)),
        std=number(finite.std(dtype=np.float64)),
        min=number(least),
        max=number(most),
        quantiles=rounded(quantiles_of(finite, PROBABILITIES), 6),
        edges=rounded(edges, 6),
        counts=counts,
        outside=len(finite) - sum(counts),
        constant=constant,
        at_min=round(at_min, 6),
        at_max=round(at_max, 6),
        clipped=real and not constant and not few and max(at_min, at_max) >= CLIPPED_SHARE,
        saturated=None if saturated is None else round(saturated, 6),
    )


def sorted_finite(values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int, int]:
    """Returns the finite values in ascending order, and the numbers of NaN and infinite values."""
    if values.dtype.kind != "f":
        return np.sort(values.astype(np.uint8) if values.dtype == np.bool_ else values), 0, 0
    kept = values[np.isfinite(values)]
    nan = int(np.isnan(values).sum())
    return np.sort(kept), nan, len(values) - len(kept) - nan


def quantiles_of(ascending: npt.NDArray[Any], probabilities: tuple[float, ...]) -> Float64Array:
    """Returns quantiles of sorted values, interpolated as by `numpy.quantile`."""
    places = np.asarray(probabilities) * (len(ascending) - 1)
    below = np.floor(places).astype(np.int64)
    above = np.minimum(below + 1, len(ascending) - 1)
    low, high = ascending[below].astype(np.float64), ascending[above].astype(np.float64)
    return np.asarray(low + (high - low) * (places - below), np.float64)


def histogram_edges(ascending: npt.NDArray[Any]) -> Float64Array:
    """Returns the edges of a histogram of sorted finite values.

    A few different integers have a bin each. The bins of other values have equal widths. They cover the quantiles 0.001
    to 0.999 if the whole range is much wider.
    """
    least, most = float(ascending[0]), float(ascending[-1])
    if least == most:
        return np.array([least - 0.5, most + 0.5])
    if ascending.dtype.kind != "f" and most - least < _FEW_VALUES:
        return np.arange(least - 0.5, most + 1)
    low, high = quantiles_of(ascending, (0.001, 0.999)).tolist()
    if low == high or most - least < _WIDE_RANGE * (high - low):
        low, high = least, most
    return np.linspace(low, high, _BINS + 1)


def counts_between(ascending: npt.NDArray[Any], edges: Float64Array) -> list[int]:
    """Returns the number of sorted values in each bin. The last bin has its upper edge."""
    places = np.searchsorted(ascending, edges, side="left")
    places[-1] = np.searchsorted(ascending, edges[-1], side="right")
    counts: list[int] = np.diff(places).tolist()
    return counts


def _has_few_values(ascending: npt.NDArray[Any]) -> bool:
    """Returns whether sorted values have at most `_FEW_VALUES` different ones."""
    return int(np.count_nonzero(ascending[1:] != ascending[:-1])) < _FEW_VALUES
