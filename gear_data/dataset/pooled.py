"""Statistics of a column of several datasets together, as of one dataset that has all their episodes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from gear_data.dataset.core import DatasetCore
from gear_data.dataset.episode_blocks import block_ranges
from gear_data.dataset.views import QUANTILE_BLOCK_BYTES, episodes_fingerprint
from gear_data.schema import ColumnSpec, Schema
from gear_data.stacking import ColumnPart
from gear_data.storage.quantiles.exact import exact_quantiles
from gear_data.storage.quantiles.files import QUANTILES, load_quantiles, quantiles_file, save_quantiles
from gear_data.storage.statistics import ColumnStatistics, merged_statistics, statistics_width

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PooledColumn:
    """A column of one of the datasets.

    Attributes:
        dataset: the dataset or view.
        parts: the columns that stand side by side in it, by their names in the dataset; one, or those of a stack.
    """

    dataset: DatasetCore
    parts: tuple[ColumnSpec, ...]

    @property
    def width(self) -> int:
        """The number of elements that have statistics of their own."""
        return sum(statistics_width(part) for part in self.parts)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the values; float64 for a stack."""
        (first, *others) = self.parts
        return np.dtype(np.float64) if others or isinstance(first, ColumnPart) else np.dtype(first.storage_dtype)

    def statistics(self) -> ColumnStatistics:
        """Returns the statistics of the dataset."""
        own = [_part_statistics(part, self.dataset.statistics[part.name]) for part in self.parts]
        counts = np.concatenate([each.count for each in own])
        mean, std, low, high = (
            np.concatenate([getattr(each, name) for each in own]) for name in ("mean", "std", "min", "max")
        )
        return ColumnStatistics(counts, mean, std, low, high)

    def blocks(self, dtype: np.dtype[np.generic]) -> Iterator[npt.NDArray[np.generic]]:
        """Yields the values of runs of episodes, [steps, width, n]. Of a stack, missing values are NaN."""
        dataset = self.dataset
        row_bytes = sum(dataset.schema[name].row_bytes for name in {part.name for part in self.parts})
        for first, last in block_ranges(dataset.lengths, row_bytes, QUANTILE_BLOCK_BYTES):
            read = [self._values(part, dtype, first, last) for part in self.parts]
            yield read[0] if len(read) == 1 else np.concatenate(read, axis=1)

    def _values(self, part: ColumnSpec, dtype: np.dtype[np.generic], first: int, last: int) -> npt.NDArray[np.generic]:
        values = self.dataset.steps(part.name, first, last)
        values = values.reshape(len(values), statistics_width(self.dataset.schema[part.name]), -1)
        if isinstance(part, ColumnPart):
            values = values[:, part.first : part.first + part.size] * part.scale + part.offset
        mask = self.dataset.schema.mask_of(part.name)
        if mask is not None:
            present = self.dataset.steps(mask, first, last).astype(np.bool_)
            # Quantiles skip NaN.
            values = values[present] if len(self.parts) == 1 else np.where(present[:, None, None], values, np.nan)
        return values.astype(dtype, copy=False)

    def facts(self) -> list[object]:
        """Returns what its values depend on, JSON-able."""
        store = self.dataset.store
        parts = [[part.name, *_map(part), store.discount if part.derived else None] for part in self.parts]
        return [episodes_fingerprint(store, self.dataset.view.rows), parts]


def _map(part: ColumnSpec) -> list[float]:
    """Returns the elements of a part, and its scale and offset; nothing for a whole column."""
    return [part.first, part.size, part.scale, part.offset] if isinstance(part, ColumnPart) else []


def _part_statistics(part: ColumnSpec, whole: ColumnStatistics) -> ColumnStatistics:
    """Returns the statistics of a part, from those of its column."""
    if not isinstance(part, ColumnPart):
        return whole

    def own(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.broadcast_to(values, part.whole)[part.first : part.first + part.size]

    mean, low, high = (own(values) * part.scale + part.offset for values in (whole.mean, whole.min, whole.max))
    bounds = (low, high) if part.scale > 0 else (high, low)
    return ColumnStatistics(own(whole.count), mean, own(whole.std) * abs(part.scale), *bounds)


def pooled_statistics(columns: Sequence[PooledColumn]) -> ColumnStatistics:
    """Returns the statistics of all steps of all datasets, as `gear_data.merge` has them.

    columns: the column of each dataset, of one width.
    """
    schema = Schema((ColumnSpec("column", "float64", (columns[0].width,)),))
    return merged_statistics(schema, ({"column": each.statistics()} for each in columns))["column"]


def pooled_quantiles(columns: Sequence[PooledColumn], probabilities: tuple[float, ...]) -> Float64Array:
    """Returns exact quantiles over all steps of all datasets, float64 [probabilities, width].

    The result is kept in the folder `sidecars` of the first dataset.

    Args:
        columns: the column of each dataset, of one width.
        probabilities: 0 to 1 each.
    """
    first, *others = columns
    key = xxhash.xxh3_128_hexdigest(json.dumps(["pooled", *(each.facts() for each in columns), probabilities]).encode())
    store = first.dataset.store
    path = store.files.sidecars(key) / QUANTILES / quantiles_file(store.manifest, key)
    found = load_quantiles(path, (len(probabilities), first.width))
    if found is None:
        dtype = first.dtype if all(each.dtype == first.dtype for each in others) else np.dtype(np.float64)
        found = exact_quantiles(
            lambda: (block for each in columns for block in each.blocks(dtype)), dtype, first.width, probabilities
        )
        save_quantiles(path, found)
    return found
