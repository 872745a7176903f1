"""StoredPackets: packets of video files, on this machine or at URLs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from gear_data.common.paths import is_remote, join
from gear_data.storage.arrow_files import read_table
from gear_data.storage.dataset_files import DatasetFiles, cache_of
from gear_data.storage.manifest import Manifest, check_inside
from gear_data.storage.remote.cache import ShardCache, default_folder
from gear_data.storage.remote.range_reader import RangeReader, filesystem_of
from gear_data.storage.videos.mapped import mapped_packets
from gear_data.video.index_tables import (
    FILES_SCHEMA,
    FILES_TABLE,
    PACKETS_SCHEMA,
    PACKETS_TABLE,
    TABLE_FILES,
    VideoIndex,
)
from gear_data.video.packet_bytes import ByteRange, FetchingPackets, PacketBytes


class StoredPackets:
    """`PacketBytes` of a dataset. Some files are on this machine, and others at URLs.

    Args:
        local: reads the files of this machine.
        fetched: reads the files at URLs.
        remote: numbers of the files at URLs.
    """

    def __init__(self, local: PacketBytes, fetched: FetchingPackets, remote: frozenset[int]) -> None:
        self._local, self._fetched, self._remote = local, fetched, remote

    def read(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Returns the bytes of each range. Raises the errors of `PacketBytes.read`."""
        found: list[memoryview] = [memoryview(b"")] * len(ranges)
        for packets, remote in ((self._local, False), (self._fetched, True)):
            numbers = [i for i, each in enumerate(ranges) if (each[0] in self._remote) is remote]
            if numbers:
                for number, data in zip(numbers, packets.read([ranges[i] for i in numbers]), strict=True):
                    found[number] = data
        return found

    def fetch(self, ranges: Sequence[ByteRange], ahead: Callable[[], Iterable[Sequence[ByteRange]]]) -> None:
        """Fetches ranges of the files at URLs; see `FetchingPackets.fetch`."""
        self._fetched.fetch(self._at_urls(ranges), lambda: map(self._at_urls, ahead()))

    def _at_urls(self, ranges: Sequence[ByteRange]) -> list[ByteRange]:
        return [each for each in ranges if each[0] in self._remote]


def _is_place(name: str) -> bool:
    """Returns whether a name is of a linked file: a URL, or an absolute path."""
    return is_remote(name) or PurePosixPath(name).is_absolute()


def _url(files: DatasetFiles, name: str) -> str:
    check_inside(name, f"{files.location}/{TABLE_FILES[FILES_TABLE]}")
    return join(str(files.location), name)


def stored_packets(files: DatasetFiles, index: VideoIndex) -> PacketBytes:
    """Returns what reads the packets of a dataset's video files.

    Files on this machine are mapped. Of files at a URL, the ranges of groups of pictures are fetched.

    Args:
        files: files of the dataset.
        index: the video files.

    Raises:
        ManifestError: the path of a file leaves the dataset's folder.
    """
    known = cache_of(files)
    names: list[str] = index.files.column("file").to_pylist()
    urls = [_url(files, name) if known is not None and not _is_place(name) else name for name in names]
    remote = frozenset(number for number, url in enumerate(urls) if is_remote(url))
    local = mapped_packets(files, index)
    if not remote:
        return local
    from gear_data.storage.videos.fetched import FetchedPackets

    fetched = FetchedPackets(index, urls, _cache(files))
    return fetched if len(remote) == len(index) else StoredPackets(local, fetched, remote)


def _cache(files: DatasetFiles) -> ShardCache:
    """Returns the cache of a dataset's video files at URLs."""
    return cache_of(files) or getattr(files, "videos", None) or ShardCache(default_folder(), None)


def video_index(files: DatasetFiles, listed: pa.Table, packets: pa.Table) -> VideoIndex:
    """Returns the index of video files that are in a dataset.

    Args:
        files: files of the dataset.
        listed, packets: the tables of its video files, or of some of them.

    Raises:
        CorruptShardError: a table has other columns, or the tables disagree.
    """
    reader = None
    if listed.schema.equals(FILES_SCHEMA) and (listed.column("packets").to_numpy() < 0).any():
        from gear_data.storage.videos.late_indexes import LateIndexes

        reader = LateIndexes(listed, _cache(files), getattr(files, "open_video", open_url))
    return VideoIndex(listed, packets, str(files.location), reader)


def open_url(number: int, url: str, size: int, contents: str) -> RangeReader:
    """Opens a video file at a URL: see `OpenFile`."""
    filesystem, path = filesystem_of(url)
    return RangeReader(filesystem, path, size, url, contents)


def read_video_index(files: DatasetFiles, manifest: Manifest) -> VideoIndex:
    """Maps and checks the tables of a dataset's video files.

    Without cameras, the index has no files.

    Raises:
        CorruptShardError: a table is damaged.
    """
    if not manifest.schema.videos:
        return video_index(files, FILES_SCHEMA.empty_table(), PACKETS_SCHEMA.empty_table())
    tables: list[Any] = []
    for name in (FILES_TABLE, PACKETS_TABLE):
        entry = manifest.tables[name]
        with files.local(entry) as path:
            tables.append(read_table(path, entry.checksum))
            files.mapped.add(entry, path)
    return video_index(files, *tables)
