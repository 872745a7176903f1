"""Packets of video files at URLs, fetched in ranges and kept in a cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import BinaryIO

import xxhash

from gear_data.storage.manifest import FileEntry
from gear_data.storage.remote.cache import ShardCache
from gear_data.storage.remote.range_reader import RangeReader, filesystem_of
from gear_data.storage.videos.pages import Pages, file_pages
from gear_data.video.index_tables import VideoIndex
from gear_data.video.packet_bytes import ByteRange

#: Requests at once.
_REQUESTS = 16
#: Most bytes of one request for adjacent pages.
_REQUEST_BYTES = 8 << 20
#: Files whose pages a process keeps in memory.
_FILES_KEPT = 1024


class FetchedPackets:
    """`PacketBytes` of video files at URLs.

    Pages (`Pages`) that are not in the cache are fetched, adjacent ones in one request, and several requests at once.
    Each page is compared with the packets' checksums, and is fetched again if it differs.

    Args:
        index: the files.
        urls: number of a file -> URL.
        cache: keeps pages on disk.
    """

    def __init__(self, index: VideoIndex, urls: Sequence[str], cache: ShardCache) -> None:
        self._index = index
        self._urls = urls
        self._cache = cache
        self._pages = lru_cache(_FILES_KEPT)(self._file_pages)

    def _file_pages(self, file: int) -> Pages:
        return file_pages(self._index.file(file), self._index.groups(file))

    def read(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Returns the bytes of each range.

        Raises:
            CorruptShardError: the fetched bytes differ from the index, twice.
            RemoteError: a file cannot be fetched.
            StorageFullError, UnwritableError: the cache cannot be written to.
        """
        wanted = sorted(
            {(file, page) for file, first, last in ranges for page in self._pages(file).of_range(first, last)}
        )
        missing = [(file, page) for file, page in wanted if not self._cache.holds(self._entry(file, page))]
        runs = list(self._runs(missing))
        fetched: dict[tuple[int, int], memoryview] = {}
        with ThreadPoolExecutor(min(_REQUESTS, max(1, len(runs))), "gear-video") as threads:
            for found in threads.map(self._fetch, runs):
                fetched.update(found)
        pages = {(file, page): self._page(file, page, fetched.get((file, page))) for file, page in wanted}
        return [self._cut(each, pages) for each in ranges]

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
        # Without a buffer: a buffered reader requests at least 2 MiB.
        reader = RangeReader(filesystem, path, self._index.file(file).size, self._urls[file])
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
