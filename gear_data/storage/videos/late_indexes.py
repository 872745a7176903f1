"""LateIndexes: indexes of video files at URLs, read when a frame is first wanted, and kept in a cache."""

from __future__ import annotations

import io
import logging
import os
import shutil
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import xxhash

from gear_data.common.cancellation import start_thread
from gear_data.common.private_folder import scratch_folder
from gear_data.errors import CorruptShardError, CorruptSourceError, GearError
from gear_data.storage.atomic import typed_write_errors
from gear_data.storage.manifest import FileEntry
from gear_data.storage.remote.cache import ShardCache
from gear_data.storage.remote.range_reader import RangeReader, filesystem_of
from gear_data.storage.videos.file_parts import fetch_index
from gear_data.video.file_index import VideoFile
from gear_data.video.index_tables import VideoIndex, index_tables
from gear_data.video.indexing.indexer import process_workers

#: Files whose indexes are fetched at once: now, and for later calls.
_REQUESTS, _REQUESTS_AHEAD = 32, 16
#: Most files whose indexes are fetched for later calls.
_FILES_AHEAD = 128
#: Bytes of an index: of each frame, and of the rest. A guess, for which the cache makes room.
_FRAME_BYTES, _REST_BYTES = 32, 4096
#: Bytes of the checksum before a kept index.
_DIGEST_BYTES = 16
_COPY_BYTES = 8 << 20
_LEAVE_OUT = "restore the file at its URL and open the dataset again, or leave its episodes out: dataset[[...]]"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Coming:
    """The files whose indexes other threads of this process read.

    Attributes:
        process: the process.
        files: their numbers. A number is removed when its index is here, or could not be read.
    """

    process: int = field(default_factory=os.getpid)
    files: set[int] = field(default_factory=set)


class LateIndexes:
    """`IndexReader` of files at URLs, whose servers have names for their contents. Usable in a forked child, picklable.

    Args:
        files: a table of `FILES_SCHEMA`, whose unindexed files have URLs.
        cache: keeps the indexes.
    """

    def __init__(self, files: pa.Table, cache: ShardCache) -> None:
        self._files, self._cache = files, cache
        self._coming = _Coming()
        #: Files whose indexes were in the cache. If an index was removed there, it is fetched again.
        self._here: set[int] = set()

    def __reduce__(self) -> tuple[object, ...]:
        return (LateIndexes, (self._files, self._cache))

    def read(self, number: int, expected: VideoFile, frames: int) -> VideoFile:
        video = replace(self._kept(number), file=expected.file)
        if (video.height, video.width) != (expected.height, expected.width):
            raise CorruptShardError(
                f"has frames of {video.height} x {video.width}, and its camera has {expected.height} x "
                f"{expected.width}",
                file=video.file,
                hint=_LEAVE_OUT,
            )
        if video.num_frames < frames:
            raise CorruptShardError(
                f"has {video.num_frames} frames, and its episodes have {frames} steps", file=video.file, hint=_LEAVE_OUT
            )
        period = float(expected.time_base)
        late = np.abs(video.times[:frames] - np.arange(frames) * period) >= period / 2
        if video.num_frames > frames and late.any():
            frame = int(np.argmax(late))
            raise CorruptShardError(
                f"has {video.num_frames} frames, and its episodes have {frames} steps; frame {frame} is at "
                f"{video.times[frame]:.6g} s, where the metadata has {frame * period:.6g} s, so that the frame of a "
                "step is unclear",
                file=video.file,
                hint="convert the source, which reads the files: gear-data convert SOURCE DATASET",
            )
        return video

    def load(self, numbers: Sequence[int]) -> None:
        missing = self._missing(numbers)
        if not missing:
            return
        threads = ThreadPoolExecutor(min(_REQUESTS, len(missing)), "gear-video")
        try:
            for _ in threads.map(self._fetch, missing):
                pass
        finally:
            threads.shutdown(cancel_futures=True)

    def expect(self, numbers: Sequence[int]) -> Sequence[int]:
        missing = self._missing(numbers)
        if self._coming.process != os.getpid():
            # The threads that read for a parent ended with the fork.
            self._coming = _Coming()
        coming = self._coming.files
        new = deque(number for number in missing[:_FILES_AHEAD] if number not in coming)
        while new and len(coming) + len(new) > _FILES_AHEAD:
            new.pop()
        coming.update(new)
        try:
            for _ in range(min(_REQUESTS_AHEAD, len(new))):
                start_thread(self._fetch_all, (new, coming), "gear-video")
        except BaseException:  # no further thread, or an interrupt
            coming.difference_update(_taken(new))
            raise
        return missing

    def _fetch_all(self, numbers: deque[int], coming: set[int]) -> None:
        """Fetches indexes into the cache until none is left."""
        for number in _taken(numbers):
            try:
                self._fetch(number)
            except Exception as error:  # of libraries, too: this may be the only thread
                # The call that needs the index raises it again.
                _log.debug("an index for a later call cannot be read: %s", error)
            finally:
                coming.discard(number)

    def _missing(self, numbers: Sequence[int]) -> list[int]:
        """Returns the files whose indexes are not in the cache."""
        unknown = [number for number in numbers if number not in self._here]
        self._here.update(number for number in unknown if self._cache.holds(self._entry(number)))
        return [number for number in unknown if number not in self._here]

    def _fetch(self, number: int) -> None:
        """Puts the index of a file into the cache, if it is not there."""
        entry = self._entry(number)
        with self._cache.use(entry, partial(self._download, number), self._value("file", number), _is_sound):
            self._here.add(number)

    def _kept(self, number: int) -> VideoFile:
        """Returns the index of a file from the cache. It is fetched if it is missing or damaged there."""
        entry, download = self._entry(number), partial(self._download, number)
        for _ in range(2):
            with self._cache.use(entry, download, self._value("file", number), _is_sound) as path:
                data = path.read_bytes()
                if _is_whole(data):
                    return _unpacked(data)
                path.unlink(missing_ok=True)
        raise CorruptShardError("is damaged each time it is read", file=str(path), hint="check the disk of the cache")

    def _download(self, number: int, target: BinaryIO) -> None:
        """Reads the index of a file, and writes it as the cache keeps it."""
        with scratch_folder() as folder:
            video = self._indexed(number, folder / "video")
        target.write(_packed(video))
        target.truncate()

    def _indexed(self, number: int, path: Path) -> VideoFile:
        """Returns the index of a file.

        Args:
            number: of the file.
            path: a place for parts of it, or for the whole file if parts are not enough.
        """
        url, contents = (self._value(name, number) for name in ("file", "checksum"))
        filesystem, name = filesystem_of(url)
        reader = RangeReader(filesystem, name, self._value("bytes", number), url, contents)
        result: VideoFile | GearError | None = None
        if fetch_index(reader, path):
            result = process_workers().index(path, url, contents)
        if result is None or isinstance(result, CorruptSourceError):
            # FFmpeg may need more of it than its first packets. If it is damaged, the whole file says how.
            reader.seek(0)
            with typed_write_errors(path), path.open("wb") as file:
                shutil.copyfileobj(reader, file, _COPY_BYTES)
            result = process_workers().index(path, url, contents)
        if isinstance(result, CorruptSourceError):
            raise CorruptShardError(result.message, file=url, hint=_LEAVE_OUT) from result
        if isinstance(result, GearError):
            raise result
        return result

    def _entry(self, number: int) -> FileEntry:
        """Returns the entry of an index in the cache. Its name is a hash of the name of the file's contents."""
        text = f"index {self._value('checksum', number)}"
        size = _REST_BYTES - _FRAME_BYTES * self._value("packets", number)
        return FileEntry(
            f"{self._value('file', number)} [index]", size, f"xxh3-128:{xxhash.xxh3_128_hexdigest(text.encode())}"
        )

    def _value(self, column: str, number: int) -> Any:
        return self._files.column(column)[number].as_py()


def _packed(video: VideoFile) -> bytes:
    """Returns an index as bytes: a checksum, and the two tables of `index_tables` as Arrow streams."""
    sink = io.BytesIO()
    for table in index_tables([video]):
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    return xxhash.xxh3_128_digest(sink.getvalue()) + sink.getvalue()


def _unpacked(data: bytes) -> VideoFile:
    source = pa.BufferReader(pa.py_buffer(data).slice(_DIGEST_BYTES))
    files, packets = (pa.ipc.open_stream(source).read_all() for _ in range(2))
    return VideoIndex(files, packets, "an index in the cache").file(0)


def _is_whole(data: bytes) -> bool:
    return data[:_DIGEST_BYTES] == xxhash.xxh3_128_digest(memoryview(data)[_DIGEST_BYTES:])


def _is_sound(path: Path) -> bool:
    return _is_whole(path.read_bytes())


def _taken(numbers: deque[int]) -> Iterable[int]:
    """Takes numbers, the first one first, until none is left. Other threads take from them, too."""
    with suppress(IndexError):
        while True:
            yield numbers.popleft()
