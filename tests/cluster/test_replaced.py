"""Nodes whose dataset is replaced, or that restart with another dataset."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.cluster.addresses import Address
from gear_data.cluster.credentials import ServerCredentials
from gear_data.cluster.flight.server import FlightServer
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.errors import DatasetReplacedError, NodeRefusedError
from gear_data.storage.dataset_files import FolderFiles
from tests.support.replacement.datasets import NEW, OLD, convert, overwrite

Serve = Callable[..., FlightServer]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """serve(folder, residency, port) -> a server in this process."""
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", "10")
    servers = []

    def start(folder: Path, residency: str = "mmap", port: int = 0) -> FlightServer:
        shards = ShardServer(FolderFiles(folder), residency=residency)
        servers.append(FlightServer(shards, Address("127.0.0.1", port), ServerCredentials()))
        return servers[-1]

    yield start
    gc.collect()  # closes the streams of clients
    for server in servers:
        server.shutdown()


def url(*servers: FlightServer) -> str:
    return "gear://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)


def rewards(ds: Any, seen: set[float]) -> None:
    for episode in ds:
        seen.add(float(episode["rewards"][0]))


@pytest.mark.parametrize("residency", ["mmap", "host"])
def test_a_client_of_a_node_whose_files_are_replaced(residency: str, serve: Serve, tmp_path: Path) -> None:
    """The client gets old data, or the node's error with its type."""
    folder = convert(tmp_path / "d", OLD)
    ds = gear_data.open(url(serve(folder, residency)))
    seen: set[float] = {float(ds.episode(0)["rewards"][0])}
    overwrite(folder)
    if residency == "host":
        rewards(ds, seen)
    else:
        with pytest.raises(DatasetReplacedError, match="open the dataset again") as error:
            rewards(ds, seen)
        assert str(error.value).startswith("gear://127.0.0.1:")
    assert seen == {OLD}


def test_a_replica_with_the_old_files_answers(serve: Serve, tmp_path: Path) -> None:
    replaced, kept = convert(tmp_path / "a", OLD), convert(tmp_path / "b", OLD)
    ds = gear_data.open(url(serve(replaced), serve(kept)))
    assert ds.episode(0)["rewards"][0] == OLD
    overwrite(replaced)
    seen: set[float] = set()
    rewards(ds, seen)
    assert seen == {OLD}


def test_a_client_that_reconnects_to_a_node_with_another_dataset(serve: Serve, tmp_path: Path) -> None:
    old, new = convert(tmp_path / "a", OLD), convert(tmp_path / "b", NEW)
    server = serve(old)
    ds = gear_data.open(url(server))
    assert ds.episode(0)["rewards"][0] == OLD
    pickled = pickle.dumps(ds)
    ds.store._client._directory.peers[0].close_idle()  # a server waits for streams when it is shut down
    server.shutdown()
    serve(new, port=server.port)
    with pytest.raises(NodeRefusedError, match="serves another dataset"):
        ds.episode(1)["rewards"].sum()
    with pytest.raises(DatasetReplacedError):
        pickle.loads(pickled)
    assert gear_data.open(url(server)).episode(1)["rewards"][0] == NEW
