"""Keepalive probes, as the kernel reports them.

`tests/cluster/test_network.py` tests their effect.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from pathlib import Path

import pytest

from gear_data.cluster.flight.keepalive import enable_keepalive, vanished_seconds
from tests.support.cluster.nodes import NodeProcess
from tests.support.feed import data as feed_data

ESTABLISHED, KEEPALIVE = "01", "02"


def probed_in(local, remote):
    """Returns the seconds until a connection of this machine is probed.

    Returns None if it has no probe timer. See proc(5).
    """
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            ports = [int(fields[i].rpartition(":")[2], 16) for i in (1, 2)]
            if ports == [local, remote] and fields[3] == ESTABLISHED:
                timer, ticks = fields[5].split(":")
                return int(ticks, 16) / os.sysconf("SC_CLK_TCK") if timer == KEEPALIVE else None
    return None


def test_a_nodes_connections_are_probed(tmp_path):
    feed_data.convert_episodes(feed_data.locomotion([9], seed=0), tmp_path / "d")
    node = NodeProcess(tmp_path / "d")
    try:
        port = int(node.wait()["listen"].rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            limit = time.monotonic() + 20
            # At first the connection has another timer, for gRPC's first message.
            while (seconds := probed_in(port, client.getsockname()[1])) is None:
                assert time.monotonic() < limit, "the connection has no probe timer"
                time.sleep(0.1)
            assert 30 < seconds <= 60
    finally:
        node.kill()


def options(each):
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    found = [each.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
    return [each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), *found]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_only_sockets_of_the_port_are_changed(host, caplog):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        other, server = (socket.create_server((host, 0), family=family) for _ in range(2))
    except OSError:
        pytest.skip(f"this machine has no address {host}")
    place = server.getsockname()[:2]
    with other, server, socket.create_connection(place) as one, server.accept()[0] as early:
        before = options(other)
        enable_keepalive(place[1])
        with socket.create_connection(place) as another, server.accept()[0] as late:
            for each in (server, early, late):
                assert options(each) == [1, 60, 10, 3, 90_000]
            for each in (other, one, another):
                assert options(each) == before
    assert before[0] == 0
    assert vanished_seconds() == 90
    assert not caplog.records


def test_sockets_that_cannot_be_listed(monkeypatch, caplog):
    def listdir(path):
        raise PermissionError(13, "Permission denied", path)

    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        closed.close()
        with caplog.at_level(logging.WARNING, "gear_data"):
            enable_keepalive(port)
            monkeypatch.setattr(os, "listdir", listdir)
            enable_keepalive(server.getsockname()[1])
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "its socket is not in /proc/self/fd",
        "[Errno 13] Permission denied: '/proc/self/fd'",
    ]
