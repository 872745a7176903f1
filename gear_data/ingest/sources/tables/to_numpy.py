"""Conversion of Arrow columns to NumPy, and to shard columns of text and encoded bytes, without Python loops.

Nested lists of equal inner shape become one contiguous array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gear_data.errors import BadEpisodeError, UnsupportedColumnError
from gear_data.ingest.findings.log import BAD_EPISODE_HINT, Finding
from gear_data.ingest.pipeline.columns import END_FLAGS, SCALAR_COLUMNS, leave_out
from gear_data.ingest.pipeline.names import canonical_name
from gear_data.schema import DTYPES, VARIABLE_TYPES, ColumnSpec
from gear_data.storage.episode_block import Values, shaped

_NULL = "holds a null"
#: Number of rows from which the shape of a column is inferred.
_SHAPE_ROWS = 4096


class IrregularRowsError(Exception):
    """Some rows of an array cannot be converted.

    Callers catch it and add the file and the column.

    Attributes:
        rows: int64 [n], indices of the rows.
        reason: the problem of the first row.
    """

    def __init__(self, rows: npt.NDArray[np.int64], reason: str) -> None:
        super().__init__(reason)
        self.rows = rows
        self.reason = reason


class BadRowsError(IrregularRowsError):
    """Some rows of a table cannot be read because of one column.

    Attributes:
        column: source name of the column.
    """

    def __init__(self, rows: npt.NDArray[np.int64], column: str, reason: str) -> None:
        super().__init__(rows, reason)
        self.column = column

    def about(self, table: pa.Table, file: str, row: int) -> BadEpisodeError:
        """Returns the error about the first row, whose place is given."""
        hint = row_hint(self.reason, self.column, table.column(self.column).type)
        return BadEpisodeError(self.reason, file=file, column=self.column, row=row, hint=hint)


def is_list(type_: pa.DataType) -> bool:
    """Returns whether a type is a list, a large list or a fixed-size list."""
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_))


def list_depth(type_: pa.DataType) -> int:
    """Returns the number of nested lists in a type; 0 for a scalar."""
    depth = 0
    while is_list(type_):
        type_, depth = type_.value_type, depth + 1
    return depth


def leaf_type(type_: pa.DataType) -> pa.DataType:
    """Returns the type inside all lists."""
    while is_list(type_):
        type_ = type_.value_type
    return type_


def leaf_dtype(type_: pa.DataType, column: str) -> str:
    """Returns the step dtype of a column of numbers.

    `file` and `column` are for the error.

    Raises:
        UnsupportedColumnError: the column does not hold numbers or booleans.
    """
    leaf = leaf_type(type_)
    name = "bool" if pa.types.is_boolean(leaf) else None
    if pa.types.is_integer(leaf) or pa.types.is_floating(leaf):
        name = str(np.dtype(leaf.to_pandas_dtype()))
    if name not in DTYPES:
        raise UnsupportedColumnError(
            f"holds {'lists of ' if leaf != type_ else ''}{leaf}, which is not a number or a boolean",
            column=column,
            hint=leave_out(column),
        )
    return name


def storage_array(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Returns one plain array.

    Chunks are combined. Extension types, such as Array2D of `datasets`, are unwrapped.
    """
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    while isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array


def list_lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    """Returns int64 [n]: the lengths of the lists of an array without nulls."""
    if pa.types.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size, np.int64)
    offsets: npt.NDArray[np.int64] = array.offsets.to_numpy().astype(np.int64)
    return np.diff(offsets)


def null_rows(array: pa.Array) -> npt.NDArray[np.int64]:
    """Returns the indices of the nulls."""
    if array.null_count == 0:
        return np.empty(0, np.int64)
    return np.flatnonzero(pc.is_null(array).to_numpy(zero_copy_only=False)).astype(np.int64)


def inner_shape(array: pa.Array) -> tuple[int, ...]:
    """Infers the shape of a row of nested lists.

    The most frequent length of each axis among the first rows counts, because any single row may be malformed.
    """
    shape: list[int] = []
    while is_list(array.type):
        array = array.slice(0, _SHAPE_ROWS)
        lengths, counts = np.unique(list_lengths(array), return_counts=True)
        counts[lengths == 0] = 0  # empty and null lists count only if there are no others
        shape.append(int(lengths[np.argmax(counts)]) if len(lengths) else 0)
        array = storage_array(array.flatten())
    return tuple(shape)


def to_numpy(array: pa.Array, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Converts an array of (nested lists of) numbers to [len(array), *shape].

    No values are copied, except booleans and sliced fixed-size lists.

    Raises:
        IrregularRowsError: rows hold nulls, or have another shape.
    """
    rows = len(array)
    count = rows  # elements at the present level
    for axis, length in enumerate(shape):
        _refuse_nulls(array, rows, count)
        lengths = list_lengths(array)
        wrong = np.flatnonzero(lengths != length)
        if len(wrong):
            per_row = max(1, count // max(1, rows))
            raise IrregularRowsError(
                np.unique(wrong // per_row).astype(np.int64),
                f"has {lengths[wrong[0]]} elements in axis {axis + 1}, where {length} are expected",
            )
        array = storage_array(array.flatten())
        count *= length
    _refuse_nulls(array, rows, count)
    if pa.types.is_boolean(array.type):
        values = array.cast(pa.uint8()).to_numpy().view(np.bool_)
    else:
        values = array.to_numpy(zero_copy_only=False)
    return np.ascontiguousarray(values).reshape(rows, *shape)


def column_values(array: pa.Array, spec: ColumnSpec) -> Values:
    """Converts an array to the values of a column: [len(array), *shape], or an array of variable length.

    Raises IrregularRowsError as `to_numpy` and `to_variable`.
    """
    if spec.variable_length:
        return to_variable(array, spec.dtype)
    return shaped(to_numpy(array, spec.shape or (1,) * list_depth(array.type)), spec)


def row_hint(reason: str, column: str, type_: pa.DataType) -> str:
    """Returns what to do about rows that cannot be converted.

    Args:
        reason: the problem of the rows.
        column: their column.
        type_: the type of the column.
    """
    leaf = leaf_type(type_)
    has_numbers = pa.types.is_floating(leaf) or pa.types.is_integer(leaf) or pa.types.is_boolean(leaf)
    if not (reason.endswith(_NULL) and has_numbers):
        return BAD_EPISODE_HINT
    value = "nan" if pa.types.is_floating(leaf) and canonical_name(column) not in END_FLAGS else "0"
    return f"{BAD_EPISODE_HINT}, or put a number in place of the nulls, such as --fill-null {column}={value}"


def _refuse_nulls(array: pa.Array, rows: int, count: int) -> None:
    nulls = null_rows(array)
    if len(nulls):
        per_row = max(1, count // max(1, rows))
        raise IrregularRowsError(np.unique(nulls // per_row).astype(np.int64), _NULL)


def variable_dtype(type_: pa.DataType, name: str) -> str | None:
    """Returns the step dtype of a variable-length column; None for other columns.

    Text is `string`. Bytes are `binary`, and so is the struct of `bytes` and `path` in which `datasets` keeps images,
    sounds and videos. Rewards and end flags are always numbers.

    Args:
        type_: Arrow type of a step.
        name: canonical name of the column.
    """
    if name in SCALAR_COLUMNS:
        return None
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return "string"
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or is_file(type_):
        return "binary"
    return None


def to_variable(array: pa.Array, dtype: str) -> pa.Array:
    """Converts an array to `large_string` or `large_binary` without copying its bytes.

    Raises:
        IrregularRowsError: rows hold a null, a path instead of a file's bytes, or text that is not UTF-8.
    """
    _refuse_rows(null_rows(array), "holds a null")
    if is_file(array.type):
        files, array = array, pc.struct_field(array, "bytes")
        missing = null_rows(array)
        path = pc.struct_field(files, "path")[int(missing[0])].as_py() if len(missing) else None
        reason = "holds a null" if path is None else f"holds only the path {path!r}, not the bytes of the file"
        _refuse_rows(missing, reason)
    array = array.cast(VARIABLE_TYPES[dtype])
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        _refuse_rows(_rows_not_utf8(array), "is not UTF-8")
        raise
    return array


def path_rows(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Returns bool [n]: the rows that hold the path of a file and its bytes.

    Returns None if the column holds no files.
    """
    if not is_file(array.type):
        return None
    return np.asarray(pc.struct_field(array, "path").is_valid())


def paths_left_out(count: int, file: str, row: int, column: str) -> Finding:
    """Returns the finding about paths of files that are left out."""
    message = "the files' bytes are kept, their paths are left out"
    return Finding("paths-left-out", message, count, file, row, column)


def is_file(type_: pa.DataType) -> bool:
    """Returns whether a type is the struct in which `datasets` keeps a file.

    The struct has the fields `bytes` and `path`.
    """
    if not pa.types.is_struct(type_) or {field.name for field in type_} != {"bytes", "path"}:
        return False
    content, path = type_.field("bytes").type, type_.field("path").type
    is_binary = pa.types.is_binary(content) or pa.types.is_large_binary(content)
    # If no file has a path, the type of that field may be null.
    return bool(is_binary and (pa.types.is_string(path) or pa.types.is_large_string(path) or pa.types.is_null(path)))


def _refuse_rows(rows: npt.NDArray[np.int64], reason: str) -> None:
    if len(rows):
        raise IrregularRowsError(rows, reason)


def _rows_not_utf8(array: pa.Array) -> npt.NDArray[np.int64]:
    rows = []
    for row, value in enumerate(array.cast(pa.large_binary()).to_pylist()):
        try:
            value.decode()
        except UnicodeDecodeError:
            rows.append(row)
    return np.array(rows, np.int64)
