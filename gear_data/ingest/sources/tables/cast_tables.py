"""Tables whose columns have other types and no nulls, as the user or the maker of the tables says."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gear_data.errors import InvalidArgumentError, UnsupportedColumnError, unknown_name
from gear_data.ingest.location import Location
from gear_data.ingest.pipeline.columns import END_FLAGS
from gear_data.ingest.pipeline.episode_values import cast_values
from gear_data.ingest.pipeline.names import usual_name
from gear_data.ingest.sources.tables.flatten import with_leaf_type, with_values
from gear_data.ingest.sources.tables.read_units import ReadSpan
from gear_data.ingest.sources.tables.stream import TablePart, TableStream
from gear_data.ingest.sources.tables.to_numpy import inner_shape, is_list, leaf_type, storage_array
from gear_data.storage.episode_block import Position


def cast_tables(tables: TableStream, location: Location) -> TableStream:
    """Returns tables in which columns have the types, and nulls the values, that `Location.tables` gives.

    The nulls of pandas' float columns are NaN: pandas has no other mark for a missing number. End flags cannot be NaN.

    Raises:
        UnknownNameError: there is no such column.
        InvalidArgumentError: NaN or a fraction is to fill a column of integers.
    """
    schema, types = tables.schema, given_types(tables.schema, location)
    fills = {}
    leaves = {field.name: types.get(field.name) or leaf_type(field.type) for field in schema}
    if tables.by_pandas:
        flags = {name for name in leaves if usual_name(name, location.rename) in END_FLAGS}
        fills = {name: math.nan for name, leaf in leaves.items() if pa.types.is_floating(leaf) and name not in flags}
    for name, text in _by_source(location.tables.fill_null, schema, location).items():
        try:
            fills[name] = _number(text, leaves[name])
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(
                f"holds {leaves[name]}, in which {text} cannot take the place of a null",
                column=name,
                hint=f"give it another type, too: --dtype {shlex.quote(name)}=float64 (dtype={{...}})",
            ) from error
    return CastTables(tables, types, fills) if types or fills else tables


def _number(text: str, type_: pa.DataType) -> float:
    """Returns the number of a text. Raises an error of pyarrow if a type does not have it."""
    value = float(text) if pa.types.is_floating(type_) else int(text)
    return pa.scalar(bool(value) if pa.types.is_boolean(type_) else value, type_).as_py()  # type: ignore[no-any-return]


def given_types(schema: pa.Schema, location: Location) -> dict[str, pa.DataType]:
    """Returns column -> type of its numbers, as the user gives them. Raises UnknownNameError."""
    dtypes = _by_source(location.tables.dtype, schema, location)
    return {name: pa.from_numpy_dtype(np.dtype(dtype)) for name, dtype in dtypes.items()}


def _by_source(values: Mapping[str, Any], schema: pa.Schema, location: Location) -> dict[str, Any]:
    """Returns source name -> value, of columns that are named by their source or canonical name."""
    sources = {usual_name(name, location.rename): name for name in schema.names}
    sources |= {name: name for name in schema.names}
    for name in values:
        if name not in sources:
            raise unknown_name("column", name, schema.names)
    return {sources[name]: value for name, value in values.items()}


class CastTables:
    """A `TableStream` that casts columns of another stream, and fills their nulls.

    Args:
        tables: the other stream.
        types: column -> type of its numbers.
        fills: column -> the number in place of nulls.
    """

    def __init__(self, tables: TableStream, types: Mapping[str, pa.DataType], fills: Mapping[str, float]) -> None:
        self.files, self.is_one_table, self.by_pandas = tables.files, tables.is_one_table, tables.by_pandas
        self._tables = tables
        self._types = {
            field.name: with_leaf_type(field.type, types[field.name]) for field in tables.schema if field.name in types
        }
        self._fills = fills
        self.uncast = tables.uncast
        self.schema = pa.schema([field.with_type(self._types.get(field.name, field.type)) for field in tables.schema])

    @property
    def num_rows(self) -> int | None:
        return self._tables.num_rows

    def select(self, columns: list[str]) -> None:
        self._tables.select(columns)

    def head(self, rows: int) -> pa.Table | None:
        head = self._tables.head(rows)
        return None if head is None else self._cast(head, TablePart((), head))

    def spans(self, ids: str | None) -> Sequence[ReadSpan]:
        return self._tables.spans(ids)

    def parts(self, start: Position, stop: Position) -> Iterator[TablePart]:
        for part in self._tables.parts(start, stop):
            yield replace(part, table=self._cast(part.table, part))

    def _cast(self, table: pa.Table, part: TablePart) -> pa.Table:
        for i, field in enumerate(table.schema):
            array = table.column(i)
            if field.name in self._types:
                to_float = pa.types.is_floating(leaf_type(self._types[field.name]))
                try:  # a float may be rounded, and no other number may change
                    array = _checked(array, array.cast(self._types[field.name], safe=not to_float))
                except pa.ArrowException as error:
                    file, row = part.place(0) if part.file_rows else (None, None)
                    raise UnsupportedColumnError(
                        f"cannot be read as {self._types[field.name]}: {error}",
                        file=file,
                        column=field.name,
                        row=row,
                        hint="give it another type with --dtype (dtype={...}), or leave its --dtype out",
                    ) from error
            if field.name in self._fills:
                array = pa.chunked_array([_filled(storage_array(array), self._fills[field.name])])
            table = table.set_column(i, field.name, array)
        return table


def _checked(before: pa.ChunkedArray, after: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns numbers that were cast. Raises ArrowInvalid if a number changed by more than the rounding of floats."""
    old, new = (_leaves(array).drop_null() for array in (before, after))
    if pa.types.is_integer(old.type) or pa.types.is_floating(old.type):
        dtype = np.dtype(new.type.to_pandas_dtype()).name
        if cast_values(old.to_numpy(zero_copy_only=False), dtype, rounds=True) is None:
            raise pa.ArrowInvalid(f"holds values that do not fit {dtype}")
    return after


def _leaves(array: pa.ChunkedArray) -> pa.Array:
    """Returns the values inside all lists."""
    leaves = storage_array(array)
    while is_list(leaves.type):
        leaves = storage_array(leaves.flatten())
    return leaves


def _filled(array: pa.Array, value: float) -> pa.Array:
    """Returns an array without nulls, at any depth. A null list is replaced by a list of the usual shape."""
    if not is_list(array.type):
        return array.fill_null(pa.scalar(value, array.type)) if array.null_count else array
    if array.null_count and 0 not in (shape := inner_shape(array.drop_null())):
        array = pc.coalesce(array, pa.scalar(np.full(shape, value).tolist(), array.type))
    return with_values(array, _filled(array.values, value))
