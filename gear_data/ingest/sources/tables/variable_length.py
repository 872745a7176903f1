"""Conversion of Arrow columns of text and encoded bytes to shard columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gear_data.ingest.findings.log import Finding
from gear_data.ingest.pipeline.columns import SCALAR_COLUMNS
from gear_data.ingest.sources.tables.to_numpy import IrregularRowsError, null_rows
from gear_data.schema import VARIABLE_TYPES


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
