"""repair: makes a dataset's damaged shards again from the source it was converted from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gear_data.common.paths import is_remote, plain_path
from gear_data.common.progress import progress_bar
from gear_data.errors import (
    CorruptShardError,
    InvalidArgumentError,
    ManifestError,
    SourceChangedError,
    UnknownFormatError,
    UnknownNameError,
)
from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.location import locate
from gear_data.ingest.pipeline.prepare import prepared_blocks, stored_schema
from gear_data.ingest.source import EpisodeSource
from gear_data.storage.arrow_files import buffer_offsets, write_ipc
from gear_data.storage.atomic import checksum
from gear_data.storage.block import END, EpisodeBlock, Position
from gear_data.storage.content import content_hashes
from gear_data.storage.manifest import MANIFEST_NAME, FileEntry, Manifest, ShardEntry
from gear_data.storage.tables import read_episodes
from gear_data.storage.verify import verify
from gear_data.storage.writing.file_store import LocalFileStore, put_text
from gear_data.storage.writing.shard_buffer import ShardBuffer

_AGAIN = "convert again"


@dataclass(frozen=True)
class RepairReport:
    """What was made again: the shards' files, and their episodes."""

    shards: tuple[str, ...]
    episodes: int

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a JSON-able mapping."""
        return {**asdict(self), "shards": list(self.shards)}


@dataclass(frozen=True)
class _Damaged:
    """A shard to make again: `skip` episodes after the first of the task that wrote it."""

    index: int
    skip: int


def repair(path: str | os.PathLike[str], source: Any, *, progress: bool | None = None) -> RepairReport:
    """Makes the shards that do not verify again, those and no others. A shard is replaced when its episodes have the
    content hashes that the episode table says; a sound dataset stays as it is.

    Args:
        path: a dataset's folder on this machine.
        source: what it was converted from, as `convert` takes it; the other options are in the manifest.
        progress: show a bar; None shows one on a terminal.

    Raises:
        InvalidArgumentError: a URL.
        CorruptShardError: the episode table or that of final observations is damaged; shards are made with their help.
        ManifestError: the manifest cannot be used, or does not say where its shards came from.
        SourceChangedError: the source has no longer the episodes that the dataset was made of.
        GearError: the source cannot be read.
    """
    place = plain_path(path)
    if is_remote(place):
        raise InvalidArgumentError(
            "folders of this machine are repaired, not remote ones",
            file=place,
            hint="repair a copy, and upload the shards",
        )
    folder = Path(place)
    manifest = Manifest.load(folder)
    bad = {check.file: check.error for check in verify(folder, progress=progress).shards if not check.ok}
    for entry in manifest.tables.values():
        if entry.file in bad:
            raise CorruptShardError(f"is damaged: {bad[entry.file]}", file=str(folder / entry.file), hint=_AGAIN)
    damaged = [index for index, shard in enumerate(manifest.shards) if shard.entry.file in bad]
    if not damaged:
        return RepairReport((), 0)
    opened = _open_source(manifest, folder, source)
    contents = read_episodes(folder / manifest.tables["episodes"].file).column("content").to_pylist()
    first = [0]
    for shard in manifest.shards:
        first.append(first[-1] + shard.episodes)
    shards_now = list(manifest.shards)
    with progress_bar(sum(manifest.shards[i].steps for i in damaged), "repair", "step", progress) as bar:
        for start, stop, shards in _tasks(manifest, folder):
            wanted = [_Damaged(i, first[i] - first[shards.start]) for i in damaged if i in shards]
            for index, blocks in _episodes(opened, manifest, wanted, start, stop):
                own = contents[first[index] : first[index + 1]]
                shards_now[index] = _write(folder, manifest, manifest.shards[index], blocks, own, str(source))
                if shards_now[index] != manifest.shards[index]:
                    # Another version of Arrow may lay out the same episodes in other bytes.
                    text = replace(manifest, shards=tuple(shards_now)).to_text()
                    put_text(LocalFileStore(folder), MANIFEST_NAME, text)
                bar.update(manifest.shards[index].steps)
    return RepairReport(
        tuple(manifest.shards[i].entry.file for i in damaged), sum(manifest.shards[i].episodes for i in damaged)
    )


def _open_source(manifest: Manifest, folder: Path, source: Any) -> EpisodeSource:
    given = plain_path(source) if isinstance(source, str | os.PathLike) else source
    try:
        spec = ConversionSpec.from_json(given, manifest.provenance["options"])
    except (KeyError, TypeError, AttributeError) as error:
        raise _unusable(folder, "options", error) from error
    location = locate(given, spec.split)
    try:
        opened, _, _ = spec.open(location, threads=len(os.sched_getaffinity(0)))
    except (UnknownFormatError, UnknownNameError) as error:
        # Its hints are about options, which are not asked for here.
        raise SourceChangedError(
            f"is not what the dataset was made of, a source of the format {spec.format}: {error.message}",
            file=location.name,
            hint=f"it was made of {manifest.provenance.get('source')}",
        ) from error
    if stored_schema(opened) != manifest.schema:
        raise SourceChangedError("has not the columns that the dataset was made of", file=location.name, hint=_AGAIN)
    return opened


def _tasks(manifest: Manifest, folder: Path) -> Iterator[tuple[Position, Position, range]]:
    """Where each task of the conversion began and ended in the source, and its shards."""
    try:
        tasks = [tuple(map(int, task)) for task in manifest.provenance["tasks"]]
        starts = [Position(file, row) for file, row, _ in tasks]
        counts = [count for _, _, count in tasks]
    except (KeyError, TypeError, ValueError) as error:
        raise _unusable(folder, "tasks", error) from error
    if sum(counts) != len(manifest.shards):
        raise _unusable(folder, "tasks", ValueError(f"{sum(counts)} shards"))
    first = 0
    for start, stop, count in zip(starts, [*starts[1:], END], counts, strict=True):
        yield start, stop, range(first, first + count)
        first += count


def _unusable(folder: Path, name: str, error: Exception) -> ManifestError:
    return ManifestError(
        f"its provenance does not say how to make shards again: {name}: {type(error).__name__}: {error}",
        file=str(folder / MANIFEST_NAME),
        hint=_AGAIN,
    )


def _episodes(
    source: EpisodeSource, manifest: Manifest, wanted: Sequence[_Damaged], start: Position, stop: Position
) -> Iterator[tuple[int, list[EpisodeBlock]]]:
    """For each damaged shard of a task its index and its episodes; fewer where the source has no more."""
    if not wanted:
        return
    waiting = list(wanted)
    taken: list[EpisodeBlock] = []
    seen = 0
    for block, _ in prepared_blocks(source, start, stop, strict=False):
        while waiting:
            last = waiting[0].skip + manifest.shards[waiting[0].index].episodes
            low, high = max(waiting[0].skip, seen) - seen, min(last - seen, len(block))
            if low < high:
                taken.append(block.slice(low, high))
            if last - seen > len(block):
                break
            yield waiting.pop(0).index, taken
            taken = []
        seen += len(block)
        if not waiting:
            return
    yield waiting[0].index, taken


def _write(
    folder: Path,
    manifest: Manifest,
    shard: ShardEntry,
    blocks: Sequence[EpisodeBlock],
    contents: Sequence[bytes],
    source: str,
) -> ShardEntry:
    found = [content for block in blocks for content in content_hashes(block, manifest.schema)]
    if found != list(contents):
        raise SourceChangedError(
            f"the source's episodes are not those of {shard.entry.file}",
            file=blocks[0].sources[0] if blocks else source,
            row=int(blocks[0].rows[0]) if blocks else None,
            hint=f"restore the source that the dataset was made of, or {_AGAIN}",
        )
    buffer = ShardBuffer(manifest.schema, shard.entry.bytes)
    for block in blocks:
        buffer.append(block)
    with LocalFileStore(folder).writing(shard.entry.file) as file:
        write_ipc(file, buffer.record_batch())
        entry = FileEntry(shard.entry.file, file.stat().st_size, checksum(file))
        return ShardEntry(entry, shard.episodes, shard.steps, *buffer_offsets(file, manifest.schema))
