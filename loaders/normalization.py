"""Normalisation modes: how a column's statistics become a mean and a deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.dataset.dataset import Dataset
from gear_data.errors import InvalidArgumentError, StateMismatchError
from gear_data.schema import ColumnSpec
from gear_data.storage.statistics import ColumnStatistics

Float64Array = npt.NDArray[np.float64]

#: Modes: (x - mean) / std; the 1st and 99th percentile to -1 and 1; the least and the largest value to -1 and 1; for
#: images, (x / 255 - mean) / std by ImageNet's mean and std of each channel.
MODES = ("mean-std", "quantiles", "minmax", "imagenet")

#: Mean and std of ImageNet's red, green and blue from 0 to 1, as torchvision's models have them.
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def mode_statistics(dataset: Dataset, name: str, mode: str) -> tuple[Float64Array, Float64Array]:
    """Returns (mean, std) of a column: (x - mean) / std is normalised.

    Cameras have a mean and std for each channel, of the sample of the whole dataset.

    Args:
        mode: one of `MODES`.

    Returns:
        float64 [elements] each; [1] for images, or [3] for cameras and ImageNet's.

    Raises:
        InvalidArgumentError: `imagenet` for a column without RGB, or the dataset has no statistics of a camera.
    """
    spec = dataset.schema[name]
    if mode == "imagenet":
        return _imagenet(spec)
    statistics = dataset.statistics[name] if spec.video is None else _camera_statistics(dataset, name)
    if mode == "mean-std":
        return statistics.mean, statistics.std
    if mode == "minmax":
        low, high = statistics.min, statistics.max
    elif statistics.quantiles is not None:
        low, high = statistics.quantiles[0], statistics.quantiles[-1]
    else:
        low, high = dataset.quantiles(name, (0.01, 0.99))
    # A constant element becomes -1, as by LeRobot and openpi. They divide by an epsilon, which makes other values huge.
    constant = low == high
    return np.where(constant, low + 1, (low + high) / 2), np.where(constant, 1.0, (high - low) / 2)


def _imagenet(spec: ColumnSpec) -> tuple[Float64Array, Float64Array]:
    if spec.dtype != "uint8" or len(spec.shape) != 3 or 3 not in (spec.shape[0], spec.shape[-1]):
        raise InvalidArgumentError(
            f"'imagenet' needs uint8 images of three channels, and a step has {spec.dtype} {list(spec.shape)}",
            column=spec.name,
            hint="give another mode, or (mean, std)",
        )
    return 255 * np.array(_IMAGENET_MEAN), 255 * np.array(_IMAGENET_STD)


def _camera_statistics(dataset: Dataset, name: str) -> ColumnStatistics:
    # Views have none of their own.
    statistics = dataset.store.statistics.get(name)
    if statistics is None:
        raise InvalidArgumentError(
            "the dataset has no statistics of this camera",
            column=name,
            hint="give normalize= a mapping with 'imagenet' or (mean, std) for the camera",
        )
    return statistics


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
