"""Normalisation: how statistics, or the user's values, become a mean and a deviation of each column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.dataset.dataset import Dataset
from gear_data.dataset.relative.statistics import centre_and_half
from gear_data.errors import InvalidArgumentError, StateMismatchError, unknown_name
from gear_data.loaders.presets.outputs import normalization_columns
from gear_data.loaders.presets.relative import RelativeColumn, difference_statistics
from gear_data.schema import ColumnSpec, Schema
from gear_data.stacking import ColumnPart
from gear_data.storage.statistics import ColumnStatistics
from gear_data.words import Normalization

Float64Array = npt.NDArray[np.float64]
MeanAndStd = tuple[Float64Array, Float64Array]
#: The argument `normalize` of `SequenceLoader`.
Normalize = bool | Normalization | str | Sequence[str] | Mapping[str, tuple[Any, Any] | str] | None

#: Modes: (x - mean) / std; the 1st and 99th percentile to -1 and 1; the least and the largest value to -1 and 1; for
#: images, (x / 255 - mean) / std by ImageNet's mean and std of each channel.
MODES = ("mean-std", "quantiles", "minmax", "imagenet")

#: Modes that map two numbers of a column to -1 and 1.
_BY_RANGE = ("quantiles", "minmax")

#: Mean and std of ImageNet's red, green and blue from 0 to 1, as torchvision's models have them.
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def normalization_statistics(
    dataset: Dataset,
    schema: Schema,
    parts: Mapping[str, Sequence[ColumnSpec]],
    normalize: Normalize,
    rename: Mapping[str, str],
    relative: Mapping[str, RelativeColumn],
) -> dict[str, tuple[Float64Array, Float64Array]]:
    """Returns column -> (mean, std), float64, of the columns to normalise.

    Args:
        dataset: the dataset.
        schema: its columns, with stacked columns in the place of their parts.
        parts: stacked column -> its parts, whose statistics it has.
        normalize: see `SequenceLoader`.
        rename: column of the dataset -> its name in the schema.
        relative: relative column -> its steps, and what is subtracted. It has statistics of the differences.

    Raises:
        UnknownNameError: no such column.
        InvalidArgumentError: `normalize` is of another form.
        NonFiniteError: a relative column, or the one that is subtracted, has NaN or infinities.
    """
    if normalize is None:
        return {}
    stored = {new: name for name, new in rename.items()}

    def of(name: str, mode: str) -> MeanAndStd:
        return mode_statistics(dataset, stored.get(name, name), mode)

    def pair(name: str, mode: str) -> MeanAndStd:
        if name not in relative:
            return _statistics_of(of, parts, name, mode)
        own = relative[name]
        columns, state = (
            tuple(stored.get(part, part) for part in [spec.name for spec in parts.get(each, ())] or [each])
            for each in (name, own.to.source)
        )
        return difference_statistics(dataset, own, columns, state, mode)

    if isinstance(normalize, Mapping):
        normalization_columns(schema, tuple(normalize))
        return {name: _mean_and_std(pair, name, value) for name, value in normalize.items()}
    if isinstance(normalize, str) and normalize not in ("all", *MODES, *schema.names):
        raise unknown_name("column", normalize, ("all", *MODES, *schema.names))
    mode = normalize if isinstance(normalize, str) and normalize in MODES else "mean-std"
    names = normalization_columns(schema, True if mode == normalize else normalize)
    return {name: pair(name, mode) for name in names}


def by_range(normalize: Normalize, name: str) -> bool:
    """Returns whether two numbers of a normalised column become -1 and 1: by `quantiles` or `minmax`."""
    mode = normalize.get(name) if isinstance(normalize, Mapping) else normalize
    return isinstance(mode, str) and mode in _BY_RANGE


def _statistics_of(
    of: Callable[[str, str], MeanAndStd], parts: Mapping[str, Sequence[ColumnSpec]], name: str, mode: str
) -> tuple[Float64Array, Float64Array]:
    """Returns the (mean, std) of a mode, from a function that returns those of one column.

    A stacked column has its parts' values side by side.
    """
    if name not in parts:
        return of(name, mode)
    means, deviations = zip(*(_statistics_of_part(part, *of(part.name, mode)) for part in parts[name]), strict=True)
    return np.concatenate(means), np.concatenate(deviations)


def _statistics_of_part(part: ColumnSpec, mean: Float64Array, std: Float64Array) -> MeanAndStd:
    """Returns the (mean, std) of a part, from those of its column."""
    if not isinstance(part, ColumnPart):
        return mean, std
    mean, std = (np.broadcast_to(each, part.whole)[part.first : part.first + part.size] for each in (mean, std))
    return mean * part.scale + part.offset, std * abs(part.scale)


def _mean_and_std(pair: Callable[[str, str], MeanAndStd], name: str, value: Any) -> tuple[Float64Array, Float64Array]:
    if isinstance(value, str):
        if value not in MODES:
            raise unknown_name("normalisation", value, MODES)
        return pair(name, value)
    try:
        mean, std = (np.asarray(each, np.float64) for each in value)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"normalize takes (mean, std) or a mode, not {value!r}", column=name, hint=f"modes: {', '.join(MODES)}"
        ) from error
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std >= 0).all()):
        raise InvalidArgumentError(
            f"normalize takes finite means, and finite deviations of at least 0, not {value!r}", column=name
        )
    return mean, std


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
    return centre_and_half(low, high)


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
