"""Normalisation: how statistics, or the user's values, become a mean and a deviation of each column."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from gear_data.dataset.dataset import Dataset
from gear_data.dataset.pooled import PooledColumn, pooled_quantiles, pooled_statistics
from gear_data.dataset.relative.chunks import Chunks
from gear_data.dataset.relative.statistics import centre_and_half, chunk_statistics
from gear_data.dataset.steps.finite import refuse_non_finite
from gear_data.errors import InvalidArgumentError, StateMismatchError, unknown_name
from gear_data.loaders.presets.outputs import normalization_columns
from gear_data.loaders.presets.relative import RelativeColumn, difference_chunks
from gear_data.schema import ColumnSpec, Schema
from gear_data.stacking import ColumnPart
from gear_data.storage.statistics import ColumnStatistics, merged_samples, statistics_width
from gear_data.words import Normalization

if TYPE_CHECKING:
    from gear_data.words import Scaling

Float64Array = npt.NDArray[np.float64]
MeanAndStd = tuple[Float64Array, Float64Array]
#: The argument `normalize` of `SequenceLoader`.
Normalize = bool | Normalization | str | Sequence[str] | Mapping[str, tuple[Any, Any] | str] | None

#: Modes: (x - mean) / std; the 1st and 99th percentile to -1 and 1; the least and the largest value to -1 and 1; for
#: images, (x / 255 - mean) / std by ImageNet's mean and std of each channel.
MODES = ("mean-std", "quantiles", "minmax", "imagenet")
#: What the mode `quantiles` brings to -1 and 1.
QUANTILES = (0.01, 0.99)

#: Modes that map two numbers of a column to -1 and 1.
_BY_RANGE = ("quantiles", "minmax")

#: Mean and std of ImageNet's red, green and blue from 0 to 1, as torchvision's models have them.
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class NormalizedDataset:
    """A dataset whose columns are normalised.

    Attributes:
        name: the dataset, for errors.
        dataset: the dataset.
        schema: its columns, with stacked columns in the place of their parts.
        parts: stacked column -> its parts, whose statistics it has.
        normalize: see `SequenceLoader`.
        rename: column of the dataset -> its name in the schema.
        relative: relative column -> its steps, and what is subtracted. It has statistics of the differences.
    """

    name: str
    dataset: Dataset
    schema: Schema
    parts: Mapping[str, Sequence[ColumnSpec]]
    normalize: Normalize
    rename: Mapping[str, str]
    relative: Mapping[str, RelativeColumn]

    def ways(self) -> dict[str, str | MeanAndStd]:
        """Returns column -> its mode, or (mean, std), of the columns to normalise."""
        normalize, schema = self.normalize, self.schema
        if normalize is None:
            return {}
        if isinstance(normalize, Mapping):
            normalization_columns(schema, tuple(normalize))
            return {name: _way(name, value) for name, value in normalize.items()}
        if isinstance(normalize, str) and normalize not in ("all", *MODES, *schema.names):
            raise unknown_name("column", normalize, ("all", *MODES, *schema.names))
        mode = normalize if isinstance(normalize, str) and normalize in MODES else "mean-std"
        return dict.fromkeys(normalization_columns(schema, True if mode == normalize else normalize), mode)

    def stored(self, name: str) -> str:
        """Returns the name of a column in the dataset."""
        return next((old for old, new in self.rename.items() if new == name), name)

    def stored_parts(self, name: str) -> tuple[ColumnSpec, ...]:
        """Returns the columns of the dataset that a column is made of."""
        parts = self.parts.get(name) or [self.schema[name]]
        return tuple(dataclasses.replace(part, name=self.stored(part.name)) for part in parts)

    def chunks(self, name: str) -> Chunks:
        """Returns the chunks of a relative column."""
        own = self.relative[name]
        columns, state = (tuple(part.name for part in self.stored_parts(each)) for each in (name, own.to.source))
        return difference_chunks(self.dataset, own, columns, state)

    def statistics(self, name: str, mode: str) -> MeanAndStd:
        """Returns the (mean, std) of a column. A stacked column has its parts' values side by side."""
        if name in self.relative:
            return chunk_statistics([self.chunks(name)]).normalization(cast("Scaling", mode))
        if name not in self.parts:
            return mode_statistics(self.dataset, self.stored(name), mode)
        means, deviations = zip(
            *(_statistics_of_part(self.dataset, part, mode) for part in self.stored_parts(name)), strict=True
        )
        return np.concatenate(means), np.concatenate(deviations)

    def check_finite(self, name: str) -> None:
        """Raises NonFiniteError if a column has NaN or infinities. Statistics of relative columns check their own."""
        if name not in self.relative:
            for part in self.stored_parts(name):
                refuse_non_finite(self.dataset, part)

    def form(self, name: str) -> tuple[Any, ...]:
        """Returns what the statistics of a column are of: their number, and what is subtracted."""
        parts = self.stored_parts(name)
        width = sum(part.shape[-1] if part.video else statistics_width(part) for part in parts)
        own = self.relative.get(name)
        if own is None:
            return (width,)
        steps = len(own.steps) if own.per_step else None
        return (width, own.to.delta, tuple(each >= 0 for each in own.to.elements), steps)


def normalization_statistics(datasets: Sequence[NormalizedDataset]) -> list[dict[str, MeanAndStd]]:
    """Returns for each dataset column -> (mean, std), float64, of the columns to normalise.

    A column of several datasets has one mean and std in all of them: those of all their steps together.

    Args:
        datasets: one dataset, or several that share their statistics.

    Raises:
        UnknownNameError: no such column.
        InvalidArgumentError: `normalize` is of another form; or datasets do not normalise a column alike, or have
            columns of unlike shape.
        NonFiniteError: a column, or the one that is subtracted, has NaN or infinities.
    """
    ways = [each.ways() for each in datasets]
    found: dict[str, MeanAndStd] = {}
    for name in dict.fromkeys(name for own in ways for name in own):
        having = [number for number, each in enumerate(datasets) if name in each.schema]
        first = having[0]
        for number in having[1:]:
            _check_alike(name, (datasets[first], datasets[number]), (ways[first].get(name), ways[number].get(name)))
        way = ways[first][name]
        if isinstance(way, str) and way != "imagenet":
            for number in having:
                datasets[number].check_finite(name)
        found[name] = _together(name, way, [datasets[number] for number in having]) if isinstance(way, str) else way
    return [{name: found[name] for name in own} for own in ways]


def by_range(normalize: Normalize, name: str) -> bool:
    """Returns whether two numbers of a normalised column become -1 and 1: by `quantiles` or `minmax`."""
    mode = normalize.get(name) if isinstance(normalize, Mapping) else normalize
    return isinstance(mode, str) and mode in _BY_RANGE


def _check_alike(
    name: str, pair: tuple[NormalizedDataset, NormalizedDataset], ways: tuple[str | MeanAndStd | None, ...]
) -> None:
    """Raises InvalidArgumentError if two datasets cannot share the statistics of a column."""
    one, two = (way if way is None or isinstance(way, str) else tuple(each.tolist() for each in way) for way in ways)
    if one != two:
        differ = f"{pair[0].name} normalises it by {_named(one)}, and {pair[1].name} by {_named(two)}"
        hint = "give both datasets the same normalize"
    elif isinstance(one, str) and pair[0].form(name) != pair[1].form(name):
        forms = [f"{each.name} has {_form_named(each.form(name))}" for each in pair]
        differ, hint = ", and ".join(forms), "bring the columns to one form with the options stack and relative"
    else:
        return
    raise InvalidArgumentError(
        f"datasets of one embodiment share the statistics of a column, and {differ}",
        column=name,
        hint=f"{hint}; or give each its own embodiment; or leave Mixture(..., statistics='embodiment') out",
    )


def _named(way: Any) -> str:
    return "nothing" if way is None else f"'{way}'" if isinstance(way, str) else f"(mean, std) {way!r}"


def _form_named(form: tuple[Any, ...]) -> str:
    width, *differences = form
    if not differences:
        return f"{width} elements"
    delta, relative, steps = differences
    own = "" if steps is None else f", statistics for each of {steps} steps"
    return f"{width} elements, of which {sum(relative)} are {'deltas' if delta else 'relative'}{own}"


def _together(name: str, mode: str, datasets: Sequence[NormalizedDataset]) -> MeanAndStd:
    """Returns the (mean, std) of a column of several datasets."""
    if len(datasets) == 1 or mode == "imagenet":
        return datasets[0].statistics(name, mode)
    if name in datasets[0].relative:
        return chunk_statistics([each.chunks(name) for each in datasets]).normalization(cast("Scaling", mode))
    if datasets[0].schema[name].video is not None:
        return _of_mode(
            merged_samples([_camera_statistics(each.dataset, each.stored(name)) for each in datasets]), mode
        )
    columns = [PooledColumn(each.dataset, each.stored_parts(name)) for each in datasets]
    for each in datasets:
        for part in each.stored_parts(name) if name in each.parts else ():
            # Quantiles are of whole columns; the elements of a part of a matrix have its mean.
            own = each.dataset.schema[part.name] if mode == "quantiles" else part
            if statistics_width(own) != own.size:
                raise InvalidArgumentError(
                    f"'{part.name}' is a part with one mean for its {own.size} elements, and datasets of one "
                    "embodiment share statistics of each element",
                    file=str(each.dataset.path),
                    column=name,
                    hint="give normalize= a mapping of the column to (mean, std); or leave out statistics='embodiment'",
                )
    if mode == "quantiles":
        return centre_and_half(*pooled_quantiles(columns, QUANTILES))
    return _of_mode(pooled_statistics(columns), mode)


def _statistics_of_part(dataset: Dataset, part: ColumnSpec, mode: str) -> MeanAndStd:
    """Returns the (mean, std) of a part, from those of its column. A matrix has one for all its elements."""
    negated = isinstance(part, ColumnPart) and part.scale < 0
    mean, std = mode_statistics(dataset, part.name, mode, negated=negated)
    if not isinstance(part, ColumnPart):
        return np.broadcast_to(mean, part.size), np.broadcast_to(std, part.size)
    mean, std = (np.broadcast_to(each, part.whole)[part.first : part.first + part.size] for each in (mean, std))
    return mean * abs(part.scale) + part.offset, std * abs(part.scale)


def _way(name: str, value: Any) -> str | MeanAndStd:
    """Returns the mode, or (mean, std), of a column in the argument."""
    if isinstance(value, str):
        if value not in MODES:
            raise unknown_name("normalisation", value, MODES)
        return value
    try:
        mean, std = (np.asarray(each, np.float64) for each in value)
    except RuntimeError as error:  # torch's, for a tensor with a gradient
        raise InvalidArgumentError(f"the mean and std must be numbers: {error}", column=name) from error
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"normalize takes (mean, std) or a mode, not {value!r}", column=name, hint=f"modes: {', '.join(MODES)}"
        ) from error
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and (std >= 0).all()):
        raise InvalidArgumentError(
            f"normalize takes finite means, and finite deviations of at least 0, not {value!r}", column=name
        )
    return mean, std


def mode_statistics(dataset: Dataset, name: str, mode: str, *, negated: bool = False) -> MeanAndStd:
    """Returns (mean, std) of a column: (x - mean) / std is normalised.

    Cameras have a mean and std for each channel, of the sample of the whole dataset.

    Args:
        mode: one of `MODES`.
        negated: whether of the negated values. A constant element becomes -1 either way.

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
        return -statistics.mean if negated else statistics.mean, statistics.std
    if mode == "quantiles" and statistics.quantiles is None:
        low, high = dataset.quantiles(name, QUANTILES)
    else:
        low, high = _bounds(statistics, mode)
    return centre_and_half(-high, -low) if negated else centre_and_half(low, high)


def _of_mode(statistics: ColumnStatistics, mode: str) -> MeanAndStd:
    """Returns the (mean, std) of a mode."""
    return (statistics.mean, statistics.std) if mode == "mean-std" else centre_and_half(*_bounds(statistics, mode))


def _bounds(statistics: ColumnStatistics, mode: str) -> tuple[Float64Array, Float64Array]:
    """Returns the values that a mode brings to -1 and 1. Only cameras have quantiles here."""
    if mode == "minmax" or statistics.quantiles is None:
        return statistics.min, statistics.max
    return statistics.quantiles[0], statistics.quantiles[-1]


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


def normalization_json(statistics: Mapping[str, MeanAndStd]) -> dict[str, list[Any]]:
    """Returns column -> [mean, std], JSON-able, from column -> (mean, std)."""
    return {name: [mean.tolist(), std.tolist()] for name, (mean, std) in statistics.items()}


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
