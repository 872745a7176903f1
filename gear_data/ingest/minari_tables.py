"""Minari's Arrow layout, one episode: a table whose columns are flattened to arrays under dotted names.

Layout: https://minari.farama.org/content/dataset_standards and `minari/dataset/_storages/arrow_storage.py`. Dict and
Tuple spaces are structs; a Box is a fixed-size list of its elements, whose shape is in the dataset's metadata; an info's
shape is in its field's metadata.
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
from gear_data.schema import ColumnSpec

#: What a table's columns are; others are not Minari's.
OBSERVATIONS, INFOS = "observations", "infos"
COLUMNS = (OBSERVATIONS, "actions", "rewards", "terminations", "truncations", INFOS)
#: The most bits of a file that a row could need no more than: a boolean's.
_ROWS_PER_BYTE = 8


@dataclass(frozen=True)
class TableColumn:
    """A column that is not made of others.

    Attributes:
        path: names of the structs it is in, and its own.
        name: those with dots between.
        dtype: of a step, as `ColumnSpec.dtype`.
        shape: of a step.
    """

    path: tuple[str, ...]
    name: str
    dtype: str
    shape: tuple[int, ...]

    def spec(self, name: str) -> ColumnSpec:
        """The column under its canonical name. Observations have a final one, where it has a fixed size."""
        known_as = None if name == self.name else self.name
        spec = ColumnSpec(name, self.dtype, self.shape, source=known_as)
        has_final = self.path[0] == OBSERVATIONS and not spec.variable_length
        return ColumnSpec(name, self.dtype, self.shape, source=known_as, has_final=has_final)

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
        data = pa.BufferReader(stream.read())
    try:
        if file.name.endswith(".parquet"):
            table = pq.read_table(data)
        else:
            table = pa.ipc.open_file(data).read_all()
        if table.num_rows > file.size * _ROWS_PER_BYTE:
            raise pa.ArrowInvalid(f"{table.num_rows} rows in {file.size} bytes")
        table.validate(full=True)
        return table.select([name for name in COLUMNS if name in table.column_names])
    except (pa.ArrowException, OSError, MemoryError, KeyError) as error:
        raise CorruptSourceError(
            f"cannot be read: {error}", file=file.name, hint="it may have been cut short: download it again"
        ) from error


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
        return TableColumn(path, name, dtype, ())
    dtype = leaf_dtype(field.type, file=file, column=name)
    if not is_list(field.type):
        return TableColumn(path, name, dtype, ())
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
    return TableColumn(path, name, dtype, shape)


def _info_shape(field: pa.Field) -> tuple[int, ...] | None:
    """The shape that a field's metadata gives, as Minari writes it: `b"2,3"`, and `b""` for a single number."""
    text = (field.metadata or {}).get(b"shape")
    if text is None:
        return None
    sides = text.split(b",") if text else []
    return tuple(int(side) for side in sides) if all(side.isdigit() and len(side) < 10 for side in sides) else None
