"""Statistics and quantiles of each element of each column, and of returns and lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.dataset.dataset import Dataset
from gear_data.dataset.views import checked_probabilities
from gear_data.errors import UnsupportedColumnError
from gear_data.storage.statistics import statistics_width

#: The moments of a row.
MOMENTS = ("mean", "std", "min", "max")
#: Columns of the episode table that have a row, too.
_OF_EPISODES = ("return", "length")


def statistics_rows(
    dataset: Dataset, columns: Sequence[str] | None, probabilities: Sequence[float]
) -> list[dict[str, Any]]:
    """Returns one row for each element of each column, and for the returns and lengths of episodes.

    Args:
        dataset: the dataset or view.
        columns: names of columns; None: all of a fixed size.
        probabilities: of the quantiles.

    Returns:
        `column`; `element`, null for a column with one set of statistics; `name` of the element, null if it has none;
        `count` of finite values; `not_finite`, the number of NaN and infinities; `mean`, `std`, `min`, `max`; and
        `quantiles`, probability -> value. The rows of episodes have the column `episodes.return` and `episodes.length`.

    Raises:
        UnknownNameError: a column does not exist. The error lists the columns.
        UnsupportedColumnError: a column has text or bytes, or is a camera.
        InvalidArgumentError: a probability is not a number from 0 to 1.
    """
    probabilities = checked_probabilities(probabilities)
    rows = []
    for name in [spec.name for spec in dataset.schema.fixed_columns] if columns is None else columns:
        spec = dataset.schema[name]
        if spec.variable_length or spec.video is not None:
            raise UnsupportedColumnError("has no numbers of a fixed size", column=name, hint="name other columns")
        found, width = dataset.statistics[name], statistics_width(spec)
        quantiles = dataset.quantiles(name, probabilities)
        values = _steps(dataset, name) * max(1, int(np.prod(spec.shape, dtype=np.int64))) // width
        for element in range(width):
            moments = {kind: float(getattr(found, kind)[element]) for kind in MOMENTS}
            count = int(found.count[element])
            rows.append(
                {
                    "column": name,
                    "element": element if width > 1 else None,
                    "name": spec.element_names[element] if len(spec.element_names) == width else None,
                    "count": count,
                    "not_finite": values - count,
                    **moments,
                    "quantiles": _named(probabilities, quantiles[:, element]),
                }
            )
    return [*rows, *(_episode_row(dataset, name, probabilities) for name in _OF_EPISODES)]


def _steps(dataset: Dataset, name: str) -> int:
    """Returns the number of steps at which a column has values."""
    mask = dataset.schema.mask_of(name)
    if mask is None:
        return dataset.num_steps
    of_mask = dataset.statistics[mask]
    return round(float(of_mask.mean[0] * of_mask.count[0]))


def _episode_row(dataset: Dataset, name: str, probabilities: Sequence[float]) -> dict[str, Any]:
    values = dataset.episode_table.column(name).drop_null().to_numpy().astype(np.float64)
    finite = values[np.isfinite(values)]
    nothing = np.full(len(probabilities), np.nan)
    moments = [finite.mean(), finite.std(), finite.min(), finite.max()] if len(finite) else [np.nan] * len(MOMENTS)
    return {
        "column": f"episodes.{name}",
        "element": None,
        "name": None,
        "count": len(finite),
        "not_finite": len(values) - len(finite),
        **{kind: float(value) for kind, value in zip(MOMENTS, moments, strict=True)},
        "quantiles": _named(probabilities, np.quantile(finite, probabilities) if len(finite) else nothing),
    }


def _named(probabilities: Sequence[float], values: npt.NDArray[np.float64]) -> dict[str, float]:
    return {f"{each:g}": float(value) for each, value in zip(probabilities, values, strict=True)}
