"""ProtectedServer: an Arrow Flight server with TLS and a token, without any call."""

from __future__ import annotations

import hmac
import socket
from typing import Any, NoReturn

import pyarrow as pa
from pyarrow import flight

from gear_data.cluster.addresses import Address
from gear_data.cluster.credentials import ServerCredentials
from gear_data.cluster.flight.call_counts import CallCounts
from gear_data.cluster.flight.keepalive import enable_keepalive
from gear_data.cluster.flight.server_errors import flight_error
from gear_data.cluster.protocol import STREAM_SCHEMA
from gear_data.common.secret import Secret
from gear_data.errors import ClusterError, NodeRefusedError


class ProtectedServer(flight.FlightServerBase):  # type: ignore[misc]
    """Listens until it is shut down.

    A subclass answers actions, puts and exchanges, or sets these methods to `_refuse`. Closes the connections of
    vanished clients; see `keepalive`.

    Args:
        listen: address to listen at. With port 0 the system chooses a free port; `port` is the chosen one.
        credentials: the token that clients must send, and the TLS certificate.

    Attributes:
        answers: the calls that a subclass answers, for errors.
        counts: counts of its answers.

    Raises:
        InvalidArgumentError: other machines can reach the address, and there is no token or no TLS.
        ClusterError: the server cannot listen there, or the certificate or key is invalid.
    """

    answers: str

    def __init__(self, listen: Address, credentials: ServerCredentials) -> None:
        # Set before it listens: requests may arrive at once.
        self.counts = CallCounts()
        credentials.check(listen)
        key = credentials.key
        try:
            super().__init__(
                f"grpc{'' if key is None else '+tls'}://{listen}",
                tls_certificates=[(credentials.certificate, key.reveal())] if key is not None else None,
                auth_handler=None if credentials.token is None else _TokenCheck(credentials.token),
            )
        except (pa.ArrowException, OSError) as error:
            raise _listen_error(listen) from error
        enable_keepalive(self.port)

    def get_schema(self, context: Any, descriptor: Any) -> flight.SchemaResult:
        """Returns the schema of everything that is streamed.

        Arrow cannot send a refusal of this call without a traceback.
        """
        return flight.SchemaResult(STREAM_SCHEMA)

    def _refuse(self, *arguments: Any) -> NoReturn:
        """Refuses a call. Arrow's own method would send a traceback."""
        self.counts.add(requests=1, errors=1)
        raise flight_error(NodeRefusedError(f"answers only {self.answers}"))

    list_actions = list_flights = get_flight_info = do_get = _refuse


def _listen_error(listen: Address) -> ClusterError:
    """Returns the reason why a server cannot listen.

    gRPC writes the reason only to its log.
    """
    try:
        found = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(*found[:3]) as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            attempt.bind(found[4])
            attempt.listen()
    except OSError as error:
        return ClusterError(
            f"cannot listen at {listen}: {error.strerror}",
            hint="choose another --listen; the nodes of a training run listen at $GEAR_DATA_NODE_HOST",
        )
    return ClusterError(f"cannot serve at {listen}: its certificate or key is invalid", hint="pass both as PEM files")


def next_chunk(reader: Any) -> Any:
    """Returns the next message of a stream; None at its end.

    Raises:
        NodeRefusedError: the message is not Arrow data.
    """
    try:
        return reader.read_chunk()
    except StopIteration:
        return None
    except pa.ArrowCancelled:
        raise
    except (pa.ArrowException, OSError) as error:
        raise NodeRefusedError("received a message that is not Arrow data") from error


class _TokenCheck(flight.ServerAuthHandler):  # type: ignore[misc]
    """Refuses calls without the token.

    The token comes in a header of its own. Arrow does not decode that header; with middleware it decodes all headers,
    and answers one that is not ASCII with a traceback.
    """

    def __init__(self, token: Secret) -> None:
        super().__init__()
        self._expected = token

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Refuses Arrow's handshake: clients send the token with every call."""
        raise flight.FlightUnauthenticatedError("send the token with every call")

    def is_valid(self, token: bytes) -> bytes:
        """Returns the client's name, which is empty. Called before every call."""
        is_valid = hmac.compare_digest(token, self._expected.reveal())
        del token
        if not is_valid:
            raise flight.FlightUnauthenticatedError("no valid token")
        return b""
