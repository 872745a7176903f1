"""FlightServer: an Arrow Flight server in front of a `ShardServer`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa

from gear_data.cluster.addresses import Address
from gear_data.cluster.credentials import ServerCredentials
from gear_data.cluster.flight.protected_server import ProtectedServer, next_chunk
from gear_data.cluster.flight.server_errors import ClientGoneError, as_flight_errors
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
from gear_data.cluster.server.shard_server import Response, ShardServer
from gear_data.errors import NodeRefusedError


class _FileRequest(msgspec.Struct, frozen=True):
    """Fields of the action `file`, in addition to the handshake.

    See `ShardServer.file_chunk`.
    """

    file: str
    offset: int


class _VideoRequest(msgspec.Struct, frozen=True):
    """Fields of the action `video`, in addition to the handshake.

    See `ShardServer.video_bytes`.
    """

    ranges: Annotated[list[tuple[int, int, int]], msgspec.Meta(max_length=MAX_SPANS)]


class FlightServer(ProtectedServer):
    """Serves shards until it is shut down.

    Args:
        shards: The shards.
        listen: Address to listen at. With port 0 the system chooses a free port; `port` is the chosen one.
        credentials: The token that clients must send, and the TLS certificate.
        rdma: The shards' registered memory; None: clients cannot read by RDMA.

    Attributes:
        last_used: Time of the last request, by `time.monotonic`.
        holding: Threads that hold queue pairs for clients. Such clients read without sending requests.

    Raises:
        InvalidArgumentError: Other machines can reach the address, and there is no token or no TLS.
        ClusterError: The server cannot listen there, or the certificate or key is invalid.
    """

    answers = "the actions describe, file and video, and exchanges of requests"

    def __init__(
        self, shards: ShardServer, listen: Address, credentials: ServerCredentials, rdma: RdmaServer | None = None
    ) -> None:
        # Set before it listens: requests may arrive at once.
        self._shards, self._rdma = shards, rdma
        self.last_used = time.monotonic()
        self.holding: set[int] = set()
        super().__init__(listen, credentials)

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """Answers the actions `describe`, `file` and `video`.

        `describe` returns the served shards, as JSON. `file` returns a chunk of the manifest or of a table. `video`
        returns ranges of bytes of video files.
        """
        self.last_used = time.monotonic()
        with as_flight_errors():
            if action.type == "describe":
                yield handshake(self._shards.identity, shards=self._shards.shards, verbs=self._rdma is not None)
            elif action.type == "file":
                yield self._file_chunk(action.body.to_pybytes())
            elif action.type == "video":
                yield self._video_bytes(action.body.to_pybytes())
            else:
                raise NodeRefusedError(f"has no action {action.type[:40]!r}; the actions are describe, file and video")

    def _file_chunk(self, body: bytes) -> bytes:
        check_handshake(body, self._shards.identity)
        try:
            request = msgspec.json.decode(body, type=_FileRequest)
        except (ValueError, RecursionError) as error:
            raise NodeRefusedError("received a malformed request for a file") from error
        return self._shards.file_chunk(request.file, request.offset)

    def _video_bytes(self, body: bytes) -> bytes:
        check_handshake(body, self._shards.identity)
        try:
            request = msgspec.json.decode(body, type=_VideoRequest)
        except (ValueError, RecursionError) as error:
            raise NodeRefusedError("received a malformed request for videos") from error
        return self._shards.video_bytes(request.ranges)

    do_put = ProtectedServer._refuse

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Serves one stream until the client closes it.

        Answers the client's requests in order, or holds queue pairs for it.
        """
        with as_flight_errors():
            command = descriptor.command or b""
            message = check_handshake(command, self._shards.identity)
            client_ends = parse_queue_pair_request(command)
            writer.begin(STREAM_SCHEMA)
            if client_ends is not None:
                self._hold_queue_pairs(client_ends, reader, writer)
                return
            while (chunk := next_chunk(reader)) is not None:
                if chunk.app_metadata is None:
                    raise NodeRefusedError("received a message without a request")
                self.last_used = time.monotonic()
                request = Request.from_bytes(memoryview(chunk.app_metadata))
                _write(writer, self._shards.answer(request), checksum=message.checksum)

    def _hold_queue_pairs(self, client_ends: tuple[QueuePairEnd, ...], reader: Any, writer: Any) -> None:
        """Keeps queue pairs open as long as the client keeps the stream open."""
        if self._rdma is None:
            raise NodeRefusedError("serves by Arrow Flight only", hint="use transport='flight'")
        with self._rdma.grant(client_ends) as response:
            self.holding.add(threading.get_ident())
            try:
                _write(writer, response)
                if next_chunk(reader) is not None:
                    raise NodeRefusedError("received a message after the request for queue pairs")
            finally:
                self.holding.discard(threading.get_ident())


def _write(writer: Any, response: Response, *, checksum: bool = False) -> None:
    head = response.sizes.tobytes()
    if checksum:
        head += np.int64(response_checksum(response.data)).tobytes()
    try:
        writer.write_with_metadata(byte_batch(response.data[:MESSAGE_BYTES]), head)
        for first in range(MESSAGE_BYTES, len(response.data), MESSAGE_BYTES):
            writer.write_batch(byte_batch(response.data[first : first + MESSAGE_BYTES]))
    except (pa.ArrowException, OSError) as error:
        raise ClientGoneError from error
