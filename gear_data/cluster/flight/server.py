"""FlightServer: an Arrow Flight server in front of a `ShardServer`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import numpy as np

from gear_data.cluster.addresses import Address
from gear_data.cluster.credentials import ServerCredentials
from gear_data.cluster.flight.protected_server import ProtectedServer, next_chunk
from gear_data.cluster.flight.server_errors import as_flight_errors, to_client
from gear_data.cluster.protocol import (
    MAX_SPANS,
    MESSAGE_BYTES,
    STREAM_SCHEMA,
    Request,
    byte_batch,
    check_handshake,
    handshake,
    response_checksum,
)
from gear_data.cluster.rdma.messages import QueuePairEnd, parse_queue_pair_request
from gear_data.cluster.rdma.server import RdmaServer
from gear_data.cluster.server.served_generations import ServedGeneration, ServedGenerations
from gear_data.cluster.server.shard_server import Response, ShardServer
from gear_data.common.typed_json import resolved
from gear_data.errors import NodeRefusedError


@resolved
class _FileRequest(msgspec.Struct, frozen=True):
    """Fields of the action `file`, in addition to the handshake.

    See `ShardServer.file_chunk`.
    """

    file: str
    offset: int


@resolved
class _VideoRequest(msgspec.Struct, frozen=True):
    """Fields of the action `video`, in addition to the handshake.

    See `ShardServer.video_bytes`.
    """

    ranges: Annotated[list[tuple[int, int, int]], msgspec.Meta(max_length=MAX_SPANS)]


class FlightServer(ProtectedServer):
    """Serves shards until it is shut down.

    Args:
        shards: the shards, or several generations of them.
        listen: address to listen at. With port 0 the system chooses a free port; `port` is the chosen one.
        credentials: the token that clients must send, and the TLS certificate.
        rdma: the shards' registered memory; None: clients cannot read by RDMA, or generations have their own.

    Attributes:
        holding: threads that hold queue pairs for clients. Such clients read without sending requests.

    Raises:
        InvalidArgumentError: other machines can reach the address, and there is no token or no TLS.
        ClusterError: the server cannot listen there, or the certificate or key is invalid.
    """

    answers = "the actions describe, file and video, and exchanges of requests"

    def __init__(
        self,
        shards: ShardServer | ServedGenerations,
        listen: Address,
        credentials: ServerCredentials,
        rdma: RdmaServer | None = None,
    ) -> None:
        # Set before it listens: requests may arrive at once.
        if isinstance(shards, ShardServer):
            shards = ServedGenerations(ServedGeneration(shards, rdma))
        self._generations = shards
        self._last_used = time.monotonic()
        self._answering: set[object] = set()
        self.holding: set[int] = set()
        super().__init__(listen, credentials)

    @property
    def last_used(self) -> float:
        """Time at which the last answer was finished, by `time.monotonic`; now, while a request is answered."""
        return time.monotonic() if self._answering else self._last_used

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Marks the server as answering a request. On a slow disk, an answer may take seconds."""
        answer = object()
        self._answering.add(answer)
        try:
            yield
        finally:
            self._last_used = time.monotonic()
            self._answering.discard(answer)

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """Answers the actions `describe`, `file` and `video`.

        `describe` returns the served shards of a generation, as JSON. `file` returns a chunk of the manifest or of a
        table. `video` returns ranges of bytes of video files.
        """
        self.counts.add(requests=1)
        with as_flight_errors(self.counts), self._in_use():
            if action.type not in ("describe", "file", "video"):
                raise NodeRefusedError(f"has no action {action.type[:40]!r}; the actions are describe, file and video")
            body = action.body.to_pybytes()
            # A client that asks what the server has may send nothing.
            message = check_handshake(body or handshake(""))
            with self._generations.reading(message) as served:
                if action.type == "describe":
                    answer = _description(served)
                elif action.type == "file":
                    answer = _file_chunk(served.shards, body)
                else:
                    answer = _video_bytes(served.shards, body)
                self.counts.add(sent_bytes=len(answer))
                yield answer

    do_put = ProtectedServer._refuse

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Serves one stream until the client closes it.

        Answers the client's requests in order, or holds queue pairs for it.
        """
        with as_flight_errors(self.counts):
            command = descriptor.command or b""
            message = check_handshake(command)
            with self._generations.reading(message) as served:
                client_ends = parse_queue_pair_request(command)
                with to_client():
                    writer.begin(STREAM_SCHEMA)
                if client_ends is not None:
                    self._hold_queue_pairs(served.rdma, client_ends, reader, writer)
                    return
                while (chunk := next_chunk(reader)) is not None:
                    if chunk.app_metadata is None:
                        raise NodeRefusedError("received a message without a request")
                    with self._in_use():
                        request = Request.from_bytes(memoryview(chunk.app_metadata))
                        response = served.shards.answer(request)
                        self.counts.add(requests=1, sent_bytes=len(response.data))
                        _write(writer, response, checksum=message.checksum)

    def _hold_queue_pairs(
        self, rdma: RdmaServer | None, client_ends: tuple[QueuePairEnd, ...], reader: Any, writer: Any
    ) -> None:
        """Keeps queue pairs open as long as the client keeps the stream open."""
        if rdma is None:
            raise NodeRefusedError("serves by Arrow Flight only", hint="use transport='flight'")
        with rdma.grant(client_ends) as response:
            self.holding.add(threading.get_ident())
            try:
                _write(writer, response)
                if next_chunk(reader) is not None:
                    raise NodeRefusedError("received a message after the request for queue pairs")
            finally:
                self.holding.discard(threading.get_ident())


def _description(served: ServedGeneration) -> bytes:
    shards, growth = served.shards, served.shards.manifest.growth
    return handshake(
        shards.identity,
        shards=shards.shards,
        verbs=served.rdma is not None,
        generation=served.number,
        growth=None if growth is None else growth.id,
        base=None if growth is None else growth.base,
    )


def _file_chunk(shards: ShardServer, body: bytes) -> bytes:
    try:
        request = msgspec.json.decode(body, type=_FileRequest)
    except (ValueError, RecursionError) as error:
        raise NodeRefusedError("received a malformed request for a file") from error
    return shards.file_chunk(request.file, request.offset)


def _video_bytes(shards: ShardServer, body: bytes) -> bytes:
    try:
        request = msgspec.json.decode(body, type=_VideoRequest)
    except (ValueError, RecursionError) as error:
        raise NodeRefusedError("received a malformed request for videos") from error
    return shards.video_bytes(request.ranges)


def _write(writer: Any, response: Response, *, checksum: bool = False) -> None:
    head = response.sizes.tobytes()
    if checksum:
        head += np.int64(response_checksum(response.data)).tobytes()
    with to_client():
        writer.write_with_metadata(byte_batch(response.data[:MESSAGE_BYTES]), head)
        for first in range(MESSAGE_BYTES, len(response.data), MESSAGE_BYTES):
            writer.write_batch(byte_batch(response.data[first : first + MESSAGE_BYTES]))
