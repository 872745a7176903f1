"""Nodes that hang are given up once GEAR_DATA_NODE_TIMEOUT has passed, counted once from the request."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

import gear_data
from gear_data import Dataset, SequenceLoader
from gear_data.cluster.addresses import Address
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.client.shard_client import ShardClient
from gear_data.cluster.protocol import ColumnGroup, Request
from gear_data.cluster.rendezvous import Membership
from gear_data.cluster.run_credentials import create_run_credentials
from gear_data.cluster.server.node_server import ServerInfo
from gear_data.dataset.stores.partitioned import PartitionedDatasetStore
from gear_data.dataset.views import View
from gear_data.errors import NodeUnreachableError
from gear_data.storage.dataset_files import open_files
from tests.support.cluster import forking_client
from tests.support.cluster.nodes import NodeProcess, url
from tests.support.feed import data as feed_data
from tests.support.feed.batches import clones, same

#: Seconds. A busy machine may take up to twice as long; waiting twice takes longer.
TIMEOUT = 5.0
OPTIONS = {"batch_size": 8, "context": 5, "seed": 2}


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", str(TIMEOUT))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("hanging") / "d"
    feed_data.convert_episodes(feed_data.locomotion([9, 20, 31, 4, 25, 17], seed=3), path, shard_bytes=1024)
    return path


@pytest.fixture(scope="module")
def expected(folder):
    return clones(itertools.islice(SequenceLoader(gear_data.open(folder), **OPTIONS), 40))


@pytest.fixture
def start(folder):
    """start(shards, ...) -> running nodes."""
    with ExitStack() as stack:

        def begin(*shards, options=()):
            nodes = [NodeProcess(folder, each, options) for each in shards]
            for node in nodes:
                stack.callback(node.kill)
                node.wait()
            return nodes

        yield begin


def seconds_until_given_up(read):
    begun = time.monotonic()
    with pytest.raises(NodeUnreachableError, match=f"did not answer within {TIMEOUT:g} s"):
        read()
    return time.monotonic() - begun


def once(seconds):
    return TIMEOUT * 0.9 < seconds < TIMEOUT * 1.95


@pytest.mark.parametrize("prefetch", [0, 4])
def test_without_a_replica(start, prefetch):
    (node,) = start(None)
    dataset = gear_data.open(url(node))
    batches = iter(SequenceLoader(dataset, prefetch=prefetch, **OPTIONS))
    clones(itertools.islice(batches, 5))
    node.stop()
    assert once(seconds_until_given_up(lambda: clones(itertools.islice(batches, 40))))
    # Again, over new connections.
    assert once(seconds_until_given_up(lambda: next(iter(SequenceLoader(dataset, prefetch=prefetch, **OPTIONS)))))


def test_calls_without_a_loader(start):
    (node,) = start(None)
    dataset = gear_data.open(url(node))
    node.stop()
    assert once(seconds_until_given_up(lambda: gear_data.open(url(node))))
    assert once(seconds_until_given_up(lambda: dataset.steps("rewards", 0, 6)))


@pytest.mark.parametrize("prefetch", [0, 4])
def test_with_a_replica(start, prefetch, expected):
    one, two = start(None, None)
    loader = SequenceLoader(gear_data.open(url(one, two)), prefetch=prefetch, **OPTIONS)
    batches = iter(loader)
    found = clones(itertools.islice(batches, 5))
    one.stop()
    begun = time.monotonic()
    found += clones([next(batches) for _ in range(12)])
    assert time.monotonic() - begun < TIMEOUT * 1.95
    same(found, expected[: len(found)])
    begun = time.monotonic()
    gear_data.open(url(one, two))
    assert time.monotonic() - begun < TIMEOUT * 1.95


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_fork_after_an_error(folder, end):
    """The error of a node keeps no connection, by which gRPC's threads would live on: a child could not read then."""
    command = [sys.executable, forking_client.__file__, str(folder), end]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0 True\n", "")


def test_several_nodes_that_hang(start):
    """Requests to all of them were sent at the same time."""
    nodes = start("0", "1", "2-5")
    dataset = gear_data.open(url(*nodes))
    batches = iter(SequenceLoader(dataset, prefetch=0, **OPTIONS))
    clones(itertools.islice(batches, 3))
    for node in nodes:
        node.stop()
    assert once(seconds_until_given_up(lambda: next(batches)))
    assert once(seconds_until_given_up(lambda: gear_data.open(url(*nodes))))


def test_requests_of_other_threads_end_at_the_same_time(start):
    (node,) = start(None)
    client = ShardClient([Address.parse(node.address)], ClientOptions(None, None, TIMEOUT))
    request = Request(np.array([0]), (ColumnGroup((0,), np.array([0]), np.array([1])),))
    # Two connections, so that no thread must connect.
    with client.fetching(request) as first, client.fetching(request) as second:
        assert len([*first, *second]) == 2
    node.stop()
    begun, ended = time.monotonic(), []

    def read():
        with pytest.raises(NodeUnreachableError):
            client.fetch(request)
        ended.append(time.monotonic() - begun)

    early, late = threading.Thread(target=read), threading.Thread(target=read)
    early.start()
    time.sleep(TIMEOUT * 0.9)
    late.start()
    early.join()
    late.join()
    assert max(ended) < TIMEOUT * 1.85


def test_a_training_run(start, folder, tmp_path, monkeypatch):
    """Retries do not begin after the timeout, but count from the request."""
    credentials = create_run_credentials(tls=False)
    monkeypatch.setenv(f"GEAR_DATA_RUN_{credentials.run}", "")
    credentials.export()
    (tmp_path / "token").write_bytes(credentials.token.reveal())
    placement = gear_data.open(folder).placement(["node-0", "node-1"])
    (node,) = start(",".join(map(str, placement.held[1])), options=["--token-file", str(tmp_path / "token")])
    servers = (None, ServerInfo(Address.parse(node.address), False))
    membership = Membership(credentials.run, 0, 0, 1, servers, placement, placement)
    dataset = Dataset(PartitionedDatasetStore(open_files(folder), "host", "auto", membership), View())
    batches = iter(SequenceLoader(dataset, **OPTIONS))
    clones(itertools.islice(batches, 5))
    node.stop()
    assert once(seconds_until_given_up(lambda: clones(itertools.islice(batches, 100))))
