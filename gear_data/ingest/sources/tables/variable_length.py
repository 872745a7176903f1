"""Arrow columns of text and encoded bytes: what a source may call them, brought to the type of a shard's column."""

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
    """The step dtype of a column `name` whose steps have this Arrow type, if it is one of variable length.

    Text is `string`, bytes are `binary`; so is the struct of `bytes` and `path` by which `datasets` keeps images,
    sounds and videos. Rewards and end flags are numbers: under their names nothing is text.
    """
    if name in SCALAR_COLUMNS:
        return None
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return "string"
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or is_file(type_):
        return "binary"
    return None


def to_variable(array: pa.Array, dtype: str) -> pa.Array:
    """The values as `large_string` or `large_binary`; their bytes are not copied.

    Raises:
        IrregularRowsError: rows with nulls, with a path in place of its file's bytes, or with text that is not UTF-8.
    """
    _refuse(null_rows(array), "holds a null")
    if is_file(array.type):
        files, array = array, pc.struct_field(array, "bytes")
        missing = null_rows(array)
        path = pc.struct_field(files, "path")[int(missing[0])].as_py() if len(missing) else None
        _refuse(missing, "holds a null" if path is None else f"holds only the path {path!r}, not the bytes of the file")
    array = array.cast(VARIABLE_TYPES[dtype])
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        _refuse(_not_utf8(array), "is not UTF-8")
        raise
    return array


def path_rows(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """bool [n]: at which rows a path stands beside the bytes of a file; None for a column of another kind."""
    if not is_file(array.type):
        return None
    return np.asarray(pc.struct_field(array, "path").is_valid())


def paths_left_out(count: int, file: str, row: int, column: str) -> Finding:
    """What is noted of paths beside the bytes of files."""
    message = "the files' bytes are kept, the paths beside them are left out"
    return Finding("paths-left-out", message, count, file, row, column)


def is_file(type_: pa.DataType) -> bool:
    """Whether it is the struct of `bytes` and `path` by which `datasets` keeps a file."""
    if not pa.types.is_struct(type_) or {field.name for field in type_} != {"bytes", "path"}:
        return False
    content, path = type_.field("bytes").type, type_.field("path").type
    is_binary = pa.types.is_binary(content) or pa.types.is_large_binary(content)
    # Where no file has a path, the type of its column may be null.
    return bool(is_binary and (pa.types.is_string(path) or pa.types.is_large_string(path) or pa.types.is_null(path)))


def _refuse(rows: npt.NDArray[np.int64], reason: str) -> None:
    if len(rows):
        raise IrregularRowsError(rows, reason)


def _not_utf8(array: pa.Array) -> npt.NDArray[np.int64]:
    rows = []
    for row, value in enumerate(array.cast(pa.large_binary()).to_pylist()):
        try:
            value.decode()
        except UnicodeDecodeError:
            rows.append(row)
    return np.array(rows, np.int64)
