"""Rebuilds a dataset's damaged shards from its source."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Never

import msgspec

from gear_data.common.environment import usable_cores
from gear_data.common.keywords import refuse_keywords_of
from gear_data.common.paths import is_remote, plain_path
from gear_data.common.progress import progress_bar
from gear_data.errors import (
    CorruptShardError,
    DestinationExistsError,
    InvalidArgumentError,
    ManifestError,
    SourceChangedError,
    UnknownFormatError,
    UnknownNameError,
)
from gear_data.ingest.engine.spec import ConversionSpec
from gear_data.ingest.merging.dataset_cameras import read_index
from gear_data.ingest.pipeline.prepare import prepared_blocks, stored_schema
from gear_data.ingest.saving.save import FORMAT as VIEW
from gear_data.ingest.several.parts import plain_source
from gear_data.ingest.several.plan import with_parts
from gear_data.ingest.source import EpisodeSource, source_videos
from gear_data.ingest.videos.placing import restore_videos
from gear_data.storage.arrow_files import buffer_offsets, write_ipc
from gear_data.storage.atomic import checksum
from gear_data.storage.content_hash import content_hashes
from gear_data.storage.dataset_files import open_files
from gear_data.storage.episode_block import END, EpisodeBlock, Position
from gear_data.storage.episode_tables import read_episodes
from gear_data.storage.manifest import MANIFEST_NAME, FileEntry, Manifest, ShardEntry
from gear_data.storage.verify import verify
from gear_data.storage.writing.file_store import LocalFileStore, put_text
from gear_data.storage.writing.folder_lock import folder_lock
from gear_data.storage.writing.progress_files import PROGRESS
from gear_data.storage.writing.shard_buffer import ShardBuffer

_CONVERT_AGAIN = "convert the source again"


@dataclass(frozen=True)
class RepairReport:
    """The outcome of `repair`.

    Attributes:
        shards: the files of the rebuilt shards.
        episodes: the number of episodes in them.
        videos: the restored video files.
    """

    shards: tuple[str, ...]
    episodes: int
    videos: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a JSON-able mapping."""
        return {**asdict(self), "shards": list(self.shards), "videos": list(self.videos)}


@dataclass(frozen=True)
class _Damaged:
    """A shard to rebuild.

    Attributes:
        index: the index of the shard.
        skip: the number of episodes that its task wrote to earlier shards.
    """

    index: int
    skip: int


def repair(
    path: str | os.PathLike[str], source: Any, *, progress: bool | None = None, **unknown: Never
) -> RepairReport:
    """Rebuilds the shards, and restores the video files, that fail verification.

    A shard is replaced only if the rebuilt episodes have the content hashes of the episode table, and a video file only
    if the source's file has its checksum. Nothing else changes.

    Args:
        path: the folder of a dataset on this machine.
        source: the source of the dataset, or the list of its sources, as in `convert`. The manifest holds the other
            options.
        progress: show a progress bar. None shows one on a terminal.

    Raises:
        InvalidArgumentError: `path` is a URL, or the dataset was merged or saved from others, or has grown.
        CorruptShardError: the table of episodes or of final observations is damaged. Rebuilding needs both.
        DestinationExistsError: another process is writing to the dataset, or replaced it meanwhile.
        ManifestError: the manifest cannot be read, or does not record the origin of its shards.
        SourceChangedError: the source no longer has the episodes of the dataset.
        UnknownArgumentError: there is no argument of a name.
        GearError: the source cannot be read.
    """
    refuse_keywords_of(repair, unknown)
    place = plain_path(path)
    if is_remote(place):
        raise InvalidArgumentError(
            "repair needs a folder of this machine, not a URL",
            file=place,
            hint="repair a local copy, and upload its shards",
        )
    folder = Path(place)
    manifest = Manifest.load(folder)
    bad = {check.file: check.error for check in verify(folder, progress=progress).shards if not check.ok}
    for entry in manifest.tables.values():
        if entry.file in bad:
            raise CorruptShardError(
                f"is damaged: {bad[entry.file]}", file=str(folder / entry.file), hint=_CONVERT_AGAIN
            )
    damaged = [index for index, shard in enumerate(manifest.shards) if any(file.file in bad for file in shard.files)]
    index = read_index(open_files(folder), manifest)
    videos = [] if index is None else [name for name in index.files.column("file").to_pylist() if name in bad]
    # A repair that was killed may have left the folder of its progress.
    if not damaged and not videos and not (folder / PROGRESS).exists():
        return RepairReport((), 0)
    hint = "wait until it has finished, then run repair again"
    with folder_lock(folder / PROGRESS, name=place, hint=hint):
        if Manifest.load(folder).to_text() != manifest.to_text():
            raise DestinationExistsError("was replaced or repaired meanwhile", file=place, hint="run repair again")
        for path in [*folder.glob(".*.tmp"), *folder.glob("shards/.*.tmp"), *folder.glob("videos/**/.*.tmp")]:
            path.unlink(missing_ok=True)  # left by a repair that was killed
        if damaged or videos:
            spec, opened = _open_source(manifest, folder, source)
            if index is not None:
                restore_videos(folder, index, videos, source_videos(opened))
            if damaged:
                opened = spec.with_read_cameras(opened, progress)
                _rebuild(folder, manifest, damaged, opened, str(source), progress)
    return RepairReport(
        tuple(manifest.shards[i].entry.file for i in damaged),
        sum(manifest.shards[i].episodes for i in damaged),
        tuple(videos),
    )


def _rebuild(
    folder: Path, manifest: Manifest, damaged: Sequence[int], opened: EpisodeSource, name: str, progress: bool | None
) -> None:
    """Rebuilds the shards with the indices `damaged` from the source of a name."""
    if stored_schema(opened) != manifest.schema:
        raise SourceChangedError("does not have the columns of the dataset", file=name, hint=_CONVERT_AGAIN)
    contents = read_episodes(folder / manifest.tables["episodes"].file, manifest).column("content").to_pylist()
    first = [0]
    for shard in manifest.shards:
        first.append(first[-1] + shard.episodes)
    shards_now = list(manifest.shards)
    with progress_bar(sum(manifest.shards[i].steps for i in damaged), "repair", "step", progress) as bar:
        for start, stop, shards in _tasks(manifest, folder):
            wanted = [_Damaged(i, first[i] - first[shards.start]) for i in damaged if i in shards]
            for index, blocks in _episodes(opened, manifest, wanted, start, stop):
                own = contents[first[index] : first[index + 1]]
                with _rebuilt(folder, manifest, manifest.shards[index], blocks, own, name) as shards_now[index]:
                    if shards_now[index] != manifest.shards[index]:
                        # Another version of Arrow may write the same episodes as other bytes. The manifest comes before
                        # the shard: readers that opened the old manifest notice that the shard is not theirs.
                        text = replace(manifest, shards=tuple(shards_now)).to_text()
                        put_text(LocalFileStore(folder), MANIFEST_NAME, text)
                bar.update(manifest.shards[index].steps)


def _open_source(manifest: Manifest, folder: Path, source: Any) -> tuple[ConversionSpec, EpisodeSource]:
    if manifest.growth is not None:
        raise InvalidArgumentError(
            "the dataset has grown: its episodes were recorded, and no source has them",
            file=str(folder),
            hint="copy the damaged shards from a backup; or open the dataset with on_bad_shard='skip'",
        )
    if "merged" in manifest.provenance:
        raise InvalidArgumentError(
            f"the dataset is a merge of {manifest.provenance.get('source')}, and was not converted from one source",
            file=str(folder),
            hint="repair those datasets (a linked shard is damaged in them, too), then merge them again",
        )
    if manifest.provenance.get("format") == VIEW:
        raise InvalidArgumentError(
            f"the dataset has episodes of {manifest.provenance.get('source')}, and was not converted from a source",
            file=str(folder),
            hint="repair that dataset (a linked shard is damaged in it, too), then save the episodes again",
        )
    try:
        spec = ConversionSpec.from_json(plain_source(source), manifest.provenance["options"])
    except (KeyError, msgspec.ValidationError) as error:
        raise _unusable(folder, "options", error) from error
    spec = with_parts(spec)
    location = spec.locate()
    try:
        opened, _, _ = spec.open(location, threads=usable_cores())
    except (UnknownFormatError, UnknownNameError) as error:
        # The hints of the original error are about options that `repair` does not have.
        raise SourceChangedError(
            f"is not the source of the dataset, which has the format {spec.format}: {error.message}",
            file=location.name,
            hint=f"the dataset was converted from {manifest.provenance.get('source')}",
        ) from error
    return spec, opened


def _tasks(manifest: Manifest, folder: Path) -> Iterator[tuple[Position, Position, range]]:
    """Yields the start and stop of each task, and the indices of its shards."""
    try:
        tasks = msgspec.convert(manifest.provenance["tasks"], list[tuple[int, int, int]])
    except (KeyError, msgspec.ValidationError) as error:
        raise _unusable(folder, "tasks", error) from error
    starts = [Position(file, row) for file, row, _ in tasks]
    counts = [count for _, _, count in tasks]
    if sum(counts) != len(manifest.shards):
        raise _unusable(folder, "tasks", ValueError(f"{sum(counts)} shards"))
    first = 0
    for start, stop, count in zip(starts, [*starts[1:], END], counts, strict=True):
        yield start, stop, range(first, first + count)
        first += count


def _unusable(folder: Path, name: str, error: Exception) -> ManifestError:
    return ManifestError(
        f"its provenance does not record how shards were made: {name}: {type(error).__name__}: {error}",
        file=str(folder / MANIFEST_NAME),
        hint=_CONVERT_AGAIN,
    )


def _episodes(
    source: EpisodeSource, manifest: Manifest, wanted: Sequence[_Damaged], start: Position, stop: Position
) -> Iterator[tuple[int, list[EpisodeBlock]]]:
    """Yields the index and the episodes of each damaged shard of a task.

    The last shard gets fewer episodes if the source ends early.
    """
    if not wanted:
        return
    pending = list(wanted)
    taken: list[EpisodeBlock] = []
    seen = 0
    for block, _ in prepared_blocks(source, start, stop, strict=False):
        while pending:
            last = pending[0].skip + manifest.shards[pending[0].index].episodes
            low, high = max(pending[0].skip, seen) - seen, min(last - seen, len(block))
            if low < high:
                taken.append(block.slice(low, high))
            if last - seen > len(block):
                break
            yield pending.pop(0).index, taken
            taken = []
        seen += len(block)
        if not pending:
            return
    yield pending[0].index, taken


@contextmanager
def _rebuilt(
    folder: Path,
    manifest: Manifest,
    shard: ShardEntry,
    blocks: Sequence[EpisodeBlock],
    contents: Sequence[bytes],
    source: str,
) -> Iterator[ShardEntry]:
    """Yields a rebuilt shard, and puts it in place if the block succeeds.

    Raises:
        SourceChangedError: the episodes do not have these content hashes.
    """
    found = [content for block in blocks for content in content_hashes(block, manifest.schema)]
    if found != list(contents):
        raise SourceChangedError(
            f"the source's episodes differ from the episodes of {shard.entry.file}",
            file=blocks[0].sources[0] if blocks else source,
            row=int(blocks[0].rows[0]) if blocks else None,
            hint=f"restore the original source, or {_CONVERT_AGAIN}",
        )
    buffer = ShardBuffer(manifest.schema, shard.entry.bytes)
    for block in blocks:
        buffer.append(block)
    with LocalFileStore(folder).writing(shard.entry.file) as file:
        write_ipc(file, buffer.record_batch())
        entry = FileEntry(shard.entry.file, file.stat().st_size, checksum(file))
        yield ShardEntry(entry, shard.episodes, shard.steps, *buffer_offsets(file, manifest.schema))
