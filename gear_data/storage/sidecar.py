"""Sidecars: `returns_to_go` of other discounts than the stored one, worked out once and kept beside the shards.

    DATASET/sidecars/returns_to_go-0.99/
      sidecar.json    which contents it was worked out from, its files, statistics; written last
      000000.arrow    float32 [steps of shard 0]

They are no part of the dataset: neither its manifest nor its fingerprint knows them, and they can be deleted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from gear_data.common.file_lock import locked
from gear_data.common.private_folder import process_folder
from gear_data.common.progress import progress_bar
from gear_data.errors import CorruptShardError, GearError, ManifestError, UnwritableError
from gear_data.schema import ColumnSpec, Schema
from gear_data.storage.arrow_files import buffer_offsets, column_array, write_ipc
from gear_data.storage.atomic import atomic_file, checksum, typed_write_errors, write_text
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.manifest import FileEntry, Manifest, ShardEntry
from gear_data.storage.reader import check_size
from gear_data.storage.statistics import ColumnStatistics, RunningStatistics

REWARDS = "rewards"
COLUMN = ColumnSpec("returns_to_go", "float32", derived=True)

_NOTE = "sidecar.json"
_VERSION = 1

_log = logging.getLogger(__name__)

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Sidecar:
    """The column `COLUMN` of all shards: a file a shard in a folder, and its statistics."""

    folder: Path
    shards: tuple[ShardEntry, ...]
    statistics: ColumnStatistics


def discounted_returns(
    files: DatasetFiles,
    manifest: Manifest,
    shard: Int64Array,
    start: Int64Array,
    length: Int64Array,
    discount: float,
    rewards: Callable[[int], npt.NDArray[Any]],
) -> Sidecar:
    """The sidecar of `returns_to_go` with a discount: one that is there and fits, else it is worked out, shard by
    shard, and kept. Of several processes one does so, and the others wait.

    returns_to_go[t] = rewards[t] + discount * returns_to_go[t + 1], in float64 from the end of each episode, rounded
    to float32. Where the dataset's folder cannot be written it goes to a temporary one, which ends with the process.

    Args:
        files: the dataset's.
        manifest: the dataset's; it has scalar rewards.
        shard, start, length: int64 [episodes], from the episode table.
        discount: 0 to 1.
        rewards: gives those of a shard, [steps], by its place in the manifest.

    Raises:
        ManifestError: the episode table does not fit the shards.
        StorageFullError: the disk is full.
        whatever `rewards` raises.
    """
    name, contents = f"{COLUMN.name}-{discount!r}", _contents(manifest)
    folder = files.sidecars(contents) / name
    found = _load(folder, manifest, contents)
    if found is not None:
        return found
    episodes = _Episodes(str(files.place), manifest, shard, start, length, rewards)
    try:
        return _find_or_make(folder, episodes, contents, discount)
    except UnwritableError as error:
        _log.warning("%s; it is kept for this process alone", error)
        return _find_or_make(_temporary_folder(contents, name), episodes, contents, discount)


@dataclass(frozen=True)
class _Episodes:
    """A dataset's rewards and episode table."""

    place: str
    manifest: Manifest
    shard: Int64Array
    start: Int64Array
    length: Int64Array
    rewards: Callable[[int], npt.NDArray[Any]]

    def shards(self) -> Iterator[tuple[npt.NDArray[np.float64], Int64Array]]:
        """Rewards [steps] and episode lengths of each shard."""
        last = 0
        for index, entry in enumerate(self.manifest.shards):
            first, last = last, last + entry.episodes
            lengths = self.length[first:last]
            ends = np.cumsum(lengths)
            fits = np.array_equal(self.start[first:last], ends - lengths) and ends[-1] == entry.steps
            if not fits or (self.shard[first:last] != index).any():
                raise ManifestError(
                    f"the episode table does not fit shard {entry.entry.file}",
                    file=self.place,
                    hint="run 'gear-data verify'; convert again",
                )
            yield self.rewards(index).astype(np.float64), lengths


def read_rewards(files: DatasetFiles, schema: Schema, shard: ShardEntry) -> npt.NDArray[Any]:
    """The rewards in a shard's file, [steps], read and not mapped: each page is needed once.

    Raises:
        CorruptShardError: it is missing or cut short.
    """
    spec = schema[REWARDS]
    with files.local(shard.entry) as path:
        values = np.fromfile(path, spec.storage_dtype, shard.steps, offset=shard.buffers[REWARDS])
    if len(values) != shard.steps:
        raise CorruptShardError("the file ends before its rewards", file=files.name(shard.entry), column=REWARDS)
    return values


def _find_or_make(folder: Path, episodes: _Episodes, contents: str, discount: float) -> Sidecar:
    with typed_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / ".lock"):
            return _load(folder, episodes.manifest, contents) or _make(folder, episodes, contents, discount)


def _make(folder: Path, episodes: _Episodes, contents: str, discount: float) -> Sidecar:
    from gear_data.kernels.cpu.returns import returns_to_go

    schema, shards = Schema((COLUMN,)), []
    statistics = RunningStatistics(schema)
    with progress_bar(episodes.manifest.steps, f"returns-to-go, discount {discount}", "step", None) as bar:
        for index, (rewards, lengths) in enumerate(episodes.shards()):
            values = np.empty(len(rewards), np.float32)
            returns_to_go(rewards, lengths, discount, values)
            statistics.update({COLUMN.name: values}, lengths)
            path = folder / _shard_name(index)
            with atomic_file(path) as temporary:
                array = column_array(values, COLUMN.arrow_type)
                write_ipc(temporary, pa.RecordBatch.from_arrays([array], schema=schema.to_arrow()))
            entry = FileEntry(path.name, path.stat().st_size, checksum(path))
            buffers, _ = buffer_offsets(path, schema)
            shards.append(ShardEntry(entry, len(lengths), len(values), buffers))
            bar.update(len(values))
    result = Sidecar(folder, tuple(shards), statistics.result()[COLUMN.name])
    note = {
        "version": _VERSION,
        "contents": contents,
        "shards": [shard.to_json() for shard in result.shards],
        "statistics": result.statistics.to_json(),
    }
    write_text(folder / _NOTE, json.dumps(note))
    return result


def _load(folder: Path, manifest: Manifest, contents: str) -> Sidecar | None:
    """None for one that is not there, not whole, damaged, or of other contents."""
    try:
        note = json.loads((folder / _NOTE).read_text(encoding="utf-8"))
        if note["version"] != _VERSION or note["contents"] != contents:
            return None
        shards = tuple(ShardEntry.from_json(item) for item in note["shards"])
        statistics = ColumnStatistics.from_json(note["statistics"])
        for index, (mine, stored) in enumerate(zip(shards, manifest.shards, strict=True)):
            # Its numbers become addresses, and its names are opened.
            if mine.entry.file != _shard_name(index) or mine.steps != stored.steps or not mine.holds(COLUMN):
                return None
            check_size(folder, mine.entry)
    except (OSError, GearError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return Sidecar(folder, shards, statistics) if statistics.has_width(1) else None


def _shard_name(index: int) -> str:
    return f"{index:06d}.arrow"


def _contents(manifest: Manifest) -> str:
    """Hash of what a sidecar is worked out from, and of how that is divided: the shards and the episode table."""
    files: list[Any] = [manifest.fingerprint, manifest.tables["episodes"].checksum]
    files += [[shard.entry.checksum, shard.steps, shard.buffers[REWARDS]] for shard in manifest.shards]
    return str(xxhash.xxh3_128(json.dumps(files).encode()).hexdigest())


@cache
def _temporary_folder(contents: str, name: str) -> Path:
    """Returns one folder per process for the sidecar of these contents."""
    return process_folder(f"gear-data-{name}")
