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
from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.minari.metadata import SpaceLeaf
from gear_data.ingest.sources.tables.to_numpy import is_list, leaf_dtype, storage_array
from gear_data.ingest.sources.tables.variable_length import variable_dtype
from gear_data.schema import VARIABLE_TYPES, ColumnSpec

#: What a table's columns are; others are not Minari's.
OBSERVATIONS, REWARDS, INFOS = "observations", "rewards", "infos"
COLUMNS = (OBSERVATIONS, "actions", REWARDS, "terminations", "truncations", INFOS)
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
        """The column under its canonical name. Observations have a final one."""
        known_as = None if name == self.name else self.name
        return ColumnSpec(name, self.dtype, self.shape, source=known_as, has_final=self.path[0] == OBSERVATIONS)

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
    with file.open() as stream:
        data = stream.read()
    try:
        table = pq.read_table(pa.BufferReader(data)) if file.name.endswith(".parquet") else _read_arrow(data)
        table.validate(full=True)
        return table.select([name for name in COLUMNS if name in table.column_names])
    except (pa.ArrowException, OSError, EOFError, MemoryError, ValueError, KeyError) as error:
        file.check_readable()  # which knows better what is wrong with files that hold nothing at all
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


def reference_schema(schema: pa.Schema) -> pa.Schema:
    """The schema that a dataset whose first episode has this one is to have: rewards are floats, though all of one
    episode's be whole and were kept so."""
    index = schema.get_field_index(REWARDS)
    if index < 0 or not pa.types.is_integer(schema.field(index).type):
        return schema
    return schema.set(index, schema.field(index).with_type(pa.float64()))


def cast_table(table: pa.Table, schema: pa.Schema) -> tuple[pa.Table, tuple[str, ...], str | None]:
    """The table with this schema, the columns whose numbers were cast to it without loss, and why it cannot have it.

    Lists of numbers get their type from the values of one episode: int64 in one, double in the next.
    """
    if table.schema.equals(schema):
        return table, (), None
    if unknown := set(table.column_names) - set(schema.names):
        return table, (), f"has a column '{min(unknown)}', and the first episode has none"
    arrays, cast = [], []
    for field in schema:
        index = table.schema.get_field_index(field.name)
        found = None if index < 0 else table.schema.field(index).type
        if found is None or not _are_numbers(found, field.type):
            is_ = "missing" if found is None else str(found)
            return table, (), f"column '{field.name}' is {is_}, in the first episode it is {field.type}"
        values = table.column(index)
        if found != field.type:
            as_first = values.cast(field.type, safe=False)
            if not as_first.cast(found, safe=False).equals(values):
                return table, (), f"column '{field.name}' is {found}, and does not fit {field.type}, as it was at first"
            values = as_first
            cast.append(field.name)
        arrays.append(values)
    return pa.Table.from_arrays(arrays, schema=schema), tuple(cast), None


def _are_numbers(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether two types are one, or differ in the kind of numbers alone."""
    if found == wanted:
        return True
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        names = [[field.name for field in type_] for type_ in (found, wanted)]
        return names[0] == names[1] and all(_are_numbers(a.type, b.type) for a, b in zip(found, wanted, strict=True))
    if pa.types.is_fixed_size_list(found) and pa.types.is_fixed_size_list(wanted):
        return found.list_size == wanted.list_size and _are_numbers(found.value_type, wanted.value_type)
    return all(pa.types.is_integer(type_) or pa.types.is_floating(type_) for type_ in (found, wanted))


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
