"""LateIndexes: indexes of video files that are read when a frame is first wanted, and kept in a cache."""

from __future__ import annotations

import io
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
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
from gear_data.storage.videos.file_parts import fetch_index
from gear_data.storage.videos.packed_index import is_whole, packed, unpacked
from gear_data.video.file_index import VideoFile
from gear_data.video.indexing.indexer import process_workers

#: Files whose indexes are fetched at once: now, and for later calls.
_REQUESTS, _REQUESTS_AHEAD = 32, 16
#: Most files whose indexes are fetched for later calls.
_FILES_AHEAD = 128
#: Bytes of an index: of each frame, and of the rest. A guess, for which the cache makes room.
_FRAME_BYTES, _REST_BYTES = 32, 4096
_COPY_BYTES = 8 << 20
#: Seconds for which an index is taken to be in the cache. It may be removed: then it is fetched again, alone.
_SEEN_SECONDS = 30.0
_LEAVE_OUT = "restore the file at its URL and open the dataset again, or leave its episodes out: dataset[[...]]"

_log = logging.getLogger(__name__)

#: Opens a file: its number, its URL, its bytes, and the name of its contents -> what reads it.
OpenFile = Callable[[int, str, int, str], io.RawIOBase]


@dataclass(frozen=True, eq=False)
class _Ahead:
    """The files whose indexes other threads of this process read for later calls.

    Attributes:
        process: the process.
        files: their numbers. A number is removed when its index is here, or could not be read.
        todo: those that no thread has begun with.
        threads: a place for each thread.
        failed: files that could not be read. The call that needs one tries again.
    """

    process: int = field(default_factory=os.getpid)
    files: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    todo: deque[int] = field(default_factory=deque)
    threads: deque[None] = field(default_factory=lambda: deque([None] * _REQUESTS_AHEAD))


class LateIndexes:
    """`IndexReader` of files at URLs, whose servers have names for their contents. Usable in a forked child, picklable.

    Args:
        files: a table of `FILES_SCHEMA`, whose unindexed files have URLs.
        cache: keeps the indexes.
        open_file: opens a file; picklable.
    """

    def __init__(self, files: pa.Table, cache: ShardCache, open_file: OpenFile) -> None:
        self._files, self._cache, self._open_file = files, cache, open_file
        self._ahead = _Ahead()
        #: File -> the time until which its index is taken to be in the cache.
        self._seen: dict[int, float] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return (LateIndexes, (self._files, self._cache, self._open_file))

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
        # The calling thread only waits. An interrupt in it would lose a worker process.
        threads = ThreadPoolExecutor(min(_REQUESTS, len(missing)), "gear-video")
        try:
            for _ in threads.map(self._fetch, missing):
                pass
        finally:
            threads.shutdown(cancel_futures=True)

    def expect(self, numbers: Sequence[int]) -> Sequence[int]:
        missing = self._missing(numbers)
        if self._ahead.process != os.getpid():
            # The threads that read for a parent ended with the fork.
            self._ahead = _Ahead()
        ahead = self._ahead
        for number in missing:
            if number in ahead.files or number in ahead.failed:
                continue
            if len(ahead.files) < _FILES_AHEAD:
                ahead.todo.append(number)
                ahead.files.add(number)
        for _ in range(len(ahead.todo)):
            try:
                ahead.threads.pop()
            except IndexError:
                break  # all run
            try:
                start_thread(self._fetch_all, (ahead,), "gear-video")
            except BaseException:  # no further thread, or an interrupt
                ahead.threads.append(None)
                raise
        return missing

    def _fetch_all(self, ahead: _Ahead) -> None:
        """Fetches indexes into the cache until none is left."""
        try:
            while ahead.todo:
                self._fetch_next(ahead)
        finally:
            ahead.threads.append(None)

    def _fetch_next(self, ahead: _Ahead) -> None:
        try:
            number = ahead.todo.popleft()
        except IndexError:
            return  # another thread took it
        try:
            if not self._cache.holds(self._entry(number)):
                self._fetch(number)
        except Exception as error:  # of libraries, too: this may be the only thread
            # The call that needs the index raises it again.
            ahead.failed.add(number)
            _log.debug("an index for a later call cannot be read: %s", error)
        finally:
            ahead.files.discard(number)

    def _missing(self, numbers: Sequence[int]) -> list[int]:
        """Returns the files whose indexes are not in the cache.

        The others are marked as used, but not more often than once in `_SEEN_SECONDS`.
        """
        now = time.monotonic()
        missing = []
        for number in numbers:
            if self._seen.get(number, now) > now:
                continue
            if self._cache.mark_used(self._entry(number)):
                self._seen[number] = now + _SEEN_SECONDS
            else:
                missing.append(number)
        return missing

    def _kept(self, number: int) -> VideoFile:
        """Returns the index of a file from the cache. It is fetched if it is missing or damaged there."""
        data = self._cached(number)
        if data is None:
            with ThreadPoolExecutor(1, "gear-video") as thread:  # see `load`
                data = thread.submit(self._fetch, number).result()
        return unpacked(data)

    def _cached(self, number: int) -> bytes | None:
        """Returns the index of a file as it is in the cache; None if it is missing. A damaged one is removed."""
        entry, url = self._entry(number), self._url(number)
        if not self._cache.holds(entry):
            return None
        try:
            with self._cache.use(entry, _refuse, url, _is_sound) as path, typed_write_errors(path):
                data = path.read_bytes()
                if is_whole(data):
                    return data
                path.unlink(missing_ok=True)
        except _AbsentError:
            pass
        return None

    def _fetch(self, number: int) -> bytes:
        """Reads the index of a file, puts it into the cache, and returns it.

        The cache is not locked meanwhile: a node of which the file is asked may use the same cache.
        """
        with scratch_folder() as folder:
            data = packed(self._indexed(number, folder / "video"))

        def write(target: BinaryIO) -> None:
            target.write(data)
            target.truncate()

        with self._cache.use(self._entry(number), write, self._url(number), _is_sound):
            return data

    def _indexed(self, number: int, path: Path) -> VideoFile:
        """Returns the index of a file.

        Args:
            number: of the file.
            path: a place for parts of it, or for the whole file if parts are not enough.
        """
        url, contents = self._url(number), self._value("checksum", number)
        file, workers = self._open_file(number, url, self._value("bytes", number), contents), process_workers()
        result: VideoFile | GearError | None = None
        try:
            if fetch_index(file, path):
                result = workers.index(path, url, contents)
            if result is None or isinstance(result, CorruptSourceError):
                # FFmpeg may need more of it than its first packets. If it is damaged, the whole file says how.
                with workers.whole:
                    file.seek(0)
                    with typed_write_errors(path), path.open("wb") as copy:
                        shutil.copyfileobj(file, copy, _COPY_BYTES)
                    result = workers.index(path, url, "")
            if isinstance(result, GearError):
                raise result
        except (CorruptSourceError, CorruptShardError) as error:  # the latter is of a node, and names the node
            raise CorruptShardError(error.message, file=url, hint=_LEAVE_OUT) from error
        return replace(result, checksum=contents)

    def _entry(self, number: int) -> FileEntry:
        """Returns the entry of an index in the cache. Its name is a hash of what the file is."""
        url, size = self._url(number), self._value("bytes", number)
        text = f"index 1 {self._value('checksum', number)} {size} {url}"
        room = _REST_BYTES - _FRAME_BYTES * self._value("packets", number)
        return FileEntry(f"{url} [index]", room, f"xxh3-128:{xxhash.xxh3_128_hexdigest(text.encode())}")

    def _url(self, number: int) -> str:
        return str(self._value("file", number))

    def _value(self, column: str, number: int) -> Any:
        return self._files.column(column)[number].as_py()


class _AbsentError(Exception):
    """Raised for an index that was removed from the cache meanwhile."""


def _refuse(target: BinaryIO) -> None:
    raise _AbsentError


def _is_sound(path: Path) -> bool:
    return is_whole(path.read_bytes())
