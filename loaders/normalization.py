"""Normalisation modes: how a column's statistics become a mean and a deviation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gear_data.dataset.dataset import Dataset

Float64Array = npt.NDArray[np.float64]

#: Modes: (x - mean) / std; the 1st and 99th percentile to -1 and 1; the least and the largest value to -1 and 1.
MODES = ("mean-std", "quantiles", "min-max")


def mode_statistics(dataset: Dataset, name: str, mode: str) -> tuple[Float64Array, Float64Array]:
    """Returns (mean, std) of a column: (x - mean) / std is normalised.

    Args:
        mode: one of `MODES`.

    Returns:
        float64 [elements] each.
    """
    if mode == "mean-std":
        statistics = dataset.statistics[name]
        return statistics.mean, statistics.std
    if mode == "min-max":
        statistics = dataset.statistics[name]
        low, high = statistics.min, statistics.max
    else:
        low, high = dataset.quantiles(name, (0.01, 0.99))
    # A constant element becomes -1, as by LeRobot and openpi. They divide by an epsilon, which makes other values huge.
    constant = low == high
    return np.where(constant, low + 1, (low + high) / 2), np.where(constant, 1.0, (high - low) / 2)
