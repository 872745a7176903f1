"""Clients that vanish without a word: power cut, cable pulled.

A server that waits for such a client's next request waits for hours: TCP says nothing of itself, gRPC asks every two
hours unless it is told otherwise (its doc/keepalive.md), and pyarrow gives no access to its options. But on Linux an
accepted connection begins as a copy of the listening socket, options included, so that one is asked to probe clients.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator

#: Seconds of silence before a client is probed, between two probes, and how many go without an answer.
IDLE_SECONDS, INTERVAL_SECONDS, PROBES = 60, 10, 3

_log = logging.getLogger(__name__)


def gone_after() -> int:
    """Seconds after which a client that says nothing more counts as gone."""
    return IDLE_SECONDS + INTERVAL_SECONDS * PROBES


def keep_alive(port: int) -> None:
    """Has connections end whose clients are gone: those that this process accepts at a port.

    Where the system does not let it, a warning is logged, and nothing changed.
    """
    problem: object = "its socket is not in /proc/self/fd"
    try:
        # The listening ones, and those that were accepted already.
        for each in _sockets(port):
            _probe(each)
            problem = None
    except OSError as error:
        problem = error
    if problem is not None:
        _log.warning("clients of port %d that vanish will be waited for: %s", port, problem)


def _probe(each: socket.socket) -> None:
    each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, IDLE_SECONDS),
        (socket.TCP_KEEPINTVL, INTERVAL_SECONDS),
        (socket.TCP_KEEPCNT, PROBES),
        # What was sent and is not acknowledged: no probes are sent then. It also stands for their number where it is
        # set, as gRPC sets it: its 20 s would end a connection at the first probe that is lost.
        (socket.TCP_USER_TIMEOUT, 1000 * gone_after()),
    ):
        each.setsockopt(socket.IPPROTO_TCP, option, value)


def _sockets(port: int) -> Iterator[socket.socket]:
    """Duplicates of this process's TCP sockets that have this port."""
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
