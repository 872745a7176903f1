"""JournalWriter: appends finished episodes to a journal."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import xxhash

from gear_data.schema import ColumnSpec, Schema
from gear_data.storage.atomic import fsync, typed_write_errors
from gear_data.storage.journal.record import RecordedEpisode, arrow_schema, describe_columns, to_batch

#: Suffix of a journal: an Arrow IPC stream.
SUFFIX = ".arrows"
#: Key of the columns in the metadata of a journal's schema.
COLUMNS = b"gear.journal"
#: Key of the cameras there.
CAMERAS = b"gear.cameras"
#: Key of the checksum of both there.
CHECKSUM = b"gear.checksum"


class JournalWriter:
    """Appends finished episodes to a journal.

    A journal is an Arrow IPC stream, with a record batch for each episode.

    An episode that `append` wrote outlives the process. After `sync`, it also outlives a loss of power.

    Args:
        path: the journal, which must not exist.
        columns: all columns.
        cameras: a `gear_data.schema.video_column` for each camera.

    Attributes:
        episodes: number of episodes so far.
        bytes: of the journal so far.

    Raises:
        StorageFullError, UnwritableError: the file cannot be written.
    """

    def __init__(self, path: Path, columns: Sequence[ColumnSpec], cameras: Sequence[ColumnSpec] = ()) -> None:
        self.episodes = 0
        self.bytes = 0
        self._path = path
        self._columns = tuple(columns)
        self._sink = _Sink()
        #: Videos of episodes since the last `sync`.
        self._videos: list[Path] = []
        #: Episodes before the last `sync`, if there are cameras.
        self._synced = 0
        metadata = {COLUMNS: describe_columns(columns)}
        if cameras:
            metadata[CAMERAS] = json.dumps(Schema((), tuple(cameras)).videos_to_json()).encode()
        metadata[CHECKSUM] = metadata_checksum(metadata)
        self._schema = arrow_schema(columns).with_metadata(metadata)
        self._stream = pa.ipc.new_stream(pa.PythonFile(self._sink, "w"), self._schema)
        with typed_write_errors(path):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def append(self, episode: RecordedEpisode) -> None:
        """Appends an episode, whole or not at all. Its videos are complete.

        Raises:
            StorageFullError, UnwritableError: the journal cannot be written. It ends with the episode before.
        """
        batch, metadata = to_batch(episode, self._columns, self._synced)
        self._stream.write_batch(batch, metadata)
        self._write()
        self.episodes += 1
        self._videos += [self._path.parent / video.file for video in episode.videos.values()]

    def sync(self) -> None:
        """Waits until the disk has all episodes, and their videos.

        Raises:
            StorageFullError, UnwritableError: the disk failed.
        """
        with typed_write_errors(self._path):
            for path in (*self._videos, *{video.parent for video in self._videos}):
                fsync(path)
            os.fsync(self._file)
        self._videos.clear()
        self._synced = self.episodes if CAMERAS in self._schema.metadata else 0

    def close(self) -> None:
        """Ends the journal and waits until the disk has it."""
        self._stream.close()
        try:
            self._write()
            self.sync()
        finally:
            os.close(self._file)

    def _write(self) -> None:
        """Writes the stream's new bytes at the end of the file."""
        data = memoryview(self._sink.take())
        with typed_write_errors(self._path):
            try:
                done = 0
                while done < len(data):
                    done += os.pwrite(self._file, data[done:], self.bytes + done)
            except BaseException:
                with suppress(OSError):  # the first error is the one to report
                    os.ftruncate(self._file, self.bytes)
                if not self.bytes:
                    # Arrow writes the schema with the first batch, and only once.
                    self._stream = pa.ipc.new_stream(pa.PythonFile(self._sink, "w"), self._schema)
                raise
        self.bytes += len(data)


def metadata_checksum(metadata: Mapping[bytes, bytes]) -> bytes:
    """Returns the checksum of the columns and cameras in the metadata of a journal's schema."""
    return xxhash.xxh3_128_hexdigest(metadata[COLUMNS] + b"\0" + metadata.get(CAMERAS, b"")).encode()


class _Sink(io.RawIOBase):
    """Keeps what Arrow writes, so that an episode is written in one call."""

    def __init__(self) -> None:
        super().__init__()
        self._parts = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        part = memoryview(data)  # type: ignore[arg-type]
        self._parts += part
        return part.nbytes

    def take(self) -> bytearray:
        """Returns the bytes since the last call."""
        parts, self._parts = self._parts, bytearray()
        return parts
