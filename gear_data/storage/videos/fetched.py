"""Packets of video files at URLs, fetched in ranges and kept in a cache."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import compress
from typing import BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from gear_data.common.cancellation import start_thread
from gear_data.storage.manifest import FileEntry
from gear_data.storage.remote.cache import ShardCache
from gear_data.storage.remote.range_reader import RangeReader, filesystem_of
from gear_data.storage.videos.pages import file_pages
from gear_data.video.index_tables import VideoIndex
from gear_data.video.packet_bytes import ByteRange

#: Requests at once.
_REQUESTS = 32
#: Most bytes of one request for adjacent pages.
_REQUEST_BYTES = 8 << 20
#: Most bytes of later reads that are fetched.
_AHEAD_BYTES = 32 << 20
#: Files whose pages a process keeps in memory.
_FILES_KEPT = 1024

_log = logging.getLogger(__name__)
_Item = TypeVar("_Item")


@dataclass(frozen=True, eq=False)
class _Round:
    """Pages that one thread fetches together.

    Attributes:
        process: the process of the thread.
        ended: set when the pages are in the cache, or could not be fetched.
    """

    process: int = field(default_factory=os.getpid)
    ended: threading.Event = field(default_factory=threading.Event)


class FetchedPackets:
    """`PacketBytes` of video files at URLs.

    Pages (`Pages`) that are not in the cache are fetched, adjacent ones in one request, and several requests at once.
    Each page is compared with the packets' checksums, and is fetched again if it differs. A file that was not read has
    no checksums: its server is asked for the contents that it had.

    Args:
        index: the files.
        urls: number of a file -> URL.
        cache: keeps pages on disk.
    """

    def __init__(self, index: VideoIndex, urls: Sequence[str], cache: ShardCache) -> None:
        self._index = index
        self._urls = urls
        self._cache = cache
        # Without a reference to self: see `VideoIndex`.
        self._pages = lru_cache(_FILES_KEPT)(lambda file: file_pages(index.file(file), index.groups(file)))
        #: Pages that are being fetched.
        self._rounds: dict[tuple[int, int], _Round] = {}
        #: Calls of `fetch` that do not look for pages of later reads, because an earlier call found many.
        self._skips = 0

    def read(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Returns the bytes of each range.

        A range that pages do not have, such as a whole file, is fetched each time, and not compared with checksums.

        Raises:
            CorruptShardError: the fetched bytes differ from the index, twice.
            RemoteError: a file cannot be fetched.
            StorageFullError, UnwritableError: the cache cannot be written to.
        """
        self._index.load(np.array([file for file, _, _ in ranges], np.int64))
        paged = [self._pages(file).has(first, last) for file, first, last in ranges]
        wanted = self._wanted(compress(ranges, paged))
        runs = list(self._runs(self._missing(wanted)))
        fetched: dict[tuple[int, int], memoryview] = {}
        with ThreadPoolExecutor(min(_REQUESTS, max(1, len(runs))), "gear-video") as threads:
            for found in threads.map(self._fetch, runs):
                fetched.update(found)
        pages = {(file, page): self._page(file, page, fetched.get((file, page))) for file, page in wanted}
        return [
            self._cut(each, pages) if kept else self._request(*each) for each, kept in zip(ranges, paged, strict=True)
        ]

    def fetch(self, ranges: Sequence[ByteRange], ahead: Callable[[], Iterable[Sequence[ByteRange]]]) -> None:
        """Fetches pages into the cache; see `FetchingPackets.fetch`.

        Pages that another thread is fetching are waited for. If the pages take more than half of the cache, nothing is
        fetched. Pages of later reads are fetched by threads that go on when this call returns.
        """
        wanted = self._wanted(ranges)
        missing = self._missing(wanted)
        limit = self._cache.limit
        if limit is not None and wanted and 2 * int(self._ends(wanted)[-1]) > limit:
            return
        round_ = _Round()
        try:
            own = [page for page in missing if self._claim(page, round_)]
            others = {self._rounds.get(page) for page in missing} - {round_, None}
            runs = list(self._runs(own))
            with ThreadPoolExecutor(max(1, min(_REQUESTS, len(runs))), "gear-video") as threads:
                tasks = [threads.submit(self._keep, run) for run in runs]
                if own or not self._skips:
                    self._fetch_ahead(ahead)
                else:
                    self._skips -= 1
            for task in tasks:
                task.result()
        finally:
            self._end(missing, round_)
        for other in others:
            if other is not None:
                # A page that this round could not fetch is fetched by `read`.
                other.ended.wait()

    def _end(self, pages: Iterable[tuple[int, int]], round_: _Round) -> None:
        """Ends a round, whether or not its pages are in the cache: nobody waits for them any more."""
        for page in pages:
            if self._rounds.get(page) is round_:
                del self._rounds[page]
        round_.ended.set()

    def _fetch_ahead(self, ahead: Callable[[], Iterable[Sequence[ByteRange]]]) -> None:
        """Begins to fetch the pages of the next reads: of `_AHEAD_BYTES`, or a quarter of the cache."""
        limit = self._cache.limit
        room = _AHEAD_BYTES if limit is None else min(_AHEAD_BYTES, limit // 4)
        coming: dict[tuple[int, int], None] = {}
        reads = 0
        for ranges in ahead():
            for page in self._wanted(ranges):
                first, last = self._pages(page[0]).span(page[1])
                room -= 0 if page in coming else last - first
                if room < 0:
                    break
                coming[page] = None
            if room < 0:
                break
            reads += 1
        # Finding the pages takes time.
        self._skips = reads // 2
        todo: deque[tuple[list[tuple[int, int]], _Round]] = deque()
        try:
            for run in self._runs(self._missing(sorted(coming))):
                round_ = _Round()
                if own := [page for page in run if self._claim(page, round_)]:
                    todo.append((own, round_))
            # The next call may come before these threads have ended.
            for _ in range(min(_REQUESTS // 2, len(todo))):
                start_thread(self._keep_all, (todo,), "gear-video")
        except BaseException:  # no further thread, or an interrupt
            for own, round_ in _taken(todo):
                self._end(own, round_)
            raise

    def _keep_all(self, todo: deque[tuple[list[tuple[int, int]], _Round]]) -> None:
        """Fetches runs of pages into the cache until none is left."""
        for pages, round_ in _taken(todo):
            try:
                for run in self._runs(pages):
                    self._keep(run)
            except Exception as error:  # of libraries, too: this may be the only thread
                # The read that needs the pages raises it again.
                _log.debug("a page of a later read cannot be fetched: %s", error)
            finally:
                self._end(pages, round_)

    def _claim(self, page: tuple[int, int], round_: _Round) -> bool:
        """Returns whether a round fetches a page.

        Otherwise another round of this process does.
        """
        known = self._rounds.setdefault(page, round_)
        if known.process != round_.process:
            # The thread of this round ended with the fork.
            known = self._rounds[page] = round_
        return known is round_

    def _ends(self, pages: Iterable[tuple[int, int]]) -> npt.NDArray[np.int64]:
        """Returns for each page the bytes of all pages up to its end."""
        spans = [self._pages(file).span(page) for file, page in pages]
        return np.cumsum([last - first for first, last in spans], dtype=np.int64)

    def _keep(self, run: Sequence[tuple[int, int]]) -> None:
        """Fetches adjacent pages into the cache."""
        for (file, page), data in self._fetch(run).items():
            self._page(file, page, data)

    def _wanted(self, ranges: Iterable[ByteRange]) -> list[tuple[int, int]]:
        """Returns the file and the number of each page of some ranges, ascending."""
        return sorted(
            {(file, page) for file, first, last in ranges for page in self._pages(file).of_range(first, last)}
        )

    def _missing(self, pages: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Returns the pages that are not in the cache."""
        return [(file, page) for file, page in pages if not self._cache.holds(self._entry(file, page))]

    def _runs(self, missing: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
        """Yields runs of adjacent pages of one file.

        A run has at most `_REQUEST_BYTES` bytes, or one page.
        """
        run: list[tuple[int, int]] = []
        for file, page in missing:
            pages = self._pages(file)
            adjacent = bool(run) and run[-1] == (file, page - 1)
            if run and not (adjacent and pages.span(page)[1] - pages.span(run[0][1])[0] <= _REQUEST_BYTES):
                yield run
                run = []
            run.append((file, page))
        if run:
            yield run

    def _fetch(self, run: Sequence[tuple[int, int]]) -> dict[tuple[int, int], memoryview]:
        file, pages = run[0][0], self._pages(run[0][0])
        first, last = pages.span(run[0][1])[0], pages.span(run[-1][1])[1]
        data = self._request(file, first, last)
        return {each: data[slice(*(at - first for at in pages.span(each[1])))] for each in run}

    def _request(self, file: int, first: int, last: int) -> memoryview:
        # The file system is asked for each time: a parent's file system does not work in a forked child.
        filesystem, path = filesystem_of(self._urls[file])
        video = self._index.listed(file)
        contents = "" if video.was_read else video.checksum
        # Without a buffer: a buffered reader requests at least 2 MiB.
        reader = RangeReader(filesystem, path, video.size, self._urls[file], contents)
        reader.seek(first)
        data, done = memoryview(bytearray(last - first)), 0
        while count := reader.readinto(data[done:]):
            done += count
        return data[:done]

    def _entry(self, file: int, page: int) -> FileEntry:
        """Returns the entry of a page in the cache.

        Its name is a hash of the file's checksum and the range.
        """
        first, last = self._pages(file).span(page)
        name = xxhash.xxh3_128_hexdigest(f"{self._index.file(file).checksum} {first} {last}".encode())
        return FileEntry(f"{self._urls[file]} [{first}:{last}]", last - first, f"xxh3-128:{name}")

    def _page(self, file: int, page: int, fetched: memoryview | None) -> memoryview:
        """Returns a page from the cache. If it is not there, it is put there first."""
        parts = [] if fetched is None else [fetched]
        pages = self._pages(file)

        def download(target: BinaryIO) -> None:
            target.write(parts.pop() if parts else self._request(file, *pages.span(page)))

        entry = self._entry(file, page)
        with self._cache.use(
            entry, download, self._urls[file], lambda path: pages.is_sound(page, memoryview(path.read_bytes()))
        ) as path:
            return memoryview(path.read_bytes())

    def _cut(self, wanted: ByteRange, pages: dict[tuple[int, int], memoryview]) -> memoryview:
        file, first, last = wanted
        numbers = self._pages(file).of_range(first, last)
        start = self._pages(file).span(numbers[0])[0]
        if len(numbers) == 1:
            return pages[file, numbers[0]][first - start : last - start]
        return memoryview(b"".join(pages[file, number] for number in numbers))[first - start : last - start]


def _taken(items: deque[_Item]) -> Iterator[_Item]:
    """Takes items, the first one first, until none is left. Other threads take from them, too."""
    with suppress(IndexError):
        while True:
            yield items.popleft()
