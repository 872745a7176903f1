"""Supervision of a node's server: it is restarted while there is a lease.

The number of restarts is limited, and the port stays the same.

`tests/cluster/test_rendezvous.py` tests the effect on a run.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import socket
import threading
import time

import pytest

import gear_data
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.client.peer import Peer
from gear_data.cluster.run_credentials import create_run_credentials
from gear_data.cluster.server import supervisor
from gear_data.cluster.server.node_server import LINGER_SECONDS, ServerConfig
from gear_data.errors import ClusterError, CorruptShardError, NodeUnreachableError
from tests.support.cluster.runs import all_ended, servers
from tests.support.feed import data as feed_data

TIMEOUT = 120.0


@pytest.fixture
def folder(tmp_path):
    feed_data.convert_episodes(feed_data.locomotion([7, 20, 9], seed=2), tmp_path / "d", shard_bytes=1024)
    return tmp_path / "d"


@pytest.fixture
def config(folder):
    count = len(gear_data.open(folder).manifest.shards)
    return ServerConfig(
        str(folder), None, None, "mmap", "auto", tuple(range(count)), "127.0.0.1", 0, create_run_credentials(tls=False)
    )


@pytest.fixture
def started(monkeypatch):
    """start(config) -> the server's info, and a function that lists the servers of this test.

    The servers end with the test.
    """
    before, leases = {process.pid for process in servers()}, []

    def start(config):
        info, lease = supervisor.start_server(config, TIMEOUT)
        leases.append(lease)
        return info, lambda: [process for process in servers() if process.pid not in before]

    start.leases = leases
    yield start
    leases.clear()
    assert all_ended([process for process in servers() if process.pid not in before], LINGER_SECONDS + 120)
    assert wait_for(lambda: not supervisor_threads())


def supervisor_threads():
    return [thread for thread in threading.enumerate() if thread.name == "gear-data-supervisor"]


def wait_for(condition, seconds=TIMEOUT):
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


def serves(config, info):
    try:
        return Peer(info.address, ClientOptions(config.credentials.token, None, 5.0)).describe().shards == frozenset(
            config.shards
        )
    except NodeUnreachableError:
        return False


def test_a_restart_waits_for_the_port(config, started, monkeypatch, caplog):
    monkeypatch.setattr(supervisor, "RESTART_DELAYS", (0.2, 0.2, 20.0))
    info, mine = started(config)
    assert not info.verbs and serves(config, info)
    (first,) = mine()
    with caplog.at_level(logging.WARNING, "gear_data"):
        first.kill()
        assert wait_for(lambda: "exited (status" in caplog.text)
        with socket.create_server((info.address.host, info.address.port)):
            assert wait_for(lambda: "cannot listen" in caplog.text)
        assert wait_for(lambda: serves(config, info))
    assert "restarting it in 0.2 s" in caplog.text and "too often" not in caplog.text


def test_restarts_end_after_the_last_delay(config, folder, started, monkeypatch, caplog):
    monkeypatch.setattr(supervisor, "RESTART_DELAYS", (0.1, 0.1))
    _, mine = started(config)
    shutil.rmtree(folder)
    with caplog.at_level(logging.WARNING, "gear_data"):
        mine()[0].kill()
        assert wait_for(lambda: not supervisor_threads())
    assert caplog.text.count("could not be restarted") == 2
    assert "other nodes lose the shards that only this node holds" in caplog.text
    assert mine() == []


def test_a_server_without_a_lease_is_not_restarted(config, started, monkeypatch):
    monkeypatch.setattr(supervisor, "RESTART_DELAYS", (0.5,))
    _, mine = started(config)
    mine()[0].kill()
    started.leases.clear()
    gc.collect()
    assert wait_for(lambda: not supervisor_threads())
    assert mine() == []


def test_errors_at_the_start_are_raised_and_leave_nothing_behind(config, folder, monkeypatch):
    gc.collect()  # Descriptors of earlier tests close now.
    before, descriptors = servers(), set(os.listdir("/proc/self/fd"))
    (folder / "shards" / "000000.arrow").unlink()
    with pytest.raises(CorruptShardError, match="the file is missing"):
        supervisor.start_server(config, TIMEOUT)
    with pytest.raises(ClusterError, match=r"did not start within 0.01 s"):
        supervisor.start_server(config, 0.01)
    assert servers() == before
    # Threads of earlier tests may still close some.
    assert wait_for(lambda: set(os.listdir("/proc/self/fd")) <= descriptors)
