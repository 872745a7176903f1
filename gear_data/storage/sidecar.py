"""Sidecars: `returns_to_go` for other discounts than the stored column's.

Each is computed once and stored in the dataset's folder.

    DATASET/sidecars/returns_to_go-0.99/
      sidecar.json         hash of the input, the files, statistics; written last
      HASH-000000.arrow    float32 [steps of shard 0]; HASH is the start of the input's hash

A dataset that grows has a description for each generation, and files that generations share:

      sidecar-000012.json  of generation 12
      HASH.arrow           float32 [steps of a shard]; HASH is of the shard

Publishing a generation removes the files of generations and shards that nobody reads.

Sidecars are not part of the dataset: its manifest and fingerprint do not include them, and they may be deleted.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from gear_data.common.file_lock import locked
from gear_data.common.private_folder import process_folder
from gear_data.common.progress import progress_bar
from gear_data.common.regular_files import JSON_BYTES, read_regular
from gear_data.common.signed_text import sign, text_checksum
from gear_data.common.typed_json import parse_json, resolved
from gear_data.errors import (
    CorruptShardError,
    GearError,
    InvalidArgumentError,
    ManifestError,
    UnwritableError,
    refuse_exhausted,
)
from gear_data.kernels import cpu
from gear_data.schema import ColumnSpec, Schema
from gear_data.storage.arrow_files import buffer_offsets, column_array, write_ipc
from gear_data.storage.atomic import checksum, typed_write_errors
from gear_data.storage.dataset_files import DatasetFiles, FolderFiles
from gear_data.storage.identity import file_stamp, replaced_error
from gear_data.storage.manifest import REPAIR, FileEntry, Manifest, ShardEntry, ShardRecord
from gear_data.storage.mapped_shards import check_size
from gear_data.storage.statistics import ColumnStatistics, RunningStatistics, StatisticsRecord, StatisticsState
from gear_data.storage.writing.file_store import LocalFileStore, put_single_text

REWARDS = "rewards"
COLUMN = ColumnSpec("returns_to_go", "float32", derived=True)

_SCHEMA = Schema((COLUMN,))
_DESCRIPTION = "sidecar.json"
_VERSION = 1

_log = logging.getLogger(__name__)

Int64Array = npt.NDArray[np.int64]


def check_discount(discount: Any) -> float:
    """Returns a discount as a float.

    Raises:
        InvalidArgumentError: the discount is not a number from 0 to 1.
    """
    number = isinstance(discount, int | float | np.integer | np.floating) and not isinstance(discount, bool)
    if not number or not 0 <= discount <= 1:
        raise InvalidArgumentError(f"discount must be a number from 0 to 1, not {discount!r}")
    return float(discount)


class SidecarFiles(FolderFiles):
    """Files of a sidecar, as long as its folder has this sidecar.

    Args:
        folder: folder of the sidecar.
        name: name of the description.
        description: its contents. A sidecar of another dataset has another description, and other names of files.
    """

    def __init__(self, folder: Path, name: str, description: bytes) -> None:
        super().__init__(folder)
        self._name, self._description = name, description

    def check_unchanged(self) -> None:
        path = self._folder / self._name
        stamp = file_stamp(path)
        if stamp is not None and stamp == self._stamp:
            return
        try:
            same = read_regular(path, JSON_BYTES) == self._description
        except OSError:
            same = False
        if not same:
            raise replaced_error(self._folder)
        self._stamp = stamp


@dataclass(frozen=True)
class Sidecar:
    """The column `COLUMN` of all shards.

    Attributes:
        files: the files.
        shards: one file per shard of the dataset.
        statistics: statistics of the column.
    """

    files: SidecarFiles
    shards: tuple[ShardEntry, ...]
    statistics: ColumnStatistics


@resolved
class _SidecarRecord(msgspec.Struct, frozen=True):
    """Contents of a description. A dataset that grows has the state of each shard's statistics."""

    checksum: str
    version: int
    contents: str
    shards: list[ShardRecord]
    statistics: StatisticsRecord
    states: list[StatisticsState] | None = None


def discounted_returns(
    files: DatasetFiles,
    manifest: Manifest,
    shard: Int64Array,
    start: Int64Array,
    length: Int64Array,
    discount: float,
    rewards: Callable[[int], npt.NDArray[Any]],
) -> Sidecar:
    """Returns the sidecar of `returns_to_go` for a discount.

    A missing sidecar is computed and stored.

    returns_to_go[t] = rewards[t] + discount * returns_to_go[t + 1], in float64 from the end of each episode, rounded to
    float32. Of several processes, one computes and the others wait. If the dataset's folder cannot be written, the
    sidecar goes to a temporary folder, which is removed when the process exits.

    Args:
        files: files of the dataset.
        manifest: manifest of the dataset, which has scalar rewards.
        shard: int64 [episodes], from the episode table.
        start: int64 [episodes], from the episode table.
        length: int64 [episodes], from the episode table.
        discount: 0 to 1.
        rewards: returns the rewards of a shard, [steps], by its position in the manifest.

    Raises:
        ManifestError: the episode table does not fit the shards.
        StorageFullError: the disk is full.
        Exception: raised by `rewards`.
    """
    name, contents = f"{COLUMN.name}-{discount!r}", _contents(manifest)
    folder = files.sidecars(contents) / name
    found = _load(folder, manifest, contents)
    if found is not None:
        return found
    episodes = _EpisodeRewards(str(files.location), manifest, shard, start, length, rewards)
    try:
        return _load_or_compute(folder, episodes, contents, discount)
    except UnwritableError as error:
        _log.warning("%s; only this process will use this sidecar", error)
        return _load_or_compute(_temporary_folder(contents, name), episodes, contents, discount)


@dataclass(frozen=True)
class _EpisodeRewards:
    """Rewards and episode table of a dataset.

    Fields are arguments of `discounted_returns`.
    """

    location: str
    manifest: Manifest
    shard: Int64Array
    start: Int64Array
    length: Int64Array
    rewards: Callable[[int], npt.NDArray[Any]]

    def by_shard(self) -> Iterator[tuple[Callable[[], npt.NDArray[Any]], Int64Array]]:
        """Yields what reads the rewards [steps] of each shard, and the episode lengths."""
        last = 0
        for index, entry in enumerate(self.manifest.shards):
            first, last = last, last + entry.episodes
            lengths = self.length[first:last]
            ends = np.cumsum(lengths)
            fits = np.array_equal(self.start[first:last], ends - lengths) and ends[-1] == entry.steps
            if not fits or (self.shard[first:last] != index).any():
                raise ManifestError(
                    f"the episode table does not fit shard {entry.entry.file}",
                    file=self.location,
                    hint="run 'gear-data verify'; then restore the episode table, or convert again",
                )
            yield partial(self.rewards, index), lengths


def read_rewards(files: DatasetFiles, schema: Schema, shard: ShardEntry) -> npt.NDArray[Any]:
    """Reads the rewards of a shard, [steps].

    They are not mapped, because each page is needed only once.

    Raises:
        CorruptShardError: the file is missing or truncated, or cannot be read.
    """
    spec, entry = schema[REWARDS], shard.files[shard.file_of(REWARDS)]
    with files.local(entry) as path:
        try:
            values = np.fromfile(path, spec.storage_dtype, shard.steps, offset=shard.buffers[REWARDS])
        except OSError as error:
            refuse_exhausted(error, files.name(entry))
            raise CorruptShardError(
                f"cannot be read: {error}", file=files.name(entry), column=REWARDS, hint=REPAIR
            ) from error
    if len(values) != shard.steps:
        raise CorruptShardError(
            f"the file ends after {len(values)} of {shard.steps} rewards",
            file=files.name(entry),
            column=REWARDS,
            hint=REPAIR,
        )
    return values


def _load_or_compute(folder: Path, episodes: _EpisodeRewards, contents: str, discount: float) -> Sidecar:
    with typed_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / ".lock"):
            return _load(folder, episodes.manifest, contents) or _compute(folder, episodes, contents, discount)


def _compute(folder: Path, episodes: _EpisodeRewards, contents: str, discount: float) -> Sidecar:
    manifest, names = episodes.manifest, _shard_names(episodes.manifest, contents)
    known = {} if manifest.growth is None else _known_shards(folder)
    shards, states = [], []
    total = RunningStatistics(_SCHEMA)
    with progress_bar(manifest.steps, f"returns-to-go, discount {discount}", "step", None) as bar:
        for name, stored, (read, lengths) in zip(names, manifest.shards, episodes.by_shard(), strict=True):
            # Episode by episode, the statistics of a dataset that never grows do not depend on its shards.
            running = total if manifest.growth is None else RunningStatistics(_SCHEMA)
            found = known.get(name)
            if found is None or found[0].steps != stored.steps or not _is_whole(folder, found[0]):
                found = _compute_shard(folder / name, read(), lengths, discount, running), running.state()
            shards.append(found[0])
            if manifest.growth is not None:
                states.append(found[1])
                total.merge(found[1])
            bar.update(stored.steps)
    of_column = total.result()[COLUMN.name]
    description = {
        "checksum": "",
        "version": _VERSION,
        "contents": contents,
        "shards": [shard.to_json() for shard in shards],
        "statistics": of_column.to_json(),
        **({} if manifest.growth is None else {"states": msgspec.to_builtins(states)}),
    }
    store = LocalFileStore(folder)
    for left in folder.glob(".*.tmp"):  # by processes that were killed
        store.remove_unrenamed(left.name[1:].rsplit(".", 2)[0])
    text = sign(json.dumps(description))
    put_single_text(store, _description(manifest), text)
    return Sidecar(SidecarFiles(folder, _description(manifest), text.encode()), tuple(shards), of_column)


def _compute_shard(
    path: Path, rewards: npt.NDArray[Any], lengths: Int64Array, discount: float, statistics: RunningStatistics
) -> ShardEntry:
    """Writes the file of a shard, and adds it to statistics."""
    values = np.empty(len(rewards), np.float32)
    cpu.returns.returns_to_go(rewards.astype(np.float64), lengths, discount, values)
    statistics.update({COLUMN.name: values}, lengths)
    # Processes have temporary names of their own: between machines, or on some file systems, the lock keeps nobody out.
    with LocalFileStore(path.parent).writing(path.name) as temporary:
        array = column_array(values, COLUMN.arrow_type)
        write_ipc(temporary, pa.RecordBatch.from_arrays([array], schema=_SCHEMA.to_arrow()))
    entry = FileEntry(path.name, path.stat().st_size, checksum(path))
    buffers, _ = buffer_offsets(path, _SCHEMA)
    return ShardEntry(entry, len(lengths), len(values), buffers)


def _known_shards(folder: Path) -> dict[str, tuple[ShardEntry, StatisticsState]]:
    """Returns the files of all generations, by name."""
    known = {}
    for path in folder.glob("sidecar-*.json"):
        found = _read(path)
        if found is not None:
            for record, state in zip(found[0].shards, found[0].states or (), strict=False):
                known[record.file] = ShardEntry.from_record(record), state
    return known


def _is_whole(folder: Path, shard: ShardEntry) -> bool:
    try:
        check_size(folder, shard.entry)
    except CorruptShardError:
        return False
    return shard.holds(COLUMN)


def _read(path: Path) -> tuple[_SidecarRecord, str] | None:
    """Reads a description, and returns it with its text.

    Returns None if it is missing or damaged.
    """
    try:
        text = read_regular(path, JSON_BYTES).decode()
        record = parse_json(text, _SidecarRecord, error=ManifestError, file=str(path))
    except (OSError, GearError, ValueError):
        return None
    sound = text_checksum(text, record.checksum) == record.checksum and record.version == _VERSION
    return (record, text) if sound else None


def _load(folder: Path, manifest: Manifest, contents: str) -> Sidecar | None:
    """Loads a sidecar.

    Returns None if it is missing, incomplete, damaged, or has other contents.
    """
    name = _description(manifest)
    found = _read(folder / name)
    if found is None or found[0].contents != contents:
        return None
    record, text = found
    try:
        shards = tuple(map(ShardEntry.from_record, record.shards))
        statistics = ColumnStatistics.from_record(record.statistics)
        names = _shard_names(manifest, contents)
        for file, shard, stored in zip(names, shards, manifest.shards, strict=True):
            # Checked before use: the numbers become addresses, and the names are opened.
            if shard.entry.file != file or shard.steps != stored.steps or not _is_whole(folder, shard):
                return None
    except (GearError, ValueError):
        return None
    return Sidecar(SidecarFiles(folder, name, text.encode()), shards, statistics) if statistics.has_width(1) else None


def sidecar_files(manifest: Manifest) -> set[str]:
    """Returns the names of the files that a sidecar of a dataset may have."""
    return (
        {_description(manifest), *_shard_names(manifest, _contents(manifest))} if REWARDS in manifest.schema else set()
    )


def _description(manifest: Manifest) -> str:
    return _DESCRIPTION if manifest.growth is None else f"sidecar-{manifest.generation:06d}.json"


def _shard_names(manifest: Manifest, contents: str) -> list[str]:
    growth = manifest.growth
    if growth is None:
        # A process that opened a dataset which was replaced since must not write the files of the new dataset's
        # sidecar.
        return [f"{contents[:16]}-{index:06d}.arrow" for index in range(len(manifest.shards))]
    return [
        xxhash.xxh3_128_hexdigest(json.dumps([growth.id, shard.entry.file, *_inputs(shard)]).encode()) + ".arrow"
        for shard in manifest.shards
    ]


def _inputs(shard: ShardEntry) -> list[Any]:
    return [shard.files[shard.file_of(REWARDS)].checksum, shard.steps, shard.buffers[REWARDS]]


def _contents(manifest: Manifest) -> str:
    """Hashes the inputs of a sidecar: shards, their layout, and the episode table."""
    files: list[Any] = [manifest.fingerprint, manifest.tables["episodes"].checksum]
    files += [_inputs(shard) for shard in manifest.shards]
    return str(xxhash.xxh3_128(json.dumps(files).encode()).hexdigest())


@cache
def _temporary_folder(contents: str, name: str) -> Path:
    """Returns one folder per process for the sidecar of these contents."""
    return process_folder() / name
