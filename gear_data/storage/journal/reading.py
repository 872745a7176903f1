"""Reads journals: the intact episodes, and what is damaged or torn."""

from __future__ import annotations

import errno
import itertools
import json
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa

from gear_data.common.regular_files import open_regular
from gear_data.errors import CorruptSourceError, ManifestError, refuse_exhausted
from gear_data.schema import ColumnRecord, ColumnSpec, Schema, VideoRecord
from gear_data.storage.atomic import checksum
from gear_data.storage.journal.frames import MIN_BYTES, find_frame
from gear_data.storage.journal.record import RecordedEpisode, arrow_schema, facts_of, from_batch, synced_before
from gear_data.storage.journal.writing import CAMERAS, CHECKSUM, COLUMNS, END, ID, metadata_checksum, series_of

#: Exceptions of Arrow for a stream that ends early or is damaged.
_DAMAGE = (pa.ArrowException, OSError, EOFError, ValueError, KeyError)
#: Key of an episode's facts in the metadata of its record batch, in journals of earlier versions.
_FACTS_KEY = b"gear.episode"
_DAMAGED_HEADER = "the header of an episode is damaged"
#: Errors of a file that is not there. Any other error may pass, and says nothing about the file.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
#: Bytes that are read at once of a journal that another process may be writing.
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Extent:
    """Some bytes of a journal.

    Attributes:
        start, end: the first byte, and the first byte behind them.
        number: of the record, from 0; -1: it is not known.
        damage: what is wrong with the bytes, or with the videos that they name; empty: nothing.
    """

    start: int
    end: int
    number: int = -1
    damage: str = ""


@dataclass(frozen=True, eq=False)
class Journal:
    """The contents of a journal.

    Attributes:
        columns: all columns; empty if no record says them.
        episodes: the finished episodes that are intact. Their values lie in a map of the file.
        records: the bytes of each of them.
        id: what no other journal has, 16 bytes; empty in journals of earlier versions.
        damaged: all bytes that cannot be read and may be a finished episode, in order.
        torn: bytes at the end, of an episode that was being written when its writer died.
        cameras: a `gear_data.schema.video_column` for each camera. Every episode has a video of each.
        lost: the bytes of intact episodes that are left out: their videos are missing or damaged. The disk may not have
            had them when it lost power.
    """

    columns: tuple[ColumnSpec, ...] = ()
    episodes: tuple[RecordedEpisode, ...] = ()
    records: tuple[Extent, ...] = ()
    id: bytes = b""
    damaged: tuple[Extent, ...] = ()
    torn: int = 0
    cameras: tuple[ColumnSpec, ...] = ()
    lost: tuple[Extent, ...] = ()

    @property
    def series(self) -> str:
        """Its series; empty in journals of earlier versions. See `new_series`."""
        return series_of(self.id)


def is_journal(path: Path) -> bool:
    """Returns whether a file is a journal, also if its first bytes are damaged."""
    try:
        data, _ = _mapped(path)
    except CorruptSourceError:
        return False
    if data is None:
        return False
    metadata, size = _start(data)
    return COLUMNS in metadata or (not size and find_frame(data, 0, 0) is not None)


def read_journal(path: Path, *, is_written: bool = False) -> Journal:
    """Reads a journal, and compares every episode with its checksum.

    If a process or its machine died, the videos of the last episodes are compared with their checksums, too: those
    that no `sync` followed may be damaged, and their episodes are left out.

    Args:
        path: the journal.
        is_written: whether another process may be writing it. Its bytes are then read, and not mapped: the map of a
            file that becomes shorter ends the process.

    Raises:
        CorruptSourceError: the file or a video cannot be read.
    """
    data: mmap.mmap | bytes | None
    values: pa.Buffer | None = None
    if is_written:
        data = _read(path)
    else:
        data, values = _mapped(path)
    if not data:
        return Journal()
    metadata, size = _start(data)
    reader = _Reader(data, str(path), values)
    if COLUMNS in metadata and ID not in metadata:
        reader.read_plain(metadata[COLUMNS], metadata.get(CAMERAS, b"[]"))
    else:
        reader.read_framed(metadata.get(ID, b""), size)
    episodes, records = reader.episodes, reader.records
    lost: dict[int, Extent] = {}
    if reader.cameras and not reader.is_ended:
        # A journal that ended has all videos on the disk.
        first = sum(record.number < reader.synced for record in records)
        for number in range(first, len(episodes)):
            if problem := _video_problem(path.parent, episodes[number]):
                lost[number] = replace(records[number], damage=f"episode {number}: {problem}")
        kept = [number for number in range(len(episodes)) if number not in lost]
        episodes, records = [episodes[number] for number in kept], [records[number] for number in kept]
    return Journal(
        reader.columns, tuple(episodes), tuple(records), reader.id, tuple(reader.damaged), reader.torn, reader.cameras,
        tuple(lost.values()),
    )  # fmt: skip


def recorded_facts(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yields the facts of a journal's episodes, without reading their steps. A process may be writing it.

    Raises:
        CorruptSourceError: the file cannot be read.
    """
    position = 0
    with _readable(path) as file:
        data = _FileBytes(file)
        while (frame := find_frame(data, position, position)) is not None:
            position = frame.end
            yield facts_of(frame.texts[-1])
    if not position:
        yield from (episode.facts for episode in read_journal(path, is_written=True).episodes)


@contextmanager
def _readable(path: Path) -> Iterator[BinaryIO]:
    """Opens a journal. Errors of reading it are converted, too."""
    try:
        with open_regular(path) as opened:
            yield opened
    except OSError as error:
        raise _unreadable(error, path) from error


def _unreadable(error: OSError, path: Path, hint: str | None = None) -> CorruptSourceError:
    refuse_exhausted(error, str(path))
    return CorruptSourceError(f"cannot be read: {error.strerror or error}", file=str(path), hint=hint)


def _mapped(path: Path) -> tuple[mmap.mmap | None, pa.Buffer | None]:
    """Maps a file twice; (None, None) if it is empty.

    The first map can be searched, and keeps a descriptor open. The second one keeps none: the values of episodes lie in
    it, and a source may have more journals than a process may have descriptors.
    """
    with _readable(path) as opened:
        if not os.fstat(opened.fileno()).st_size:
            return None, None
        # Not by the path, which may name another file by now.
        with pa.memory_map(f"/proc/self/fd/{opened.fileno()}") as source:
            values = source.read_buffer()
        return mmap.mmap(opened.fileno(), values.size, prot=mmap.PROT_READ), values


def _read(path: Path) -> bytes:
    with _readable(path) as opened:
        return opened.read()


class _FileBytes:
    """The bytes of a file that another process may make shorter. They are read a block at a time.

    Args:
        file: the file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._size = file, os.fstat(file.fileno()).st_size
        #: A part of the file, and its first byte.
        self._block, self._at = b"", 0

    def find(self, mark: bytes, start: int, /) -> int:
        """Returns the first place of a mark at or behind a byte; -1 if there is none."""
        while True:
            self._load(start, start + len(mark))
            if (found := self._block.find(mark, start - self._at)) >= 0:
                return self._at + found
            end = self._at + len(self._block)
            if end - start < len(mark):
                return -1
            start = end - len(mark) + 1

    def __getitem__(self, part: slice, /) -> bytes:
        self._load(part.start, part.stop)
        return self._block[part.start - self._at : max(0, part.stop - self._at)]

    def _load(self, start: int, stop: int) -> None:
        """Reads the bytes of a part, as far as the file has them."""
        stop = max(start, min(stop, self._size))
        if not self._at <= start <= stop <= self._at + len(self._block):
            self._file.seek(start)
            self._at, self._block = start, self._file.read(max(stop - start, _BLOCK))


def _start(data: mmap.mmap | bytes) -> tuple[dict[bytes, bytes], int]:
    """Returns the metadata of a stream, and the bytes before its first record; nothing and 0 if they are damaged."""
    source = pa.BufferReader(pa.py_buffer(data))
    try:
        metadata: dict[bytes, bytes] = pa.ipc.open_stream(source).schema.metadata or {}
    except _DAMAGE:
        return {}, 0
    is_damaged = COLUMNS in metadata and metadata.get(CHECKSUM) != metadata_checksum(metadata)
    return ({}, 0) if is_damaged else (metadata, source.tell())


class _Reader:
    """Reads the records of a journal.

    Args:
        data: the journal.
        file: its name, for errors.
        values: the same bytes, for the values of episodes; None: `data` itself.

    Attributes:
        columns, cameras, episodes, records, id, damaged, torn: see `Journal`.
        synced: the videos of records with smaller numbers outlive a loss of power.
        is_ended: whether the writer ended the journal.
    """

    def __init__(self, data: mmap.mmap | bytes, file: str, values: pa.Buffer | None = None) -> None:
        self.columns: tuple[ColumnSpec, ...] = ()
        self.cameras: tuple[ColumnSpec, ...] = ()
        self.episodes: list[RecordedEpisode] = []
        self.records: list[Extent] = []
        self.id = b""
        self.damaged: list[Extent] = []
        self.torn = self.synced = 0
        self.is_ended = False
        self._data, self._file = data, file
        self._buffer = pa.py_buffer(data) if values is None else values
        #: Columns and cameras of all records, as JSON; the Arrow schema of the columns.
        self._described: Sequence[bytes] = ()
        self._schema = pa.schema([])

    def read_framed(self, journal: bytes, schema_bytes: int) -> None:
        """Reads a journal with frames.

        Args:
            journal: its id; empty: not known.
            schema_bytes: the bytes of the stream's schema; 0: not known.
        """
        position = at = number = 0
        cut = -1
        damage = _DAMAGED_HEADER
        while (frame := find_frame(self._data, position, at, journal, number)) is not None:
            journal, at = frame.journal, frame.at + 1
            if frame.end > len(self._data):
                cut = frame.start
                continue
            # A damaged schema is no loss: the texts of the records say the same.
            is_schema = position == 0 and (frame.number == 0 or frame.start == schema_bytes)
            if frame.start > position and not is_schema:
                self.damaged.append(Extent(position, frame.start, damage=damage))
            position, number = frame.start, frame.number + 1
            try:
                self._add(Extent(frame.start, frame.end, frame.number), frame.texts, None)
            except CorruptSourceError as error:
                damage = error.message  # of the bytes until the next record: this one may lack some
            else:
                position = at = frame.end
                damage = _DAMAGED_HEADER
        self.id = journal
        self._read_end(position, damage, is_cut=cut == position)

    def read_plain(self, columns: bytes, cameras: bytes) -> None:
        """Reads a journal of an earlier version, an Arrow stream without frames.

        Args:
            columns, cameras: as JSON.
        """
        source = pa.BufferReader(self._buffer)
        stream = pa.ipc.open_stream(source)
        position = source.tell()
        with suppress(StopIteration, *_DAMAGE):  # nothing can be found behind it
            for number in itertools.count():
                batch, metadata = stream.read_next_batch_with_custom_metadata()
                extent, position = Extent(position, source.tell(), number), source.tell()
                try:
                    self._add(extent, (columns, cameras, (metadata or {}).get(_FACTS_KEY, b"")), batch)
                except CorruptSourceError as error:
                    self.damaged.append(replace(extent, number=-1, damage=error.message))
        self._read_end(position, _DAMAGED_HEADER, is_cut=False)

    def _add(self, extent: Extent, texts: Sequence[bytes], batch: pa.RecordBatch | None) -> None:
        """Adds an episode.

        Args:
            extent: its bytes.
            texts: its columns, its cameras and its facts.
            batch: its steps; None: they are not parsed yet.

        Raises:
            CorruptSourceError: the record is damaged.
        """
        if len(texts) != 3 or (self.records and texts[:2] != self._described):
            raise CorruptSourceError("an episode has other columns than the episodes before", file=self._file)
        if not self.records:
            self.columns = parse_columns(texts[0], None if batch is None else batch.schema, self._file)
            self.cameras = _cameras(texts[1], self._file)
            self._described, self._schema = texts[:2], arrow_schema(self.columns)
        if batch is None:
            try:
                message = pa.ipc.read_message(self._buffer.slice(extent.start, extent.end - extent.start))
                batch = pa.ipc.read_record_batch(message, self._schema)
            except _DAMAGE as error:
                raise CorruptSourceError(f"an episode cannot be read: {error}", file=self._file) from error
        episode = from_batch(batch, texts[2], self.columns, self._file)
        self.episodes.append(_checked_videos(episode, {camera.name for camera in self.cameras}, self._file))
        self.records.append(extent)
        if self.cameras:
            self.synced = max(self.synced, synced_before(texts[2]))

    def _read_end(self, position: int, damage: str, *, is_cut: bool) -> None:
        """Reads what no intact record follows.

        Args:
            position: the first byte.
            damage: what may be wrong with the bytes.
            is_cut: whether the header there is intact, and the file too short for the record.
        """
        size = len(self._data) - position
        self.is_ended = self._data[position:] == END
        if self.is_ended:
            return
        if is_cut or size < MIN_BYTES:
            self.torn = size
        else:
            self.damaged.append(Extent(position, len(self._data), damage=damage))


def _video_problem(folder: Path, episode: RecordedEpisode) -> str | None:
    """Returns what is wrong with the videos of an episode.

    Raises:
        CorruptSourceError: a video cannot be read. It may be whole.
    """
    for video in episode.videos.values():
        path = folder / video.file
        try:
            size = path.stat().st_size
            if size != video.bytes:
                return f"{video.file} has {size:,} of {video.bytes:,} bytes"
            if checksum(path) != video.checksum:
                return f"{video.file} differs from its checksum"
        except OSError as error:
            if is_absent(error):
                return f"{video.file}: {error.strerror}"
            raise _unreadable(
                error, path, "try again; if it stays unreadable, move it away: its episode is then set aside"
            ) from error
    return None


def is_absent(error: OSError) -> bool:
    """Returns whether an error says that a file is not there."""
    return error.errno in _ABSENT


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
