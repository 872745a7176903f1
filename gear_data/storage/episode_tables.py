"""The tables episodes.arrow and finals.arrow.

They have one row per episode, and one row per final observation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gear_data.errors import CorruptShardError, UnsupportedColumnError
from gear_data.schema import Schema
from gear_data.storage.arrow_files import column_array, read_table
from gear_data.storage.episode_block import EpisodeBlock

#: Exceptions of Arrow if no Arrow type holds all values.
_NO_TYPE = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, UnicodeEncodeError)
#: Column with each episode's row in its source file. It exists only during a conversion. No name of episode metadata
#: begins with a zero byte.
SOURCE_ROW = "\0source_row"
#: Remedy for metadata of several types.
_ONE_TYPE = "give all its values one type in the source"
#: Columns of every episode table. The episode metadata of the source follows them.
EPISODE_SCHEMA = pa.schema(
    [
        pa.field("episode_id", pa.int64(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("return", pa.float64()),
        pa.field("terminated", pa.bool_(), nullable=False),
        pa.field("truncated", pa.bool_(), nullable=False),
        pa.field("source", pa.large_string(), nullable=False),
        pa.field("task", pa.large_string()),
        pa.field("content", pa.binary(16), nullable=False),
    ]
)


def episode_rows(
    block: EpisodeBlock, contents: Sequence[bytes], *, first_id: int, shard: int, first_step: int
) -> pa.Table:
    """Returns the rows of the episode table for a block, with the column `SOURCE_ROW`.

    `return` is the float64 sum of the rewards; null if the dataset has no rewards or several per step. Metadata with
    the name of a column of `EPISODE_SCHEMA` is stored as `metadata.NAME`.

    Args:
        block: the episodes.
        contents: content hash of each episode.
        first_id: id of the block's first episode.
        shard: number of the shard that the block goes into.
        first_step: row of the block's first step in that shard.

    Raises:
        UnsupportedColumnError: metadata has values of several types, or of a type that Arrow lacks.
    """
    count, offsets = len(block), block.offsets
    last = offsets[1:] - 1
    rewards = block.columns.get("rewards")
    returns = None if rewards is None or rewards.ndim > 1 else np.add.reduceat(rewards.astype(np.float64), offsets[:-1])
    metadata = dict(block.metadata)
    values: dict[str, Any] = {
        "episode_id": np.arange(first_id, first_id + count),
        "shard": np.full(count, shard, np.int32),
        "start": offsets[:-1] + first_step,
        "length": block.lengths,
        "return": pa.nulls(count, pa.float64()) if returns is None else returns,
        "terminated": block.columns["terminated"][last],
        "truncated": block.columns["truncated"][last],
        "source": list(block.sources),
        "task": [None if task is None else str(task) for task in metadata.pop("task", [None] * count)],
        "content": list(contents),
    }
    table = pa.table([pa.array(values[field.name], field.type) for field in EPISODE_SCHEMA], schema=EPISODE_SCHEMA)
    for name, items in metadata.items():
        unique_name = f"metadata.{name}" if name in EPISODE_SCHEMA.names else name
        table = table.append_column(unique_name, _metadata_array(name, items, block))
    return table.append_column(SOURCE_ROW, pa.array(block.rows, pa.int64()))


def _metadata_array(name: str, items: Sequence[Any], block: EpisodeBlock) -> pa.Array:
    try:
        array = pa.array(items)
    except _NO_TYPE as error:
        # Finds the first episode whose value does not fit the type of all values before it.
        episode = bisect_left(range(1, len(items)), True, key=lambda count: not _has_type(items[:count]))
        raise UnsupportedColumnError(
            f"episode metadata has values of mixed or unknown type: {error}",
            file=block.sources[episode],
            column=name,
            row=int(block.rows[episode]),
            hint=_ONE_TYPE,
        ) from error
    return array.cast(pa.large_string()) if pa.types.is_string(array.type) else array


def _has_type(items: Sequence[Any]) -> bool:
    try:
        pa.array(items)
    except _NO_TYPE:
        return False
    return True


def final_rows(block: EpisodeBlock, schema: Schema, first_id: int) -> pa.Table:
    """Returns the rows of the finals table for a block.

    Its columns are `episode_id` and the columns of the final observation.
    """
    ids = np.flatnonzero(block.has_final) + first_id
    fields = [pa.field("episode_id", pa.int64(), nullable=False)]
    arrays: list[pa.Array] = [pa.array(ids, pa.int64())]
    for column in schema.final_columns:
        fields.append(column.arrow_field)
        arrays.append(column_array(block.finals[column.name], column.arrow_type))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def read_episodes(path: Path) -> pa.Table:
    """Maps an episode table.

    Raises:
        CorruptShardError: the file is not an episode table.
    """
    table = read_table(path)
    _check_fields(table, EPISODE_SCHEMA, path)
    return table


def read_finals(path: Path, schema: Schema) -> pa.Table:
    """Maps a table of final observations.

    Raises:
        CorruptShardError: the file is not a table of final observations of this schema.
    """
    table = read_table(path)
    fields = [EPISODE_SCHEMA.field("episode_id"), *(column.arrow_field for column in schema.final_columns)]
    _check_fields(table, pa.schema(fields), path)
    return table


def _check_fields(table: pa.Table, schema: pa.Schema, path: Path) -> None:
    for field in schema:
        index = table.schema.get_field_index(field.name)  # -1 also if two columns have this name
        found = None if index < 0 else table.schema.field(index).type
        if found is not None and pa.types.is_dictionary(found):
            found = found.value_type
        has_nulls = found is not None and not field.nullable and table.column(index).null_count > 0
        if found != field.type or has_nulls:
            actual = "is missing or occurs twice" if found is None else f"has type {found}"
            raise CorruptShardError(
                f"must have type {field.type}, but {actual}" + (" and nulls" if has_nulls else ""),
                file=str(path),
                column=field.name,
                hint="restore the table, or convert again",
            )


def concatenate_episode_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenates episode tables.

    A metadata column gets the common type of all tables.

    Raises:
        UnsupportedColumnError: a metadata column has no common type.
    """
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except _NO_TYPE as error:
        merged: dict[str, pa.Field] = {}
        for table in tables:
            for field in table.schema:
                try:
                    (merged[field.name],) = pa.unify_schemas(
                        [pa.schema([merged.get(field.name, field)]), pa.schema([field])], promote_options="permissive"
                    )
                except _NO_TYPE:
                    raise UnsupportedColumnError(
                        f"episode metadata of mixed type: {field.type}, earlier {merged[field.name].type}",
                        file=str(table.column("source")[0].as_py()),
                        column=field.name,
                        hint=_ONE_TYPE,
                    ) from error
        raise UnsupportedColumnError(f"episode metadata of mixed type: {error}", hint=_ONE_TYPE) from error


def join_episode_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenates the whole episode table and dictionary-encodes its text columns."""
    table = concatenate_episode_tables(tables).combine_chunks()
    for name in table.column_names:
        if pa.types.is_large_string(table.schema.field(name).type):
            index = table.schema.get_field_index(name)
            encoded = table.column(name).combine_chunks().dictionary_encode()
            field = pa.field(name, encoded.type, nullable=table.schema.field(name).nullable)
            table = table.set_column(index, field, encoded)
    return table


def episode_metadata_names(names: Sequence[str]) -> list[str]:
    """Returns the columns of an episode table that came from the source.

    `task` is one of them.
    """
    standard = set(EPISODE_SCHEMA.names) - {"task"}
    return [name for name in names if name not in standard]
