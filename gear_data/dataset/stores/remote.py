"""RemoteDatasetStore: a dataset that other machines serve at a `gear://` URL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gear_data.cluster.addresses import Address, nodes_url, parse_nodes
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.client.shard_client import ShardClient
from gear_data.cluster.client.shards import RemoteShards
from gear_data.cluster.client.video_packets import NodePackets
from gear_data.cluster.transport_names import AUTO
from gear_data.dataset.stores.cluster import ClusterDatasetStore
from gear_data.dataset.stores.store import DatasetStore
from gear_data.errors import ClusterError
from gear_data.residency import Shards, open_shards
from gear_data.schema import Schema
from gear_data.storage.dataset_files import SIDECARS, DatasetFiles
from gear_data.storage.identity import OpenedDataset, Version
from gear_data.storage.manifest import FileEntry, Manifest
from gear_data.storage.mapped_files import MappedFiles
from gear_data.storage.remote.cache import ShardCache, default_folder
from gear_data.storage.sidecar import COLUMN, Sidecar
from gear_data.video.index_tables import VideoIndex
from gear_data.video.packet_bytes import PacketBytes
from gear_data.video.packet_file import PacketFile

RESIDENCY = "remote"


class RemoteDatasetFiles:
    """`DatasetFiles` of a dataset that nodes serve.

    Tables are fetched and kept in this machine's cache. Files of shards stay on their nodes.

    Args:
        addresses: addresses of all nodes.
        cache: cache for the tables.
        transport: see `ShardClient`.
        opened: see `FolderFiles`.
        queue_pairs: see `ClientOptions`; None: the environment's.
        generation: of a dataset that grows; None: the newest one that all nodes have.

    Attributes:
        mapped: see `DatasetFiles`.
        videos: keeps what is read of video files.
    """

    def __init__(
        self,
        addresses: tuple[Address, ...],
        cache: ShardCache,
        transport: str = AUTO,
        opened: Version | None = None,
        queue_pairs: int | None = None,
        generation: int | None = None,
    ) -> None:
        self._generation = generation if opened is None else opened.generation
        self._addresses = addresses
        self._cache = self.videos = cache
        self._queue_pairs = queue_pairs
        self._transport = transport
        self._opened = OpenedDataset(opened)
        # The cache sets the times of its files.
        self.mapped = MappedFiles(lambda: None, times=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # Connections and tokens are not pickled: each process has its own.
        state = (self._addresses, self._cache, self._transport, self._opened.version, self._queue_pairs)
        return (RemoteDatasetFiles, state)

    def with_queue_pairs(self, queue_pairs: int) -> RemoteDatasetFiles:
        """Returns the same files, read over another number of RDMA queue pairs."""
        return RemoteDatasetFiles(self._addresses, self._cache, self._transport, self._opened.version, queue_pairs)

    def at(self, generation: int | None = None) -> RemoteDatasetFiles:
        return RemoteDatasetFiles(self._addresses, self._cache, self._transport, None, self._queue_pairs, generation)

    @cached_property
    def client(self) -> ShardClient:
        options = ClientOptions.from_environment()
        if self._queue_pairs is not None:
            options = replace(options, queue_pairs=self._queue_pairs)
        return ShardClient(self._addresses, options, transport=self._transport, generation=self._generation)

    @property
    def location(self) -> str:
        return nodes_url(self._addresses)

    def manifest(self) -> Manifest:
        return self._opened.admit(self.client.manifest, self.location)

    def check(self, manifest: Manifest, bad: frozenset[str] = frozenset()) -> None:
        """Does nothing.

        The nodes have checked their files, and `ShardClient` has checked that all shards are served.
        """

    @contextmanager
    def local(self, entry: FileEntry) -> Iterator[Path]:
        names = [name for name, table in self.client.manifest.tables.items() if table == entry]
        if not names:
            raise ClusterError(
                "cannot be fetched: nodes send steps of shards, not files",
                file=self.name(entry),
                hint="open the folder or URL that the nodes serve",
            )

        def fetch(file: BinaryIO) -> None:
            for piece in self.client.file_chunks(names[0], entry.bytes):
                file.write(piece)

        with self._cache.use(entry, fetch, self.name(entry)) as path:
            yield path

    def name(self, entry: FileEntry) -> str:
        return f"{self.location}/{entry.file}"

    def open_video(self, number: int, url: str, size: int, contents: str) -> PacketFile:
        """Opens a video file at a URL, which a node reads: see `OpenFile`."""
        return PacketFile(NodePackets(self.client), number, size)

    def identity(self, entry: FileEntry) -> list[Any]:
        return [self.location]

    def sidecars(self, contents: str) -> Path:
        return self._cache.folder / SIDECARS / contents


class RemoteDatasetStore(ClusterDatasetStore):
    """Episodes of a dataset that nodes serve; no shard is on this machine."""

    def __init__(
        self, files: RemoteDatasetFiles, residency: str = RESIDENCY, bad_files: frozenset[str] = frozenset()
    ) -> None:
        self._client = files.client
        super().__init__(files, residency, bad_files)

    def _opened_again(self, files: DatasetFiles) -> DatasetStore:
        if not isinstance(files, RemoteDatasetFiles):
            raise TypeError(f"{type(files).__name__} are not files of nodes")
        return RemoteDatasetStore(files, self.residency)

    def _open_shards(self) -> Shards:
        self._here = np.zeros(len(self.manifest.shards), np.bool_)
        return RemoteShards(self._client)

    def _video_packets(self, index: VideoIndex) -> PacketBytes:
        return NodePackets(self._client)

    def _open_sidecar(self, sidecar: Sidecar) -> Shards:
        return open_shards("mmap", sidecar.files, Schema((COLUMN,)), sidecar.shards)


def open_remote_store(
    url: str,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
    transport: str = AUTO,
) -> RemoteDatasetStore:
    """Opens the dataset of `gear://host:port,host:port`.

    Args:
        url: addresses of the nodes.
        cache_dir, cache_bytes, transport: see `gear_data.open`.

    Raises:
        InvalidArgumentError: an address is invalid, or the required token is missing.
        ClusterError: the nodes cannot be reached, refuse the request, or do not hold all shards.
    """
    cache = ShardCache(default_folder() if cache_dir is None else Path(cache_dir), cache_bytes)
    return RemoteDatasetStore(RemoteDatasetFiles(parse_nodes(url), cache, transport))
