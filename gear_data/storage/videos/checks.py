"""Checks of a dataset's video files, for `verify`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa

from gear_data.common.paths import is_remote
from gear_data.errors import CorruptShardError, GearError, RemoteError
from gear_data.schema import Schema
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.manifest import FileEntry
from gear_data.video.decoding.frame_reader import FrameReader
from gear_data.video.decoding.options import DecodeOptions
from gear_data.video.file_index import Packets, VideoFile
from gear_data.video.index_tables import VideoIndex, index_tables
from gear_data.video.indexing.indexer import index_files
from gear_data.video.packet_bytes import ByteRange
from gear_data.video.segments import VideoSegments, segment_columns, segment_digests

#: Remedy for a damaged video file.
_RESTORE = "restore the file, or convert again"
#: Frames that are decoded at once.
_FRAMES = 32


def stored_segments(schema: Schema, episodes: pa.Table, index: VideoIndex) -> dict[str, VideoSegments]:
    """Returns the segments of some episodes, with digests, by camera.

    Args:
        schema: schema of the dataset.
        episodes: rows of the episode table.
        index: the index of the dataset's video files.

    Raises:
        CorruptShardError: the table lacks a column, or an episode has frames outside its file.
    """
    found = {}
    lengths = episodes.column("length").to_numpy()
    for spec in schema.videos:
        names = segment_columns(spec.name)
        if not {*names} <= {*episodes.column_names}:
            raise CorruptShardError("the episode table lacks its columns", column=spec.name, hint=_RESTORE)
        file, first = (episodes.column(name).to_numpy() for name in names)
        inside = (file >= 0) & (file < len(index)) & (first >= 0)
        inside[inside] = lengths[inside] <= index.frame_counts[file[inside]] - first[inside]
        if not inside.all():
            episode = episodes.column("episode_id")[int(np.argmin(inside))]
            raise CorruptShardError(
                f"episode {episode} has frames outside its video file", column=spec.name, hint=_RESTORE
            )
        segments = VideoSegments(file, first)
        found[spec.name] = VideoSegments(file, first, segment_digests(segments, lengths, index))
    return found


def video_checks(
    files: DatasetFiles, index: VideoIndex, *, decode: bool
) -> Iterator[tuple[FileEntry, Callable[[], None]]]:
    """Yields each video file with a function that checks it.

    A file is compared with its checksum, and is indexed again. `decode` decodes all its frames.
    """
    for number in range(len(index)):
        video = index.file(number)
        entry = FileEntry(video.file, video.size, video.checksum)
        yield entry, lambda video=video, entry=entry: _check(files, entry, video, decode)  # type: ignore[misc]


def _check(files: DatasetFiles, entry: FileEntry, video: VideoFile, decode: bool) -> None:
    with _local(files, entry) as path:
        (found,) = index_files([(path, video.file)], 1)
        if isinstance(found, GearError):
            raise CorruptShardError(found.message, file=str(path), hint=_RESTORE)
        if found.checksum != video.checksum:
            raise CorruptShardError(
                f"its checksum is {found.checksum}, the index says {video.checksum}", file=str(path), hint=_RESTORE
            )
        for field in fields(VideoFile):
            _compare(field.name, getattr(found, field.name), getattr(video, field.name), path)
        if decode:
            _decode(found, path)


def _compare(name: str, found: object, stored: object, path: Path) -> None:
    if isinstance(found, Packets) and isinstance(stored, Packets):
        for field in fields(Packets):
            if not np.array_equal(getattr(found, field.name), getattr(stored, field.name)):
                raise CorruptShardError(
                    "the packets in the index are not the packets of the file",
                    file=str(path),
                    column=field.name,
                    hint=_RESTORE,
                )
    elif name not in ("file", "colors") and found != stored:
        raise CorruptShardError(f"its {name} is {found!r}, the index says {stored!r}", file=str(path), hint=_RESTORE)


def _local(files: DatasetFiles, entry: FileEntry) -> AbstractContextManager[Path]:
    """Returns the context of a local path of a file in the dataset's folder, or of a linked file."""
    if is_remote(entry.file):
        raise RemoteError(
            "a linked file at a URL is not checked", file=entry.file, hint="download the file, or compare it there"
        )
    if PurePosixPath(entry.file).is_absolute():
        return nullcontext(Path(entry.file))
    return files.local(entry)


class _FileBytes:
    """`PacketBytes` of one file in memory."""

    def __init__(self, content: bytes) -> None:
        self._content = memoryview(content)

    def read(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        return [self._content[first:last] for _, first, last in ranges]


def _decode(video: VideoFile, path: Path) -> None:
    """Decodes every frame. Raises CorruptShardError if a frame cannot be decoded."""
    index = VideoIndex(*index_tables([video]), str(path))
    reader = FrameReader(index, _FileBytes(path.read_bytes()), DecodeOptions(cache_bytes=0))
    for first in range(0, video.num_frames, _FRAMES):
        frames = np.arange(first, min(first + _FRAMES, video.num_frames))
        out = np.empty((len(frames), video.height, video.width, 3), np.uint8)
        reader.read(np.zeros(len(frames), np.int64), frames, out)
