"""A dataset shared out over the nodes of a training run, as one of its processes sees it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from gear_data.cluster.client.shard_client import ShardDirectory
from gear_data.cluster.client.shards import ClusterShards, RemoteShards
from gear_data.cluster.credentials import client_options
from gear_data.cluster.rdma.transport import AUTO
from gear_data.cluster.rendezvous import JoinRequest, Membership, PlacementPolicy, join
from gear_data.cluster.server.peer_servers import RunShardClient
from gear_data.cluster.server.supervisor import ServerLease
from gear_data.collection.reader import ColumnReader
from gear_data.dataset.cluster_store import ClusterDatasetStore
from gear_data.dataset.store import DatasetStore, as_it_was
from gear_data.residency import DeviceCopy, PartialCopy, Shards, host_residency, open_shards
from gear_data.residency.device.columns import current_device
from gear_data.residency.plan import ResidencyPlan
from gear_data.schema import Schema
from gear_data.storage.dataset_files import DatasetFiles, open_files
from gear_data.storage.manifest import Manifest
from gear_data.storage.remote.files import plain_path


class PartitionedDatasetStore(ClusterDatasetStore):
    """All episodes of a dataset whose shards the nodes of a run hold, those of this node in shared memory.

    Args:
        files: the dataset's; of its shards this node reads its own alone.
        residency, transport: see `gear_data.open`.
        membership: this process's.
        lease: keeps the node's server alive; None where another process of the node does.
    """

    def __init__(
        self,
        files: DatasetFiles,
        residency: str,
        transport: str,
        membership: Membership,
        lease: ServerLease | None = None,
    ) -> None:
        self.membership = self._known = membership
        self._transport, self._lease = transport, lease
        super().__init__(files, residency)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_open_again, (self.files, self._opened_as, self._transport, self._known, self._tiers, self.discount))

    def _check_files(self) -> None:
        here = {self.manifest.shards[shard].entry.file for shard in self._known.shards}
        self.files.check(self.manifest, frozenset(shard.entry.file for shard in self.manifest.shards) - here)

    def _open_shards(self) -> Shards:
        known = self._known
        others = [(n, server) for n, server in enumerate(known.servers) if server is not None and n != known.node]
        self._nodes = RunShardClient(
            [server.address for _, server in others],
            client_options(known.run),
            ShardDirectory(
                self.manifest,
                tuple(frozenset(known.placement.held[n]) for n, _ in others),
                tuple(server.verbs for _, server in others),
            ),
            self._transport,
        )
        self._here = np.zeros(len(self.manifest.shards), np.bool_)
        self._here[list(known.shards)] = True
        self.is_remote = not self._here.all()
        if not known.shards:
            return RemoteShards(self._nodes)
        entries = tuple(self.manifest.shards[shard] for shard in known.shards)
        local = open_shards(host_residency(self._opened_as), self.files, self.schema, entries)
        return ClusterShards(self._nodes, known.shards, local) if self.is_remote else local

    def _device_copy(self, schema: Schema, shards: Shards) -> DeviceCopy | PartialCopy:
        if isinstance(shards, RemoteShards):
            return DeviceCopy("mmap", schema, shards, self._steps)
        if isinstance(shards, ClusterShards):
            here = DeviceCopy(self.residency, schema, shards.local, self._steps[shards.here])
            return PartialCopy(here, shards.here, self._steps)
        return super()._device_copy(schema, shards)

    def reader(self) -> ColumnReader:
        # Past what is for other nodes: a GPU then has nobody to wait for.
        return super().reader() if self.is_remote else DatasetStore.reader(self)


def _open_again(
    files: DatasetFiles,
    residency: str,
    transport: str,
    membership: Membership,
    tiers: ResidencyPlan | None,
    discount: float | None,
) -> DatasetStore:
    """In a process that one of the run started."""
    return as_it_was(PartitionedDatasetStore(files, residency, transport, membership), tiers, discount)


def open_partitioned_store(
    path: str | os.PathLike[str],
    residency: str,
    place: PlacementPolicy,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
    transport: str = AUTO,
) -> PartitionedDatasetStore:
    """The dataset, shared out over the nodes of the run that this process is one of. Every rank must call it.

    Args:
        path, cache_dir, cache_bytes, transport: see `gear_data.open`.
        residency: of the node's own shards.
        place: says which node holds which shards; rank 0's is asked.

    Raises:
        whatever `gear_data.cluster.rendezvous.join` raises, and opening a dataset.
    """
    files = open_files(path, cache_dir, cache_bytes)
    cache = None if cache_dir is None else os.fspath(cache_dir)

    def prepare() -> Manifest:
        if residency == "pinned":
            current_device()
        return files.manifest()

    membership, lease = join(JoinRequest(plain_path(path), cache, cache_bytes, residency, transport, prepare, place))
    return PartitionedDatasetStore(files, residency, transport, membership, lease)
