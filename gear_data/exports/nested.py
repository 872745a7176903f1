"""Conversion of NumPy arrays to nested Arrow lists, as in HuggingFace datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import UnsupportedColumnError
from gear_data.schema import ColumnSpec
from gear_data.storage.variable_columns import value_offsets

_MAX_OFFSET = (1 << 31) - 1


def nested_rows(values: npt.NDArray[Any], name: str | None = None) -> pa.Array:
    """Converts [n, *shape] to n nested lists, or to n scalars if the shape is ().

    Args:
        values: array to convert.
        name: name of the column, for the error.

    Raises:
        UnsupportedColumnError: the array has 2^31 elements or more.
    """
    if values.ndim > 1:
        _check_offsets(values.size, name)
    array = pa.array(values.reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        width = values.shape[axis]
        count = int(np.prod(values.shape[:axis], dtype=np.int64))
        offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
        array = pa.ListArray.from_arrays(pa.array(offsets), array)
    return array


def nested_episodes(steps: npt.NDArray[Any], offsets: npt.NDArray[np.int64], name: str | None = None) -> pa.Array:
    """Converts steps [sum, *shape] to one list of steps per episode.

    Raises the errors of `nested_rows`.
    """
    _check_offsets(int(offsets[-1]), name)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), nested_rows(steps, name))


def nested_values(values: pa.Array, offsets: npt.NDArray[np.int64], name: str | None = None) -> pa.Array:
    """Converts text or bytes to one list of values per episode.

    Args:
        values: `large_string` or `large_binary` array.
        offsets: int64 [episodes + 1], first step of each episode.
        name: name of the column, for the error.

    Raises:
        UnsupportedColumnError: the values have 2^31 bytes or more.
    """
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), narrow_values(values, name))


def narrow_values(values: pa.Array, name: str | None = None) -> pa.Array:
    """Converts `large_string` or `large_binary` to `string` or `binary`, whose offsets have 32 bits.

    Raises:
        UnsupportedColumnError: the values have 2^31 bytes or more.
    """
    bounds = value_offsets(values)
    _check_offsets(int(bounds[-1] - bounds[0]), name, "bytes")
    # A slice begins in the middle of its buffer, where offsets may exceed 32 bits.
    compact = pa.concat_arrays([values, values[:0]]) if bounds[0] else values
    return compact.cast(pa.string() if pa.types.is_large_string(values.type) else pa.binary())


def nested_finals(finals: Sequence[Mapping[str, npt.NDArray[Any]] | None], spec: ColumnSpec) -> pa.Array:
    """Converts one column of final observations to nested lists.

    Args:
        finals: column name -> [*shape] for each episode; None becomes null.
        spec: the column.
    """
    type_ = nested_rows(np.empty((0, *spec.shape), spec.dtype)).type
    return pa.array([None if final is None else final[spec.name].tolist() for final in finals], type_)


def _check_offsets(last: int, name: str | None, unit: str = "elements") -> None:
    """Checks that offsets fit 32 bits, the only ones that `datasets` reads.

    Without this check, NumPy would wrap larger offsets silently.
    """
    if last > _MAX_OFFSET:
        raise UnsupportedColumnError(
            f"{last:,} {unit} in one column of a Parquet row group exceed its 32-bit offsets",
            column=name,
            hint="leave the column out at conversion (--columns), or export smaller batches",
        )
