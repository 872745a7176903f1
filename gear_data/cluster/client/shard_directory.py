"""ShardDirectory: the shards of each peer, and the peer to read each shard from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gear_data.cluster.addresses import nodes_url
from gear_data.cluster.client.backoff import PeerBackoff
from gear_data.cluster.client.peer import Peer, PeerDescription
from gear_data.cluster.flight.client import Stream
from gear_data.cluster.transport_names import VERBS
from gear_data.errors import ClusterError, GearError, MissingShardsError, NodeRefusedError
from gear_data.selection.windows import Int64Array
from gear_data.storage.identity import dataset_identity
from gear_data.storage.manifest import Manifest


@dataclass(frozen=True)
class ClusterManifest:
    """A dataset's manifest, and which shards each peer holds.

    Attributes:
        manifest: the dataset's manifest.
        shards: the shards of each peer.
        verbs: whether each peer offers RDMA.
    """

    manifest: Manifest
    shards: tuple[frozenset[int], ...]
    verbs: tuple[bool, ...]


class ShardDirectory:
    """Which peer holds which shards. Thread-safe.

    Args:
        peers: all peers, also those that cannot be reached now.
        transport: the client's transport; `verbs` refuses peers without RDMA.
        known: the shards of each peer. None: `update` records them.

    Attributes:
        peers: see above.
        dataset: the dataset's `dataset_identity`; empty until it is known.
        shard_count: number of shards of the dataset; 0 until the manifest is known.
        rdma_peers: numbers of the peers that hold shards and offer RDMA.
        backoff: peers that failed recently.
    """

    def __init__(self, peers: Sequence[Peer], transport: str, known: ClusterManifest | None) -> None:
        self.peers = list(peers)
        self.dataset = ""
        self.shard_count = 0
        self.rdma_peers: set[int] = set()
        self.backoff = PeerBackoff()
        self._transport = transport
        #: The shards of each peer; empty for a peer that was not reached yet.
        self._held: list[frozenset[int]] = [frozenset()] * len(self.peers)
        self._routes: dict[tuple[int, frozenset[int]], Int64Array] = {}
        if known is not None:
            self.dataset = dataset_identity(known.manifest)
            self.shard_count = len(known.manifest.shards)
            self._held = list(known.shards)
            for peer, shards in zip(self.peers, known.shards, strict=True):
                peer.read_generation(known.manifest.generation, shards)
            # From a peer without shards there is nothing to read.
            held = zip(known.verbs, known.shards, strict=True)
            self.rdma_peers = {number for number, (offers, shards) in enumerate(held) if offers and shards}

    @property
    def url(self) -> str:
        """The URL that lists all peers."""
        return nodes_url(peer.endpoint.address for peer in self.peers)

    def update(self, number: int, description: PeerDescription) -> None:
        """Records a peer's present description.

        Raises:
            NodeRefusedError: the peer serves another dataset, or no RDMA where transport `verbs` needs it.
        """
        peer = self.peers[number]
        if self.dataset and description.dataset != self.dataset:
            raise NodeRefusedError(
                "serves another dataset than the other nodes, or another conversion of it",
                file=peer.name,
                hint="restart it with the dataset of the other nodes",
            )
        self.dataset = description.dataset
        if self._transport == VERBS and not description.verbs:
            raise NodeRefusedError(
                "does not offer RDMA",
                file=peer.name,
                hint="serve with --transport verbs, or read with transport='auto'",
            )
        if description.verbs:
            self.rdma_peers.add(number)
        else:
            self.rdma_peers.discard(number)
        if self._held[number] != description.shards:
            self._held[number] = description.shards
            self._routes = {}

    def missing(self) -> list[int]:
        """Returns the shards that no peer holds."""
        return sorted(set(range(self.shard_count)).difference(*self._held))

    def acquire_stream(self, number: int, seconds: float | None = None) -> Stream:
        """Returns a stream to a peer that serves the same dataset as before.

        Args:
            number: number of the peer.
            seconds: time that connecting may take; None: the timeout.

        Raises:
            NodeUnreachableError, NodeRefusedError: the peer cannot be used.
        """
        stream, description = self.peers[number].acquire_stream(self.dataset, seconds)
        if description is not None:
            try:
                self.update(number, description)
            except NodeRefusedError:
                self.peers[number].abandon_stream(stream)
                raise
        return stream

    def assign(self, shards: Int64Array, turn: int, failed: dict[int, GearError]) -> Int64Array:
        """Chooses a peer for each shard.

        Peers in backoff are used only where no replica is left.

        Args:
            shards: int64 [n].
            turn: replicas take turns: another turn chooses another replica.
            failed: peers that must not be chosen, with their errors. Peers that fail here are added.

        Returns:
            int64 [n], the number of a peer for each shard.

        Raises:
            ClusterError, CorruptShardError, DeviceError: the error of the last peer that held a shard.
            MissingShardsError: no peer holds a shard any more.
        """
        excluded = frozenset(failed)
        for avoided in (excluded | self.backoff.active(), excluded):
            peers = self._route(turn, avoided)[shards]
            if (peers >= 0).all():
                return peers
        if self._discover(failed):
            return self.assign(shards, turn, failed)
        lost = np.unique(shards[peers < 0]).tolist()
        for number, error in failed.items():
            if self._held[number].intersection(lost):
                error.message += f"; no other node gives shards {list_shards(lost)}"
                raise error
        raise MissingShardsError(f"no node holds shards {list_shards(lost)} any more", file=self.url)

    def _discover(self, failed: dict[int, GearError]) -> bool:
        """Contacts the peers that were not reached yet, and records their shards.

        Peers that fail again are added to `failed`.

        Returns:
            Whether there were any such peers.
        """
        unknown = [number for number, held in enumerate(self._held) if not held and number not in failed]
        for number in unknown:
            try:
                self.peers[number].release_stream(self.acquire_stream(number))
            except ClusterError as error:
                failed[number] = error
                self.backoff.record_failure(number)
        return bool(unknown)

    def _route(self, turn: int, excluded: frozenset[int]) -> Int64Array:
        """Returns int64 [shards], the peer of each shard in this turn.

        -1 stands for a shard that only excluded peers hold, or no peer.
        """
        routes = self._routes
        route = routes.get((turn, excluded))
        if route is None:
            route = np.full(self.shard_count, -1, np.int64)
            for shard in range(self.shard_count):
                holders = [number for number, held in enumerate(self._held) if shard in held and number not in excluded]
                if holders:
                    # Replicas share the work evenly.
                    route[shard] = holders[(shard + turn) % len(holders)]
            routes[turn, excluded] = route
        return route


def list_shards(shards: Sequence[int]) -> str:
    """Returns shards for an error message: the first 20."""
    return ", ".join(map(str, shards[:20])) + (" ..." if len(shards) > 20 else "")
