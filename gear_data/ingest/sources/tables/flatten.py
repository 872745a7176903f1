"""Arrow columns without wrapping: structs become columns of dotted names, encodings and extension types are undone.

`observation: struct<state: list<float>>` is the column `observation.state`; `steps: list<struct<action: list<float>>>`,
as exports of RLDS have it, is `steps.action: list<list<float>>`. The struct of `bytes` and `path` by which `datasets`
keeps a file stays whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gear_data.errors import UnsupportedColumnError
from gear_data.ingest.sources.tables.to_numpy import is_list
from gear_data.ingest.sources.tables.variable_length import is_file
from gear_data.storage.block import offsets_of


@dataclass(frozen=True)
class FlatColumn:
    """A column without wrapping.

    Attributes:
        path: of fields, the table's own column first; lists on the way do not count.
        type: numbers, booleans, texts, bytes, lists of these, or what no step can hold.
        stored: the path as far as structs alone are on it: a Parquet reader can leave out what lies beside it.
    """

    path: tuple[str, ...]
    type: pa.DataType
    stored: str

    @property
    def name(self) -> str:
        return ".".join(self.path)


def flat_columns(schema: pa.Schema, file: str) -> dict[str, FlatColumn]:
    """Name -> column, in the schema's order.

    Raises:
        UnsupportedColumnError: two columns have one name.
    """
    found: dict[str, FlatColumn] = {}
    for field in schema:
        for column in _columns((field.name,), flat_type(field.type), field.name):
            if column.name in found:
                raise UnsupportedColumnError(
                    "two columns have this name", file=file, column=column.name, hint="rename one of them in the source"
                )
            found[column.name] = column
    return found


def _columns(path: tuple[str, ...], type_: pa.DataType, stored: str) -> Iterator[FlatColumn]:
    inner, in_list = type_, False
    while is_list(inner):
        inner, in_list = inner.value_type, True
    if not pa.types.is_struct(inner) or is_file(inner) or inner.num_fields == 0:
        yield FlatColumn(path, type_, stored)
        return
    for field in inner:
        deeper = stored if in_list else f"{stored}.{field.name}"
        for column in _columns((*path, field.name), field.type, deeper):
            yield FlatColumn(column.path, _within(type_, column.type), column.stored)


def _within(outer: pa.DataType, type_: pa.DataType) -> pa.DataType:
    """The lists of `outer` around `type_`."""
    if not is_list(outer):
        return type_
    return list_of(outer, _within(outer.value_type, type_))


def flatten_table(table: pa.Table, columns: Mapping[str, FlatColumn]) -> pa.Table:
    """These columns of a table that has at least their stored parts."""
    return pa.table({name: _plain(table.column(column.path[0]), column) for name, column in columns.items()})


def _plain(array: pa.ChunkedArray, column: FlatColumn) -> pa.ChunkedArray:
    type_ = flat_type(array.type)
    if array.type == type_ and len(column.path) == 1:
        return array
    chunks = []
    for chunk in array.chunks:
        plain = _unwrapped(chunk)
        for name in column.path[1:]:
            plain = _field(plain, name)
        chunks.append(plain)
    return pa.chunked_array(chunks) if chunks else pa.chunked_array([], column.type)


def _unwrapped(array: pa.Array) -> pa.Array:
    """The values as `flat_type` has them."""
    type_ = flat_type(array.type)
    if array.type == type_:
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return _unwrapped(array.storage)
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        # pyarrow's own cast makes an array whose offsets lack the last one (tried with 26.0).
        sizes = pc.list_value_length(array).fill_null(0).to_numpy()
        offsets = pa.array(offsets_of(sizes.astype(np.int64)))
        return pa.LargeListArray.from_arrays(offsets, _unwrapped(array.flatten()), mask=array.is_null())
    if is_list(array.type):
        return _over(array, _unwrapped(array.values))
    if pa.types.is_struct(array.type):
        fields = [_unwrapped(values) for values in array.flatten()]
        return pa.StructArray.from_arrays(fields, fields=list(type_), mask=array.is_null())
    return array.cast(type_)


def _field(array: pa.Array, name: str) -> pa.Array:
    """A field of an array of (lists of) structs, as lists over the same offsets. A null struct has a null field."""
    return pc.struct_field(array, name) if pa.types.is_struct(array.type) else _over(array, _field(array.values, name))


def _over(array: pa.Array, values: pa.Array) -> pa.Array:
    """The lists of an array, over other values."""
    buffers = array.buffers()[: 1 if pa.types.is_fixed_size_list(array.type) else 2]
    type_ = list_of(array.type, values.type)
    return pa.Array.from_buffers(type_, len(array), buffers, array.null_count, array.offset, [values])


def flat_type(type_: pa.DataType) -> pa.DataType:
    """The type with extension types, dictionaries, runs and views undone, also inside lists and structs."""
    if isinstance(type_, pa.BaseExtensionType):
        return flat_type(type_.storage_type)
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return flat_type(type_.value_type)
    if pa.types.is_string_view(type_):
        return pa.large_string()
    if pa.types.is_binary_view(type_):
        return pa.large_binary()
    if pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_):
        return pa.large_list(flat_type(type_.value_type))
    if is_list(type_):
        value = flat_type(type_.value_type)
        return type_ if value == type_.value_type else list_of(type_, value)
    if pa.types.is_struct(type_):
        fields = [field.with_type(flat_type(field.type)) for field in type_]
        return type_ if fields == list(type_) else pa.struct(fields)
    return type_


def list_of(like: pa.DataType, value: pa.DataType) -> pa.DataType:
    """The list type of the kind and width of `like`, with other values."""
    if pa.types.is_fixed_size_list(like):
        return pa.list_(value, like.list_size)
    return pa.large_list(value) if pa.types.is_large_list(like) else pa.list_(value)
