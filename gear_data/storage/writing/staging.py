"""The folder of a dataset while a conversion fills it.

`.progress/` holds the conversion's options, the progress files of its tasks, and the lock file of the conversion. The
manifest is written when all other files are in place. Then the progress files are removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.regular_files import JSON_BYTES
from gear_data.common.typed_json import resolved
from gear_data.errors import GearError, ResumeError, UnwritableError
from gear_data.schema import Schema
from gear_data.storage.arrow_files import write_ipc
from gear_data.storage.atomic import checksum
from gear_data.storage.episode_tables import SOURCE_ROW, content_bytes, join_episode_tables, with_values
from gear_data.storage.manifest import MANIFEST_NAME, FileEntry, Manifest, ShardEntry, ShardRecord, fingerprint
from gear_data.storage.statistics import ColumnStatistics, RunningStatistics, StatisticsState
from gear_data.storage.writing.file_store import FileStore, put_text
from gear_data.storage.writing.progress_files import (
    LOCK,
    PROGRESS,
    START_OVER,
    read_progress_file,
    read_progress_table,
    write_progress_file,
)
from gear_data.video.index_tables import FILES_TABLE, PACKETS_TABLE, TABLE_FILES, VideoIndex

_OPTIONS = f"{PROGRESS}/options.json"


@resolved
class _TaskRecord(msgspec.Struct, frozen=True):
    """A finished task in JSON. See `TaskResult`."""

    prefix: str
    shards: list[ShardRecord]
    statistics: StatisticsState
    findings: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class TaskResult:
    """Result of one task of a conversion.

    Attributes:
        prefix: start of the names of the task's files.
        shards: shards that the task wrote.
        statistics: statistics of the task's steps.
        findings: problems that the task found.
    """

    prefix: str
    shards: tuple[ShardEntry, ...]
    statistics: StatisticsState
    findings: tuple[Mapping[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON, for a progress file or another process."""
        return {
            "prefix": self.prefix,
            "shards": [shard.to_json() for shard in self.shards],
            "statistics": msgspec.to_builtins(self.statistics),
            "findings": [dict(finding) for finding in self.findings],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TaskResult:
        """Checks JSON that `to_json` made and returns its result.

        Raises:
            ValueError: a field is missing or has another type.
        """
        record = msgspec.convert(data, _TaskRecord)
        shards = tuple(map(ShardEntry.from_record, record.shards))
        return TaskResult(record.prefix, shards, record.statistics, record.findings)


@dataclass(frozen=True)
class Kept:
    """The files of a failed conversion that a later run can use.

    Attributes:
        shards: the number of finished shards.
        videos: whether there are finished video files.
    """

    shards: int
    videos: bool


class StagedDataset:
    """A dataset folder that a conversion fills.

    Args:
        store: the dataset's folder, which this process has locked.
        options: options of the conversion, JSON-able. A resumed conversion must have the same options.
        resume: continue an unfinished conversion, if there is one.

    Raises:
        ResumeError: the options differ, or a progress file cannot be read.
        StorageFullError: the disk is full.
    """

    def __init__(self, store: FileStore, options: Mapping[str, Any], *, resume: bool = False) -> None:
        self._store = store
        if resume and self._has_options():
            self._check_options(options)
        else:
            self._begin(options)

    def _has_options(self) -> bool:
        """Returns whether an earlier run wrote its options.

        Without options, there is nothing to resume.
        """
        return any(not file.removeprefix(f"{PROGRESS}/").startswith(".") for file in self._store.files(PROGRESS))

    def _begin(self, options: Mapping[str, Any]) -> None:
        self._store.clear(PROGRESS, keep=LOCK)
        try:
            write_progress_file(self._store, _OPTIONS, options)
        except GearError:
            self.abandon()
            raise

    def _check_options(self, options: Mapping[str, Any]) -> None:
        file = f"{self._store.name}/{_OPTIONS}"
        earlier = read_progress_file(self._store, _OPTIONS)
        if earlier is None:
            raise ResumeError("is missing", file=file, hint=START_OVER)
        change = conversion_difference(earlier, json.loads(json.dumps(options)))
        if change is not None:
            raise ResumeError(
                f"the unfinished conversion has another {change}",
                file=self._store.name,
                hint="resume with the same source and options, or start again with --overwrite (overwrite=True)",
            )

    def merge(self, tasks: Sequence[TaskResult], schema: Schema, videos: VideoIndex | None = None) -> MergedTasks:
        """Merges the results of all tasks, and writes the merged tables.

        Args:
            tasks: results in source order.
            schema: all columns, including derived ones.
            videos: the index of the cameras' files; None without cameras.

        Raises:
            ResumeError: files of an earlier run cannot be used.
        """
        shards = tuple(shard for task in tasks for shard in task.shards)
        statistics = RunningStatistics(schema)
        for task in tasks:
            statistics.merge(task.statistics)
        episodes = join_episode_tables(list(self._tables(tasks, "episodes", renumbered_episodes)))
        if SOURCE_ROW not in episodes.column_names or episodes.column(SOURCE_ROW).null_count:
            raise ResumeError(
                "another version of gear-data began this conversion", file=self._store.name, hint=START_OVER
            )
        rows = episodes.column(SOURCE_ROW).to_numpy()
        episodes = episodes.drop_columns(SOURCE_ROW)
        tables = {"episodes": write_table(self._store, "episodes.arrow", episodes)}
        if schema.final_columns:
            finals = pa.concat_tables(self._tables(tasks, "finals", renumbered_finals))
            tables["finals"] = write_table(self._store, "finals.arrow", finals)
        if videos is not None:
            for name, table in zip((FILES_TABLE, PACKETS_TABLE), (videos.files, videos.packets), strict=True):
                tables[name] = write_table(self._store, TABLE_FILES[name], table)
        return MergedTasks(schema, shards, statistics, episodes, rows, tables)

    def _tables(
        self, tasks: Sequence[TaskResult], kind: str, renumber: Callable[[pa.Table, int, int], pa.Table]
    ) -> Iterator[pa.Table]:
        """Yields the tables of all shards, numbered through all tasks.

        Every task numbers its episodes and shards from 0; `renumber` adds the numbers of the tasks before.
        """
        first_episode = first_shard = 0
        for task in tasks:
            for i in range(len(task.shards)):
                table = read_progress_table(self._store, f"{PROGRESS}/{task.prefix}{i:06d}.json", kind)
                yield renumber(table, first_episode, first_shard)
            first_episode += sum(shard.episodes for shard in task.shards)
            first_shard += len(task.shards)

    def manifest(
        self,
        merged: MergedTasks,
        provenance: Mapping[str, Any],
        findings: Sequence[Mapping[str, Any]],
        cameras: Mapping[str, ColumnStatistics],
    ) -> Manifest:
        """Returns the manifest of the finished dataset, without writing it."""
        return Manifest(
            episodes=len(merged.episodes),
            steps=sum(shard.steps for shard in merged.shards),
            fingerprint=fingerprint(merged.schema, content_bytes(merged.episodes)),
            schema=merged.schema,
            shards=merged.shards,
            tables=merged.tables,
            statistics={**merged.statistics.result(), **cameras},
            provenance=provenance,
            findings=tuple(findings),
        )

    def finish(self, manifest: Manifest) -> None:
        """Completes the dataset.

        Removes temporary files of killed workers, writes the manifest, and removes the progress files.
        """
        for file in self._store.files():
            if file.endswith(".tmp"):
                self._store.remove(file)
        hint = "convert into fewer, larger shards: raise shard_bytes (--shard-bytes)"
        put_text(self._store, MANIFEST_NAME, manifest_text(manifest, self._store, hint))
        self._store.clear(PROGRESS, keep=LOCK)

    def abandon(self, *, keep_videos: bool = False) -> Kept:
        """Cleans up after a failure, and returns what a later run can use.

        The files are kept if there are finished shards. Otherwise video files are removed, too.

        Args:
            keep_videos: finished video files are a reason to keep the files, too.
        """
        if self._store.size(MANIFEST_NAME) is not None:
            return Kept(0, False)  # interrupted after the dataset was complete
        kept = Kept(self._finished_shards(), keep_videos and bool(self._store.files(f"{PROGRESS}/videos")))
        if not kept.shards and not kept.videos:
            self._store.clear(PROGRESS, keep=LOCK)
            self._store.remove("shards")
            self._store.remove("videos")
        return kept

    def _finished_shards(self) -> int:
        files = (file for file in self._store.files(PROGRESS) if file.endswith(".json"))
        files = (file for file in files if not file.startswith(f"{PROGRESS}/videos/"))
        return sum(file != _OPTIONS and not file.endswith("done.json") for file in files)


def manifest_text(manifest: Manifest, store: FileStore, hint: str) -> str:
    """Returns the text of a manifest.

    Args:
        manifest: the manifest.
        store: the dataset's folder.
        hint: the remedy if it is too large.

    Raises:
        UnwritableError: readers would refuse it, because it is too large.
    """
    text = manifest.to_text()
    if len(text) > JSON_BYTES:
        raise UnwritableError(
            f"the manifest has {len(text)} bytes, more than readers accept ({JSON_BYTES})",
            file=f"{store.name}/{MANIFEST_NAME}",
            hint=hint,
        )
    return text


def write_table(store: FileStore, name: str, table: pa.Table) -> FileEntry:
    """Writes a table of a dataset."""
    with store.writing(name) as path:
        write_ipc(path, table.combine_chunks())
        return FileEntry(name, path.stat().st_size, checksum(path))


def conversion_difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Returns the first difference of two conversions, as `difference` does.

    If the files of the source have the same names, sizes and times, its path does not matter: it may be relative to
    another folder.
    """
    if first.get("source_files") and first["source_files"] == second.get("source_files"):
        first, second = ({**each, "source": None} for each in (first, second))
    return difference(first, second)


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str | None:
    """Returns the first difference of two JSON objects as text.

    The text has the name and both values: `shard_bytes: 2048, now 4096`. It is None if the objects are equal.
    """
    for name in sorted(first.keys() | second.keys()):
        old, new = first.get(name), second.get(name)
        if isinstance(old, dict) and isinstance(new, dict) and (inner := difference(old, new)) is not None:
            return inner
        if old != new:
            return f"{name}: {old!r}, now {new!r}"
    return None


@dataclass(frozen=True)
class MergedTasks:
    """Results of all tasks, merged.

    Attributes:
        schema: all columns.
        shards: shards in order.
        statistics: statistics of all columns.
        episodes: the episode table.
        rows: int64 [episodes], row of each episode in its source file.
        tables: table name -> file.
    """

    schema: Schema
    shards: tuple[ShardEntry, ...]
    statistics: RunningStatistics
    episodes: pa.Table
    rows: npt.NDArray[np.int64]
    tables: Mapping[str, FileEntry]


def renumbered_episodes(table: pa.Table, first_episode: int, first_shard: int) -> pa.Table:
    """Returns an episode table, numbered after the tables before."""
    if not first_episode and not first_shard:
        return table
    for name, first in (("episode_id", first_episode), ("shard", first_shard)):
        table = with_values(table, name, table.column(name).to_numpy() + first)
    return table


def with_new_ids(table: pa.Table, ids: npt.NDArray[np.int64]) -> pa.Table:
    """Returns a table with the ids 0 to n - 1, in place of ids with gaps.

    Args:
        table: an episode table, or a table of final observations.
        ids: int64 [n], ascending: the ids of all episodes.
    """
    return with_values(table, "episode_id", np.searchsorted(ids, table.column("episode_id").to_numpy()))


def renumbered_finals(table: pa.Table, first_episode: int, first_shard: int) -> pa.Table:
    """Returns a table of final observations, numbered after the tables before."""
    return with_values(table, "episode_id", table.column("episode_id").to_numpy() + first_episode)
