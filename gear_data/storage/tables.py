"""episodes.arrow and finals.arrow: one row an episode, one row a final observation."""

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
from gear_data.storage.block import EpisodeBlock

_NO_TYPE = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, UnicodeEncodeError)
#: Each episode's row in its source file: told while a conversion runs, and not stored. No fact's name begins like it.
SOURCE_ROW = "\0source_row"
#: What to do about facts of several types.
_ONE_TYPE = "bring it to one type in the source"
#: The columns every episode table has; the source's own metadata follows them.
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
    """The episode table's rows for a block that goes into `shard` from row `first_step` on, and `SOURCE_ROW`.

    `return` is the float64 sum of the rewards, null where the dataset has none, or several a step. Metadata that has
    the name of one of the table's own columns is kept as `metadata.NAME`.
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
        free = f"metadata.{name}" if name in EPISODE_SCHEMA.names else name
        table = table.append_column(free, _metadata_array(name, items, block))
    return table.append_column(SOURCE_ROW, pa.array(block.rows, pa.int64()))


def _metadata_array(name: str, items: Sequence[Any], block: EpisodeBlock) -> pa.Array:
    try:
        array = pa.array(items)
    except _NO_TYPE as error:
        # What the first ones have together, the one after them has not.
        episode = bisect_left(range(1, len(items)), True, key=lambda count: not _has_type(items[:count]))
        raise UnsupportedColumnError(
            f"episode metadata of mixed or unknown type: {error}",
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
    """The finals table's rows for a block: `episode_id` and the final-observation columns."""
    ids = np.flatnonzero(block.has_final) + first_id
    fields = [pa.field("episode_id", pa.int64(), nullable=False)]
    arrays: list[pa.Array] = [pa.array(ids, pa.int64())]
    for column in schema.final_columns:
        fields.append(column.arrow_field)
        arrays.append(column_array(block.finals[column.name], column.arrow_type))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def read_episodes(path: Path) -> pa.Table:
    """Maps an episode table. Raises CorruptShardError if it is none."""
    table = read_table(path)
    _check_fields(table, EPISODE_SCHEMA, path)
    return table


def read_finals(path: Path, schema: Schema) -> pa.Table:
    """Maps a table of final observations. Raises CorruptShardError if it is none of this schema."""
    table = read_table(path)
    fields = [EPISODE_SCHEMA.field("episode_id"), *(column.arrow_field for column in schema.final_columns)]
    _check_fields(table, pa.schema(fields), path)
    return table


def _check_fields(table: pa.Table, schema: pa.Schema, path: Path) -> None:
    for field in schema:
        index = table.schema.get_field_index(field.name)  # -1 also for a name that stands there twice
        found = None if index < 0 else table.schema.field(index).type
        if found is not None and pa.types.is_dictionary(found):
            found = found.value_type
        if found != field.type or (not field.nullable and table.column(index).null_count):
            raise CorruptShardError(f"should hold {field.type}, without gaps", file=str(path), column=field.name)


def concatenate_episode_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of episode tables one after another. A fact has the type that holds those of all tables.

    Raises:
        UnsupportedColumnError: there is none.
    """
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except _NO_TYPE as error:
        known: dict[str, pa.Field] = {}
        for table in tables:
            for field in table.schema:
                try:
                    (known[field.name],) = pa.unify_schemas(
                        [pa.schema([known.get(field.name, field)]), pa.schema([field])], promote_options="permissive"
                    )
                except _NO_TYPE:
                    raise UnsupportedColumnError(
                        f"episode metadata of mixed type: {field.type}, in episodes before {known[field.name].type}",
                        file=str(table.column("source")[0].as_py()),
                        column=field.name,
                        hint=_ONE_TYPE,
                    ) from error
        raise UnsupportedColumnError(f"episode metadata of mixed type: {error}", hint=_ONE_TYPE) from error


def join_episode_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """The whole episode table: names that few episodes differ in are dictionary-encoded."""
    table = concatenate_episode_tables(tables).combine_chunks()
    for name in table.column_names:
        if pa.types.is_large_string(table.schema.field(name).type):
            index = table.schema.get_field_index(name)
            encoded = table.column(name).combine_chunks().dictionary_encode()
            field = pa.field(name, encoded.type, nullable=table.schema.field(name).nullable)
            table = table.set_column(index, field, encoded)
    return table


def episode_metadata_names(names: Sequence[str]) -> list[str]:
    """Those columns of an episode table that the source brought along, `task` included."""
    own = set(EPISODE_SCHEMA.names) - {"task"}
    return [name for name in names if name not in own]
