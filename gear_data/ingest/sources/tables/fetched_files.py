"""Small files at URLs, fetched before they are read, several at once."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import IO

from gear_data.ingest.location import Location, SourceFile
from gear_data.storage.remote.range_reader import SMALL_BYTES

#: Files that are fetched at once. Together they have 64 MiB at most.
_AHEAD = 32


@dataclass(frozen=True, slots=True)
class FetchedFile(SourceFile):
    """A file at a URL whose bytes are in memory.

    Attributes:
        data: the bytes.
    """

    data: bytes = b""

    def open(self) -> IO[bytes]:
        return io.BytesIO(self.data)


def fetched_ahead(files: Iterable[SourceFile]) -> Generator[SourceFile, None, None]:
    """Yields files in their order. Threads fetch the next small files at URLs meanwhile.

    Other files are yielded as they are. Close the iterator to end its threads.

    Raises:
        RemoteError: the next file cannot be fetched.
    """
    pending: deque[Callable[[], SourceFile]] = deque()
    threads = ThreadPoolExecutor(_AHEAD, "gear-fetch")
    try:
        for file in files:
            pending.append(threads.submit(_fetched, file).result if _is_small(file) else partial(_unchanged, file))
            if len(pending) > _AHEAD:
                yield pending.popleft()()
        while pending:
            yield pending.popleft()()
    finally:
        threads.shutdown(cancel_futures=True)


def with_fetched(location: Location, is_read: Callable[[str], bool]) -> Location:
    """Returns a location whose small files at URLs are in memory, of those that `is_read` says of their names.

    Raises:
        RemoteError: a file cannot be fetched.
    """
    with closing(fetched_ahead(file for file in location.files if is_read(file.name))) as fetched:
        read = {file.name: file for file in fetched}
    return replace(location, files=tuple(read.get(file.name, file) for file in location.files))


def _is_small(file: SourceFile) -> bool:
    return file.filesystem is not None and file.size <= SMALL_BYTES and not isinstance(file, FetchedFile)


def _unchanged(file: SourceFile) -> SourceFile:
    return file


def _fetched(file: SourceFile) -> SourceFile:
    with file.open() as stream:
        data = stream.read()
    return FetchedFile(**{each.name: getattr(file, each.name) for each in fields(file)}, data=data)
