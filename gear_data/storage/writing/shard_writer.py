"""Writes the shards of one task of a conversion, so that it can be killed at any moment and go on from them.

While a conversion runs, the folder holds `.progress/`, and there for every finished shard its rows of the episode table
and a note that says where in the source to go on. The note is written last; a shard without one is written again.

While one shard goes to the disk, the next one's steps are collected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from gear_data.errors import ResumeError
from gear_data.schema import Schema
from gear_data.storage.arrow_files import buffer_offsets, write_ipc
from gear_data.storage.atomic import checksum
from gear_data.storage.block import END, EpisodeBlock, Position
from gear_data.storage.content import content_hashes
from gear_data.storage.manifest import FileEntry, ShardEntry
from gear_data.storage.statistics import RunningStatistics
from gear_data.storage.tables import concatenate_episode_tables, episode_rows, final_rows
from gear_data.storage.writing.file_store import FileStore, put_text
from gear_data.storage.writing.progress_files import PROGRESS, START_OVER, read_progress_file
from gear_data.storage.writing.shard_buffer import ShardBuffer


@dataclass(frozen=True)
class ResumePoint:
    """Where a task goes on: read the source from `position`, pass over the first `skip` episodes.

    `state` is what the caller handed to `ShardWriter.append` together with the block at `position`.
    """

    position: Position
    skip: int
    state: Mapping[str, Any]


class ShardWriter:
    """Collects whole episodes in one shard's buffer and writes each shard when it is full. A context manager: what was
    begun is finished when it ends, whatever ends it.

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

    def __init__(self, store: FileStore, schema: Schema, shard_bytes: int, prefix: str = "") -> None:
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
        self._thread = ThreadPoolExecutor(1, "gear-data-writer")
        self._finishing: Future[ShardEntry] | None = None
        self._resume()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(BaseException):  # only where there is another error already: `close` tells of this one
            self._settle()
        self._thread.shutdown()

    @property
    def num_episodes(self) -> int:
        return self._num_episodes

    @property
    def finished_shards(self) -> int:
        return len(self.shards)

    @property
    def _begun(self) -> int:
        return len(self.shards) + (self._finishing is not None)

    def _resume(self) -> None:
        while (text := read_progress_file(self._store, self._note(len(self.shards)))) is not None:
            note = self._note(len(self.shards))
            try:
                data = json.loads(text)
                shard = ShardEntry.from_json(data["shard"])
                self.statistics.restore(data["statistics"])
                self.resume_point = ResumePoint(Position(*data["position"]), data["skip"], data["state"])
            except (ValueError, KeyError, TypeError) as error:
                raise ResumeError(
                    f"cannot be read: {error}", file=f"{self._store.name}/{note}", hint=START_OVER
                ) from error
            if self._store.size(shard.entry.file) != shard.entry.bytes:
                place = f"{self._store.name}/{shard.entry.file}"
                raise ResumeError("this finished shard is gone or was changed", file=place, hint=START_OVER)
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
        rows = episode_rows(block, contents, first_id=self._num_episodes, shard=self._begun, first_step=buffer.steps)
        self._episodes.append(rows)
        if self._schema.final_columns:
            self._finals.append(final_rows(block, self._schema, self._num_episodes))
        self.statistics.update(block.columns, block.lengths)
        buffer.append(block)
        self._num_episodes += len(block)

    def close(self, state: Mapping[str, Any]) -> None:
        """Writes the last shard. All are finished when it returns."""
        if self._buffer is not None and self._buffer.steps:
            self._flush(ResumePoint(END, 0, state))
        self._settle()
        self._buffer = None

    def _flush(self, point: ResumePoint) -> None:
        self._settle()
        buffer = self._shard_buffer()
        unfinished = self._write_shard()
        tables = [concatenate_episode_tables(self._episodes).combine_chunks()]
        tables += [pa.concat_tables(self._finals).combine_chunks()] if self._finals else []
        note = {
            "statistics": self.statistics.to_json(),
            "position": list(point.position),
            "skip": point.skip,
            "state": dict(point.state),
        }
        self._finishing = self._thread.submit(self._finish, unfinished, buffer.steps, tables, note)
        self._episodes, self._finals = [], []
        buffer.clear()

    def _write_shard(self) -> _Unfinished:
        name = f"shards/{self._prefix}{len(self.shards):06d}.arrow"
        with ExitStack() as stack:
            path = stack.enter_context(self._store.writing(name))
            write_ipc(path, self._shard_buffer().record_batch())
            return _Unfinished(name, path, stack.pop_all())

    def _finish(
        self, unfinished: _Unfinished, steps: int, tables: list[pa.Table], note: Mapping[str, Any]
    ) -> ShardEntry:
        """Brings a shard to its place, and after it the note that says so."""
        with unfinished.stack:
            entry = FileEntry(unfinished.name, unfinished.path.stat().st_size, checksum(unfinished.path))
            places = buffer_offsets(unfinished.path, self._schema)
        shard = ShardEntry(entry, len(tables[0]), steps, *places)
        file = self._note(len(self.shards))
        for table, kind in zip(tables, ("episodes", "finals"), strict=False):
            with self._store.writing(f"{file.removesuffix('.json')}.{kind}") as path:
                write_ipc(path, table)
        put_text(self._store, file, json.dumps({"shard": shard.to_json(), **note}))
        return shard

    def _settle(self) -> None:
        """Waits for the shard that is being finished, if one is. Raises what went wrong."""
        if self._finishing is not None:
            finishing, self._finishing = self._finishing, None
            self.shards.append(finishing.result())


@dataclass(frozen=True)
class _Unfinished:
    """A shard's file, whole and beside its place: leaving `stack` brings it there."""

    name: str
    path: Path
    stack: ExitStack
