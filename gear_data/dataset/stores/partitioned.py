"""PartitionedDatasetStore: shards divided over the nodes of a run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gear_data.cluster.client.peer import Peer
from gear_data.cluster.client.retry_policy import RetryPolicy
from gear_data.cluster.client.shard_client import ShardClient
from gear_data.cluster.client.shard_directory import ClusterManifest
from gear_data.cluster.client.shards import ClusterShards, RemoteShards
from gear_data.cluster.client.video_packets import LocalOrNodePackets, NodePackets
from gear_data.cluster.generation_agreement import await_generation, take_generation
from gear_data.cluster.key_value_store import join_timeout
from gear_data.cluster.placement import Placement
from gear_data.cluster.rendezvous import JoinRequest, Membership, join
from gear_data.cluster.run_credentials import run_options
from gear_data.cluster.server.supervisor import ServerLease
from gear_data.cluster.transport_names import AUTO
from gear_data.collection.reader import ColumnReader
from gear_data.common.paths import plain_path
from gear_data.dataset.stores.cluster import ClusterDatasetStore
from gear_data.dataset.stores.store import DatasetStore, open_again
from gear_data.errors import InvalidArgumentError, NodeUnreachableError
from gear_data.residency import ColumnsCopy, Contents, DeviceCopy, PartialCopy, Shards, host_residency, open_shards
from gear_data.residency.device.columns import current_device
from gear_data.schema import Schema
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.identity import dataset_identity
from gear_data.storage.manifest import Manifest, files_elsewhere
from gear_data.video.index_tables import VideoIndex
from gear_data.video.packet_bytes import PacketBytes

#: Seconds before an attempt is repeated.
_PAUSE = 0.1


class PartitionedDatasetStore(ClusterDatasetStore):
    """Episodes of a dataset whose shards the nodes of a run share.

    This node reads its own shards from shared memory, and the other shards from the other nodes.

    Args:
        files: files of the dataset; this node reads only the files of its own shards.
        residency: residency of this node's shards, see `gear_data.open`.
        transport: see `gear_data.open`.
        membership: membership of this process in the run.
        lease: keeps the node's shard server running; None if another process of the node does.
        rank_process: the process that joined the run; others cannot refresh the dataset.
    """

    def __init__(
        self,
        files: DatasetFiles,
        residency: str,
        transport: str,
        membership: Membership,
        lease: ServerLease | None = None,
        rank_process: int = 0,
    ) -> None:
        self.membership = self._member = membership
        self._rank_process = rank_process
        self._transport, self._lease = transport, lease
        super().__init__(files, residency)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.files, self._requested_residency, self._transport, self._member)
        return (open_again, (type(self), arguments, self._plan, self.discount))

    def at_generation(self, generation: int | None) -> DatasetStore | None:
        """See `DatasetStore.at_generation`. For the newest generation, all ranks call it.

        Raises:
            ClusterError: a rank is late, or failed. All ranks stay at this generation then.
        """
        files = self.files
        if generation is not None:
            return None if self._is_same(other := files.at(generation)) else self._moved(other)
        if os.getpid() != self._rank_process:
            raise InvalidArgumentError(
                "only the ranks of a run can refresh its dataset, and this is a process that a rank started",
                hint="call refresh in the rank, and start the process again",
            )

        def prepare(number: int) -> DatasetStore:
            self._is_same(other := await_generation(files, number))
            store = self._moved(other)
            store.device_columns()
            _load_server(store.membership, store.manifest, time.monotonic() + join_timeout())
            return store

        def newest() -> int:
            self._is_same(other := files.at())
            return other.manifest().generation

        return take_generation(self._member.run, self.manifest.generation, newest, prepare)

    def _moved(self, files: DatasetFiles) -> DatasetStore:
        """Returns the store of another generation. Shards that this node holds already are not loaded again."""
        member = self._member.extended(self.manifest, files.manifest())
        store = PartitionedDatasetStore(
            files, self._requested_residency, self._transport, member, self._lease, self._rank_process
        )
        self.check_same_episodes(store)
        return store if self.discount is None else store.with_discount(self.discount)

    def _check_files(self) -> None:
        self.files.check(self.manifest, files_elsewhere(self.manifest, self._member.shards))

    def _open_shards(self) -> Shards:
        member = self._member
        peers = [
            (node, server) for node, server in enumerate(member.servers) if server is not None and node != member.node
        ]
        options = run_options(member.run)
        self._client = ShardClient(
            [server.address for _, server in peers],
            options,
            ClusterManifest(
                self.manifest,
                tuple(frozenset(member.placement.held[node]) for node, _ in peers),
                tuple(server.verbs for _, server in peers),
            ),
            self._transport,
            # A server that dies is restarted.
            RetryPolicy(options.timeout),
        )
        self._here = np.zeros(len(self.manifest.shards), np.bool_)
        self._here[list(member.shards)] = True
        self.is_remote = not self._here.all()
        if not member.shards:
            return RemoteShards(self._client)
        entries = tuple(self.manifest.shards[shard] for shard in member.shards)
        grows = self.manifest.growth is not None
        local = open_shards(host_residency(self._requested_residency), self.files, self.schema, entries, grows=grows)
        return ClusterShards(self._client, member.shards, local) if self.is_remote else local

    def _device_copy(self, schema: Schema, shards: Shards, contents: Contents) -> ColumnsCopy:
        if isinstance(shards, RemoteShards):
            return DeviceCopy("mmap", schema, shards, self.shard_steps, contents)
        if isinstance(shards, ClusterShards):
            own = replace(contents, shards=tuple(contents.shards[shard] for shard in shards.here))
            return PartialCopy(super()._device_copy(schema, shards.local, own), shards.here, self.shard_steps)
        return super()._device_copy(schema, shards, contents)

    def _video_packets(self, index: VideoIndex) -> PacketBytes:
        local = super()._video_packets(index)
        return LocalOrNodePackets(local, NodePackets(self._client)) if self.is_remote else local

    def reader(self) -> ColumnReader:
        # A node that holds all shards uses the local reader: a GPU then never waits for a peer.
        return super().reader() if self.is_remote else DatasetStore.reader(self)


def open_partitioned_store(
    files: DatasetFiles,
    path: str | os.PathLike[str],
    residency: str,
    policy: Callable[[DatasetFiles, Sequence[str]], tuple[Placement, Placement]],
    cache_dir: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
    transport: str = AUTO,
    budget: int | None = None,
) -> PartitionedDatasetStore:
    """Joins the training run and opens the dataset that its nodes share.

    Every rank must call it.

    Args:
        files: files of the dataset.
        path, cache_dir, cache_bytes, transport: see `gear_data.open`.
        residency: residency of this node's shards.
        policy: assigns the shards of some files to nodes; called on rank 0.
        budget: most bytes of a node, for later generations.

    Raises:
        GearError: any error of `gear_data.cluster.rendezvous.join` or of opening a dataset.
    """
    cache = None if cache_dir is None else os.fspath(cache_dir)
    opened = [files]

    def prepare(generation: int | None) -> Manifest:
        if residency == "pinned":
            current_device()
        manifest = opened[0].manifest()
        if generation is None or generation == manifest.generation:
            return manifest
        opened[0] = await_generation(files, generation)
        return opened[0].manifest()

    def place(nodes: Sequence[str]) -> tuple[Placement, Placement]:
        return policy(opened[0], nodes)

    request = JoinRequest(plain_path(path), cache, cache_bytes, residency, transport, prepare, place, budget)
    membership, lease = join(request)
    return PartitionedDatasetStore(opened[0], residency, transport, membership, lease, os.getpid())


def _load_server(member: Membership | None, manifest: Manifest, deadline: float) -> None:
    """Makes this node's server hold a generation, before other nodes read it.

    Raises:
        NodeUnreachableError: the server does not answer in time.
    """
    server = None if member is None else member.servers[member.node]
    if member is None or server is None or member.local_rank or not member.shards:
        return
    peer = Peer(server.address, run_options(member.run))
    peer.read_generation(manifest.generation, frozenset(member.shards))
    while True:
        try:
            peer.describe(dataset_identity(manifest), seconds=max(1.0, deadline - time.monotonic()))
            return
        except NodeUnreachableError:  # it is restarted
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)
