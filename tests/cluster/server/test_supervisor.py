"""A node's server as the process has it that starts it: started again at its port while it is held, not for ever.

What follows for a run shows in `test_joining`.
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
from gear_data.cluster.addresses import ClientOptions
from gear_data.cluster.client.peer import Peer
from gear_data.cluster.credentials import create_run_credentials
from gear_data.cluster.server import supervisor as hosting
from gear_data.cluster.server.node_server import LINGER_SECONDS, ServerConfig
from gear_data.errors import ClusterError, CorruptShardError, NodeUnreachableError
from tests.support.cluster.runs import all_ended, servers
from tests.support.feed import data as feed_data

TIMEOUT = 30.0


@pytest.fixture
def folder(tmp_path):
    feed_data.convert_episodes(feed_data.locomotion([7, 20, 9], seed=2), tmp_path / "d", shard_bytes=1024)
    return tmp_path / "d"


@pytest.fixture
def job(folder):
    count = len(gear_data.open(folder).manifest.shards)
    return ServerConfig(
        str(folder), None, None, "mmap", "auto", tuple(range(count)), "127.0.0.1", 0, create_run_credentials(tls=False)
    )


@pytest.fixture
def started(monkeypatch):
    """Starts servers, which end with the test; and tells those that there are."""
    before, leases = {process.pid for process in servers()}, []

    def start(job):
        serving, lease = hosting.start_server(job, TIMEOUT)
        leases.append(lease)
        return serving, lambda: [process for process in servers() if process.pid not in before]

    start.leases = leases
    yield start
    leases.clear()
    assert all_ended([process for process in servers() if process.pid not in before], LINGER_SECONDS + 10)
    assert wait_for(lambda: not keepers())


def keepers():
    return [thread for thread in threading.enumerate() if thread.name == "gear-data-host-server"]


def wait_for(condition, seconds=TIMEOUT):
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.02)
    return True


def serves(job, serving):
    try:
        return Peer(serving.address, ClientOptions(job.secret.token, None, 5.0)).describe().shards == frozenset(
            job.shards
        )
    except NodeUnreachableError:
        return False


def test_it_waits_for_its_port(job, started, monkeypatch, caplog):
    monkeypatch.setattr(hosting, "PAUSES", (0.2, 0.2, 20.0))
    serving, mine = started(job)
    assert not serving.verbs and serves(job, serving)
    (first,) = mine()
    with caplog.at_level(logging.WARNING, "gear_data"):
        first.kill()
        assert wait_for(lambda: "ended (status" in caplog.text)
        with socket.create_server((serving.address.host, serving.address.port)):
            assert wait_for(lambda: "cannot listen" in caplog.text)
        assert wait_for(lambda: serves(job, serving))
    assert "started again in 0.2 s" in caplog.text and "lost" not in caplog.text


def test_it_is_given_up(job, folder, started, monkeypatch, caplog):
    monkeypatch.setattr(hosting, "PAUSES", (0.1, 0.1))
    _, mine = started(job)
    shutil.rmtree(folder)
    with caplog.at_level(logging.WARNING, "gear_data"):
        mine()[0].kill()
        assert wait_for(lambda: not keepers())
    assert caplog.text.count("could not be started again") == 2
    assert "what it alone held is lost to the other nodes" in caplog.text
    assert mine() == []


def test_one_that_nobody_holds_is_not_started_again(job, started, monkeypatch):
    monkeypatch.setattr(hosting, "PAUSES", (0.5,))
    _, mine = started(job)
    mine()[0].kill()
    started.leases.clear()
    gc.collect()
    assert wait_for(lambda: not keepers(), 5)
    assert mine() == []


def test_what_is_wrong_at_first_is_raised_and_leaves_nothing(job, folder, monkeypatch):
    before, descriptors = servers(), set(os.listdir("/proc/self/fd"))
    (folder / "shards" / "000000.arrow").unlink()
    with pytest.raises(CorruptShardError, match="the file is missing"):
        hosting.start_server(job, TIMEOUT)
    with pytest.raises(ClusterError, match=r"did not come up within 0.01 s"):
        hosting.start_server(job, 0.01)
    assert servers() == before
    assert set(os.listdir("/proc/self/fd")) == descriptors
