"""Columns of variable length: Arrow `large_string` and `large_binary` arrays without nulls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import CorruptShardError

#: Bytes of one entry of an array's offsets.
OFFSET_BYTES = 8

#: Hint of what to do.
DAMAGED = "run 'gear-data verify'; restore the file, or convert again"


@dataclass(frozen=True)
class VariableBuffers:
    """Where a shard file holds a column of variable length: int64 [steps + 1] offsets, which begin with 0, at byte
    `offsets`; the values one after another, `bytes` in all, at the column's own place among the shard's buffers."""

    offsets: int
    bytes: int

    def to_json(self) -> dict[str, int]:
        return {"offsets": self.offsets, "bytes": self.bytes}


def array_over(
    type_: pa.DataType, count: int, offsets: pa.Buffer, values: pa.Buffer, *, file: str, column: str
) -> pa.Array:
    """The array of `count` values over int64 [count + 1] offsets and the values' bytes, without copying.

    Raises:
        CorruptShardError: the offsets do not begin with 0 and end with the values. Those between are not looked at:
            `checked` does that.
    """
    places = np.frombuffer(offsets, np.int64, count + 1)
    if places[0] != 0 or places[-1] != values.size:
        raise CorruptShardError(
            f"its offsets run from {places[0]} to {places[-1]}, where there are {values.size} bytes of values",
            file=file,
            column=column,
            hint=DAMAGED,
        )
    return pa.Array.from_buffers(type_, count, [None, offsets, values], null_count=0)


def value_offsets(array: pa.Array) -> npt.NDArray[np.int64]:
    """int64 [len(array) + 1]: value i is bytes offsets[i] to offsets[i + 1] of `value_bytes`; a view. They begin with
    another number than 0 where the array is a slice."""
    buffer = array.buffers()[1]
    if buffer is None or not buffer.size:  # what Arrow allows of an array without values
        return np.zeros(1, np.int64)
    return np.frombuffer(buffer, np.int64, len(array) + 1, array.offset * OFFSET_BYTES)


def value_bytes(array: pa.Array) -> npt.NDArray[np.uint8]:
    """uint8: the bytes that `value_offsets` point into; a view."""
    buffer = array.buffers()[2]
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def checked(array: pa.Array, *, file: str, column: str) -> pa.Array:
    """The same array. Of a slice, only its own values are looked at.

    Raises:
        CorruptShardError: offsets that are not in order or leave the buffer, or text that is not UTF-8.
    """
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptShardError(f"damaged values: {error}", file=file, column=column, hint=DAMAGED) from error
    return array


def python_values(array: pa.Array) -> npt.NDArray[Any]:
    """object [len(array)], read-only: the values as str or bytes."""
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    values.flags.writeable = False
    return values
