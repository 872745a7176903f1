"""Count, mean, standard deviation, minimum and maximum of every column, in float64.

Each episode is reduced on its own and episodes are merged in order (Chan, Golub and LeVeque, 1979), so
the result does not depend on how a conversion was cut into blocks or shards. NaN and Inf are left out:
they are counted as findings, and must not poison normalisation.

A vector column has statistics per element; a scalar, or a column of two or more axes (an image, a
matrix), has one for all its elements; a column of variable length has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.schema import ColumnSpec, Schema
from gear_data.storage.block import offsets_of

Float64Array = npt.NDArray[np.float64]

#: Elements reduced at once: as float64 they fit a core's own cache. Results do not depend on it.
_CHUNK_ELEMENTS = 1 << 16


@dataclass(frozen=True)
class ColumnStatistics:
    """Population statistics of a column's finite values: float64 arrays, [size] for a vector column, else [1]."""

    count: npt.NDArray[np.int64]
    mean: Float64Array
    std: Float64Array
    min: Float64Array
    max: Float64Array

    def has_width(self, width: int) -> bool:
        """Whether there are this many of each."""
        return all(values.shape == (width,) for values in (self.count, self.mean, self.std, self.min, self.max))

    def to_json(self) -> dict[str, list[float | int | None]]:
        """JSON has no NaN: an element without one finite value has null."""
        return {
            "count": self.count.tolist(),
            **{
                name: [value if np.isfinite(value) else None for value in getattr(self, name).tolist()]
                for name in ("mean", "std", "min", "max")
            },
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ColumnStatistics:
        def floats(name: str) -> Float64Array:
            return np.array([np.nan if value is None else value for value in data[name]], np.float64)

        return ColumnStatistics(
            np.array(data["count"], np.int64), floats("mean"), floats("std"), floats("min"), floats("max")
        )


def statistics_width(column: ColumnSpec) -> int:
    """How many separate statistics a column has: one an element for vectors, one in all otherwise."""
    return column.shape[0] if len(column.shape) == 1 else 1


class RunningStatistics:
    """Statistics of a schema's columns of a fixed size, fed block by block in episode order.

    The columns' statistics stand side by side in flat arrays, so that merging an episode is a handful of NumPy
    calls however many columns there are.
    """

    def __init__(self, schema: Schema) -> None:
        self._widths = {column.name: statistics_width(column) for column in schema.fixed_columns}
        total = sum(self._widths.values())
        self._count = np.zeros(total, np.int64)
        self._mean = np.zeros(total)
        self._m2 = np.zeros(total)
        self._min = np.full(total, np.inf)
        self._max = np.full(total, -np.inf)

    def update(self, columns: Mapping[str, npt.NDArray[Any]], lengths: npt.NDArray[np.int64]) -> None:
        """Adds whole episodes: columns name -> [sum(lengths), *shape]."""
        if not len(lengths):
            return
        parts = [_reduce_episodes(columns[name], lengths, width) for name, width in self._widths.items()]
        count, total, m2, low, high = (np.concatenate([part[k] for part in parts], axis=1) for k in range(5))
        mean = total / np.maximum(count, 1)
        for e in range(len(lengths)):
            self._merge(count[e], mean[e], m2[e])
        np.minimum(self._min, low.min(axis=0), out=self._min)
        np.maximum(self._max, high.max(axis=0), out=self._max)

    def _merge(self, count: Float64Array, mean: Float64Array, m2: Float64Array) -> None:
        merged = self._count + count
        divisor = np.maximum(merged, 1)
        # An episode without a finite value has count 0 and leaves everything as it is.
        delta = mean - self._mean
        self._m2 += np.where(count > 0, m2 + delta * delta * (self._count * count / divisor), 0.0)
        self._mean += np.where(count > 0, delta * (count / divisor), 0.0)
        self._count = merged.astype(np.int64)

    def merge(self, data: Mapping[str, list[float]]) -> None:
        """Adds the statistics of the episodes that follow, as another's `to_json` has them; to none they are those."""
        count, mean, m2 = (np.array(data[name], np.float64) for name in ("count", "mean", "m2"))
        self._merge(count, mean, m2)
        has = count > 0
        self._min = np.where(has, np.minimum(self._min, data["min"]), self._min)
        self._max = np.where(has, np.maximum(self._max, data["max"]), self._max)

    def result(self) -> dict[str, ColumnStatistics]:
        # Rounding leaves a constant element a deviation of about 1e-17 of its value, by which nothing must be divided.
        constant = self._min == self._max
        std = np.where(constant, 0.0, np.sqrt(self._m2 / np.maximum(self._count, 1)))
        empty = self._count == 0
        mean, std, low, high = (np.where(empty, np.nan, values) for values in (self._mean, std, self._min, self._max))
        result, first = {}, 0
        for name, width in self._widths.items():
            part = slice(first, first + width)
            result[name] = ColumnStatistics(self._count[part], mean[part], std[part], low[part], high[part])
            first += width
        return result

    def to_json(self) -> dict[str, list[float]]:
        """Everything that `restore` needs; floats survive JSON exactly."""
        finite = np.where(self._count > 0, self._min, 0.0), np.where(self._count > 0, self._max, 0.0)
        return {
            "count": self._count.tolist(),
            "mean": self._mean.tolist(),
            "m2": self._m2.tolist(),
            "min": finite[0].tolist(),
            "max": finite[1].tolist(),
        }

    def restore(self, data: Mapping[str, list[float]]) -> None:
        self._count = np.array(data["count"], np.int64)
        self._mean = np.array(data["mean"], np.float64)
        self._m2 = np.array(data["m2"], np.float64)
        self._min = np.where(self._count > 0, np.array(data["min"], np.float64), np.inf)
        self._max = np.where(self._count > 0, np.array(data["max"], np.float64), -np.inf)


def _reduce_episodes(
    column: npt.NDArray[Any], lengths: npt.NDArray[np.int64], width: int
) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array, Float64Array]:
    """Per episode and statistic: count, sum, sum of squared deviations, min, max, each float64 [n, width]."""
    offsets = offsets_of(lengths)
    parts = []
    per_step = max(1, int(np.prod(column.shape[1:], dtype=np.int64)))
    budget = max(1, _CHUNK_ELEMENTS // per_step)
    first = 0
    while first < len(lengths):
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + budget, side="right")) - 1)
        part = column[offsets[first] : offsets[last]]
        parts.append(_reduce_chunk(part, offsets[first:last] - offsets[first], lengths[first:last], width))
        first = last
    return tuple(np.concatenate([part[k] for part in parts]) for k in range(5))  # type: ignore[return-value]


def _reduce_chunk(
    column: npt.NDArray[Any], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], width: int
) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array, Float64Array]:
    elements = column.reshape(len(column), width, -1)
    repeat = elements.shape[2]
    # [steps, width, repeat] -> [width, steps * repeat], so that an episode is one contiguous run.
    values = np.ascontiguousarray(elements.transpose(1, 0, 2), np.float64).reshape(width, -1)
    starts, counts = starts * repeat, lengths * repeat
    low, high = np.minimum.reduceat(values, starts, axis=1), np.maximum.reduceat(values, starts, axis=1)
    all_finite = bool(np.isfinite(low).all() and np.isfinite(high).all())  # NaN is the least and the greatest
    if all_finite:
        count = np.broadcast_to(counts.astype(np.float64), (width, len(lengths)))
    else:
        finite = np.isfinite(values)
        count = np.add.reduceat(finite.astype(np.float64), starts, axis=1)
        low = np.minimum.reduceat(np.where(finite, values, np.inf), starts, axis=1)
        high = np.maximum.reduceat(np.where(finite, values, -np.inf), starts, axis=1)
        values = np.where(finite, values, 0.0)
    total = np.add.reduceat(values, starts, axis=1)
    # Not in place: for float64 scalars `values` is the column itself.
    values = values - np.repeat(total / np.maximum(count, 1), counts, axis=1)
    values *= values
    m2 = np.add.reduceat(values if all_finite else np.where(finite, values, 0.0), starts, axis=1)
    return count.T, total.T, m2.T, low.T, high.T
