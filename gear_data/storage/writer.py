"""Writes the shards of one task of a conversion, so that it can be killed at any moment and go on from them.

While a conversion runs, the folder holds `.progress/`, and there for every finished shard its rows of the episode table
and a note that says where in the source to go on. The note is written last; a shard without one is written again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gear_data.errors import ResumeError
from gear_data.schema import Schema
from gear_data.storage.atomic import checksum
from gear_data.storage.block import END, EpisodeBlock, Position
from gear_data.storage.content import content_hashes
from gear_data.storage.manifest import FileEntry, ShardEntry
from gear_data.storage.shard_buffer import ShardBuffer
from gear_data.storage.statistics import RunningStatistics
from gear_data.storage.store import Store, put_text
from gear_data.storage.tables import concatenate_episode_tables, episode_rows, final_rows, write_ipc
from gear_data.storage.variable import VariableBuffers, value_offsets

PROGRESS = ".progress"

START_AGAIN = "start again with --overwrite"


@dataclass(frozen=True)
class ResumePoint:
    """Where a task goes on: read the source from `position`, pass over the first `skip` episodes.

    `state` is what the caller handed to `ShardWriter.append` together with the block at `position`.
    """

    position: Position
    skip: int
    state: Mapping[str, Any]


class ShardWriter:
    """Collects whole episodes in one shard's buffer and writes each shard when it is full.

    Args:
        store: the dataset's folder.
        schema: all columns, derived ones included.
        shard_bytes: a shard is closed before an episode that would take it over this; an episode larger
            than this is a shard of its own.
        prefix: of its files' names, which keeps apart the tasks of one conversion.

    It goes on from the finished shards in the folder, if there are any: `resume_point` says from where.

    Raises:
        ResumeError: notes that cannot be read, or shards that are not as noted.
    """

    def __init__(self, store: Store, schema: Schema, shard_bytes: int, prefix: str = "") -> None:
        self._store = store
        self._schema = schema
        self._shard_bytes = shard_bytes
        self._prefix = prefix
        self._buffer: ShardBuffer | None = None
        self._episodes: list[pa.Table] = []
        self._finals: list[pa.Table] = []
        self._num_episodes = 0
        self.shards: list[ShardEntry] = []
        self.statistics = RunningStatistics(schema)
        self.resume_point: ResumePoint | None = None
        self._resume()

    @property
    def num_episodes(self) -> int:
        return self._num_episodes

    @property
    def finished_shards(self) -> int:
        return len(self.shards)

    def _resume(self) -> None:
        while (text := read_note(self._store, self._note(len(self.shards)))) is not None:
            note = self._note(len(self.shards))
            try:
                data = json.loads(text)
                shard = ShardEntry.from_json(data["shard"])
                self.statistics.restore(data["statistics"])
                self.resume_point = ResumePoint(Position(*data["position"]), data["skip"], data["state"])
            except (ValueError, KeyError, TypeError) as error:
                raise ResumeError(
                    f"cannot be read: {error}", file=f"{self._store.name}/{note}", hint=START_AGAIN
                ) from error
            if self._store.size(shard.entry.file) != shard.entry.bytes:
                place = f"{self._store.name}/{shard.entry.file}"
                raise ResumeError("this finished shard is gone or was changed", file=place, hint=START_AGAIN)
            self.shards.append(shard)
        self._num_episodes = sum(shard.episodes for shard in self.shards)

    def _note(self, shard: int) -> str:
        return f"{PROGRESS}/{self._prefix}{shard:06d}.json"

    def append(self, block: EpisodeBlock, state: Mapping[str, Any], skip: int = 0) -> None:
        """Adds the block's episodes from `skip` on.

        `state` is kept with every shard that ends within this block, and comes back in `resume_point`.
        """
        first, buffer = skip, self._shard_buffer()
        sizes = buffer.sizes(block)
        while first < len(block):
            room = self._shard_bytes - buffer.bytes
            last = int(np.searchsorted(sizes, sizes[first] + room, side="right")) - 1
            if last <= first:
                if buffer.steps:
                    self._flush(ResumePoint(block.position, block.first + first, state))
                    continue
                last = first + 1
            self._fill(block.slice(first, last))
            first = last

    def _shard_buffer(self) -> ShardBuffer:
        # Made late: a task that is finished needs none.
        if self._buffer is None:
            self._buffer = ShardBuffer(self._schema, self._shard_bytes)
        return self._buffer

    def _fill(self, block: EpisodeBlock) -> None:
        """Copies episodes into the shard's buffer and notes their rows. Ids and shards count from the task's first."""
        contents = content_hashes(block, self._schema)
        buffer = self._shard_buffer()
        rows = episode_rows(
            block, contents, first_id=self._num_episodes, shard=len(self.shards), first_step=buffer.steps
        )
        self._episodes.append(rows)
        if self._schema.final_columns:
            self._finals.append(final_rows(block, self._schema, self._num_episodes))
        self.statistics.update(block.columns, block.lengths)
        buffer.append(block)
        self._num_episodes += len(block)

    def close(self, state: Mapping[str, Any]) -> None:
        """Writes the last shard."""
        if self._buffer is not None and self._buffer.steps:
            self._flush(ResumePoint(END, 0, state))
        self._buffer = None

    def _flush(self, point: ResumePoint) -> None:
        shard = self._write_shard()
        stem = self._note(len(self.shards)).removesuffix(".json")
        episodes = concatenate_episode_tables(self._episodes)
        with self._store.writing(f"{stem}.episodes") as path:
            write_ipc(path, episodes.combine_chunks())
        if self._finals:
            with self._store.writing(f"{stem}.finals") as path:
                write_ipc(path, pa.concat_tables(self._finals).combine_chunks())
        note = {
            "shard": shard.to_json(),
            "statistics": self.statistics.to_json(),
            "position": list(point.position),
            "skip": point.skip,
            "state": dict(point.state),
        }
        put_text(self._store, self._note(len(self.shards)), json.dumps(note))
        self.shards.append(shard)
        self._episodes, self._finals = [], []
        self._shard_buffer().clear()

    def _write_shard(self) -> ShardEntry:
        name = f"shards/{self._prefix}{len(self.shards):06d}.arrow"
        buffer = self._shard_buffer()
        with self._store.writing(name) as path:
            write_ipc(path, buffer.record_batch())
            entry = FileEntry(name, path.stat().st_size, checksum(path))
            places = buffer_offsets(path, self._schema)
        episodes = sum(len(table) for table in self._episodes)
        return ShardEntry(entry, episodes, buffer.steps, *places)


def read_note(store: Store, file: str) -> str | None:
    """The text of a note; None where there is none.

    Raises:
        ResumeError: it cannot be read.
    """
    try:
        return store.read(file).decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ResumeError(f"cannot be read: {error}", file=f"{store.name}/{file}", hint=START_AGAIN) from error


def buffer_offsets(path: Path, schema: Schema) -> tuple[dict[str, int], dict[str, VariableBuffers]]:
    """Where in a shard file each column's values begin, in bytes; and what else those of variable length have."""
    with pa.memory_map(str(path)) as source:
        batch = pa.ipc.open_file(source).get_batch(0)
        source.seek(0)
        base = source.read_buffer().address
        values, variable = {}, {}
        for column in schema:
            array = batch.column(column.name)
            if column.variable_length:
                _, offsets, data = array.buffers()
                known = VariableBuffers(offsets.address - base, int(value_offsets(array)[-1]))
                variable[column.name] = known
                # An empty buffer is nowhere in the file.
                values[column.name] = data.address - base if known.bytes else known.offsets
            else:
                values[column.name] = (array.values if column.shape else array).buffers()[1].address - base
        return values, variable
