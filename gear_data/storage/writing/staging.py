"""The folder of a dataset while a conversion fills it.

`.progress/` holds the conversion's options, the progress files of its tasks, and a lock. The manifest is written when
all other files are in place. Then `.progress/` is removed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import GearError, ResumeError
from gear_data.schema import Schema
from gear_data.storage.arrow_files import parse_table, write_ipc
from gear_data.storage.atomic import checksum
from gear_data.storage.manifest import MANIFEST_NAME, FileEntry, Manifest, ShardEntry, fingerprint
from gear_data.storage.statistics import RunningStatistics
from gear_data.storage.tables import SOURCE_ROW, join_episode_tables
from gear_data.storage.writing.file_store import FileStore, put_text
from gear_data.storage.writing.progress_files import PROGRESS, START_OVER, read_progress_file

_LOCK = f"{PROGRESS}/.lock"
_OPTIONS = f"{PROGRESS}/options.json"


@dataclass(frozen=True)
class TaskResult:
    """What a task wrote: its shards, its statistics (`RunningStatistics.to_json`), what it noticed."""

    prefix: str
    shards: tuple[ShardEntry, ...]
    statistics: Mapping[str, list[float]]
    findings: tuple[Mapping[str, Any], ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "prefix": self.prefix,
            "shards": [shard.to_json() for shard in self.shards],
            "statistics": dict(self.statistics),
            "findings": [dict(finding) for finding in self.findings],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TaskResult:
        shards = tuple(ShardEntry.from_json(item) for item in data["shards"])
        return TaskResult(str(data["prefix"]), shards, data["statistics"], tuple(data["findings"]))


class StagedDataset:
    """A folder that a conversion fills. It is held until `finish` or `abandon`.

    Args:
        store: the dataset's folder.
        schema: all columns, derived ones included.
        options: what the conversion runs with, JSON-able; a resumed one must have the same.
        resume: go on with a half-done conversion, if there is one.

    Raises:
        DestinationExistsError: another conversion is writing there.
        ResumeError: other options, or notes that cannot be read.
        StorageFullError: the disk is full.
    """

    def __init__(self, store: FileStore, schema: Schema, options: Mapping[str, Any], *, resume: bool = False) -> None:
        self._store = store
        self._schema = schema
        self._held = ExitStack()
        self._held.enter_context(store.locked(_LOCK))
        try:
            if resume and self._was_begun():
                self._check_options(options)
            else:
                self._begin(options)
        except BaseException:
            self._held.close()
            raise

    def _finished_shards(self) -> int:
        notes = (file for file in self._store.files(PROGRESS) if file.endswith(".json"))
        return sum(file != _OPTIONS and not file.endswith("done.json") for file in notes)

    def _begin(self, options: Mapping[str, Any]) -> None:
        for file in self._store.files(PROGRESS):
            if file != _LOCK:
                self._store.remove(file)
        try:
            put_text(self._store, _OPTIONS, json.dumps(options))
        except GearError:
            self.abandon()
            raise

    def _was_begun(self) -> bool:
        """Whether an earlier run got as far as noting its options; before that there is nothing to go on from."""
        return any(not file.removeprefix(f"{PROGRESS}/").startswith(".") for file in self._store.files(PROGRESS))

    def _check_options(self, options: Mapping[str, Any]) -> None:
        place = f"{self._store.name}/{_OPTIONS}"
        text = read_progress_file(self._store, _OPTIONS)
        if text is None:
            raise ResumeError("is missing", file=place, hint=START_OVER)
        try:
            known = dict(json.loads(text))
        except (ValueError, TypeError) as error:
            raise ResumeError(f"cannot be read: {error}", file=place, hint=START_OVER) from error
        change = difference(known, json.loads(json.dumps(options)))
        if change is not None:
            raise ResumeError(
                f"the half-done conversion has another {change}",
                file=self._store.name,
                hint="resume with the same source and options, or start again with --overwrite",
            )

    def merge(self, tasks: Sequence[TaskResult]) -> MergedTasks:
        """Brings the tasks' tables together and writes the whole ones. Tasks in source order.

        Raises:
            ResumeError: what an earlier run noted cannot be used.
        """
        shards = tuple(shard for task in tasks for shard in task.shards)
        statistics = RunningStatistics(self._schema)
        for task in tasks:
            statistics.merge(task.statistics)
        episodes = join_episode_tables(list(self._tables(tasks, "episodes", _renumbered_episodes)))
        if SOURCE_ROW not in episodes.column_names or episodes.column(SOURCE_ROW).null_count:
            raise ResumeError("was begun by another version", file=self._store.name, hint=START_OVER)
        rows = episodes.column(SOURCE_ROW).to_numpy()
        episodes = episodes.drop_columns(SOURCE_ROW)
        tables = {"episodes": self._write_whole("episodes.arrow", episodes)}
        if self._schema.final_columns:
            finals = pa.concat_tables(self._tables(tasks, "finals", _renumbered_finals))
            tables["finals"] = self._write_whole("finals.arrow", finals)
        return MergedTasks(shards, statistics, episodes, rows, tables)

    def _tables(
        self, tasks: Sequence[TaskResult], suffix: str, renumbered: Callable[[pa.Table, int, int], pa.Table]
    ) -> Iterator[pa.Table]:
        """The tables of all shards. Every task counts episodes and shards from its own first."""
        first_episode = first_shard = 0
        for task in tasks:
            for i in range(len(task.shards)):
                file = f"{PROGRESS}/{task.prefix}{i:06d}.{suffix}"
                place = f"{self._store.name}/{file}"
                try:
                    data = self._store.read(file)
                except OSError as error:
                    raise ResumeError(f"cannot be read: {error}", file=place, hint=START_OVER) from error
                yield renumbered(parse_table(data, place), first_episode, first_shard)
            first_episode += sum(shard.episodes for shard in task.shards)
            first_shard += len(task.shards)

    def _write_whole(self, name: str, table: pa.Table) -> FileEntry:
        with self._store.writing(name) as path:
            write_ipc(path, table.combine_chunks())
            return FileEntry(name, path.stat().st_size, checksum(path))

    def manifest(
        self, joined: MergedTasks, provenance: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]
    ) -> Manifest:
        """What the dataset will be; not written yet."""
        return Manifest(
            episodes=len(joined.episodes),
            steps=sum(shard.steps for shard in joined.shards),
            fingerprint=fingerprint(self._schema, joined.episodes.column("content").to_pylist()),
            schema=self._schema,
            shards=joined.shards,
            tables=joined.tables,
            statistics=joined.statistics.result(),
            provenance=provenance,
            findings=tuple(findings),
        )

    def finish(self, manifest: Manifest) -> None:
        """Removes what killed workers left, writes the manifest, and removes `.progress/`."""
        for file in self._store.files():
            if file.endswith(".tmp"):
                self._store.remove(file)
        put_text(self._store, MANIFEST_NAME, manifest.to_text())
        self._store.remove(PROGRESS)
        self._held.close()

    def abandon(self) -> int:
        """After a failure: removes what was written, unless finished shards make it worth resuming. Gives how many."""
        shards = self._finished_shards()
        self._held.close()
        if not shards:
            self._store.remove(PROGRESS)
            self._store.remove("shards")
        return shards


def difference(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """The first name under which two JSON objects differ, and what they have there; None where they are equal."""
    for name in sorted(known.keys() | wanted.keys()):
        old, new = known.get(name), wanted.get(name)
        if isinstance(old, dict) and isinstance(new, dict) and (inner := difference(old, new)) is not None:
            return inner
        if old != new:
            return f"{name}: {old!r}, now {new!r}"
    return None


@dataclass(frozen=True)
class MergedTasks:
    """The tasks' work as one: shards in order, statistics, the episode table, int64 [n] the rows of the episodes in
    their source files, the files of the tables."""

    shards: tuple[ShardEntry, ...]
    statistics: RunningStatistics
    episodes: pa.Table
    rows: npt.NDArray[np.int64]
    tables: Mapping[str, FileEntry]


def _renumbered_episodes(table: pa.Table, first_episode: int, first_shard: int) -> pa.Table:
    if not first_episode and not first_shard:
        return table
    for name, first in (("episode_id", first_episode), ("shard", first_shard)):
        field = table.schema.field(name)
        values = table.column(name).to_numpy() + np.array(first, field.type.to_pandas_dtype())
        table = table.set_column(table.schema.get_field_index(name), field, pa.array(values, field.type))
    return table


def _renumbered_finals(table: pa.Table, first_episode: int, first_shard: int) -> pa.Table:
    field = table.schema.field("episode_id")
    ids = pa.array(table.column("episode_id").to_numpy() + first_episode, field.type)
    return table.set_column(table.schema.get_field_index("episode_id"), field, ids)
