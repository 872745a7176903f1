"""Views: some of a dataset's episodes and steps, without a copy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from gear_data.common.progress import progress_bar
from gear_data.dataset.episode_blocks import BLOCK_BYTES, block_ranges
from gear_data.dataset.stores.store import DatasetStore
from gear_data.errors import EmptySourceError, InvalidArgumentError
from gear_data.selection.step_mask import StepMask
from gear_data.selection.windows import Int64Array
from gear_data.storage.episode_tables import content_bytes
from gear_data.storage.manifest import fingerprint
from gear_data.storage.quantiles.exact import Float64Array, exact_quantiles
from gear_data.storage.quantiles.files import QUANTILES, load_quantiles, quantiles_file, save_quantiles
from gear_data.storage.statistics import ColumnStatistics, RunningStatistics, statistics_width

if TYPE_CHECKING:
    import polars as pl

#: Bytes of a column that a pass for quantiles reads at once. Their keys take up to eight times as much.
QUANTILE_BLOCK_BYTES = 4 << 20


class StepRule(Protocol):
    """Says which steps of some episodes windows may use. Its text names it in messages."""

    def flags(self, store: DatasetStore, ids: Int64Array) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
        """Yields runs of steps: the first step in the whole dataset, and whether each step stays.

        Steps in no run do not stay.

        Args:
            store: store of the dataset.
            ids: int64 [k], ascending: the rows of the episodes to look at.
        """

    def nothing_left(self, store: DatasetStore) -> EmptySourceError:
        """Returns the error for episodes of which no step stays."""
        return EmptySourceError(f"no step satisfies {self}", hint="relax the filter")


@dataclass(frozen=True)
class Filter:
    """A filter of episodes that made a view.

    Attributes:
        expression: see `Dataset.filter`.
    """

    expression: pl.Expr | str


@dataclass(frozen=True)
class StepFilter:
    """A filter of steps that made a view.

    Attributes:
        rule: the steps that stay.
    """

    rule: StepRule


@dataclass(frozen=True)
class View:
    """Episodes and steps of a store that a dataset shows.

    Attributes:
        rows: int64 [k], ascending: the rows of the episodes in the store; None: all. Windows name episodes by row. The
            ids of episodes are other numbers after an eviction.
        mask: the steps that satisfy the step filters, numbered as in the store; None without a step filter.
        mode: steps of a window that the step filters test, `first` or `all`; None without a step filter.
        made_by: the filters that made the view, in order; None: positions made it, too.
        history: how the episodes were chosen, in words: one call each.
    """

    rows: Int64Array | None = None
    mask: StepMask | None = None
    mode: str | None = None
    made_by: tuple[Filter | StepFilter, ...] | None = ()
    history: tuple[str, ...] = ()

    def filtered_by(self, added: Filter | StepFilter) -> View:
        """Returns this view with one more filter in `made_by`."""
        return replace(self, made_by=None if self.made_by is None else (*self.made_by, added))


def episodes_fingerprint(store: DatasetStore, ids: Int64Array | None) -> str:
    """Returns the fingerprint of a dataset that holds only these episodes; None: all."""
    if ids is None:
        return store.manifest.fingerprint
    contents = np.frombuffer(content_bytes(store.episode_table), np.uint8).reshape(-1, 16)
    return fingerprint(store.schema, contents[ids].tobytes())


def filtered_fingerprint(episodes: str, mask: StepMask, mode: str) -> str:
    """Returns the fingerprint of a view with a step filter.

    Args:
        episodes: fingerprint of the view's episodes.
        mask, mode: see `View`.
    """
    digest = xxhash.xxh3_128(episodes.encode())
    digest.update(mask.digest().encode())
    digest.update(mode.encode())
    return digest.hexdigest()


def view_statistics(store: DatasetStore, ids: Int64Array) -> dict[str, ColumnStatistics]:
    """Returns the statistics of these episodes. Reads all their steps once.

    Converting only these episodes in one task gives the same statistics, bit for bit. Of a dataset that grows, only
    those shards are read of which no earlier generation has read the same episodes.
    """
    if store.manifest.growth is None:
        return _running_statistics(store, ids).result()
    shard, first_row = (values[ids] for values in store.episode_starts)
    return store.shard_statistics.merged(
        store.schema, store.manifest.shards, (shard, first_row), store.discount,
        lambda begin, end: _running_statistics(store, ids[begin:end]),
    )  # fmt: skip


def _running_statistics(store: DatasetStore, ids: Int64Array) -> RunningStatistics:
    running = RunningStatistics(store.schema)
    columns = store.schema.fixed_columns
    lengths = store.lengths[ids]
    with progress_bar(int(lengths.sum()), "statistics", "step", None) as bar:
        for first, last in block_ranges(lengths, store.schema.step_bytes, BLOCK_BYTES):
            block = ids[first:last]
            running.update({spec.name: store.steps(spec.name, block) for spec in columns}, lengths[first:last])
            bar.update(int(lengths[first:last].sum()))
    return running


def checked_probabilities(probabilities: Sequence[float]) -> tuple[float, ...]:
    """Returns probabilities as floats.

    Raises:
        InvalidArgumentError: the list is empty, or a probability is not a number from 0 to 1.
    """
    try:
        checked = tuple(float(each) for each in probabilities)
    except (TypeError, ValueError):
        checked = ()
    if not checked or not all(0 <= each <= 1 for each in checked):
        raise InvalidArgumentError(
            f"the probabilities of quantiles are {probabilities!r}",
            hint="give numbers from 0 to 1, such as (0.01, 0.99)",
        )
    return checked


def episode_quantiles(
    store: DatasetStore, ids: Int64Array, episodes: str, name: str, probabilities: tuple[float, ...]
) -> Float64Array:
    """Returns quantiles of a column over all steps of some episodes.

    The result is float64 [probabilities, elements].

    Args:
        store: the dataset.
        ids: int64 [k], the episodes.
        episodes: hash of the contents of the episodes.
        name: the column.
        probabilities: 0 to 1 each.
    """
    spec = store.schema.columns[store.schema.index(name)]
    dtype, width = spec.storage_dtype, statistics_width(spec)
    facts = [episodes, name, str(dtype), list(spec.shape), store.discount if spec.derived else None, probabilities]
    key = xxhash.xxh3_128_hexdigest(json.dumps(facts).encode())
    path = store.files.sidecars(key) / QUANTILES / quantiles_file(store.manifest, key)
    found = load_quantiles(path, (len(probabilities), width))
    if found is not None:
        return found

    mask = store.schema.mask_of(name)
    lengths = store.lengths[ids]

    def blocks() -> Iterator[npt.NDArray[Any]]:
        for first, last in block_ranges(lengths, spec.row_bytes, QUANTILE_BLOCK_BYTES):
            values = store.steps(name, ids[first:last])
            yield values if mask is None else values[store.steps(mask, ids[first:last]).astype(np.bool_)]

    result = exact_quantiles(blocks, dtype, width, probabilities)
    save_quantiles(path, result)
    return result
