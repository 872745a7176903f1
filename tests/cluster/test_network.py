"""Training runs over a link that loses and delays packets, and is cut.

The link is `tests/support/cluster/network_link.py`, which works on any kernel. `tests/support/rdma/guest_network.py`
tests less, with `tc netem`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

import gear_data
from gear_data.cluster.run_credentials import create_run_credentials
from gear_data.common.secret import encode_json
from tests.support.cluster import hold_rank, network_link, vanishing_client
from tests.support.feed import data as feed_data

MISSING = network_link.missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
TIMEOUT = 3.0
#: Seconds that only a hang takes, however busy the machine is.
HANG = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("network") / "d"
    feed_data.convert_episodes(feed_data.locomotion([900, 700, 800, 600, 900], seed=21), path, shard_bytes=20_000)
    return path


@pytest.fixture(scope="module")
def link():
    with network_link.link() as made:
        yield made


class Host:
    """A process on one of the hosts. It reads and writes lines."""

    def __init__(self, link, number, command, **environment):
        self._process = subprocess.Popen(
            [*link.command(number), sys.executable, *map(str, command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        # No test waits forever.
        self._limit = threading.Timer(180, self._process.kill)
        self._limit.start()

    def line(self):
        return self._process.stdout.readline().strip()

    def ask(self, line=""):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.line()

    def kill(self):
        self._limit.cancel()
        self._process.kill()
        self._process.communicate()


def rank(link, number, folder):
    """Starts a rank that opens the dataset, and reads a batch for each line of input."""
    variables = {"RANK": number, "WORLD_SIZE": 2, "GROUP_RANK": number, "MASTER_PORT": 29400}
    environment = {name: str(value) for name, value in variables.items()}
    environment |= {"MASTER_ADDR": network_link.HOSTS[0], "GEAR_DATA_NODE_TIMEOUT": str(TIMEOUT)}
    return Host(link, number, [hold_rank.__file__, folder, "{}"], **environment)


def test_a_bad_link(folder, link):
    expected = next(hold_rank.digests(gear_data.open(folder), 0))
    hosts = [rank(link, number, folder) for number in range(2)]
    try:
        # Their servers listen on the network, with TLS and a token that this run created.
        assert [host.line() for host in hosts] == ["open"] * 2
        for loss, delay in ((0.0, 0.0), (0.0, 0.02), (0.03, 0.002)):
            link.become(loss=loss, delay=delay)
            assert [host.ask("first") for host in hosts] == [expected] * 2, (loss, delay)
        link.become(loss=1.0)
        for host, other in ((0, 1), (1, 0)):
            begun = time.monotonic()
            answer = hosts[host].ask("first")
            assert answer.startswith(f"NodeUnreachableError gear://{network_link.HOSTS[other]}:"), answer
            assert time.monotonic() - begun < HANG
        link.become()
        assert [host.ask("first") for host in hosts] == [expected] * 2
    finally:
        for host in hosts:
            host.kill()


def test_a_vanished_client_is_disconnected(folder, link):
    """A client that is only silent for the same time is not disconnected."""
    link.become()
    script, processes = vanishing_client.__file__, []
    credentials = encode_json(create_run_credentials(tls=True)).reveal().decode()
    try:
        node = Host(link, 0, [script, "node", folder, network_link.HOSTS[0]])
        processes.append(node)
        port, seconds = map(int, node.ask(credentials).split())
        client = Host(link, 1, [script, "client", f"{network_link.HOSTS[0]}:{port}"])
        processes.append(client)
        assert client.ask(credentials).endswith(" bytes")
        assert node.line() == "begun"
        time.sleep(2 * seconds)
        assert client.ask().endswith(" bytes")
        link.become(loss=1.0)
        # The kernel cannot tell the node: the link is cut.
        client.kill()
        begun = time.monotonic()
        assert node.line() == "ended"
        assert time.monotonic() - begun < HANG
    finally:
        for process in processes:
            process.kill()
