"""TCP keepalive probes, by which a server notices vanished clients.

A client vanishes if nothing closes its connection: its power is cut, or its cable is pulled.

A server that waits for the next request of such a client would wait for hours. TCP does not notice an idle connection
that broke, gRPC probes every two hours by default (its doc/keepalive.md), and pyarrow does not expose gRPC's options.
On Linux an accepted connection starts as a copy of the listening socket, with its options. So the options are set on
the listening socket.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator

#: Seconds of silence before the first probe, seconds between two probes, and unanswered probes before the end.
IDLE_SECONDS, INTERVAL_SECONDS, PROBES = 60, 10, 3

_log = logging.getLogger(__name__)


def vanished_seconds() -> int:
    """Returns the seconds until a vanished client's connection is closed."""
    return IDLE_SECONDS + INTERVAL_SECONDS * PROBES


def enable_keepalive(port: int) -> None:
    """Turns on probes for the connections that this process accepts at a port.

    If the system does not allow it, logs a warning and changes nothing.
    """
    problem: object = "its socket is not in /proc/self/fd"
    try:
        # The listening sockets, and connections that were accepted already.
        for each in _sockets(port):
            _set_options(each)
            problem = None
    except OSError as error:
        problem = error
    if problem is not None:
        _log.warning("cannot detect vanished clients of port %d: %s", port, problem)


def _set_options(each: socket.socket) -> None:
    each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, IDLE_SECONDS),
        (socket.TCP_KEEPINTVL, INTERVAL_SECONDS),
        (socket.TCP_KEEPCNT, PROBES),
        # Limit for unacknowledged data, during which no probes are sent. Where it is set, it also replaces the number
        # of probes. gRPC sets it to 20 s, which would close a connection at the first lost probe.
        (socket.TCP_USER_TIMEOUT, 1000 * vanished_seconds()),
    ):
        each.setsockopt(socket.IPPROTO_TCP, option, value)


def _sockets(port: int) -> Iterator[socket.socket]:
    """Yields duplicates of this process's TCP sockets with this local port."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            descriptor = os.dup(int(name))
        except OSError:
            continue  # closed meanwhile
        with socket.socket(fileno=descriptor) as each:
            if each.family in (socket.AF_INET, socket.AF_INET6) and each.getsockname()[1] == port:
                yield each
