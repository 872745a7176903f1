"""Retries in a training run: waiting for a dead peer, and its return."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

import gear_data
from gear_data import Dataset, SequenceLoader
from gear_data.cluster.addresses import Address
from gear_data.cluster.client.retry_policy import RetryPolicy
from gear_data.cluster.rendezvous import Membership
from gear_data.cluster.run_credentials import create_run_credentials
from gear_data.cluster.server.node_server import ServerInfo
from gear_data.dataset.stores.partitioned import PartitionedDatasetStore
from gear_data.dataset.views import View
from gear_data.errors import NodeUnreachableError
from gear_data.storage.dataset_files import open_files
from tests.support.cluster.nodes import NodeProcess
from tests.support.feed import data as feed_data

TIMEOUT = 4.0
OPTIONS = {"batch_size": 8, "context": 5, "seed": 2}


@pytest.fixture
def folder(tmp_path):
    feed_data.convert_episodes(feed_data.locomotion([9, 20, 31, 4, 25, 17], seed=3), tmp_path / "d", shard_bytes=1024)
    return tmp_path / "d"


@pytest.fixture
def peer(folder, tmp_path, monkeypatch):
    """The dataset as node 0 of two sees it, and the process of node 1."""
    monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", str(TIMEOUT))
    credentials = create_run_credentials(tls=False)
    monkeypatch.setenv(f"GEAR_DATA_RUN_{credentials.run}", "")
    credentials.export()
    (tmp_path / "token").write_bytes(credentials.token.reveal())
    placement = gear_data.open(folder).placement(["node-0", "node-1"])
    shards = ",".join(map(str, placement.held[1]))
    node = NodeProcess(folder, shards, ["--token-file", str(tmp_path / "token")])
    node.wait()
    servers = (None, ServerInfo(Address.parse(node.address), False))
    store = PartitionedDatasetStore(
        open_files(folder), "host", "auto", Membership(credentials.run, 0, 0, 1, servers, placement, placement)
    )
    yield Dataset(store, View()), node
    if node.is_running:
        node.kill()


def rows(batches, count):
    return [batch["observations"].numpy().tobytes() for batch in itertools.islice(batches, count)]


def seconds_until_error(loader):
    begun = time.monotonic()
    with pytest.raises(NodeUnreachableError, match="no other node gives shards"):
        # More batches than prefetching had read.
        rows(loader, 100)
    return time.monotonic() - begun


def test_a_dead_peer_is_waited_for_once_and_used_again_after_a_restart(folder, peer, caplog):
    dataset, node = peer
    expected = rows(SequenceLoader(gear_data.open(folder), **OPTIONS), 150)
    loader = SequenceLoader(dataset, **OPTIONS)
    assert rows(loader, 10) == expected[:10]
    node.kill()
    # Prefetched batches do not wait one after another.
    assert TIMEOUT / 2 < seconds_until_error(loader) < 2 * TIMEOUT
    assert caplog.text.count("retrying for") == 1
    # A later reader does not wait again.
    assert seconds_until_error(loader) < TIMEOUT - 1
    node.begin()
    node.wait()
    step = loader.state_dict()["step"]
    loader.load_state_dict(loader.state_dict())
    assert rows(loader, 20) == expected[step : step + 20]


def test_a_peer_that_returns_in_time(folder, peer, monkeypatch):
    dataset, node = peer
    monkeypatch.setattr(dataset.store._client._retries, "policy", RetryPolicy(60.0))
    expected = rows(SequenceLoader(gear_data.open(folder), **OPTIONS), 100)
    batches = iter(SequenceLoader(dataset, **OPTIONS))
    batches_before = rows(batches, 10)
    node.kill()
    restart = threading.Timer(1.0, node.begin)
    restart.start()
    assert batches_before + rows(batches, 90) == expected
    restart.join()
    node.wait()
