"""Statistics of every column in float64: count, mean, std, minimum and maximum.

Each episode is reduced separately, and episodes are merged in order (Chan, Golub and LeVeque, 1979). The result does
not depend on the blocks or shards of a conversion. NaN and Inf are skipped: conversion reports them as findings, and
they must not reach normalisation. Steps that the mask of a column excludes (`Schema.mask_of`) are skipped, too.

A vector column has statistics per element. A scalar, or a column of two or more axes (an image, a matrix), has one set
for all its elements. A variable-length column has none. A camera has statistics per channel, from a sample of its
frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.typed_json import Count, resolved
from gear_data.schema import ColumnSpec, Schema
from gear_data.storage.arrow_files import column_array
from gear_data.storage.episode_block import offsets_of

Float64Array = npt.NDArray[np.float64]

#: Number of elements reduced at once. As float64 they fit the cache of one core. Results do not depend on it.
_CHUNK_ELEMENTS = 1 << 17
#: Number of statistics of episodes merged at once, of all columns. As float64 they fit the cache of one core.
_MERGED_AT_ONCE = 1 << 16
#: Quantiles of a sample of frames.
_SAMPLE_QUANTILES = 5
#: Number of bytes of images reduced at once. Their squares as uint16 fit the cache of one core.
_CHUNK_BYTES = 1 << 16


@resolved
class StatisticsRecord(msgspec.Struct, frozen=True):
    """`ColumnStatistics` in JSON.

    An element without finite values has null, because JSON has no NaN.
    """

    count: list[Count]
    mean: list[float | None]
    std: list[float | None]
    min: list[float | None]
    max: list[float | None]
    sampled_frames: Count | None = None
    quantiles: list[list[float]] | None = None


@resolved
class StatisticsState(msgspec.Struct, frozen=True):
    """State of `RunningStatistics` in JSON: all columns' values side by side.

    Floats survive JSON exactly.
    """

    count: list[int]
    total: list[float]
    m2: list[float]
    min: list[float]
    max: list[float]


@dataclass(frozen=True)
class ColumnStatistics:
    """Population statistics of a column's finite values.

    Arrays have shape [size] for a vector column, [3] for a camera, and [1] for others.

    Attributes:
        sampled_frames: number of frames of the sample, for a camera; None if all steps count.
        quantiles: float64 [5, 3], the quantiles 0.01, 0.1, 0.5, 0.9 and 0.99 of the sample, for a camera.
    """

    count: npt.NDArray[np.int64]
    mean: Float64Array
    std: Float64Array
    min: Float64Array
    max: Float64Array
    sampled_frames: int | None = None
    quantiles: Float64Array | None = None

    def has_width(self, width: int) -> bool:
        """Returns whether every array has `width` elements."""
        return all(values.shape == (width,) for values in (self.count, self.mean, self.std, self.min, self.max))

    def is_sample(self, channels: int) -> bool:
        """Returns whether these are statistics of a sample of frames."""
        if self.sampled_frames is None or self.quantiles is None:
            return False
        return self.has_width(channels) and self.quantiles.shape == (_SAMPLE_QUANTILES, channels)

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON form of a `StatisticsRecord`."""
        sample = {} if self.sampled_frames is None else {"sampled_frames": self.sampled_frames}
        quantiles = {} if self.quantiles is None else {"quantiles": self.quantiles.tolist()}
        return {
            "count": self.count.tolist(),
            **{
                name: [value if np.isfinite(value) else None for value in getattr(self, name).tolist()]
                for name in ("mean", "std", "min", "max")
            },
            **sample,
            **quantiles,
        }

    @staticmethod
    def from_record(record: StatisticsRecord) -> ColumnStatistics:
        """Returns the statistics of a record. Null becomes NaN."""

        def floats(values: list[float | None]) -> Float64Array:
            return np.array([np.nan if value is None else value for value in values], np.float64)

        return ColumnStatistics(
            np.array(record.count, np.int64),
            floats(record.mean),
            floats(record.std),
            floats(record.min),
            floats(record.max),
            record.sampled_frames,
            None if record.quantiles is None else np.array(record.quantiles, np.float64),
        )


def statistics_width(column: ColumnSpec) -> int:
    """Returns the number of statistics of a column.

    It is one per element of a vector, and one for other columns.
    """
    return column.shape[0] if len(column.shape) == 1 else 1


class RunningStatistics:
    """Statistics of fixed-size columns, updated block by block in episode order.

    All columns share flat arrays, side by side. Merging an episode therefore takes a few NumPy calls for any number of
    columns.
    """

    def __init__(self, schema: Schema) -> None:
        self._widths = {column.name: statistics_width(column) for column in schema.fixed_columns}
        self._masks = {name: mask for name in self._widths if (mask := schema.mask_of(name)) is not None}
        self._read = {*self._widths, *self._masks.values()}
        total = sum(self._widths.values())
        self._count = np.zeros(total, np.int64)
        self._total = np.zeros(total)
        self._m2 = np.zeros(total)
        self._min = np.full(total, np.inf)
        self._max = np.full(total, -np.inf)

    def update(self, columns: Mapping[str, npt.NDArray[Any]], lengths: npt.NDArray[np.int64]) -> None:
        """Adds whole episodes.

        Args:
            columns: name -> [sum(lengths), *shape].
            lengths: int64 [episodes].
        """
        offsets = offsets_of(lengths)
        at_once = max(1, _MERGED_AT_ONCE // max(1, len(self._count)))
        for first in range(0, len(lengths), at_once):
            last = min(len(lengths), first + at_once)
            rows = slice(int(offsets[first]), int(offsets[last]))
            self._update({name: columns[name][rows] for name in self._read}, lengths[first:last])

    def _update(self, columns: Mapping[str, npt.NDArray[Any]], lengths: npt.NDArray[np.int64]) -> None:
        parts = [
            _reduce_episodes(columns[name], lengths, width, self._mask(name, columns))
            for name, width in self._widths.items()
        ]
        count, total, m2, low, high = (np.concatenate([part[k] for part in parts]) for k in range(5))
        self._merge(count, total, m2)
        np.minimum(self._min, low, out=self._min)
        np.maximum(self._max, high, out=self._max)

    def _mask(self, name: str, columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.bool_] | None:
        return columns[self._masks[name]].astype(np.bool_) if name in self._masks else None

    def _merge(self, count: Float64Array, total: Float64Array, m2: Float64Array) -> None:
        """Adds the statistics of n episodes, one after the other. The arrays are [elements, n].

        Sums are in the order of the episodes, unlike `sum`.
        """
        known = self._count
        if len(known) and (known == known[0]).all() and (count == count[0]).all():
            known, count = known[:1], count[:1]  # as everywhere, unless values are missing: a fraction of the work
        counts, totals = _accumulated(known, count), _accumulated(self._total, total)
        before, merged = counts[:, :-1], counts[:, 1:]
        added = total / np.maximum(count, 1)
        added -= totals[:, :-1] / np.maximum(before, 1)
        added *= added
        added *= before * count / np.maximum(merged, 1)
        added += m2
        # An episode without finite values has count 0 and changes nothing.
        if not count.all():
            added = np.where(count > 0, added, 0.0)
        self._m2, self._total = _accumulated(self._m2, added)[:, -1], totals[:, -1]
        self._count = np.broadcast_to(merged[:, -1], self._total.shape).astype(np.int64)

    def merge(self, state: StatisticsState) -> None:
        """Adds the statistics of the episodes that follow.

        Merging into empty statistics copies them.
        """
        count, total, m2 = (np.array(values, np.float64) for values in (state.count, state.total, state.m2))
        self._merge(count[:, None], total[:, None], m2[:, None])
        has_values = count > 0
        self._min = np.where(has_values, np.minimum(self._min, state.min), self._min)
        self._max = np.where(has_values, np.maximum(self._max, state.max), self._max)

    def result(self) -> dict[str, ColumnStatistics]:
        """Returns the statistics of each column."""
        # Rounding gives a constant element a deviation of about 1e-17 of its value. Normalisation must not divide by
        # this deviation.
        constant = self._min == self._max
        divisor = np.maximum(self._count, 1)
        std = np.where(constant, 0.0, np.sqrt(self._m2 / divisor))
        empty = self._count == 0
        mean, std, low, high = (
            np.where(empty, np.nan, values) for values in (self._total / divisor, std, self._min, self._max)
        )
        result, first = {}, 0
        for name, width in self._widths.items():
            part = slice(first, first + width)
            result[name] = ColumnStatistics(self._count[part], mean[part], std[part], low[part], high[part])
            first += width
        return result

    def state(self) -> StatisticsState:
        """Returns the state that `restore` and `merge` take."""
        return StatisticsState(
            count=self._count.tolist(),
            total=self._total.tolist(),
            m2=self._m2.tolist(),
            min=np.where(self._count > 0, self._min, 0.0).tolist(),
            max=np.where(self._count > 0, self._max, 0.0).tolist(),
        )

    def restore(self, state: StatisticsState) -> None:
        """Replaces the statistics by a saved state."""
        self._count = np.array(state.count, np.int64)
        self._total = np.array(state.total, np.float64)
        self._m2 = np.array(state.m2, np.float64)
        self._min = np.where(self._count > 0, np.array(state.min, np.float64), np.inf)
        self._max = np.where(self._count > 0, np.array(state.max, np.float64), -np.inf)


def _accumulated(first: npt.NDArray[Any], values: Float64Array) -> Float64Array:
    """Returns `first` [elements], and its sums with the first 1 to n `values` [elements, n]."""
    return np.add.accumulate(np.concatenate([first[:, None], values], axis=1), axis=1)


def merged_statistics(schema: Schema, parts: Iterable[Mapping[str, ColumnStatistics]]) -> dict[str, ColumnStatistics]:
    """Returns the statistics of several datasets together.

    A camera has statistics if all parts have a sample of its frames.
    """
    running = RunningStatistics(schema)
    listed = list(parts)
    for part in listed:
        running.merge(_state(schema, part))
    cameras = {
        camera.name: merged_samples([part[camera.name] for part in listed])
        for camera in schema.videos
        if all(camera.name in part for part in listed)
    }
    return {**running.result(), **cameras}


def merged_samples(parts: Sequence[ColumnStatistics]) -> ColumnStatistics:
    """Returns the statistics of several samples of frames together.

    Quantiles are means of the parts' quantiles, as in LeRobot.
    """
    count = np.stack([part.count for part in parts])
    weight = count / count.sum(axis=0)
    mean = sum(w * part.mean for w, part in zip(weight, parts, strict=True))
    square = sum(w * (part.std**2 + part.mean**2) for w, part in zip(weight, parts, strict=True))
    quantiles = [part.quantiles for part in parts]
    return ColumnStatistics(
        count.sum(axis=0),
        mean,
        np.sqrt(np.maximum(square - mean**2, 0)),
        np.min([part.min for part in parts], axis=0),
        np.max([part.max for part in parts], axis=0),
        sum(part.sampled_frames or 0 for part in parts),
        sum(w * each for w, each in zip(weight, quantiles, strict=True) if each is not None),
    )


def _state(schema: Schema, statistics: Mapping[str, ColumnStatistics]) -> StatisticsState:
    columns = [statistics[column.name] for column in schema.fixed_columns]
    empty = np.zeros(0)
    count = np.concatenate([np.zeros(0, np.int64), *(item.count for item in columns)])
    mean, std, low, high = (
        np.concatenate([empty, *(getattr(item, name) for item in columns)]) for name in ("mean", "std", "min", "max")
    )
    mean, std, low, high = (np.where(count > 0, values, 0.0) for values in (mean, std, low, high))
    return StatisticsState(
        count=count.tolist(),
        total=(mean * count).tolist(),
        m2=(std * std * count).tolist(),
        min=low.tolist(),
        max=high.tolist(),
    )


def _reduce_episodes(
    column: npt.NDArray[Any],
    lengths: npt.NDArray[np.int64],
    width: int,
    mask: npt.NDArray[np.bool_] | None,
) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array, Float64Array]:
    """Returns count, sum, and sum of squared deviations per episode; and min and max of all episodes.

    The first three are float64 [width, n], the others float64 [width].
    """
    offsets = offsets_of(lengths)
    if column.dtype == np.uint8 and column.ndim > 2:
        return _reduce_images(column, offsets, mask)
    parts = []
    per_step = max(1, int(np.prod(column.shape[1:], dtype=np.int64)))
    budget = max(1, _CHUNK_ELEMENTS // per_step)
    first = 0
    while first < len(lengths):
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + budget, side="right")) - 1)
        part = column[offsets[first] : offsets[last]]
        present = None if mask is None else mask[offsets[first] : offsets[last]]
        parts.append(_reduce_chunk(part, offsets[first:last] - offsets[first], lengths[first:last], width, present))
        first = last
    count, total, m2 = (np.concatenate([part[k] for part in parts], axis=1) for k in range(3))
    return count, total, m2, np.min([part[3] for part in parts], axis=0), np.max([part[4] for part in parts], axis=0)


def _reduce_images(
    column: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_] | None
) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array, Float64Array]:
    """Returns the arrays of `_reduce_episodes` for images.

    Sums of integers are exact, so no second pass subtracts the mean, and no episode is copied as float64.
    """
    # It takes as long to import as the rest of Arrow. Readers of a manifest do not need it.
    import pyarrow.compute as pc

    rows: list[tuple[Any, ...]] = []
    squares = _SumOfSquares()
    for first, last in pairwise(offsets.tolist()):
        present = (
            slice(first, last) if mask is None or mask[first:last].all() else first + np.flatnonzero(mask[first:last])
        )
        pixels = column[present].reshape(-1)
        if not len(pixels):
            rows.append((0, 0, 0, np.inf, -np.inf))
            continue
        # Arrow's kernels sum integers several times as fast as NumPy's.
        array = column_array(pixels, pa.uint8())
        total, bounds = array.sum().as_py(), pc.min_max(array).as_py()
        m2 = (len(pixels) * squares(pixels) - total * total) / len(pixels)
        rows.append((len(pixels), total, m2, bounds["min"], bounds["max"]))
    count, sums, m2s, low, high = np.array(rows, np.float64).T[:, None]
    return count, sums, m2s, low.min(axis=1), high.max(axis=1)


class _SumOfSquares:
    """Sums the squares of bytes. 255 squared fits uint16."""

    def __init__(self) -> None:
        self._values = np.empty(_CHUNK_BYTES, np.uint16)
        self._array = column_array(self._values, pa.uint16())

    def __call__(self, pixels: npt.NDArray[np.uint8]) -> int:
        total = 0
        for start in range(0, len(pixels), _CHUNK_BYTES):
            part = pixels[start : start + _CHUNK_BYTES]
            values = self._values[: len(part)]
            values[:] = part
            np.multiply(values, values, out=values)
            total += self._array[: len(part)].sum().as_py()
        return total


def _reduce_chunk(
    column: npt.NDArray[Any],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    width: int,
    mask: npt.NDArray[np.bool_] | None,
) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array, Float64Array]:
    """Returns the arrays of `_reduce_episodes` for one chunk of whole episodes."""
    elements = column.reshape(len(column), width, -1)
    repeat = elements.shape[2]
    # [steps, width, repeat] -> [width, steps * repeat], so that the elements of an episode are contiguous.
    values = np.ascontiguousarray(elements.transpose(1, 0, 2), np.float64).reshape(width, -1)
    starts, counts = starts * repeat, lengths * repeat
    low, high = values.min(axis=1), values.max(axis=1)
    # NaN propagates through both reductions.
    all_present = mask is None or bool(mask.all())
    all_finite = bool(all_present and np.isfinite(low).all() and np.isfinite(high).all())
    if all_finite:
        count = np.broadcast_to(counts.astype(np.float64), (width, len(lengths)))
    else:
        finite = np.isfinite(values)
        if mask is not None:
            finite &= np.repeat(mask, repeat)
        count = np.add.reduceat(finite.astype(np.float64), starts, axis=1)
        low = np.where(finite, values, np.inf).min(axis=1)
        high = np.where(finite, values, -np.inf).max(axis=1)
        values = np.where(finite, values, 0.0)
    total = np.add.reduceat(values, starts, axis=1)
    # A new array: for float64 scalars, `values` is the column itself.
    values = values - np.repeat(total / np.maximum(count, 1), counts, axis=1)
    values *= values
    m2 = np.add.reduceat(values if all_finite else np.where(finite, values, 0.0), starts, axis=1)
    return count, total, m2, low, high
