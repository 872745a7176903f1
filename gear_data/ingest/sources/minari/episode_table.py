"""Arrow tables of single Minari episodes, and their flattened columns.

Layout: https://minari.farama.org/content/dataset_standards and `minari/dataset/_storages/arrow_storage.py`. Dict and
Tuple spaces are structs. A Box is a fixed-size list of its elements; the dataset's metadata has its shape. The
metadata of an info's field has the shape of the info.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gear_data.errors import CorruptSourceError, UnsupportedColumnError
from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.tables.to_numpy import (
    IrregularRowsError,
    is_list,
    leaf_dtype,
    storage_array,
    to_numpy,
    to_variable,
    variable_dtype,
)
from gear_data.schema import VARIABLE_TYPES, ColumnSpec
from gear_data.storage.arrow_footer import is_compressed
from gear_data.storage.episode_block import Values

#: Minari's columns. Other columns of a table are ignored.
OBSERVATIONS, REWARDS, INFOS = "observations", "rewards", "infos"
COLUMNS = (OBSERVATIONS, "actions", REWARDS, "terminations", "truncations", INFOS)
#: Upper bound on rows per byte: a row of one boolean takes one bit.
_ROWS_PER_BYTE = 8
_MAGIC = b"ARROW1"
#: Returns the rows [first, stop) of a column.
Reader: TypeAlias = Callable[[int, int], Values]


@dataclass(frozen=True)
class TableColumn:
    """A column of a table that has no subcolumns.

    Attributes:
        path: names of the enclosing structs, and the column's own name.
        name: the path, joined with dots.
        dtype: the dtype of a step, as in `ColumnSpec.dtype`.
        shape: the shape of a step.
        stored_shape: the shape of a step in the table. There, Minari flattens arrays of several axes to one list.
    """

    path: tuple[str, ...]
    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    stored_shape: tuple[int, ...] = ()

    def spec(self, name: str) -> ColumnSpec:
        """Returns the column under its canonical name.

        Observations have a final observation.
        """
        source = None if name == self.name else self.name
        return ColumnSpec(name, self.dtype, self.shape, source=source, has_final=self.path[0] == OBSERVATIONS)

    @property
    def variable_length(self) -> bool:
        """Whether steps are texts or bytes."""
        return self.dtype in VARIABLE_TYPES

    def extract(self, table: pa.Table) -> pa.Array:
        """Returns the column's array, one row per step."""
        array = storage_array(table.column(self.path[0]))
        for name in self.path[1:]:
            array = storage_array(pc.struct_field(array, name))
        return array

    def reader(self, array: pa.Array) -> Reader:
        """Returns a function that returns the rows [first, stop) of the column's array.

        Of texts and bytes, other rows, such as padding, are not checked. The function raises IrregularRowsError, too.

        Raises:
            IrregularRowsError: rows hold nulls, or texts that are not UTF-8.
        """
        if not self.variable_length:
            values = to_numpy(array, self.stored_shape)
            return lambda first, stop: values[first:stop]

        def read(first: int, stop: int) -> Values:
            try:
                return to_variable(array[first:stop], self.dtype)
            except IrregularRowsError as error:
                raise IrregularRowsError(error.rows + first, error.reason) from None

        return read


def read_table(file: SourceFile) -> tuple[pa.Table, tuple[str, ...]]:
    """Reads Minari's columns from a file of an episode, and the names of the others.

    Raises:
        CorruptSourceError: the file is empty, truncated, damaged, larger than the memory of this machine, or not Arrow
            (for `.parquet` files: not Parquet).
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if file.size > memory:
        # Reading it would end this process, not raise an error.
        raise CorruptSourceError(
            f"is {file.size} bytes, and the memory of this machine {memory}: the file of an episode is read whole",
            file=file.name,
            hint="check that this is the right file: the file of an episode is smaller, unless the file is damaged",
        )
    try:
        with file.open() as stream:
            data = stream.read()
        table = pq.read_table(pa.BufferReader(data)) if file.name.endswith(".parquet") else _read_arrow(data)
        table.validate(full=True)
        others = tuple(name for name in table.column_names if name not in COLUMNS)
        return table.select([name for name in COLUMNS if name in table.column_names]), others
    except (pa.ArrowException, OSError, EOFError, MemoryError, ValueError, KeyError, struct.error) as error:
        file.check_readable()  # raises a clearer error for empty files and Git-LFS pointers
        raise CorruptSourceError(
            f"cannot be read: {error!r}", file=file.name, hint="the file may have been truncated: download it again"
        ) from error


def _read_arrow(data: bytes) -> pa.Table:
    """Reads an Arrow IPC file as the stream between its first bytes and its footer.

    Reading the stream, not the footer, makes sure that the checked messages are those that pyarrow reads. Compressed
    buffers are refused: they declare their decompressed size, which pyarrow allocates unchecked. Minari does not write
    compressed buffers.
    """
    if not data.startswith(_MAGIC) or not data.endswith(_MAGIC):
        raise pa.ArrowInvalid("not a complete Arrow IPC file")
    stream = pa.py_buffer(data)[8:]
    for number, message in enumerate(pa.ipc.MessageReader.open_stream(stream)):
        if message.type != ("record batch" if number else "schema"):
            raise pa.ArrowInvalid(f"holds a {message.type} as message {number}, which Minari does not write")
        if number and is_compressed(memoryview(message.metadata)):
            raise pa.ArrowInvalid("holds compressed buffers, which Minari does not write")
    table = pa.ipc.open_stream(stream).read_all()
    # Columns of nulls take no bytes, so their length could be anything.
    if table.num_rows > len(data) * _ROWS_PER_BYTE:
        raise pa.ArrowInvalid(f"{table.num_rows} rows in {len(data)} bytes")
    return table


def table_columns(schema: pa.Schema, shapes: Mapping[str, tuple[int, ...]]) -> tuple[TableColumn, ...]:
    """Returns the columns of a table with this schema.

    Args:
        schema: the schema of the table.
        shapes: the shapes of the dataset's spaces by dotted name.

    Raises:
        CorruptSourceError: a column has another number of elements than its space.
        UnsupportedColumnError: a column is not numbers, text or bytes, or two columns have the same name.
    """
    columns: dict[str, TableColumn] = {}
    for outer in schema:
        for path, leaf in _leaf_fields(outer, ()):
            column = _column(path, leaf, shapes)
            if column.name in columns:
                raise UnsupportedColumnError(
                    "two columns have this name", column=column.name, hint="rename one of them in the source"
                )
            columns[column.name] = column
    return tuple(columns.values())


def reference_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the dataset's schema, given the schema of its first episode.

    Integer rewards become float64.

    Minari stores rewards as integers if all rewards of an episode are whole.
    """
    index = schema.get_field_index(REWARDS)
    if index < 0 or not pa.types.is_integer(schema.field(index).type):
        return schema
    return schema.set(index, schema.field(index).with_type(pa.float64()))


def cast_table(table: pa.Table, schema: pa.Schema) -> tuple[pa.Table, tuple[str, ...], str | None]:
    """Casts a table to a schema, if no number changes.

    Minari writes lists of Python numbers, whose type depends on the values of one episode: int64 in one episode,
    double in the next.

    Returns:
        The table, the names of the columns that were cast, and the reason if the table does not fit the schema.
    """
    if table.schema.equals(schema):
        return table, (), None
    if unknown := set(table.column_names) - set(schema.names):
        return table, (), f"has a column '{min(unknown)}', which the first episode lacks"
    arrays, cast = [], []
    for expected in schema:
        index = table.schema.get_field_index(expected.name)
        found = None if index < 0 else table.schema.field(index).type
        if found is None or not _differ_only_in_numbers(found, expected.type):
            actual = "missing" if found is None else str(found)
            return table, (), f"column '{expected.name}' is {actual}, in the first episode it is {expected.type}"
        values = table.column(index)
        if found != expected.type:
            converted = values.cast(expected.type, safe=False)
            if not converted.cast(found, safe=False).equals(values):
                reason = f"column '{expected.name}' is {found}, and does not fit {expected.type}"
                return table, (), f"{reason}, its type in the first episode"
            values = converted
            cast.append(expected.name)
        arrays.append(values)
    return pa.Table.from_arrays(arrays, schema=schema), tuple(cast), None


def _differ_only_in_numbers(found: pa.DataType, expected: pa.DataType) -> bool:
    """Returns whether two types differ at most in the type of their numbers."""
    if found == expected:
        return True
    if pa.types.is_struct(found) and pa.types.is_struct(expected):
        names = [[field.name for field in type_] for type_ in (found, expected)]
        return names[0] == names[1] and all(
            _differ_only_in_numbers(a.type, b.type) for a, b in zip(found, expected, strict=True)
        )
    if pa.types.is_fixed_size_list(found) and pa.types.is_fixed_size_list(expected):
        return found.list_size == expected.list_size and _differ_only_in_numbers(found.value_type, expected.value_type)
    return all(pa.types.is_integer(type_) or pa.types.is_floating(type_) for type_ in (found, expected))


def _leaf_fields(field: pa.Field, parents: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], pa.Field]]:
    path = (*parents, field.name)
    if pa.types.is_struct(field.type):
        for child in field.type:
            yield from _leaf_fields(child, path)
    else:
        yield path, field


def _column(path: tuple[str, ...], field: pa.Field, shapes: Mapping[str, tuple[int, ...]]) -> TableColumn:
    name = ".".join(path).replace("/", ".")
    if (dtype := variable_dtype(field.type, name)) is not None:
        return TableColumn(path, name, dtype)
    dtype = leaf_dtype(field.type, name)
    if not is_list(field.type):
        return TableColumn(path, name, dtype)
    if not pa.types.is_fixed_size_list(field.type) or is_list(field.type.value_type):
        raise UnsupportedColumnError(
            f"is {field.type}, where Minari writes fixed-size lists",
            column=name,
            hint="write the dataset again with Minari",
        )
    count = field.type.list_size
    shape = shapes[name] if name in shapes else _info_shape(field)
    if shape is None:
        shape = (count,)
    if math.prod(shape) != count or count == 0:
        raise CorruptSourceError(
            f"has {count} elements per step, but the dataset's metadata gives the shape {shape}",
            column=name,
            hint="download the dataset again: the table and its metadata.json do not belong together",
        )
    return TableColumn(path, name, dtype, shape, (count,))


def _info_shape(field: pa.Field) -> tuple[int, ...] | None:
    """Parses the shape in a field's metadata, such as `b"2,3"`.

    `b""` is the shape of a single number. Returns None if the metadata has no shape.
    """
    text = (field.metadata or {}).get(b"shape")
    if text is None:
        return None
    sides = text.split(b",") if text else []
    return tuple(int(side) for side in sides) if all(side.isdigit() and len(side) < 10 for side in sides) else None


@dataclass(frozen=True)
class EpisodeFiles:
    """The files of one episode.

    Attributes:
        number: the number of the episode, from the name of its folder.
        tables: the files of its table, in order.
        facts: its `metadata.json`; None if there is none.
    """

    number: int
    tables: tuple[SourceFile, ...]
    facts: SourceFile | None

    @property
    def name(self) -> str:
        """Name of the first table, for messages."""
        return self.tables[0].name

    @property
    def bytes(self) -> int:
        """Size of all tables."""
        return sum(file.size for file in self.tables)
