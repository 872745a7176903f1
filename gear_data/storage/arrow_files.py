"""Arrow IPC files: writing, parsing, and the byte offsets of their buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import CorruptShardError
from gear_data.schema import Schema
from gear_data.storage.variable import VariableBuffers, value_offsets


def column_array(values: npt.NDArray[Any], type_: pa.DataType) -> pa.Array:
    """Wraps contiguous rows as an Arrow array of `ColumnSpec.arrow_type`, without copying."""
    storage = values.view(np.uint8) if values.dtype == np.bool_ else values
    flat = np.ascontiguousarray(storage).reshape(-1)
    if pa.types.is_fixed_size_list(type_):
        items = pa.Array.from_buffers(type_.value_type, len(flat), [None, pa.py_buffer(flat)])
        return pa.FixedSizeListArray.from_arrays(items, type=type_)
    return pa.Array.from_buffers(type_, len(flat), [None, pa.py_buffer(flat)])


def array_values(array: pa.Array) -> npt.NDArray[Any]:
    """The flat values of an array made by `column_array`, zero-copy."""
    items = array.flatten() if pa.types.is_fixed_size_list(array.type) else array
    return items.to_numpy(zero_copy_only=True)  # type: ignore[no-any-return]


def write_ipc(path: Path, data: pa.Table | pa.RecordBatch) -> None:
    """Writes an uncompressed Arrow IPC file."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, data.schema) as writer:
        writer.write(data)


def read_table(path: Path) -> pa.Table:
    """Maps a table. Raises CorruptShardError if it is not an Arrow IPC file."""
    try:
        with pa.memory_map(str(path)) as source:
            return parse_table(source.read_buffer(), str(path))
    except OSError as error:
        raise CorruptShardError(f"cannot be read: {error}", file=str(path)) from error


def parse_table(data: bytes | pa.Buffer, name: str) -> pa.Table:
    """The table of an Arrow IPC file `name`. Raises CorruptShardError if it is none."""
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        # Indices of dictionary columns out of range would bring other readers down.
        table.validate(full=True)
        return table
    except (pa.ArrowException, OSError) as error:
        raise CorruptShardError(f"cannot be read: {error}", file=name) from error


def buffer_offsets(path: Path, schema: Schema) -> tuple[dict[str, int], dict[str, VariableBuffers]]:
    """Where in a shard file each column's values begin, in bytes; and what else those of variable length have."""
    with pa.memory_map(str(path)) as source:
        batch = pa.ipc.open_file(source).get_batch(0)
        source.seek(0)
        base = source.read_buffer().address
        values, variable = {}, {}
        for column in schema:
            array = batch.column(column.name)
            if column.variable_length:
                _, offsets, data = array.buffers()
                known = VariableBuffers(offsets.address - base, int(value_offsets(array)[-1]))
                variable[column.name] = known
                # An empty buffer is nowhere in the file.
                values[column.name] = data.address - base if known.bytes else known.offsets
            else:
                values[column.name] = (array.values if column.shape else array).buffers()[1].address - base
        return values, variable
