"""Normalisation modes: how a column's statistics become a mean and a deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.dataset.dataset import Dataset
from gear_data.errors import StateMismatchError

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


def restored_statistics(saved: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Float64Array, Float64Array]]:
    """Returns column -> (mean, std), float64 [elements] each, from column -> [mean, std] of a state.

    Raises:
        StateMismatchError: the state is malformed.
    """
    try:
        pairs = {name: [np.array(each, np.float64) for each in pair] for name, pair in saved.items()}
        return {name: (mean, std) for name, (mean, std) in pairs.items()}
    except (TypeError, ValueError) as error:
        raise StateMismatchError(
            f"the normalisation in the state is malformed: {error}", hint="load a state that a loader saved, unchanged"
        ) from error
