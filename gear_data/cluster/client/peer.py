"""A node as its clients know it: what it serves, and streams to it that are kept."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pyarrow import flight

from gear_data.cluster.addresses import Address, ClientOptions
from gear_data.cluster.flight.client import Endpoint, Stream
from gear_data.cluster.flight.grpc_fork import close_before_fork, using_grpc
from gear_data.cluster.protocol import check_handshake, handshake
from gear_data.errors import ClusterError

#: Streams to one node that are kept for the next batch.
_IDLE_STREAMS = 8


@dataclass(frozen=True)
class PeerDescription:
    """What a node says of itself.

    Attributes:
        dataset: its `dataset_identity`.
        shards: the places in the manifest of those that it serves.
        verbs: whether they can be read by RDMA.
    """

    dataset: str
    shards: frozenset[int]
    verbs: bool


class Peer:
    """A node's server. Safe to use from several threads, before and after a fork; opens what it needs when it needs it.

    Args:
        address: where it listens.
        access: what is shown to it, and how long it may take.

    Raises:
        InvalidArgumentError: it is on another machine, and there is no token.
    """

    def __init__(self, address: Address, access: ClientOptions) -> None:
        access.check(address)
        self.endpoint = Endpoint(address, access)
        # Streams do not know the node: what is closed with it must not keep it.
        self._idle: list[Stream] = []
        close_before_fork(self)
        weakref.finalize(self, _close, self._idle)

    @property
    def name(self) -> str:
        return self.endpoint.name

    def describe(self) -> PeerDescription:
        """What it serves.

        Raises:
            NodeUnreachableError, NodeRefusedError: it says nothing, or not to this process.
        """
        with using_grpc():
            client = self.endpoint.connect()
            try:
                return self._describe(client)
            finally:
                client.close()

    def _describe(self, client: Any) -> PeerDescription:
        body = self._act(client, "describe", b"")
        try:
            found = json.loads(body)
            description = PeerDescription(
                str(found["dataset"]), frozenset(map(int, found["shards"])), found["verbs"] is True
            )
            if not description.shards:
                raise ValueError("no shards")
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise self.endpoint.nonsense("a description that is none") from error
        with self._naming():
            check_handshake(body, description.dataset)
        return description

    def file_piece(self, dataset: str, file: str, offset: int) -> bytes:
        """A piece of the manifest or of a table, see `ShardServer.file_piece`. Raises as `describe` does."""
        body = json.dumps({**json.loads(handshake(dataset)), "file": file, "offset": offset}).encode()
        with using_grpc():
            client = self.endpoint.connect()
            try:
                return self._act(client, "file", body)
            finally:
                client.close()

    def _act(self, client: Any, action: str, body: bytes) -> bytes:
        with self.endpoint.errors():
            results = list(client.do_action(flight.Action(action, body), self.endpoint.options()))
        if len(results) != 1:
            raise self.endpoint.nonsense(f"{len(results)} results in place of one")
        return results[0].body.to_pybytes()  # type: ignore[no-any-return]

    def open_stream(self, dataset: str) -> tuple[Stream, PeerDescription | None]:
        """A stream: an idle one, or a new one and what the node now says of itself. To be given back with `keep`, or
        closed."""
        with suppress(IndexError):
            return self._idle.pop(), None
        # Of a node that does not answer this finds out within the limit, which opening a stream would not.
        client = self.endpoint.connect()
        try:
            description = self._describe(client)
        finally:
            client.close()
        return Stream(self.endpoint, handshake(dataset, checksum=self.endpoint.access.checksum)), description

    def keep(self, stream: Stream) -> None:
        """Gives back a stream all of whose requests are answered."""
        stream.kept = True
        if len(self._idle) < _IDLE_STREAMS:
            self._idle.append(stream)
        else:
            stream.close()

    def close_idle(self) -> None:
        _close(self._idle)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except ClusterError as error:
            error.file = self.name
            raise


def _close(streams: list[Stream]) -> None:
    while streams:
        # In a fork, and when the process ends: neither is to wait for a node that hangs.
        streams.pop().abandon()
