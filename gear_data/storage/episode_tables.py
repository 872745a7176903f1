"""The tables episodes.arrow, finals.arrow and step_mask.arrow.

They have one row per episode, one row per final observation, and one bit per step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import CorruptShardError, UnsupportedColumnError
from gear_data.schema import Schema
from gear_data.storage.arrow_files import column_array, read_table, table_values
from gear_data.storage.episode_block import EpisodeBlock
from gear_data.storage.manifest import STEP_MASK, Manifest
from gear_data.video.segments import segment_columns
from gear_data.words import StepMode

#: Exceptions of Arrow if no Arrow type holds all values.
_NO_TYPE = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, UnicodeEncodeError)
#: Column with each episode's row in its source file. It exists only during a conversion. No name of episode metadata
#: begins with a zero byte.
SOURCE_ROW = "\0source_row"
#: Remedy for metadata of several types.
_ONE_TYPE = "give all its values one type in the source"
#: Remedy for a table that cannot be used.
_RESTORE = "restore the table, or convert again"
#: The column of the step mask, and the mode in the metadata of its schema.
_WORDS, _MODE = pa.field("words", pa.uint64(), nullable=False), b"gear.mode"
#: Metadata of an Arrow field that is a fact about the episode. A list without the mark holds steps. The export to
#: Parquet and `to_hf` mark facts that are lists or bytes.
FACT_MARK = {b"gear_data": b"fact"}
#: Number of ids checked at once.
_IDS_AT_ONCE = 1 << 16
#: Type of text columns whose values repeat.
_ENCODED_TEXT = pa.dictionary(pa.int32(), pa.large_string())
#: Types of the values of episode metadata, in addition to lists and structures of these types.
_METADATA_TYPES = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_duration,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)
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

    `return` is the float64 sum of the rewards; null if the episode has no rewards or several per step. Metadata with
    the name of a column of `EPISODE_SCHEMA` is stored as `metadata.NAME`. Each camera has the two columns of
    `segment_columns`.

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
    metadata = dict(block.metadata)
    values: dict[str, Any] = {
        "episode_id": np.arange(first_id, first_id + count),
        "shard": np.full(count, shard, np.int32),
        "start": offsets[:-1] + first_step,
        "length": block.lengths,
        "return": episode_returns(block),
        "terminated": block.columns["terminated"][last],
        "truncated": block.columns["truncated"][last],
        "source": list(block.sources),
        "task": [None if task is None else str(task) for task in metadata.pop("task", [None] * count)],
        "content": list(contents),
    }
    table = pa.table([pa.array(values[field.name], field.type) for field in EPISODE_SCHEMA], schema=EPISODE_SCHEMA)
    cameras = {name for camera in block.videos for name in segment_columns(camera)}
    for name, items in metadata.items():
        taken = name in EPISODE_SCHEMA.names or name in cameras
        unique_name = f"metadata.{name}" if taken else name
        table = table.append_column(unique_name, _metadata_array(name, items, block))
    for camera, segments in block.videos.items():
        for name, numbers in zip(segment_columns(camera), (segments.file, segments.first_frame), strict=True):
            table = table.append_column(name, pa.array(numbers, pa.int64()))
    return table.append_column(SOURCE_ROW, pa.array(block.rows, pa.int64()))


def episode_returns(block: EpisodeBlock) -> pa.Array:
    """Returns the column `return` of the episode table: see `episode_rows`."""
    rewards = block.arrays.get("rewards")
    if rewards is None or rewards.ndim > 1:
        return pa.nulls(len(block), pa.float64())
    return pa.array(np.add.reduceat(rewards.astype(np.float64), block.offsets[:-1]), mask=~block.has_rewards)


def _metadata_array(name: str, items: Sequence[Any], block: EpisodeBlock) -> pa.Array:
    try:
        array = items if isinstance(items, pa.Array) else pa.array(items)
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


def content_bytes(episodes: pa.Table) -> bytes:
    """Returns the content hash of every episode, 16 bytes each, without a Python object per episode."""
    contents = episodes.column("content").combine_chunks()
    return memoryview(contents.buffers()[1])[16 * contents.offset :][: 16 * len(contents)].tobytes()


def read_episodes(path: Path, manifest: Manifest) -> pa.Table:
    """Maps the episode table of a dataset.

    Raises:
        CorruptShardError: the file was changed, or is not the episode table that the manifest describes.
    """
    table = read_table(path, manifest.tables["episodes"].checksum)
    cameras = {name for camera in manifest.schema.videos for name in segment_columns(camera.name)}
    _check_columns(table, EPISODE_SCHEMA, path)
    for name, count in Counter([*table.column_names, *cameras]).items():
        if count != 1 + (name in cameras):
            found = count - (name in cameras)
            raise CorruptShardError(f"occurs {found} times, not once", file=str(path), column=name, hint=_RESTORE)
    for field in list(table.schema)[len(EPISODE_SCHEMA) :]:
        if field.name in cameras and (field.type != pa.int64() or table.column(field.name).null_count):
            raise CorruptShardError(
                f"must be int64 without nulls, but is {field.type} with {table.column(field.name).null_count} nulls",
                file=str(path),
                column=field.name,
                hint=_RESTORE,
            )
        if not _is_metadata(field.type):
            raise CorruptShardError(
                f"episode metadata cannot have type {field.type}", file=str(path), column=field.name, hint=_RESTORE
            )
    if len(table) != manifest.episodes:
        raise CorruptShardError(
            f"has {len(table)} rows, but the manifest has {manifest.episodes} episodes", file=str(path), hint=_RESTORE
        )
    _check_ids(table_values(table, "episode_id"), manifest, path)
    return table


def _check_ids(ids: npt.NDArray[np.int64], manifest: Manifest, path: Path) -> None:
    """Checks the ids of a dataset's episodes.

    They are 0 to n - 1. After an eviction they ascend, with gaps.
    """
    if manifest.next_id != len(ids):
        wrong = (ids < 0) | (ids >= manifest.next_id)
        wrong[1:] |= ids[1:] <= ids[:-1]
        if wrong.any():
            row = int(np.argmax(wrong))
            raise _wrong_id(f"ascend from 0 to {manifest.next_id - 1} at most, not be {ids[row]}", row, path)
        return
    for first in range(0, len(ids), _IDS_AT_ONCE):
        part = ids[first : first + _IDS_AT_ONCE]
        wrong = part != np.arange(first, first + len(part))
        if wrong.any():
            row = first + int(np.argmax(wrong))
            raise _wrong_id(f"be 0 to {len(ids) - 1}, in order, not {ids[row]}", row, path)


def _wrong_id(problem: str, row: int, path: Path) -> CorruptShardError:
    return CorruptShardError(
        f"the ids of episodes must {problem}", file=str(path), column="episode_id", row=row, hint=_RESTORE
    )


def read_finals(path: Path, manifest: Manifest) -> pa.Table:
    """Maps the table of final observations of a dataset.

    Raises:
        CorruptShardError: the file was changed, or is not the table that the manifest describes.
    """
    table = read_table(path, manifest.tables["finals"].checksum)
    fields = [EPISODE_SCHEMA.field("episode_id"), *(column.arrow_field for column in manifest.schema.final_columns)]
    _check_columns(table, pa.schema(fields), path)
    if table.num_columns > len(fields):
        raise CorruptShardError(
            "is no column of this table", file=str(path), column=table.column_names[len(fields)], hint=_RESTORE
        )
    ids = table_values(table, "episode_id")
    wrong = (ids < 0) | (ids >= manifest.next_id)
    wrong[1:] |= ids[1:] <= ids[:-1]
    if wrong.any():
        row = int(np.argmax(wrong))
        raise _wrong_id(f"ascend from 0 to {manifest.next_id - 1} at most, not be {ids[row]}", row, path)
    return table


@dataclass(frozen=True, eq=False)
class StepFlags:
    """The steps of a dataset that windows may use.

    Attributes:
        words: uint64 [ceil(steps / 64)]; step s is bit s % 64 of word s // 64. Bits after the last step are 0.
        mode: the steps of a window that must have the bit 1, see `Dataset.filter_steps`.
    """

    words: npt.NDArray[np.uint64]
    mode: str

    def table(self) -> pa.Table:
        """Returns the table that `read_step_flags` reads."""
        return pa.table([pa.array(self.words)], pa.schema([_WORDS], {_MODE: self.mode}))


def read_step_flags(path: Path, manifest: Manifest) -> StepFlags:
    """Reads the step mask of a dataset.

    Raises:
        CorruptShardError: the file was changed, or is not the table that the manifest describes.
    """
    table = read_table(path, manifest.tables[STEP_MASK].checksum)
    _check_columns(table, pa.schema([_WORDS]), path)
    mode = (table.schema.metadata or {}).get(_MODE, b"").decode("utf-8", "replace")
    words = np.array(table_values(table, _WORDS.name))
    count, last = -(-manifest.steps // 64), manifest.steps % 64
    if mode not in get_args(StepMode) or len(words) != count or (last and int(words[-1]) >> last) or not words.any():
        raise CorruptShardError(
            f"has {len(words)} words and the mode {mode!r}, and the manifest has {manifest.steps} steps",
            file=str(path), hint=_RESTORE,
        )  # fmt: skip
    return StepFlags(words, mode)


def _check_columns(table: pa.Table, schema: pa.Schema, path: Path) -> None:
    """Checks that a table begins with the columns of a schema.

    Text may be dictionary-encoded.
    """
    names = table.column_names
    for index, field in enumerate(schema):
        problem = None
        if names.count(field.name) != 1:
            problem = f"occurs {names.count(field.name)} times, not once"
        elif names[index] != field.name:
            problem = f"must be column {index}, but is column {names.index(field.name)}"
        else:
            found, nulls = table.schema.field(index).type, table.column(index).null_count
            if found != field.type and not (pa.types.is_large_string(field.type) and found == _ENCODED_TEXT):
                problem = f"must have type {field.type}, but has type {found}"
            elif nulls and not field.nullable:
                problem = f"must have no nulls, but has {nulls}"
        if problem is not None:
            raise CorruptShardError(problem, file=str(path), column=field.name, hint=_RESTORE)


def _is_metadata(type_: pa.DataType) -> bool:
    """Returns whether episode metadata may have a type.

    Values of other types, such as runs, may take far more memory than the file has bytes. Polars crashes at some.
    """
    if type_ == _ENCODED_TEXT:
        return True
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _is_metadata(type_.value_type)
    if pa.types.is_struct(type_):
        names = [field.name for field in type_]
        return len(set(names)) == len(names) and all(_is_metadata(field.type) for field in type_)
    if pa.types.is_decimal128(type_):
        return bool(type_.scale >= 0)
    if pa.types.is_fixed_size_binary(type_):
        return bool(type_.byte_width > 0)
    return any(is_type(type_) for is_type in _METADATA_TYPES)


def concatenate_episode_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenates episode tables.

    A metadata column gets the common type of all tables.

    Raises:
        UnsupportedColumnError: a metadata column has no common type, or a type that no table may have.
    """
    try:
        joined = pa.concat_tables(tables, promote_options="permissive")
        for field in joined.schema:
            if field.name not in EPISODE_SCHEMA.names and not _is_metadata(field.type):
                raise UnsupportedColumnError(
                    f"episode metadata cannot be stored as {field.type}",
                    file=str(joined.column("source")[0].as_py()),
                    column=field.name,
                    hint="store it as numbers of 64 bits or as text in the source",
                )
        return joined
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


def with_values(table: pa.Table, name: str, values: npt.NDArray[Any]) -> pa.Table:
    """Returns a table with other values in a column, of the column's type."""
    index = table.schema.get_field_index(name)
    field = table.schema.field(index)
    return table.set_column(index, field, pa.array(values, field.type))


def with_plain_text(table: pa.Table) -> pa.Table:
    """Returns a table with decoded text. Dictionaries differ between tables."""
    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            plain = pa.field(field.name, field.type.value_type, nullable=field.nullable)
            table = table.set_column(index, plain, table.column(index).cast(plain.type))
    return table


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


def needs_mark(type_: pa.DataType) -> bool:
    """Returns whether a fact of a type is read only with the `FACT_MARK`: nested values, and bytes."""
    is_bytes = pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_)
    return bool(pa.types.is_nested(type_) or is_bytes)


def fact_field(name: str, type_: pa.DataType) -> pa.Field:
    """Returns the field of a fact in a table with a row per episode, with the `FACT_MARK` if it needs the mark."""
    return pa.field(name, type_, metadata=FACT_MARK if needs_mark(type_) else None)


def episode_metadata_names(names: Sequence[str], schema: Schema) -> list[str]:
    """Returns the columns of an episode table that came from the source.

    `task` is one of them.

    Args:
        names: all columns of the table.
        schema: the dataset's columns. The table says for each video where its episodes begin.
    """
    standard = set(EPISODE_SCHEMA.names) - {"task"}
    standard.update(name for video in schema.videos for name in segment_columns(video.name))
    return [name for name in names if name not in standard]
