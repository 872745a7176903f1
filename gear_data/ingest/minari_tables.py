"""Minari's Arrow layout, one episode: a table whose columns are flattened to arrays under dotted names.

Layout: https://minari.farama.org/content/dataset_standards and `minari/dataset/_storages/arrow_storage.py`. Dict and
Tuple spaces are structs; a Box is a fixed-size list of its elements, whose shape is in the dataset's metadata;
the shape of an info is in its field's metadata.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gear_data.errors import CorruptSourceError, UnsupportedColumnError
from gear_data.ingest.arrow_values import is_list, leaf_dtype, storage_array
from gear_data.ingest.location import SourceFile
from gear_data.ingest.minari_spaces import SpaceLeaf
from gear_data.ingest.variable_values import variable_dtype
from gear_data.schema import VARIABLE_TYPES, ColumnSpec

#: What a table's columns are; others are not Minari's.
OBSERVATIONS, INFOS = "observations", "infos"
COLUMNS = (OBSERVATIONS, "actions", "rewards", "terminations", "truncations", INFOS)
#: A row takes a bit at least: a boolean's.
_ROWS_PER_BYTE = 8
_MAGIC = b"ARROW1"


@dataclass(frozen=True)
class TableColumn:
    """A column that is not made of others.

    Attributes:
        path: names of the structs it is in, and its own.
        name: those with dots between.
        dtype: of a step, as `ColumnSpec.dtype`.
        shape: of a step.
        stored: the shape in the table: Minari flattens arrays of several axes to one list.
    """

    path: tuple[str, ...]
    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    stored: tuple[int, ...] = ()

    def spec(self, name: str) -> ColumnSpec:
        """The column under its canonical name. Observations have a final one, where it has a fixed size."""
        known_as = None if name == self.name else self.name
        has_final = self.path[0] == OBSERVATIONS and not self.variable_length
        return ColumnSpec(name, self.dtype, self.shape, source=known_as, has_final=has_final)

    @property
    def variable_length(self) -> bool:
        return self.dtype in VARIABLE_TYPES

    def of(self, table: pa.Table) -> pa.Array:
        """The column's array, a row a step."""
        array = storage_array(table.column(self.path[0]))
        for name in self.path[1:]:
            array = storage_array(pc.struct_field(array, name))
        return array


def read_table(file: SourceFile) -> pa.Table:
    """A file of an episode, with those of its columns that are Minari's.

    Raises:
        CorruptSourceError: empty, cut short, damaged, or not Arrow (Parquet, where the file is named so).
    """
    file.check_readable()
    with file.open() as stream:
        data = stream.read()
    try:
        table = pq.read_table(pa.BufferReader(data)) if file.name.endswith(".parquet") else _read_arrow(data)
        table.validate(full=True)
        return table.select([name for name in COLUMNS if name in table.column_names])
    except (pa.ArrowException, OSError, EOFError, MemoryError, ValueError, KeyError) as error:
        raise CorruptSourceError(
            f"cannot be read: {error}", file=file.name, hint="it may have been cut short: download it again"
        ) from error


def _read_arrow(data: bytes) -> pa.Table:
    """An Arrow IPC file, read as the stream it is between its first bytes and its footer.

    So the messages that are looked at are those that are read: compressed buffers name the size to which they
    decompress, which pyarrow allocates before it knows that to be true. Minari writes none.
    """
    if not data.startswith(_MAGIC) or not data.endswith(_MAGIC):
        raise pa.ArrowInvalid("not a whole Arrow IPC file")
    stream = pa.py_buffer(data)[8:]
    for number, message in enumerate(pa.ipc.MessageReader.open_stream(stream)):
        if message.type != ("record batch" if number else "schema"):
            raise pa.ArrowInvalid(f"holds a {message.type} as message {number}, which Minari does not write")
        if number and _is_compressed(message.metadata):
            raise pa.ArrowInvalid("holds compressed buffers, which Minari does not write")
    table = pa.ipc.open_stream(stream).read_all()
    # Columns of nulls take no bytes, and may claim any length.
    if table.num_rows > len(data) * _ROWS_PER_BYTE:
        raise pa.ArrowInvalid(f"{table.num_rows} rows in {len(data)} bytes")
    return table


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Whether a record batch's message (a verified flatbuffer: pyarrow has opened it) has the field `compression`.

    https://github.com/apache/arrow/blob/main/format/Message.fbs: `Message.header` is field 2, `RecordBatch.compression`
    field 3.
    """
    message = _integer(metadata, 0, 4)
    header = message + _field(metadata, message, 2)
    return _field(metadata, header + _integer(metadata, header, 4), 3) != 0


def _field(buffer: pa.Buffer, table: int, number: int) -> int:
    """Where a flatbuffer table's field is, from the table on; 0 if it is absent."""
    fields = table - _integer(buffer, table, 4)
    place = 4 + 2 * number
    return _integer(buffer, fields + place, 2) if place < _integer(buffer, fields, 2) else 0


def _integer(buffer: pa.Buffer, start: int, size: int) -> int:
    return int.from_bytes(buffer[start : start + size].to_pybytes(), "little", signed=size == 4)


def table_columns(schema: pa.Schema, leaves: Mapping[str, SpaceLeaf], file: str) -> tuple[TableColumn, ...]:
    """The columns of a table with this schema; `leaves` are the dataset's spaces by dotted name.

    Raises:
        CorruptSourceError: a column's elements are not as many as its space has.
        UnsupportedColumnError: neither numbers nor text nor bytes, or two columns of one name.
    """
    columns: dict[str, TableColumn] = {}
    for field in schema:
        for path, leaf in _leaf_fields(field, ()):
            column = _column(path, leaf, leaves, file)
            if column.name in columns:
                raise UnsupportedColumnError("two columns have this name", file=file, column=column.name)
            columns[column.name] = column
    return tuple(columns.values())


def _leaf_fields(field: pa.Field, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], pa.Field]]:
    path = (*above, field.name)
    if pa.types.is_struct(field.type):
        for child in field.type:
            yield from _leaf_fields(child, path)
    else:
        yield path, field


def _column(path: tuple[str, ...], field: pa.Field, leaves: Mapping[str, SpaceLeaf], file: str) -> TableColumn:
    name = ".".join(path).replace("/", ".")
    if (dtype := variable_dtype(field.type, name)) is not None:
        return TableColumn(path, name, dtype)
    dtype = leaf_dtype(field.type, file=file, column=name)
    if not is_list(field.type):
        return TableColumn(path, name, dtype)
    if not pa.types.is_fixed_size_list(field.type) or is_list(field.type.value_type):
        raise UnsupportedColumnError(f"is {field.type}; Minari keeps lists of one size", file=file, column=name)
    count = field.type.list_size
    shape = leaves[name].shape if name in leaves else _info_shape(field)
    if shape is None:
        shape = (count,)
    if math.prod(shape) != count or count == 0:
        raise CorruptSourceError(
            f"has {count} elements a step, and by the dataset's metadata the shape {shape}", file=file, column=name
        )
    return TableColumn(path, name, dtype, shape, (count,))


def _info_shape(field: pa.Field) -> tuple[int, ...] | None:
    """The shape that a field's metadata gives, as Minari writes it: `b"2,3"`, and `b""` for a single number."""
    text = (field.metadata or {}).get(b"shape")
    if text is None:
        return None
    sides = text.split(b",") if text else []
    return tuple(int(side) for side in sides) if all(side.isdigit() and len(side) < 10 for side in sides) else None
