"""Outliers: episodes whose value is far from the median of all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import EmptySourceError, InvalidArgumentError, unknown_name
from gear_data.selection.windows import Int64Array

#: The standard deviation of normally distributed values, in medians and in means of their absolute deviations.
_OF_MEDIAN, _OF_MEAN = 1.482602218505602, 1.2533141373155003


def without_outliers(table: pa.Table, limits: Mapping[str, float]) -> Int64Array:
    """Returns the rows of an episode table that are no outliers, ascending.

    Each limit is compared with all rows.

    Args:
        table: the episode table.
        limits: see `Dataset.drop_outliers`.

    Raises:
        UnknownNameError, InvalidArgumentError, EmptySourceError: see `Dataset.drop_outliers`.
    """
    if not isinstance(limits, Mapping) or not limits:
        raise InvalidArgumentError(f"limits must be a mapping, not {limits!r}", hint='such as {"return": 3.5}')
    kept = np.ones(len(table), np.bool_)
    for name, limit in limits.items():
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
            raise InvalidArgumentError(f"the limit of {name!r} must be a number above 0, not {limit!r}")
        with np.errstate(invalid="ignore"):
            kept &= ~(deviations(_values(table, name)) > limit)
    if not kept.any():
        raise EmptySourceError(f"every episode is an outlier of {dict(limits)}", hint="raise the limits")
    return np.flatnonzero(kept)


def _values(table: pa.Table, name: str) -> npt.NDArray[np.float64]:
    """Returns a column as float64; null becomes NaN."""
    if name not in table.column_names:
        raise unknown_name("column", name, table.column_names)
    column = table.column(name)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)):
        raise InvalidArgumentError(
            f"outliers are of numbers, and the column '{name}' has type {column.type}",
            hint="name a numeric column of the episode table, such as return or length",
        )
    # Arrow casts no integers above 2^53 that floats round, unless it is told to.
    values: Any = column.cast(pa.float64(), safe=False).to_numpy()
    return np.asarray(values, np.float64)


def deviations(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns how far each value is from the median, in robust standard deviations.

    See `Dataset.drop_outliers`. NaN stays NaN. If all finite values are equal, their deviation is 0.

    Args:
        values: float64 [n].
    """
    median, scale = center_and_scale(values)
    if np.isnan(median):  # no finite value
        return np.where(np.isnan(values), np.nan, 0.0)
    distance = np.abs(values - median)
    return distance / scale if scale else np.where(np.isfinite(values), 0.0, distance)


def center_and_scale(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Returns the median of the finite values and their robust standard deviation, which is 0 if all are equal.

    Both are NaN and 0 without finite values.
    """
    finite = values[np.isfinite(values)]
    if not len(finite):
        return np.nan, 0.0
    median = float(np.median(finite))
    distance = np.abs(finite - median)
    return median, _OF_MEDIAN * float(np.median(distance)) or _OF_MEAN * float(distance.mean())
