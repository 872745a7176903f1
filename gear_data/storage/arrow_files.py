"""Arrow IPC files: writing, parsing, and the byte offsets of their buffers.

Why: docs/explanation/decisions/shards.md
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from gear_data.common.regular_files import open_regular
from gear_data.errors import CorruptShardError, refuse_exhausted
from gear_data.schema import Schema
from gear_data.storage.arrow_footer import check_blocks
from gear_data.storage.variable_columns import VariableBuffers, value_offsets

#: Size of a table that is hashed before any other check. Hashing a terabyte, such as a sparse file, takes minutes.
_HASHED_AT_ONCE = 1 << 30
#: Remedy for a table that cannot be used.
_RESTORE = "restore the table, or convert again"
#: Arrow refuses columns of 2^31 elements or more if it is not asked, for readers that count in 32 bits. One episode of
#: images may have as many.
WRITE_OPTIONS = pa.ipc.IpcWriteOptions(allow_64bit=True)


def column_array(values: npt.NDArray[Any], type_: pa.DataType) -> pa.Array:
    """Wraps contiguous rows [n, *shape] as an Arrow array, without copying.

    `type_` is `ColumnSpec.arrow_type`.
    """
    storage = values.view(np.uint8) if values.dtype == np.bool_ else values
    flat = np.ascontiguousarray(storage).reshape(-1)
    if pa.types.is_fixed_size_list(type_):
        items = pa.Array.from_buffers(type_.value_type, len(flat), [None, pa.py_buffer(flat)])
        return pa.FixedSizeListArray.from_arrays(items, type=type_)
    return pa.Array.from_buffers(type_, len(flat), [None, pa.py_buffer(flat)])


def array_values(array: pa.Array) -> npt.NDArray[Any]:
    """Returns the flat values of an array made by `column_array`, without copying. They are read-only."""
    items = array.flatten() if pa.types.is_fixed_size_list(array.type) else array
    # Not `to_numpy`, which imports pandas where that is installed.
    return np.from_dlpack(items)


def table_values(table: pa.Table, name: str) -> npt.NDArray[Any]:
    """Returns the flat values of a table's column, without copying numbers of a mapped file. They are read-only.

    The column has numbers, `FixedSizeList`s of numbers, or booleans, and no nulls.
    """
    column = table.column(name)
    if is_boolean := pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    values = array_values(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks())
    return values.view(np.bool_) if is_boolean else values


def write_ipc(path: Path, data: pa.Table | pa.RecordBatch) -> None:
    """Writes an uncompressed Arrow IPC file."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, data.schema, options=WRITE_OPTIONS) as writer:
        writer.write(data)


def read_table(path: Path, checksum: str) -> pa.Table:
    """Maps the table of an Arrow IPC file and checks its bytes.

    Args:
        path: the file.
        checksum: its checksum in the manifest.

    Raises:
        HostMemoryError, OpenFilesError: this process can have no further memory, or can open no further file.
        CorruptShardError: the file cannot be read, has another checksum, or is not a valid Arrow IPC file.
    """
    try:
        with open_regular(path), pa.memory_map(str(path)) as source:
            data = source.read_buffer()
    except OSError as error:
        refuse_exhausted(error, str(path))
        raise CorruptShardError(f"cannot be read: {error}", file=str(path), hint=_RESTORE) from error
    if data.size > _HASHED_AT_ONCE:
        check_blocks(data, str(path), _RESTORE)
    # The mapped bytes themselves are hashed, at the speed of memory: they are the bytes that are used.
    found = f"xxh3-128:{xxhash.xxh3_128_hexdigest(data)}"
    if found != checksum:
        raise CorruptShardError(
            f"its checksum is {found}, the manifest says {checksum}",
            file=str(path),
            hint=f"its bytes were changed: {_RESTORE}",
        )
    return parse_table(data, str(path))


def parse_table(data: bytes | pa.Buffer, name: str) -> pa.Table:
    """Parses the bytes of an Arrow IPC file.

    Args:
        data: the whole file.
        name: name of the file, for errors.

    Raises:
        CorruptShardError: the bytes are not a valid, uncompressed Arrow IPC file.
    """
    check_blocks(pa.py_buffer(data), name, _RESTORE)
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        # Without this check, dictionary indices out of range would crash later readers.
        table.validate(full=True)
        return table
    except (pa.ArrowException, OSError) as error:
        raise CorruptShardError(f"cannot be read: {error}", file=name, hint=_RESTORE) from error


def buffer_offsets(path: Path, schema: Schema) -> tuple[dict[str, int], dict[str, VariableBuffers]]:
    """Returns where each column's buffers are in a shard file.

    Returns:
        column -> byte offset of its values, and variable-length column -> its further buffers.
    """
    with pa.memory_map(str(path)) as source:
        batch = pa.ipc.open_file(source).get_batch(0)
        source.seek(0)
        base = source.read_buffer().address
        values, variable = {}, {}
        for column in schema:
            array = batch.column(column.name)
            if column.variable_length:
                _, offsets, data = array.buffers()
                buffers = VariableBuffers(offsets.address - base, int(value_offsets(array)[-1]))
                variable[column.name] = buffers
                # An empty buffer is not in the file. The address of the offsets stands in for it.
                values[column.name] = data.address - base if buffers.bytes else buffers.offsets
            else:
                values[column.name] = (array.values if column.shape else array).buffers()[1].address - base
        return values, variable
