"""Nodes in this process, with a stand-in for their RDMA device."""

from __future__ import annotations

import threading

import pytest

from gear_data.cluster.addresses import Address
from gear_data.cluster.credentials import ServerCredentials
from gear_data.cluster.flight import grpc_fork
from gear_data.cluster.flight.server import FlightServer
from gear_data.cluster.rdma.server import open_rdma_server
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.storage.dataset_files import open_files


@pytest.fixture
def world(monkeypatch, tmp_path):
    from tests.support.rdma import stand_in

    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path))
    found = stand_in.StandIn()
    found.install(monkeypatch)
    return found


@pytest.fixture
def serve(folder, world):
    """serve(shards, transport) -> the address of a new node in this process.

    All nodes end with the test.
    """
    running = []

    def start(shards=None, transport="verbs", folder=folder):
        served = ShardServer(open_files(folder), shards, "host")
        rdma = open_rdma_server(served, transport)
        server = FlightServer(served, Address("127.0.0.1", 0), ServerCredentials(), rdma)
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        running.append((server, rdma))
        return f"127.0.0.1:{server.port}"

    yield start
    # A server waits for its clients, and tracebacks of raised errors keep some clients alive.
    grpc_fork._close_all()
    world.wait_for_no_pairs()
    for server, rdma in running:
        server.shutdown()
        if rdma is not None:
            rdma.close()
    assert not world.regions
