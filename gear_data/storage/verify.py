"""`verify`: compares the files of a dataset with its manifest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Never

import numpy as np
import pyarrow as pa

from gear_data.common.keywords import refuse_keywords_of
from gear_data.common.paths import is_remote, plain_path
from gear_data.common.private_folder import scratch_folder
from gear_data.common.progress import progress_bar
from gear_data.common.regular_files import open_regular
from gear_data.errors import (
    CorruptShardError,
    DatasetReplacedError,
    GearError,
    HostMemoryError,
    OpenFilesError,
    RemoteError,
    StorageFullError,
    UnwritableError,
    refuse_exhausted,
)
from gear_data.schema import Schema
from gear_data.storage.arrow_files import array_values, buffer_offsets, read_table
from gear_data.storage.arrow_footer import check_blocks
from gear_data.storage.atomic import checksum
from gear_data.storage.content_hash import content_hashes
from gear_data.storage.dataset_files import DatasetFiles, open_files
from gear_data.storage.episode_block import EpisodeBlock, Position
from gear_data.storage.episode_tables import content_bytes, read_episodes, read_finals, read_step_flags
from gear_data.storage.manifest import REPAIR, STEP_MASK, FileEntry, Manifest, ShardEntry, fingerprint
from gear_data.storage.recomputation import Difference, Recomputation
from gear_data.storage.videos.checks import stored_segments, video_checks
from gear_data.storage.videos.stored_packets import video_index
from gear_data.video.index_tables import FILES_TABLE, PACKETS_TABLE, VideoIndex

#: Remedy for a damaged table. `repair` writes only shards.
_RESTORE = "restore the table, or convert again"
#: Errors that say nothing of a file: it is of another dataset, or could not be read.
_UNKNOWN = (DatasetReplacedError, HostMemoryError, OpenFilesError, RemoteError, StorageFullError, UnwritableError)


@dataclass(frozen=True)
class FileCheck:
    """Result for one file. `error` is None if the file is intact."""

    file: str
    ok: bool
    error: str | None


@dataclass(frozen=True)
class VerifyReport:
    """Results for every file: tables first, then shards in order, then video files.

    Attributes:
        ok: whether all files are intact and nothing differs.
        shards: result for every file.
        differences: stored values that differ from the values computed from the shards; with `deep` only. At most
            1,000 rows of one column in one file.
    """

    ok: bool
    shards: tuple[FileCheck, ...]
    differences: tuple[Difference, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "shards": [asdict(check) for check in self.shards],
            "differences": [asdict(difference) for difference in self.differences],
        }


def verify(
    path: str | os.PathLike[str],
    *,
    deep: bool = False,
    decode: bool = False,
    progress: bool | None = None,
    **unknown: Never,
) -> VerifyReport:
    """Reads a whole dataset and checks every file.

    It checks sizes, checksums and the schema, runs Arrow's full validation, and compares the episode table with the
    shards, including the content hash of every episode. A video file is indexed again and compared with its index.

    Args:
        path: path or URL of the dataset.
        deep: also compute again, from the shards, all statistics, the fingerprint, `returns_to_go`, and the columns
            `return`, `terminated`, `truncated` and `content` of the episode table. This finds values that were wrong
            when their checksum was made. Lengths are part of the content hashes.
        decode: also decode every frame of the video files.
        progress: show a bar; None shows one only on a terminal.

    Returns:
        The result for every file. `ok` is true if all files are intact and, with `deep`, no value differs.

    Raises:
        DatasetReplacedError: another dataset took the place of this one meanwhile.
        HostMemoryError, OpenFilesError: this process can have no further memory, or can open no further file.
        UnknownArgumentError: there is no argument of a name.
        GearError: the manifest cannot be used, or a server cannot be reached. Damaged files are not raised but
            reported.
    """
    refuse_keywords_of(verify, unknown)
    if not is_remote(plain_path(path)):
        return _verify(open_files(path), deep, decode, progress)
    # The files of a remote dataset are fetched again, one by one. Cached files were checked when they were fetched.
    with scratch_folder() as scratch:
        return _verify(open_files(path, cache_dir=scratch, cache_bytes=0), deep, decode, progress)


def _verify(files: DatasetFiles, deep: bool, decode: bool, progress: bool | None) -> VerifyReport:
    manifest = files.manifest()
    recomputation = Recomputation(manifest) if deep else None
    checks = []
    videos = int(manifest.provenance.get("videos", {}).get("bytes", 0))
    with progress_bar(sum(entry.bytes for entry in manifest.files) + videos, "verify", "B", progress) as bar:
        for entry, run in _checks(files, manifest, recomputation, decode):
            try:
                run()
                checks.append(FileCheck(entry.file, True, None))
            except _UNKNOWN:
                raise
            except (GearError, OSError) as error:
                refuse_exhausted(error, files.name(entry))
                checks.append(FileCheck(entry.file, False, str(error)))
            bar.update(entry.bytes)
    differences = () if recomputation is None else recomputation.finish()
    return VerifyReport(all(check.ok for check in checks) and not differences, tuple(checks), differences)


def _checks(
    files: DatasetFiles, manifest: Manifest, recomputation: Recomputation | None, decode: bool
) -> Iterator[tuple[FileEntry, Any]]:
    """Yields each file with a function that checks it.

    Tables come first. A shard is compared with the tables only if all tables are intact.
    """
    tables: dict[str, pa.Table] = {}
    indexes: list[VideoIndex] = []
    rows = _shard_rows(manifest)
    bad_added: set[str] = set()

    def check_table(name: str, entry: FileEntry) -> None:
        with files.local(entry) as path:
            if name == "episodes":
                table = read_episodes(path, manifest)
                _check_episode_table(table, manifest, path)
            elif name == "finals":
                table = read_finals(path, manifest)
            elif name == STEP_MASK:
                table = read_step_flags(path, manifest).table()
            else:
                table = read_table(path, entry.checksum)
        if name == PACKETS_TABLE and FILES_TABLE in tables:
            indexes.append(video_index(files, tables[FILES_TABLE], table))
        tables[name] = table

    def check_shard(index: int, shard: ShardEntry) -> None:
        if bad_added.intersection(added.file for added in shard.added):
            check_bytes_of(shard.entry)
            return
        batch = read_shard(files.local, manifest.schema, shard)
        if "episodes" in tables and (tables.keys() == manifest.tables.keys()):
            episodes = tables["episodes"].slice(rows[index].start, shard.episodes)
            block = episode_block(batch, manifest, episodes, tables.get("finals"), *indexes)
            contents = content_hashes(block, manifest.schema)
            if recomputation is not None:
                recomputation.add(index, block, contents, episodes)
            _check_contents(contents, episodes, files.name(shard.entry))

    def check_bytes_of(entry: FileEntry) -> None:
        with files.local(entry) as path:
            check_bytes(path, entry)

    def check_added(entry: FileEntry) -> None:
        bad_added.add(entry.file)
        check_bytes_of(entry)
        bad_added.remove(entry.file)

    for name, entry in manifest.tables.items():
        yield entry, lambda name=name, entry=entry: check_table(name, entry)
    for index, shard in enumerate(manifest.shards):
        for added in shard.added:
            yield added.entry, lambda entry=added.entry: check_added(entry)
        # If an added file is damaged, only the bytes of the shard's own file are checked: each file is reported once.
        yield shard.entry, lambda index=index, shard=shard: check_shard(index, shard)
    for videos in indexes:
        yield from video_checks(files, videos, decode=decode)


def check_bytes(path: Path, entry: FileEntry) -> None:
    found = checksum(path)
    if found != entry.checksum:
        raise CorruptShardError(
            f"its checksum is {found}, the manifest says {entry.checksum}",
            file=str(path),
            hint=f"its bytes were changed: {REPAIR}",
        )


def _check_episode_table(table: pa.Table, manifest: Manifest, path: Path) -> None:
    shard, start, length = (table.column(name).to_numpy() for name in ("shard", "start", "length"))
    if not np.array_equal(shard, np.repeat(np.arange(len(manifest.shards)), [s.episodes for s in manifest.shards])):
        raise CorruptShardError(
            "the numbers of episodes per shard differ from the manifest", file=str(path), column="shard", hint=_RESTORE
        )
    for index, (rows, entry) in enumerate(zip(_shard_rows(manifest), manifest.shards, strict=True)):
        ends = np.cumsum(length[rows])
        tiled = np.array_equal(start[rows], ends - length[rows]) and (length[rows] > 0).all()
        if not tiled or int(ends[-1]) != entry.steps:
            raise CorruptShardError(
                f"the episodes of shard {index} do not fill its {entry.steps} rows",
                file=str(path),
                column="start",
                hint=_RESTORE,
            )
    found = fingerprint(manifest.schema, content_bytes(table))
    if found != manifest.fingerprint:
        raise CorruptShardError(
            f"the content hashes give the fingerprint {found}, the manifest says {manifest.fingerprint}",
            file=str(path),
            column="content",
            hint=_RESTORE,
        )


def _shard_rows(manifest: Manifest) -> list[slice]:
    """Returns the rows of the episode table for each shard.

    Episodes are in shard order.
    """
    ends = np.cumsum([shard.episodes for shard in manifest.shards]).tolist()
    return [slice(end - shard.episodes, end) for end, shard in zip(ends, manifest.shards, strict=True)]


#: Yields the local path of a file, as `DatasetFiles.local`.
_Local = Callable[[FileEntry], AbstractContextManager[Path]]


def read_shard(local: _Local, schema: Schema, shard: ShardEntry) -> pa.RecordBatch:
    """Reads a shard with its added columns, and compares its files with their checksums.

    Args:
        local: yields the local path of a file, as `DatasetFiles.local`.
        schema: the columns.
        shard: the shard.

    Returns:
        The columns of the schema, in order, over mapped files.

    Raises:
        CorruptShardError: a file is damaged, or is not what the manifest describes.
        DatasetReplacedError: the dataset was replaced.
    """
    if shard.names is None and not shard.added:
        return _read_file(local, shard.entry, schema, shard, exact=True)
    held = [[column for column in schema if shard.file_of(column.name) == index] for index in range(len(shard.files))]
    batches = [
        _read_file(local, entry, Schema(tuple(columns)), shard, exact=False)
        for entry, columns in zip(shard.files, held, strict=True)
    ]
    arrays = [batches[shard.file_of(column.name)].column(column.name) for column in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.to_arrow())


def _read_file(local: _Local, entry: FileEntry, schema: Schema, shard: ShardEntry, *, exact: bool) -> pa.RecordBatch:
    """Reads some columns of a shard from one of its files.

    Args:
        local: see `read_shard`.
        entry: the file.
        schema: the columns.
        shard: the shard.
        exact: whether the file has no other columns.
    """
    names = shard.names or {}
    stored = Schema(tuple(replace(column, name=names.get(column.name, column.name)) for column in schema))
    with local(entry) as path:
        check_bytes(path, entry)
        try:
            with open_regular(path), pa.memory_map(str(path)) as source:
                check_blocks(source.read_buffer(), str(path), REPAIR)
                reader = pa.ipc.open_file(source)
                if reader.num_record_batches != 1:
                    raise CorruptShardError(
                        f"has {reader.num_record_batches} record batches, not 1", file=str(path), hint=REPAIR
                    )
                batch = reader.get_batch(0)
            batch.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            refuse_exhausted(error, str(path))
            raise CorruptShardError(f"not valid Arrow data: {error}", file=str(path), hint=REPAIR) from error
        if not exact and set(stored.names) <= set(batch.schema.names):
            batch = batch.select(list(stored.names))
        if not batch.schema.equals(stored.to_arrow(), check_metadata=False):
            raise CorruptShardError("its columns differ from the manifest's schema", file=str(path), hint=REPAIR)
        if len(batch) != shard.steps:
            raise CorruptShardError(
                f"has {len(batch)} rows, but the manifest says {shard.steps}", file=str(path), hint=REPAIR
            )
        for column in stored:
            nulls = batch.column(column.name).null_count
            if nulls:
                raise CorruptShardError(f"contains {nulls} nulls", file=str(path), column=column.name, hint=REPAIR)
        buffers, variable = buffer_offsets(path, stored)
    for column, each in zip(schema, stored, strict=True):
        known = shard.buffers[column.name], shard.variable.get(column.name)
        if (buffers[each.name], variable.get(each.name)) != known:
            raise CorruptShardError("its buffer offsets differ from the manifest", file=str(path), hint=REPAIR)
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema.to_arrow())


def episode_block(
    batch: pa.RecordBatch,
    manifest: Manifest,
    episodes: pa.Table,
    finals_table: pa.Table | None,
    videos: VideoIndex | None = None,
) -> EpisodeBlock:
    """Returns the episodes of a shard.

    Args:
        batch: the shard.
        manifest: manifest of the dataset.
        episodes: the shard's rows of the episode table.
        finals_table: the final observations of the dataset.
        videos: the index of the dataset's video files; None without cameras.

    Raises:
        CorruptShardError: an episode has frames outside its video file.
    """
    ids = episodes.column("episode_id").to_numpy()
    has_final = np.zeros(len(ids), np.bool_)
    finals = {}
    if finals_table is not None:
        final_ids = finals_table.column("episode_id").to_numpy()
        has_final = np.isin(ids, final_ids)
        rows_of_shard = finals_table.take(np.flatnonzero(np.isin(final_ids, ids))).combine_chunks()
        for column in manifest.schema.final_columns:
            array = rows_of_shard.column(column.name).combine_chunks()
            finals[column.name] = array_values(array).reshape(len(rows_of_shard), *column.shape)
    return EpisodeBlock(
        position=Position(0, 0),
        lengths=episodes.column("length").to_numpy(),
        columns={
            c.name: batch.column(c.name)
            if c.variable_length
            else array_values(batch.column(c.name)).reshape(len(batch), *c.shape)
            for c in manifest.schema
        },
        sources=[""] * len(ids),
        rows=np.zeros(len(ids), np.int64),
        has_final=has_final,
        finals=finals,
        videos={} if videos is None else stored_segments(manifest.schema, episodes, videos),
    )


def _check_contents(contents: list[bytes], episodes: pa.Table, file: str) -> None:
    expected = episodes.column("content").to_pylist()
    for episode, (found, stored) in enumerate(zip(contents, expected, strict=True)):
        if found != stored:
            raise CorruptShardError(
                f"episode {episodes.column('episode_id')[episode]} differs from its content hash in the episode table",
                file=file,
                row=int(episodes.column("start")[episode].as_py()),
                hint=REPAIR,
            )
