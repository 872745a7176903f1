"""Variable-length columns: `large_string` and `large_binary` without nulls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.typed_json import Count
from gear_data.errors import CorruptShardError

#: Bytes of one entry of an array's offsets.
OFFSET_BYTES = 8

#: Remedy for damaged values.
DAMAGED = "run 'gear-data verify'; restore the file, or convert again"


@dataclass(frozen=True)
class VariableBuffers:
    """Place of a variable-length column in a shard file.

    The values stand one after another at the column's entry in the shard's `buffers`.

    Attributes:
        offsets: byte offset of int64 [steps + 1] offsets into the values. The first is 0.
        bytes: number of bytes of all values.
    """

    offsets: Count
    bytes: Count


def array_over(
    type_: pa.DataType, count: int, offsets: pa.Buffer, values: pa.Buffer, *, file: str, column: str
) -> pa.Array:
    """Returns an array over existing buffers, without copying.

    Args:
        type_: `large_string` or `large_binary`.
        count: number of values.
        offsets: int64 [count + 1].
        values: bytes of the values.
        file: name of the file, for errors.
        column: name of the column, for errors.

    Raises:
        CorruptShardError: the offsets do not begin with 0 or do not end with the size of `values`. The other offsets
            are not checked; `validated` checks them.
    """
    bounds = np.frombuffer(offsets, np.int64, count + 1)
    if bounds[0] != 0 or bounds[-1] != values.size:
        raise CorruptShardError(
            f"its offsets run from {bounds[0]} to {bounds[-1]}, but its values have {values.size} bytes",
            file=file,
            column=column,
            hint=DAMAGED,
        )
    return pa.Array.from_buffers(type_, count, [None, offsets, values], null_count=0)


def value_offsets(array: pa.Array) -> npt.NDArray[np.int64]:
    """Returns a view of an array's offsets, int64 [len(array) + 1].

    Value i is bytes offsets[i] to offsets[i + 1] of `value_bytes`. The offsets of a slice may begin above 0.
    """
    buffer = array.buffers()[1]
    if buffer is None or not buffer.size:  # Arrow allows this for an array without values
        return np.zeros(1, np.int64)
    return np.frombuffer(buffer, np.int64, len(array) + 1, array.offset * OFFSET_BYTES)


def value_bytes(array: pa.Array) -> npt.NDArray[np.uint8]:
    """Returns a view of the uint8 buffer that `value_offsets` index."""
    buffer = array.buffers()[2]
    return np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)


def validated(array: pa.Array, *, file: str, column: str) -> pa.Array:
    """Returns the array after checking it.

    Only the values of a slice are checked, not its whole buffer.

    Args:
        array: variable-length values.
        file: name of the file, for errors.
        column: name of the column, for errors.

    Raises:
        CorruptShardError: offsets are out of order or outside the buffer, or text is not UTF-8.
    """
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptShardError(f"damaged values: {error}", file=file, column=column, hint=DAMAGED) from error
    return array


def python_values(array: pa.Array) -> npt.NDArray[Any]:
    """Returns the values as a read-only object array of str or bytes, [len(array)]."""
    values: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    values.flags.writeable = False
    return values
