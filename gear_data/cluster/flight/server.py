"""A node's server: Arrow Flight over `ShardServer`."""

from __future__ import annotations

import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from gear_data.cluster.addresses import Address
from gear_data.cluster.flight.keepalive import keep_alive
from gear_data.cluster.protocol import (
    MESSAGE_BYTES,
    STREAM_SCHEMA,
    Request,
    byte_batch,
    check_handshake,
    handshake,
    response_checksum,
    wants_checksum,
)
from gear_data.cluster.rdma.messages import QueuePairEnd, parse_queue_pair_request
from gear_data.cluster.rdma.server import RdmaServer
from gear_data.cluster.server.shard_server import Response, ShardServer
from gear_data.common.error_codec import error_to_bytes
from gear_data.errors import ClusterError, GearError, InvalidArgumentError, NodeRefusedError


@dataclass(frozen=True)
class ServerCredentials:
    """What protects a server.

    Attributes:
        token: what clients must show; None: nothing.
        certificate, key: of TLS, PEM; None: no TLS.
    """

    token: str | None = field(default=None, repr=False)
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)

    @staticmethod
    def from_files(token: str | None, certificate: Path | None, key: Path | None) -> ServerCredentials:
        """Raises InvalidArgumentError for files that cannot be read, and for one of certificate and key alone."""
        if (certificate is None) is not (key is None):
            raise InvalidArgumentError("TLS takes a certificate and its key")
        try:
            return ServerCredentials(
                token,
                None if certificate is None else certificate.read_bytes(),
                None if key is None else key.read_bytes(),
            )
        except OSError as error:
            raise InvalidArgumentError(f"cannot be read: {error.strerror}", file=str(error.filename)) from error

    def check(self, listen: Address) -> None:
        """Raises InvalidArgumentError where others could reach a server that is not protected."""
        if not listen.is_loopback and (self.token is None or self.certificate is None):
            raise InvalidArgumentError(
                f"{listen} can be reached from other machines: that takes TLS and a token",
                hint="give --tls-cert, --tls-key and --token-file, or listen on 127.0.0.1",
            )


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves shards until it is shut down. Port 0 takes a free one: `port` says which. Clients that vanish without a
    word are let go; see `keepalive`.

    Args:
        memory: the shards' memory, for clients that read it by RDMA; None: they cannot.

    Raises:
        InvalidArgumentError: others could reach it, and it has no token or no TLS.
        ClusterError: it cannot listen there, or its certificate and key cannot be used.
    """

    def __init__(
        self, served: ShardServer, listen: Address, guard: ServerCredentials, memory: RdmaServer | None = None
    ) -> None:
        guard.check(listen)
        encrypted = guard.certificate is not None
        # Before it listens: it may be asked at once.
        self._served, self._memory = served, memory
        #: When something was asked last, by `time.monotonic`.
        self.last_used = time.monotonic()
        #: Threads that hold queue pairs: through these clients read and ask nothing.
        self.holding: set[int] = set()
        try:
            super().__init__(
                f"grpc{'+tls' if encrypted else ''}://{listen}",
                tls_certificates=[(guard.certificate, guard.key)] if encrypted else None,
                middleware={"token": _TokenCheck(guard.token)} if guard.token is not None else None,
            )
        except (pa.ArrowException, OSError) as error:
            raise _cannot_serve(listen) from error
        keep_alive(self.port)

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """`describe`: what is served, as JSON. `file`: a piece of the manifest or of a table's file."""
        self.last_used = time.monotonic()
        with _as_flight_errors():
            if action.type == "describe":
                yield self._description()
            elif action.type == "file":
                yield self._file_piece(action.body.to_pybytes())
            else:
                raise NodeRefusedError(f"there is no action {action.type[:40]!r}")

    def _description(self) -> bytes:
        facts = {"shards": self._served.shards, "verbs": self._memory is not None}
        return json.dumps({**json.loads(handshake(self._served.dataset_identity)), **facts}).encode()

    def _file_piece(self, body: bytes) -> bytes:
        check_handshake(body, self._served.dataset_identity)
        asked = json.loads(body)
        name, offset = asked.get("file"), asked.get("offset")
        if not isinstance(name, str) or type(offset) is not int:
            raise NodeRefusedError("a malformed request for a file")
        return self._served.file_piece(name, offset)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Answers requests in their order, until the client has no more; or holds queue pairs for it."""
        with _as_flight_errors():
            command = descriptor.command or b""
            check_handshake(command, self._served.dataset_identity)
            checksum = wants_checksum(command)
            clients = parse_queue_pair_request(command)
            writer.begin(STREAM_SCHEMA)
            if clients is not None:
                self._hold(clients, reader, writer)
                return
            while (chunk := _next_chunk(reader)) is not None:
                if chunk.app_metadata is None:
                    raise NodeRefusedError("a message without a request")
                self.last_used = time.monotonic()
                _write(
                    writer, self._served.answer(Request.from_bytes(memoryview(chunk.app_metadata))), checksum=checksum
                )

    def _hold(self, clients: tuple[QueuePairEnd, ...], reader: Any, writer: Any) -> None:
        """Keeps queue pairs as long as the client keeps the stream."""
        if self._memory is None:
            raise NodeRefusedError("serves by Arrow Flight alone", hint="use transport='flight'")
        with self._memory.grant(clients) as answer:
            self.holding.add(threading.get_ident())
            try:
                _write(writer, answer)
                if _next_chunk(reader) is not None:
                    raise NodeRefusedError("a message after the one that wants queue pairs")
            finally:
                self.holding.discard(threading.get_ident())


def _cannot_serve(listen: Address) -> ClusterError:
    """Why, which gRPC tells its log alone."""
    try:
        found = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(*found[:3]) as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            attempt.bind(found[4])
            attempt.listen()
    except OSError as error:
        return ClusterError(
            f"cannot listen at {listen}: {error.strerror}",
            hint="choose another --listen; for a training run's nodes $GEAR_DATA_NODE_HOST",
        )
    return ClusterError(f"cannot serve at {listen}: its certificate or key is none", hint="give them as PEM")


def _write(writer: Any, answer: Response, *, checksum: bool = False) -> None:
    head = answer.sizes.tobytes()
    if checksum:
        head += np.int64(response_checksum(answer.data)).tobytes()
    writer.write_with_metadata(byte_batch(answer.data[:MESSAGE_BYTES]), head)
    for first in range(MESSAGE_BYTES, len(answer.data), MESSAGE_BYTES):
        writer.write_batch(byte_batch(answer.data[first : first + MESSAGE_BYTES]))


def _next_chunk(reader: Any) -> Any:
    try:
        return reader.read_chunk()
    except StopIteration:
        return None


@contextmanager
def _as_flight_errors() -> Iterator[None]:
    try:
        yield
    except GearError as error:
        raise flight.FlightServerError(error.message, extra_info=error_to_bytes(error)) from error
    except pa.ArrowCancelled:
        # The client has gone.
        return


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets no call through that does not show the token."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    def start_call(self, info: Any, headers: Any) -> None:
        shown = [value for name, values in headers.items() if name.lower() == "authorization" for value in values]
        shown = [value.encode() if isinstance(value, str) else value for value in shown]
        if len(shown) != 1 or not hmac.compare_digest(shown[0], self._expected):
            raise flight.FlightUnauthenticatedError("no valid token")
