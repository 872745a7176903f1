"""HTTP/2 by hand, for messages that no client library sends."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: Types of frames, and flags (RFC 9113).
DATA, HEADERS, SETTINGS, CONTINUATION = 0, 1, 4, 9
END_STREAM, END_HEADERS = 1, 4

Header = tuple[bytes, bytes]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """Returns a header that is neither compressed nor indexed (RFC 7541, 6.2.2)."""
    return b"\0" + _length(len(name)) + name + _length(len(value)) + value


def _length(number: int) -> bytes:
    if number < 127:
        return bytes([number])
    number, out = number - 127, [127]
    while number >= 128:
        out.append(number % 128 + 128)
        number //= 128
    return bytes([*out, number])


def call_headers(method: bytes, extra: Sequence[Header] = ()) -> bytes:
    """Returns the headers of a call of Arrow Flight."""
    path = b"/arrow.flight.protocol.FlightService/" + method
    known = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"node")]
    known += [(b"te", b"trailers"), (b"content-type", b"application/grpc")]
    return b"".join(literal(*header) for header in [*known, *extra])


def call(port: int, method: bytes, body: bytes, extra: Sequence[Header] = (), seconds: float = 10.0) -> bytes:
    """Makes a call with one message, and returns the bytes of the answer.

    The answer ends with the call's status, or when the server closes the connection.
    """
    message = b"\0" + struct.pack(">I", len(body)) + body
    limit, answer = time.monotonic() + seconds, b""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(
            PREFACE
            + frame(SETTINGS, 0, 0, b"")
            + frame(HEADERS, END_HEADERS, 1, call_headers(method, extra))
            + frame(DATA, END_STREAM, 1, message)
        )
        while b"grpc-status" not in answer and time.monotonic() < limit:
            received = connection.recv(1 << 16)
            if not received:
                break
            answer += received
    return answer
