"""Reads journals. The end of a journal whose writer died is cut off."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pyarrow as pa

from gear_data.common.regular_files import open_regular
from gear_data.errors import CorruptSourceError, ManifestError
from gear_data.schema import ColumnRecord, ColumnSpec, Schema, VideoRecord
from gear_data.storage.atomic import checksum
from gear_data.storage.journal.record import RecordedEpisode, arrow_schema, from_batch, synced_before
from gear_data.storage.journal.writing import CAMERAS, CHECKSUM, COLUMNS, metadata_checksum

#: Exceptions of Arrow for a stream that ends early or is damaged.
_DAMAGE = (pa.ArrowException, OSError, EOFError, ValueError, KeyError)


@dataclass(frozen=True, eq=False)
class Journal:
    """The contents of a journal.

    Attributes:
        columns: all columns; empty if the writer died before it wrote them.
        episodes: the finished episodes. Their values lie in a map of the file.
        end: the first byte that belongs to no finished episode.
        torn: bytes after `end`: an episode that was being written when its writer died.
        cameras: a `gear_data.schema.video_column` for each camera. Every episode has a video of each.
        lost: what is wrong with episodes that are left out. The disk did not have their videos yet when it lost power.
    """

    columns: tuple[ColumnSpec, ...]
    episodes: tuple[RecordedEpisode, ...]
    end: int
    torn: int
    cameras: tuple[ColumnSpec, ...] = ()
    lost: tuple[str, ...] = ()


def is_journal(path: Path) -> bool:
    """Returns whether a file begins like a journal."""
    try:
        with open_regular(path) as opened, pa.ipc.open_stream(opened) as stream:
            return COLUMNS in (stream.schema.metadata or {})
    except _DAMAGE:
        return False


def read_journal(path: Path) -> Journal:
    """Reads a journal, and compares every episode with its checksum.

    If a process or its machine died, the videos of the last episodes are compared with their checksums, too: those
    that no `sync` followed may be damaged, and their episodes are left out.

    Raises:
        CorruptSourceError: the file cannot be read, or is no journal, or an episode is damaged that others follow.
    """
    file = str(path)
    try:
        with open_regular(path) as opened:
            size = os.fstat(opened.fileno()).st_size
            if not size:
                return Journal((), (), 0, 0)
            buffer = pa.py_buffer(mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ))
    except OSError as error:
        raise CorruptSourceError(f"cannot be read: {error.strerror or error}", file=file) from error
    source = pa.BufferReader(buffer)
    try:
        stream = pa.ipc.open_stream(source)
        metadata = stream.schema.metadata or {}
        described = metadata[COLUMNS]
    except KeyError as error:
        raise CorruptSourceError("is no journal of a Writer", file=file) from error
    except _DAMAGE:
        return Journal((), (), 0, size)
    if metadata.get(CHECKSUM) != metadata_checksum(metadata):
        raise CorruptSourceError("its columns differ from their checksum", file=file, hint="restore the file")
    columns = parse_columns(described, stream.schema, file)
    cameras = _cameras(metadata.get(CAMERAS, b"[]"), file)
    names = {camera.name for camera in cameras}
    episodes: list[RecordedEpisode] = []
    end, synced = source.tell(), 0
    for number, (last, batch, facts) in enumerate(_batches(stream, source)):
        try:
            episodes.append(_checked_videos(from_batch(batch, facts, columns, file), names, file))
        except CorruptSourceError as error:
            if _is_followed(stream, source):
                error.row = number
                error.hint = "restore the file; or cut it before this episode, to keep the episodes before"
                raise
            break
        end, synced = last, max(synced, synced_before(facts) if cameras else 0)
    marker = _end_marker(buffer, end)
    lost: tuple[str, ...] = ()
    if cameras and not marker:
        # A journal that ended has all videos on the disk.
        problems = [_video_problem(path.parent, episode) for episode in episodes[synced:]]
        lost = tuple(f"episode {number}: {each}" for number, each in enumerate(problems, synced) if each)
        episodes[synced:] = [each for each, problem in zip(episodes[synced:], problems, strict=True) if not problem]
    return Journal(columns, tuple(episodes), end, size - end - marker, cameras, lost)


def _video_problem(folder: Path, episode: RecordedEpisode) -> str | None:
    """Returns what is wrong with the videos of an episode."""
    for video in episode.videos.values():
        try:
            size = (folder / video.file).stat().st_size
            if size != video.bytes:
                return f"{video.file} has {size:,} of {video.bytes:,} bytes"
            if checksum(folder / video.file) != video.checksum:
                return f"{video.file} differs from its checksum"
        except OSError as error:
            return f"{video.file}: {error.strerror}"
    return None


def _batches(stream: Any, source: Any) -> Iterator[tuple[int, pa.RecordBatch, dict[bytes, bytes] | None]]:
    """Yields each whole record batch, with the byte after it and its metadata."""
    while True:
        try:
            batch, metadata = stream.read_next_batch_with_custom_metadata()
        except StopIteration:
            return
        except _DAMAGE:
            return
        yield source.tell(), batch, metadata


def _is_followed(stream: Any, source: Any) -> bool:
    """Returns whether another whole record batch follows."""
    return next(_batches(stream, source), None) is not None


def _end_marker(buffer: pa.Buffer, end: int) -> int:
    """Returns the number of bytes of the marker that ends a closed stream, or 0."""
    marker = b"\xff\xff\xff\xff\0\0\0\0"
    return len(marker) if buffer[end : end + len(marker)].to_pybytes() == marker else 0


def parse_columns(described: bytes, schema: pa.Schema | None, file: str) -> tuple[ColumnSpec, ...]:
    """Parses the output of `describe_columns`.

    Args:
        described: the columns.
        schema: the Arrow schema of their values; None: it is not known.
        file: name of the journal, for errors.

    Raises:
        CorruptSourceError: `described` is malformed, or contradicts the schema.
    """
    try:
        records = msgspec.convert([{**each, "role": None} for each in json.loads(described)], list[ColumnRecord])
        columns = tuple(ColumnSpec.from_record(record) for record in records)
    except (ValueError, TypeError, ManifestError) as error:
        raise CorruptSourceError(f"its columns cannot be read: {error}", file=file) from error
    if len({column.name for column in columns}) < max(len(columns), 1):
        raise CorruptSourceError("its columns are none, or two have one name", file=file)
    if schema is not None and not arrow_schema(columns).equals(schema):
        raise CorruptSourceError("its columns differ from its Arrow schema", file=file)
    return columns


def _cameras(described: bytes, file: str) -> tuple[ColumnSpec, ...]:
    try:
        return Schema.from_records((), msgspec.json.decode(described, type=list[VideoRecord])).videos
    except (ValueError, ManifestError) as error:
        raise CorruptSourceError(f"its cameras cannot be read: {error}", file=file) from error


def _checked_videos(episode: RecordedEpisode, cameras: Set[str], file: str) -> RecordedEpisode:
    """Returns an episode whose videos are those of the cameras, in files below the journal's folder."""
    if episode.videos.keys() != cameras:
        raise CorruptSourceError("an episode has videos of other cameras than the journal", file=file)
    for video in episode.videos.values():
        path = PurePosixPath(video.file)
        if path.is_absolute() or ".." in path.parts or "\0" in video.file or video.bytes < 0:
            raise CorruptSourceError(f"an episode has a video {video.file!r:.80}", file=file)
    return episode
