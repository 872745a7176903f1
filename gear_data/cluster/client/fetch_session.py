"""FetchSession: one request to several peers, with failover to replicas."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from gear_data.cluster.client.fetch import Fetch, take_all
from gear_data.cluster.client.retry_policy import Retries
from gear_data.cluster.client.shard_directory import ShardDirectory
from gear_data.cluster.client.transports import PeerTransports
from gear_data.cluster.flight.fetch import split_into_batches
from gear_data.cluster.protocol import FetchedSpans, Request
from gear_data.cluster.rdma.reads.span_read import WriteTargets
from gear_data.errors import GearError, NodeUnreachableError
from gear_data.selection.windows import Int64Array


class FetchSession:
    """Reads the spans of one request.

    `start` posts the spans to their peers, and `results` takes the responses. If a peer fails, times out, refuses or
    returns invalid data, its spans are posted to a replica. If no replica is left, the retry policy decides. `abandon`
    must be called at the end.

    Args:
        directory: the peers, and the shards that they hold.
        transports: creates the fetches.
        retries: waits for peers to return.
        request: the request.
        sizes: int64 [N], bytes of each span.
        targets: memory that rows are written to if they are read by RDMA.
        turn: see `ShardDirectory.assign`.
    """

    def __init__(
        self,
        directory: ShardDirectory,
        transports: PeerTransports,
        retries: Retries,
        request: Request,
        sizes: Int64Array,
        targets: WriteTargets | None,
        turn: int,
    ) -> None:
        self._directory, self._transports, self._retries = directory, transports, retries
        self._request, self._sizes, self._targets, self._turn = request, sizes, targets, turn
        self._fetches: list[Fetch[Any, Any]] = []
        #: Peers that failed in this session, with their errors. They are not used again until the retry policy has
        #: waited for them.
        self._failed: dict[int, GearError] = {}
        #: Latest time of a response, if the retry policy has set one; and of each peer whose RDMA failed.
        self._latest = math.inf
        self._latest_of: dict[int, float] = {}

    def start(self, spans: Int64Array) -> None:
        """Assigns spans to peers, and posts them.

        All peers have received their requests before any response is waited for.

        Raises:
            ClusterError, CorruptShardError, DeviceError: no peer is left for some of the shards.
        """
        peers = self._assign(self._request.shard[spans])
        self._fetches = [
            self._transports.fetch(
                peer,
                self._request,
                split_into_batches(spans[peers == peer], self._sizes),
                self._targets,
                min(self._latest, self._latest_of.pop(peer, math.inf)),
            )
            for peer in np.flatnonzero(np.bincount(peers)).tolist()
        ]
        for fetch in self._fetches:
            fetch.post()

    def results(self) -> Iterator[FetchedSpans]:
        """Yields the spans as they arrive, from any peer.

        Raises:
            As `start`.
        """
        while True:
            for _, result in take_all(self._fetches):
                yield result
            self._record_outcomes()
            unread = [spans for fetch in self._fetches for spans in fetch.unread]
            if not unread:
                return
            self.start(np.concatenate(unread))

    def abandon(self) -> None:
        """Drops the fetches in flight. Nothing is written to the targets after this call."""
        for fetch in self._fetches:
            fetch.abandon()

    def _record_outcomes(self) -> None:
        """Records which peers succeeded and which failed.

        A peer whose RDMA failed is not recorded as failed if Arrow Flight is tried next.
        """
        for fetch in self._fetches:
            if fetch.error is None:
                self._directory.backoff.record_success(fetch.peer)
            elif self._transports.fall_back(fetch):
                self._latest_of[fetch.peer] = fetch.deadline
            else:
                self._failed[fetch.peer] = fetch.error
                self._directory.backoff.record_failure(fetch.peer, fetch.waiting_since)

    def _assign(self, shards: Int64Array) -> Int64Array:
        """Assigns shards to peers.

        If a shard has no peer left, waits as long as the retry policy allows, and then tries all peers again.

        Args:
            shards: int64 [n].

        Returns:
            int64 [n], the number of a peer for each shard.

        Raises:
            As `ShardDirectory.assign`.
        """
        while True:
            try:
                return self._directory.assign(shards, self._turn, self._failed)
            except NodeUnreachableError as error:
                latest = self._retries.wait(self._failed, error)
                if latest is None:
                    raise
                self._latest = latest
                self._failed.clear()
