"""NumPy arrays as nested Arrow lists, the form that HuggingFace datasets have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import UnsupportedColumnError
from gear_data.schema import ColumnSpec
from gear_data.storage.variable import value_offsets

_MAX_OFFSET = (1 << 31) - 1


def nested_rows(values: npt.NDArray[Any], name: str | None = None) -> pa.Array:
    """[n, *shape] as n (lists of lists of) values; scalars where shape is ().

    Raises:
        UnsupportedColumnError: 2^31 elements or more; it names the column `name`.
    """
    if values.ndim > 1:
        _check_offsets(values.size, name)
    array = pa.array(values.reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        width = values.shape[axis]
        count = int(np.prod(values.shape[:axis], dtype=np.int64))
        offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
        array = pa.ListArray.from_arrays(pa.array(offsets), array)
    return array


def nested_episodes(steps: npt.NDArray[Any], offsets: npt.NDArray[np.int64], name: str | None = None) -> pa.Array:
    """Steps [sum, *shape] as one list of steps an episode. Raises as `nested_rows` does."""
    _check_offsets(int(offsets[-1]), name)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), nested_rows(steps, name))


def nested_values(values: pa.Array, offsets: npt.NDArray[np.int64], name: str | None = None) -> pa.Array:
    """Text or bytes, as `large_string` or `large_binary`, as one list of them an episode.

    Raises:
        UnsupportedColumnError: 2^31 bytes or more; it names the column `name`.
    """
    places = value_offsets(values)
    _check_offsets(int(places[-1] - places[0]), name, "bytes")
    # A slice begins in the middle of its buffer, perhaps past what 32 bits reach.
    compact = pa.concat_arrays([values, values[:0]]) if places[0] else values
    array = compact.cast(pa.string() if pa.types.is_large_string(values.type) else pa.binary())
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), array)


def nested_finals(finals: Sequence[Mapping[str, npt.NDArray[Any]] | None], spec: ColumnSpec) -> pa.Array:
    """A column's part of final observations, column name -> [*shape], as nested lists; null where there is none."""
    type_ = nested_rows(np.empty((0, *spec.shape), spec.dtype)).type
    return pa.array([None if final is None else final[spec.name].tolist() for final in finals], type_)


def _check_offsets(last: int, name: str | None, what: str = "elements") -> None:
    """Lists have 32-bit offsets, since `datasets` reads no others; NumPy would wrap larger ones silently."""
    if last > _MAX_OFFSET:
        raise UnsupportedColumnError(
            f"{last:,} {what} in one Parquet list column of a row group, more than 32-bit offsets reach",
            column=name,
            hint="leave the column out at conversion (--columns), or export smaller batches",
        )
