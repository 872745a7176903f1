"""Nodes on hosts of their own, over a wire that loses and delays packets, and is cut."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import feed_data
import hold_rank
import network_link
import pytest

import gear_data

MISSING = network_link.missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
TIMEOUT = 3.0


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
    """A rank on one of the hosts: it opens the dataset, and reads a batch at each line."""

    def __init__(self, link, number, folder):
        told = {"RANK": number, "WORLD_SIZE": 2, "GROUP_RANK": number, "MASTER_PORT": 29400}
        environment = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"}
        environment |= {name: str(value) for name, value in told.items()}
        environment |= {"MASTER_ADDR": network_link.HOSTS[0], "GEAR_DATA_NODE_TIMEOUT": str(TIMEOUT)}
        command = [*link.command(number), sys.executable, str(Path(hold_rank.__file__)), str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        # So that nothing here waits for ever.
        self._limit = threading.Timer(90, self._process.kill)
        self._limit.start()

    def line(self):
        return self._process.stdout.readline().strip()

    def read(self):
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.line()

    def kill(self):
        self._limit.cancel()
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def test_a_bad_wire(folder, link):
    expected = hold_rank.digest(gear_data.open(folder))
    hosts = [Host(link, number, folder) for number in range(2)]
    try:
        # Neither is at 127.0.0.1: they listen with TLS and a token that they made for this run.
        assert [host.line() for host in hosts] == ["open"] * 2
        for loss, delay in ((0.0, 0.0), (0.0, 0.02), (0.03, 0.002)):
            link.become(loss=loss, delay=delay)
            assert [host.read() for host in hosts] == [expected] * 2, (loss, delay)
        link.become(loss=1.0)
        for host, other in ((0, 1), (1, 0)):
            begun = time.monotonic()
            said = hosts[host].read()
            assert said.startswith(f"NodeUnreachableError gear://{network_link.HOSTS[other]}:"), said
            assert time.monotonic() - begun < 2 * TIMEOUT + 2
        link.become()
        assert [host.read() for host in hosts] == [expected] * 2
    finally:
        for host in hosts:
            host.kill()
