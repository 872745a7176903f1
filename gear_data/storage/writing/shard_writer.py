"""Writer of the shards of one conversion task.

It can be killed at any moment and resumes after its finished shards.

During a conversion, the folder `.progress/` holds two or three files per finished shard: the rows of its episode table,
the rows of its final observations, and a JSON file with the position in the source after the shard. The JSON file is
written last. A shard without one is written again.

The steps of the next shard are collected while the previous shard is written to disk.

Why: docs/explanation/decisions/shards.md
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from gear_data.common.typed_json import check_json, resolved
from gear_data.errors import ResumeError
from gear_data.schema import Schema
from gear_data.storage.arrow_files import buffer_offsets, write_ipc
from gear_data.storage.atomic import checksum
from gear_data.storage.content_hash import content_hashes
from gear_data.storage.episode_block import END, EpisodeBlock, Position
from gear_data.storage.episode_tables import concatenate_episode_tables, episode_rows, final_rows
from gear_data.storage.manifest import FileEntry, ShardEntry, ShardRecord
from gear_data.storage.statistics import RunningStatistics, StatisticsState
from gear_data.storage.writing.file_store import FileStore
from gear_data.storage.writing.progress_files import PROGRESS, START_OVER, read_progress_file, write_progress_file
from gear_data.storage.writing.shard_buffer import ShardBuffer


@resolved
class _ProgressRecord(msgspec.Struct, frozen=True):
    """Progress file of one finished shard.

    It has the shard, the checksums of its tables' rows, the statistics so far, and the fields of `ResumePoint`.
    """

    shard: ShardRecord
    tables: dict[str, str]
    statistics: StatisticsState
    position: Position
    skip: int
    state: dict[str, Any]


@dataclass(frozen=True)
class ResumePoint:
    """Position in the source after the last finished shard.

    Attributes:
        position: where to start reading the source.
        skip: number of episodes to skip from there.
        state: the `state` that `ShardWriter.append` was given with the block at `position`.
    """

    position: Position
    skip: int
    state: Mapping[str, Any]


class ShardWriter:
    """Collects whole episodes, and writes a shard whenever its buffer is full.

    The writer resumes after the finished shards in the folder; `resume_point` says where in the source. It is a context
    manager: on exit, also after an error, it finishes the shard that it is writing.

    Args:
        store: the dataset's folder.
        schema: all columns, including derived ones.
        shard_bytes: size limit of a shard. A larger episode gets a separate shard.
        prefix: start of the shards' file names. It differs between the tasks of a conversion.

    Attributes:
        shards: finished shards.
        statistics: statistics of all episodes so far.
        resume_point: where to continue; None if there are no finished shards.

    Raises:
        ResumeError: a progress file cannot be read, or a finished shard was changed.
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
        # If `close` ran, there is no shard to wait for. Otherwise an earlier error is the one to report.
        try:
            with suppress(Exception):
                self._wait_for_shard()
        finally:
            self._thread.shutdown()

    @property
    def num_episodes(self) -> int:
        """Number of episodes so far."""
        return self._num_episodes

    @property
    def finished_shards(self) -> int:
        """Number of finished shards."""
        return len(self.shards)

    def _resume(self) -> None:
        """Reads the progress files of finished shards."""
        while (data := read_progress_file(self._store, self._progress_file(len(self.shards)))) is not None:
            name = f"{self._store.name}/{self._progress_file(len(self.shards))}"
            record = check_json(data, _ProgressRecord, error=ResumeError, file=name, hint=START_OVER)
            shard = ShardEntry.from_record(record.shard)
            try:
                self.statistics.restore(record.statistics)
            except ValueError as error:
                raise ResumeError(f"malformed statistics: {error}", file=name, hint=START_OVER) from error
            self.resume_point = ResumePoint(record.position, record.skip, record.state)
            if self._store.size(shard.entry.file) != shard.entry.bytes:
                file = f"{self._store.name}/{shard.entry.file}"
                raise ResumeError("this finished shard is missing or was changed", file=file, hint=START_OVER)
            self.shards.append(shard)
        self._num_episodes = sum(shard.episodes for shard in self.shards)

    def _progress_file(self, shard: int) -> str:
        return f"{PROGRESS}/{self._prefix}{shard:06d}.json"

    def append(self, block: EpisodeBlock, state: Mapping[str, Any], skip: int = 0) -> None:
        """Adds a block's episodes.

        Args:
            block: whole episodes.
            state: saved with every shard that ends within this block, and returned in `resume_point`.
            skip: number of episodes at the start of the block that are left out.
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
        # Created on first use: a task that is already finished needs none.
        if self._buffer is None:
            self._buffer = ShardBuffer(self._schema, self._shard_bytes)
        return self._buffer

    def _fill(self, block: EpisodeBlock) -> None:
        """Copies episodes into the buffer and collects their table rows.

        Episode ids and shard numbers start at 0 in each task.
        """
        contents = content_hashes(block, self._schema)
        buffer = self._shard_buffer()
        shard = len(self.shards) + (self._finishing is not None)
        rows = episode_rows(block, contents, first_id=self._num_episodes, shard=shard, first_step=buffer.steps)
        self._episodes.append(rows)
        if self._schema.final_columns:
            self._finals.append(final_rows(block, self._schema, self._num_episodes))
        self.statistics.update(block.columns, block.lengths)
        buffer.append(block)
        self._num_episodes += len(block)

    def close(self, state: Mapping[str, Any]) -> None:
        """Writes the last shard, and returns when all shards are finished."""
        if self._buffer is not None and self._buffer.steps:
            self._flush(ResumePoint(END, 0, state))
        self._wait_for_shard()
        self._buffer = None

    def _flush(self, point: ResumePoint) -> None:
        """Writes the buffer as a shard, and empties it. A thread finishes the shard."""
        self._wait_for_shard()
        buffer = self._shard_buffer()
        unfinished = self._write_shard()
        tables = [concatenate_episode_tables(self._episodes).combine_chunks()]
        tables += [pa.concat_tables(self._finals).combine_chunks()] if self._finals else []
        progress = {
            "statistics": msgspec.to_builtins(self.statistics.state()),
            "position": list(point.position),
            "skip": point.skip,
            "state": dict(point.state),
        }
        self._finishing = self._thread.submit(self._finish, unfinished, buffer.steps, tables, progress)
        self._episodes, self._finals = [], []
        buffer.clear()

    def _write_shard(self) -> _UnfinishedShard:
        name = f"shards/{self._prefix}{len(self.shards):06d}.arrow"
        with ExitStack() as stack:
            path = stack.enter_context(self._store.writing(name))
            write_ipc(path, self._shard_buffer().record_batch())
            return _UnfinishedShard(name, path, stack.pop_all())

    def _finish(
        self, unfinished: _UnfinishedShard, steps: int, tables: list[pa.Table], progress: Mapping[str, Any]
    ) -> ShardEntry:
        """Moves a shard to its name, then writes its progress files."""
        with unfinished.stack:
            entry = FileEntry(unfinished.name, unfinished.path.stat().st_size, checksum(unfinished.path))
            buffers, variable = buffer_offsets(unfinished.path, self._schema)
        shard = ShardEntry(entry, len(tables[0]), steps, buffers, variable)
        file = self._progress_file(len(self.shards))
        checksums = {}
        for table, kind in zip(tables, ("episodes", "finals"), strict=False):
            with self._store.writing(f"{file.removesuffix('.json')}.{kind}") as path:
                write_ipc(path, table)
                checksums[kind] = checksum(path)
        write_progress_file(self._store, file, {"shard": shard.to_json(), "tables": checksums, **progress})
        return shard

    def _wait_for_shard(self) -> None:
        """Waits for the shard that the thread finishes, if there is one.

        Raises the thread's exception.
        """
        if self._finishing is not None:
            finishing, self._finishing = self._finishing, None
            self.shards.append(finishing.result())


@dataclass(frozen=True)
class _UnfinishedShard:
    """A complete shard under a temporary name. Closing `stack` renames it.

    Attributes:
        name: final name in the dataset's folder.
        path: temporary file.
        stack: holds the store's `writing` context.
    """

    name: str
    path: Path
    stack: ExitStack
