"""Flattening of Arrow columns.

Structs become columns with dotted names, and wrapped types are decoded.

`observation: struct<state: list<float>>` becomes the column `observation.state`. `steps: list<struct<action:
list<float>>>`, as exports of RLDS write it, becomes `steps.action: list<list<float>>`. Dictionaries, run-end encodings,
views and extension types are decoded. The struct of `bytes` and `path` in which `datasets` keeps a file is not split.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gear_data.errors import UnsupportedColumnError
from gear_data.ingest.sources.tables.to_numpy import is_file, is_list
from gear_data.storage.episode_block import offsets_of


@dataclass(frozen=True)
class FlattenedColumn:
    """A flattened column.

    Attributes:
        path: names of the fields, from the table's column inwards; enclosing lists do not count.
        type: numbers, booleans, texts, bytes, lists of these, or a type that no step can hold.
        stored: dotted path down to the first list: the smallest part that a Parquet reader can read separately.
        as_json: whether each value, of structs or lists, becomes one text of JSON; null becomes `[]`.
    """

    path: tuple[str, ...]
    type: pa.DataType
    stored: str
    as_json: bool = False

    @property
    def name(self) -> str:
        """The path, joined with dots."""
        return ".".join(self.path)


def flat_columns(schema: pa.Schema, file: str, as_json: Set[str] = frozenset()) -> dict[str, FlattenedColumn]:
    """Returns name -> column, in the schema's order.

    Args:
        schema: the schema of a table.
        file: for the error.
        as_json: columns whose values of structs or lists are not split: see `FlattenedColumn.as_json`.

    Raises:
        UnsupportedColumnError: two columns have the same name.
    """
    columns: dict[str, FlattenedColumn] = {}
    for field in schema:
        whole = field.name in as_json and pa.types.is_nested(flat_type(field.type))
        text = FlattenedColumn((field.name,), pa.large_string(), field.name, as_json=True)
        for column in [text] if whole else _flatten_field((field.name,), flat_type(field.type), field.name):
            if column.name in columns:
                raise UnsupportedColumnError(
                    "two columns have this name", file=file, column=column.name, hint="rename one of them in the source"
                )
            columns[column.name] = column
    return columns


def flat_schema(columns: Mapping[str, FlattenedColumn], stored: pa.Schema) -> pa.Schema:
    """Returns the schema of flattened columns.

    A field has the metadata of the stored field, unless the column is part of a struct.
    """
    metadata = {field.name: field.metadata for field in stored}
    return pa.schema([pa.field(name, column.type, metadata=metadata.get(name)) for name, column in columns.items()])


def _flatten_field(path: tuple[str, ...], type_: pa.DataType, stored: str) -> Iterator[FlattenedColumn]:
    inner, in_list = type_, False
    while is_list(inner):
        inner, in_list = inner.value_type, True
    if not pa.types.is_struct(inner) or is_file(inner) or inner.num_fields == 0:
        yield FlattenedColumn(path, type_, stored)
        return
    for field in inner:
        inner_stored = stored if in_list else f"{stored}.{field.name}"
        for column in _flatten_field((*path, field.name), field.type, inner_stored):
            yield FlattenedColumn(column.path, _wrap_in_lists(type_, column.type), column.stored)


def _wrap_in_lists(outer: pa.DataType, type_: pa.DataType) -> pa.DataType:
    """Returns `type_` inside the lists of `outer`."""
    if not is_list(outer):
        return type_
    return _list_like(outer, _wrap_in_lists(outer.value_type, type_))


def is_by_pandas(schema: pa.Schema) -> bool:
    """Returns whether pandas made tables of a schema."""
    return b"pandas" in (schema.metadata or {})


def flatten_table(table: pa.Table, columns: Mapping[str, FlattenedColumn]) -> pa.Table:
    """Returns the flattened columns of a table that has at least their stored parts."""
    return pa.table({name: _flatten_array(table.column(column.path[0]), column) for name, column in columns.items()})


def _flatten_array(array: pa.ChunkedArray, column: FlattenedColumn) -> pa.ChunkedArray:
    type_ = flat_type(array.type)
    if column.as_json:
        texts = [json.dumps(value or [], ensure_ascii=False, default=str) for value in array.to_pylist()]
        return pa.chunked_array([pa.array(texts, column.type)])
    if array.type == type_ and len(column.path) == 1:
        return array
    chunks = []
    for chunk in array.chunks:
        flat = _decode(chunk)
        for name in column.path[1:]:
            flat = _extract_field(flat, name)
        chunks.append(flat)
    return pa.chunked_array(chunks) if chunks else pa.chunked_array([], column.type)


def _decode(array: pa.Array) -> pa.Array:
    """Returns the same values in the type `flat_type(array.type)`."""
    type_ = flat_type(array.type)
    if array.type == type_:
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return _decode(array.storage)
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        # pyarrow's own cast (tried with 26.0) returns an array without its last offset.
        sizes = pc.list_value_length(array).fill_null(0).to_numpy()
        offsets = pa.array(offsets_of(sizes.astype(np.int64)))
        return pa.LargeListArray.from_arrays(offsets, _decode(array.flatten()), mask=array.is_null())
    if pa.types.is_run_end_encoded(array.type):  # the cast knows only some types
        return _decode(pc.run_end_decode(array))
    if is_list(array.type):
        return with_values(array, _decode(array.values))
    if pa.types.is_struct(array.type):
        fields = [_decode(values) for values in array.flatten()]
        return pa.StructArray.from_arrays(fields, fields=list(type_), mask=array.is_null())
    return array.cast(type_)


def _extract_field(array: pa.Array, name: str) -> pa.Array:
    """Returns a field of an array of (lists of) structs, in the same lists.

    The field of a null struct is null.
    """
    if pa.types.is_struct(array.type):
        return pc.struct_field(array, name)
    return with_values(array, _extract_field(array.values, name))


def with_values(array: pa.Array, values: pa.Array) -> pa.Array:
    """Returns the lists of an array with other values at the same offsets."""
    buffers = array.buffers()[: 1 if pa.types.is_fixed_size_list(array.type) else 2]
    type_ = _list_like(array.type, values.type)
    return pa.Array.from_buffers(type_, len(array), buffers, array.null_count, array.offset, [values])


def flat_type(type_: pa.DataType) -> pa.DataType:
    """Returns the type without wrapping, at every level.

    Wrapping is extension types, dictionaries, run-end encodings and views.
    """
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
        return type_ if value == type_.value_type else _list_like(type_, value)
    if pa.types.is_struct(type_):
        fields = [field.with_type(flat_type(field.type)) for field in type_]
        return type_ if fields == list(type_) else pa.struct(fields)
    return type_


def with_leaf_type(type_: pa.DataType, leaf: pa.DataType) -> pa.DataType:
    """Returns a type with another type inside all its lists."""
    return _list_like(type_, with_leaf_type(type_.value_type, leaf)) if is_list(type_) else leaf


def with_types(schema: pa.Schema, types: Mapping[tuple[str, ...], pa.DataType]) -> pa.Schema:
    """Returns a schema in which the columns of some paths (`FlattenedColumn.path`) have other types of numbers."""
    return pa.schema([field.with_type(_retyped(field.type, (field.name,), types)) for field in schema], schema.metadata)


def _retyped(type_: pa.DataType, path: tuple[str, ...], types: Mapping[tuple[str, ...], pa.DataType]) -> pa.DataType:
    if path in types:
        return with_leaf_type(type_, types[path])
    if is_list(type_):
        return _list_like(type_, _retyped(type_.value_type, path, types))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_retyped(field.type, (*path, field.name), types)) for field in type_])
    return type_


def _list_like(list_type: pa.DataType, value: pa.DataType) -> pa.DataType:
    """Returns a list type of the same kind and width with another value type."""
    if pa.types.is_fixed_size_list(list_type):
        return pa.list_(value, list_type.list_size)
    return pa.large_list(value) if pa.types.is_large_list(list_type) else pa.list_(value)
