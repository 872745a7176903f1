"""Datasets as Arrow tables, Polars frames and HuggingFace datasets, over the shards' memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from gear_data.common.extras import import_datasets
from gear_data.dataset.core import DatasetCore
from gear_data.dataset.polars_threads import check_polars_threads
from gear_data.dataset.stores.store import DatasetStore
from gear_data.dataset.tables.metadata import episode_metadata, metadata_names
from gear_data.dataset.tables.step_arrays import over, slices, step_arrays
from gear_data.errors import InvalidArgumentError, UnsupportedColumnError, unknown_name
from gear_data.schema import ColumnSpec
from gear_data.selection.windows import Int64Array
from gear_data.storage.episode_block import offsets_of
from gear_data.storage.episode_tables import fact_field
from gear_data.words import Rows

if TYPE_CHECKING:
    import datasets
    import polars as pl

#: What a row of a table is.
ROWS: tuple[Rows, ...] = get_args(Rows)


def to_polars(dataset: DatasetCore, columns: Sequence[str] | None, rows: str) -> pl.DataFrame:
    """Returns a dataset as a frame; see `Dataset.to_polars`."""
    check_polars_threads()
    import polars as pl

    table = to_arrow(dataset, columns, rows)
    try:
        return pl.DataFrame(pl.from_arrow(table, rechunk=False))
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise UnsupportedColumnError(
            f"Polars {pl.__version__} cannot hold the columns: {error}", hint="choose other columns with columns="
        ) from error


def to_hf(dataset: DatasetCore, columns: Sequence[str] | None, rows: str) -> datasets.Dataset:
    """Returns a dataset as a HuggingFace dataset; see `Dataset.to_hf`."""
    datasets = import_datasets()
    table = to_arrow(dataset, columns, rows)
    # Without a fingerprint, `datasets` would read and hash all bytes.
    facts = [dataset.fingerprint, dataset.discount, table.column_names, rows]
    fingerprint = xxhash.xxh3_128_hexdigest(json.dumps(facts).encode())
    return datasets.Dataset(datasets.table.InMemoryTable(table), fingerprint=fingerprint)


def check_whole_episodes(dataset: DatasetCore) -> None:
    """Raises InvalidArgumentError if a dataset has a step filter."""
    if dataset.step_mask is not None:
        raise InvalidArgumentError(
            "the view has a step filter, but the result would have whole episodes",
            hint="convert ds.all_steps(), and filter the steps of the result",
        )


def to_arrow(dataset: DatasetCore, columns: Sequence[str] | None, rows: str) -> pa.Table:
    """Returns a dataset as a table, with a chunk for each run of adjacent episodes in a shard.

    Args:
        dataset: the dataset.
        columns: see `Dataset.to_polars`.
        rows: one of `ROWS`.
    """
    if rows not in ROWS:
        raise unknown_name("kind of rows", rows, ROWS)
    check_whole_episodes(dataset)
    schema, store = dataset.schema, dataset.store
    specs = schema.columns if columns is None else [schema.columns[schema.index(name)] for name in columns]
    ids = np.arange(dataset.num_episodes) if dataset.view.rows is None else dataset.view.rows
    make = _step_columns if rows == "steps" else _episode_columns
    facts = metadata_names(dataset) if rows == "episodes" else []
    found: dict[str, pa.ChunkedArray] = {}
    for name, chunks in make(dataset, store, specs, ids):
        if name in found:
            raise UnsupportedColumnError(
                "is the name of two columns of the table", column=name, hint="choose other columns with columns="
            )
        found[name] = pa.chunked_array(chunks)
    # `convert` reads lists without the mark as steps.
    fields = [(fact_field if name in facts else pa.field)(name, values.type) for name, values in found.items()]
    return pa.table(list(found.values()), schema=pa.schema(fields))


_Columns = Iterator[tuple[str, list[pa.Array]]]


def _step_columns(dataset: DatasetCore, store: DatasetStore, specs: Sequence[ColumnSpec], ids: Int64Array) -> _Columns:
    lengths = dataset.lengths
    steps = np.array([last - first for _, first, last in store.runs(ids)], np.int64)
    numbers = ids if dataset.episode_ids is None else dataset.episode_ids
    yield "episode_id", slices(over(np.repeat(numbers, lengths)), steps)
    yield "step", slices(over(np.arange(int(lengths.sum())) - np.repeat(dataset.offsets[:-1], lengths)), steps)
    for spec in specs:
        yield spec.name, step_arrays(store, spec, ids)


def _episode_columns(
    dataset: DatasetCore, store: DatasetStore, specs: Sequence[ColumnSpec], ids: Int64Array
) -> _Columns:
    ends = np.cumsum([last - first for _, first, last in store.runs(ids)])
    bounds = np.searchsorted(dataset.offsets, np.concatenate([[0], ends]))
    lists = [offsets_of(dataset.lengths[first:last]) for first, last in pairwise(bounds.tolist())]
    episodes = np.diff(bounds)
    numbers = ids if dataset.episode_ids is None else dataset.episode_ids
    yield "episode_id", slices(over(numbers), episodes)
    for spec in specs:
        runs = zip(lists, step_arrays(store, spec, ids), strict=True)
        yield spec.name, [pa.LargeListArray.from_arrays(over(offsets), values) for offsets, values in runs]
    for spec in specs:
        if spec.has_final:
            yield f"final_{spec.name}", _finals(store, spec, ids, bounds.tolist())
    for name, values in episode_metadata(dataset, 0, dataset.num_episodes).items():
        yield name, slices(values, episodes)


def _finals(store: DatasetStore, spec: ColumnSpec, ids: Int64Array, bounds: Sequence[int]) -> list[pa.Array]:
    """Returns the final observations of episodes, a copy; null for an episode without one."""
    rows, columns = store.finals
    found: npt.NDArray[np.bool_] = np.isin(ids, rows)
    values: npt.NDArray[Any] = np.zeros((len(ids), *spec.shape), spec.numpy_dtype)
    values[found] = columns[spec.name][np.searchsorted(rows, ids[found])]
    # Polars cannot read slices of lists of a fixed length that have nulls.
    return [over(values[first:last], found[first:last]) for first, last in pairwise(bounds)]
