"""Arrow columns to NumPy: nested lists of fixed inner shape become one contiguous array, without Python loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gear_data.errors import UnsupportedColumnError
from gear_data.schema import DTYPES

#: Rows that say what shape a column has.
_SHAPE_ROWS = 4096


class IrregularRowsError(Exception):
    """Some rows of an array do not fit: `rows` are their indices, `reason` says what is wrong with the first.

    Formats catch it and name the file and the column.
    """

    def __init__(self, rows: npt.NDArray[np.int64], reason: str) -> None:
        super().__init__(reason)
        self.rows = rows
        self.reason = reason


class BadRowsError(Exception):
    """Rows of a table that cannot be read, and why, for one column: what a format makes of `IrregularRowsError`."""

    def __init__(self, rows: npt.NDArray[np.int64], column: str, reason: str) -> None:
        super().__init__(reason)
        self.rows = rows
        self.column = column
        self.reason = reason


def is_list(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))


def list_depth(type_: pa.DataType) -> int:
    """How many lists are nested in a type; 0 for a scalar."""
    depth = 0
    while is_list(type_):
        type_, depth = type_.value_type, depth + 1
    return depth


def leaf_type(type_: pa.DataType) -> pa.DataType:
    while is_list(type_):
        type_ = type_.value_type
    return type_


def leaf_dtype(type_: pa.DataType, *, file: str, column: str) -> str:
    """The step dtype of a column of numbers. Raises UnsupportedColumnError for what has none."""
    leaf = leaf_type(type_)
    name = "bool" if pa.types.is_boolean(leaf) else None
    if pa.types.is_integer(leaf) or pa.types.is_floating(leaf):
        name = str(np.dtype(leaf.to_pandas_dtype()))
    if name not in DTYPES:
        raise UnsupportedColumnError(
            f"holds {'lists of ' if leaf != type_ else ''}{leaf}, which is not a number or a boolean",
            file=file,
            column=column,
            hint="name the columns to keep with --columns (columns=[...]), leaving this one out",
        )
    return name


def storage_array(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One plain array: chunks combined, extension types (such as datasets' Array2D) unwrapped."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array


def list_lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    """Lengths of the lists of an array without nulls."""
    if pa.types.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size, np.int64)
    offsets: npt.NDArray[np.int64] = array.offsets.to_numpy().astype(np.int64)
    return np.diff(offsets)


def null_rows(array: pa.Array) -> npt.NDArray[np.int64]:
    if array.null_count == 0:
        return np.empty(0, np.int64)
    return np.flatnonzero(pc.is_null(array).to_numpy(zero_copy_only=False)).astype(np.int64)


def inner_shape(array: pa.Array) -> tuple[int, ...]:
    """Shape of a row of a nested-list array: that of most of its first rows, since any one of them may be malformed."""
    shape: list[int] = []
    while is_list(array.type):
        array = array.slice(0, _SHAPE_ROWS)
        widths, counts = np.unique(list_lengths(array), return_counts=True)
        counts[widths == 0] = 0  # empty and null ones say nothing, unless there are no others
        shape.append(int(widths[np.argmax(counts)]) if len(widths) else 0)
        array = storage_array(array.flatten())
    return tuple(shape)


def to_numpy(array: pa.Array, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """[len(array), *shape] of an array whose rows are (nested lists of) numbers.

    Zero-copy where Arrow's layout allows it: all but booleans and sliced fixed-size lists.

    Raises:
        IrregularRowsError: rows with nulls, or of another shape.
    """
    rows = len(array)
    count = rows  # elements at the present level
    for axis, width in enumerate(shape):
        _refuse_nulls(array, rows, count)
        lengths = list_lengths(array)
        wrong = np.flatnonzero(lengths != width)
        if len(wrong):
            per_row = max(1, count // max(1, rows))
            raise IrregularRowsError(
                np.unique(wrong // per_row).astype(np.int64),
                f"has {lengths[wrong[0]]} elements in axis {axis + 1}, where {width} are expected",
            )
        array = storage_array(array.flatten())
        count *= width
    _refuse_nulls(array, rows, count)
    if pa.types.is_boolean(array.type):
        values = array.cast(pa.uint8()).to_numpy().view(np.bool_)
    else:
        values = array.to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(values).reshape(rows, *shape)


def _refuse_nulls(array: pa.Array, rows: int, count: int) -> None:
    missing = null_rows(array)
    if len(missing):
        per_row = max(1, count // max(1, rows))
        raise IrregularRowsError(np.unique(missing // per_row).astype(np.int64), "holds a null")
