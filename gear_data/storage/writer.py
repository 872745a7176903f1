"""Writes a dataset shard by shard, so that it can be killed at any moment and go on from its finished shards.

While a conversion runs, the folder holds `.progress/`: the options it runs with, and for every finished shard
its rows of the episode table and a note that says where in the source to go on. The note is written last; a
shard without one is written again. The manifest comes when everything else is in place.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from gear_data.errors import DestinationExistsError, GearError, ResumeError
from gear_data.schema import Schema
from gear_data.storage.atomic import atomic_file, checksum, write_text, writing_to
from gear_data.storage.block import END, EpisodeBlock, Position
from gear_data.storage.content import content_hashes
from gear_data.storage.manifest import FileEntry, Manifest, ShardEntry, fingerprint
from gear_data.storage.shard_buffer import ShardBuffer
from gear_data.storage.statistics import RunningStatistics
from gear_data.storage.tables import (
    episode_rows,
    final_rows,
    join_episode_tables,
    read_table,
    write_ipc,
    write_table,
)
from gear_data.storage.variable import VariableBuffers, value_offsets

PROGRESS = ".progress"
_LOCK = ".lock"

_START_AGAIN = "start again with --overwrite"


@dataclass(frozen=True)
class ResumePoint:
    """Where a conversion goes on: read the source from `position`, pass over the first `skip` episodes.

    `state` is what the caller handed to `DatasetWriter.append` together with the block at `position`.
    """

    position: Position
    skip: int
    state: Mapping[str, Any]


class DatasetWriter:
    """Collects whole episodes in one shard's buffer and writes each shard when it is full.

    Args:
        folder: the dataset's folder; made if it is not there.
        schema: all columns, derived ones included.
        shard_bytes: a shard is closed before an episode that would take it over this; an episode larger
            than this is a shard of its own.
        options: what the conversion runs with; a resumed one must have the same.
        resume: go on from the finished shards in the folder, if there are any.

    Raises:
        DestinationExistsError: another conversion is writing there.
        ResumeError: other options, or notes that cannot be read.
        StorageFullError: the disk is full.
    """

    def __init__(
        self, folder: Path, schema: Schema, shard_bytes: int, options: Mapping[str, Any], *, resume: bool = False
    ) -> None:
        self._folder = folder
        self._progress = folder / PROGRESS
        self._schema = schema
        self._shard_bytes = shard_bytes
        self._shards: list[ShardEntry] = []
        self._statistics = RunningStatistics(schema)
        self._buffer = ShardBuffer(schema, shard_bytes)
        self._episodes: list[pa.Table] = []
        self._finals: list[pa.Table] = []
        self._num_episodes = 0
        self.resume_point: ResumePoint | None = None
        self._created = not folder.exists()
        self._lock = _lock(self._progress)
        try:
            if resume and self._was_begun():
                self._resume(options)
            else:
                self._begin(options)
        except BaseException:
            self._lock.close()
            raise

    @property
    def num_episodes(self) -> int:
        return self._num_episodes

    @property
    def finished_shards(self) -> int:
        return len(self._shards)

    def _begin(self, options: Mapping[str, Any]) -> None:
        for path in self._progress.iterdir():
            if path.name != _LOCK:
                path.unlink()
        try:
            write_text(self._progress / "options.json", json.dumps(options))
        except GearError:
            self.abandon()
            raise

    def _was_begun(self) -> bool:
        """Whether an earlier run got as far as noting its options; before that there is nothing to go on from."""
        return self._progress.is_dir() and any(not path.name.startswith(".") for path in self._progress.iterdir())

    def _resume(self, options: Mapping[str, Any]) -> None:
        try:
            known = json.loads((self._progress / "options.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            note = self._progress / "options.json"
            raise ResumeError(f"cannot be read: {error}", file=str(note), hint=_START_AGAIN) from error
        options = json.loads(json.dumps(options))
        for name in sorted(known.keys() | options.keys()):
            if known.get(name) != options.get(name):
                raise ResumeError(
                    f"the half-done conversion has another {name}: {known.get(name)!r}, now {options.get(name)!r}",
                    file=str(self._folder),
                    hint="resume with the same source and options, or start again with --overwrite",
                )
        while (note := self._note(len(self._shards))).exists():
            try:
                data = json.loads(note.read_text(encoding="utf-8"))
                shard = ShardEntry.from_json(data["shard"])
                self._statistics.restore(data["statistics"])
                self.resume_point = ResumePoint(Position(*data["position"]), data["skip"], data["state"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ResumeError(f"cannot be read: {error}", file=str(note), hint=_START_AGAIN) from error
            path = self._folder / shard.entry.file
            if not path.exists() or path.stat().st_size != shard.entry.bytes:
                raise ResumeError("this finished shard is gone or was changed", file=str(path), hint=_START_AGAIN)
            self._shards.append(shard)
        self._num_episodes = sum(shard.episodes for shard in self._shards)

    def _note(self, shard: int) -> Path:
        return self._progress / f"{shard:06d}.json"

    def append(self, block: EpisodeBlock, state: Mapping[str, Any], skip: int = 0) -> None:
        """Adds the block's episodes from `skip` on.

        `state` is kept with every shard that ends within this block, and comes back in `resume_point`.
        """
        first = skip
        sizes = self._buffer.sizes(block)
        while first < len(block):
            room = self._shard_bytes - self._buffer.bytes
            last = int(np.searchsorted(sizes, sizes[first] + room, side="right")) - 1
            if last <= first:
                if self._buffer.steps:
                    self._flush(ResumePoint(block.position, first, state))
                    continue
                last = first + 1
            self._fill(block.slice(first, last))
            first = last

    def _fill(self, block: EpisodeBlock) -> None:
        """Copies episodes into the shard's buffer and notes their rows."""
        contents = content_hashes(block, self._schema)
        rows = episode_rows(
            block, contents, first_id=self._num_episodes, shard=len(self._shards), first_step=self._buffer.steps
        )
        self._episodes.append(rows)
        if self._schema.final_columns:
            self._finals.append(final_rows(block, self._schema, self._num_episodes))
        self._statistics.update(block.columns, block.lengths)
        self._buffer.append(block)
        self._num_episodes += len(block)

    def _flush(self, point: ResumePoint) -> None:
        shard = self._write_shard()
        stem = self._note(len(self._shards)).with_suffix("")
        episodes = pa.concat_tables(self._episodes, promote_options="permissive")
        write_table(stem.with_suffix(".episodes"), episodes)
        if self._finals:
            write_table(stem.with_suffix(".finals"), pa.concat_tables(self._finals))
        note = {
            "shard": shard.to_json(),
            "statistics": self._statistics.to_json(),
            "position": list(point.position),
            "skip": point.skip,
            "state": dict(point.state),
        }
        write_text(self._note(len(self._shards)), json.dumps(note))
        self._shards.append(shard)
        self._episodes, self._finals = [], []
        self._buffer.clear()

    def _write_shard(self) -> ShardEntry:
        name = f"shards/{len(self._shards):06d}.arrow"
        path = self._folder / name
        with atomic_file(path) as temporary:
            write_ipc(temporary, self._buffer.record_batch())
        entry = FileEntry(name, path.stat().st_size, checksum(path))
        episodes = sum(len(table) for table in self._episodes)
        return ShardEntry(entry, episodes, self._buffer.steps, *buffer_offsets(path, self._schema))

    def finish(
        self, state: Mapping[str, Any], provenance: Mapping[str, Any], findings: tuple[Mapping[str, Any], ...]
    ) -> Manifest:
        """Writes the last shard, the tables and the manifest, and removes `.progress/`."""
        if self._buffer.steps:
            self._flush(ResumePoint(END, 0, state))
        stems = [self._note(i).with_suffix("") for i in range(len(self._shards))]
        episodes = join_episode_tables([read_table(stem.with_suffix(".episodes")) for stem in stems])
        tables = {"episodes": self._write_whole("episodes.arrow", episodes)}
        if self._schema.final_columns:
            finals = pa.concat_tables([read_table(stem.with_suffix(".finals")) for stem in stems])
            tables["finals"] = self._write_whole("finals.arrow", finals)
        manifest = Manifest(
            episodes=self._num_episodes,
            steps=sum(shard.steps for shard in self._shards),
            fingerprint=fingerprint(self._schema, episodes.column("content").to_pylist()),
            schema=self._schema,
            shards=tuple(self._shards),
            tables=tables,
            statistics=self._statistics.result(),
            provenance=provenance,
            findings=findings,
        )
        with writing_to(self._folder):
            manifest.save(self._folder)
        shutil.rmtree(self._progress)
        self._lock.close()
        return manifest

    def _write_whole(self, name: str, table: pa.Table) -> FileEntry:
        path = self._folder / name
        write_table(path, table)
        return FileEntry(name, path.stat().st_size, checksum(path))

    def abandon(self) -> None:
        """After a failure: removes what was written, unless finished shards make it worth resuming."""
        self._lock.close()
        if self._shards:
            return
        shutil.rmtree(self._progress, ignore_errors=True)
        shutil.rmtree(self._folder / "shards", ignore_errors=True)
        if self._created:
            shutil.rmtree(self._folder, ignore_errors=True)


def _lock(progress: Path) -> IO[bytes]:
    """Makes `.progress/` and holds it for this conversion, until the file is closed or the process ends.

    Raises:
        DestinationExistsError: another conversion holds it.
        UnwritableError: it cannot be made.
    """
    path = progress / _LOCK
    with writing_to(path):
        progress.mkdir(parents=True, exist_ok=True)
        file = path.open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise DestinationExistsError(
            "another conversion is writing here", file=str(progress.parent), hint="wait for it, or choose another place"
        ) from error
    except OSError:
        pass  # a file system without locks: there it is up to the user
    return file


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
