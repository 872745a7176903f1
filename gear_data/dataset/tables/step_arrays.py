"""Step columns as Arrow arrays over the memory of the shards."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.dataset.stores.store import DatasetStore
from gear_data.schema import ColumnSpec
from gear_data.selection.windows import Int64Array


def step_arrays(store: DatasetStore, spec: ColumnSpec, ids: Int64Array) -> list[pa.Array]:
    """Returns the steps of a column, one array for each run of adjacent episodes in a shard.

    The arrays lie in the shards' memory, except for Booleans, which Arrow packs into bits. Steps of other nodes are
    fetched.

    Args:
        store: the dataset.
        spec: a column in its shards.
        ids: int64 [k], ascending: rows of the episodes.

    Raises:
        CorruptShardError: values of variable length are damaged, or a file was truncated.
    """
    if store.is_remote:
        # One request fetches all rows.
        fetched = store.values(spec.name, ids) if spec.variable_length else over(store.steps(spec.name, ids))
        return slices(fetched, np.array([last - first for _, first, last in store.runs(ids)], np.int64))
    if spec.variable_length:
        return list(store.value_runs(spec.name, ids))
    index, arrays = store.schema.index(spec.name), []
    for shard, runs in groupby(store.runs(ids), key=itemgetter(0)):
        rows = [(first, last) for _, first, last in runs]
        # One access and many slices: a filtered view may have 10^5 runs.
        begin, end = rows[0][0], rows[-1][1]
        array = over(store.shards.column(shard, index, begin, end))
        arrays += [array.slice(first - begin, last - first) for first, last in rows]
    return arrays


def over(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Returns an array over the memory of a C-contiguous NumPy array [n, *shape].

    Elements of a shape are nested `FixedSizeList`s. Booleans are copied: Arrow packs them into bits.

    Args:
        values: the array.
        valid: bool [n], false for null; None: no null.
    """
    mask = None if valid is None else ~valid
    if values.ndim == 1 and mask is not None:
        return pa.array(values, mask=mask)
    if values.dtype == np.bool_:
        array = pa.array(values.reshape(-1))
    else:
        buffers = [None, pa.py_buffer(values)]
        array = pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), values.size, buffers, null_count=0)
    for width in values.shape[:1:-1]:
        array = pa.FixedSizeListArray.from_arrays(array, width)
    if values.ndim == 1:
        return array
    return pa.FixedSizeListArray.from_arrays(array, values.shape[1], mask=None if mask is None else pa.array(mask))


def slices(array: pa.Array, lengths: Int64Array) -> list[pa.Array]:
    """Returns adjacent slices of these lengths, without a copy."""
    ends = np.cumsum(lengths)
    return [array.slice(end - length, length) for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
