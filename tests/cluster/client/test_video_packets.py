"""Frames of cameras whose video files other nodes read."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from pyarrow import flight

import gear_data
from gear_data.cluster import protocol
from gear_data.cluster.addresses import Address
from gear_data.cluster.client import video_packets
from gear_data.cluster.client.retry_policy import RetryPolicy
from gear_data.cluster.client.video_packets import LocalOrNodePackets, NodePackets
from gear_data.cluster.credentials import ServerCredentials
from gear_data.cluster.flight.server import FlightServer
from gear_data.cluster.protocol import handshake
from gear_data.cluster.server import shard_server
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.errors import CorruptShardError, NodeRefusedError, NodeUnreachableError
from gear_data.storage.dataset_files import FolderFiles
from gear_data.storage.videos.stored_packets import read_video_index, stored_packets
from tests.support.cameras.filmed import FRONT, WRIST, Filmed, film

Serve = Callable[..., FlightServer]


@pytest.fixture(scope="module")
def filmed(sources: Any, tmp_path_factory: pytest.TempPathFactory) -> Filmed:
    folder = tmp_path_factory.mktemp("filmed")
    rollouts = sources.make_rollouts(5, seed=2)
    gear_data.convert(sources.write_d4rl(folder / "source.hdf5", rollouts), folder / "dataset", shard_bytes=1024)
    return Filmed(folder / "dataset", film(folder / "dataset", [len(rollout) for rollout in rollouts]))


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", "10")
    servers = []

    def start(folder: Path, port: int = 0) -> FlightServer:
        address = Address("127.0.0.1", port)
        servers.append(FlightServer(ShardServer(FolderFiles(folder)), address, ServerCredentials()))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()


def url(*servers: FlightServer) -> str:
    return "gear://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)


def test_frames_and_batches_of_served_cameras(filmed: Filmed, serve: Serve) -> None:
    remote, local = gear_data.open(url(serve(filmed.path))), gear_data.open(filmed.path)
    np.testing.assert_array_equal(remote[1][FRONT], filmed.frames[FRONT][1])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(remote))[2][WRIST][1:3], filmed.frames[WRIST][2][1:3])
    options: dict[str, Any] = {
        "batch_size": 4,
        "context": 3,
        "preset": "raw",
        "columns": [FRONT],
        "seed": 1,
        "steps": 3,
    }
    loaders = [gear_data.SequenceLoader(ds, framework="numpy", **options) for ds in (remote, local)]
    for mine, theirs in zip(*loaders, strict=True):
        np.testing.assert_array_equal(mine[FRONT], theirs[FRONT])


def test_a_replica_has_the_file(filmed: Filmed, serve: Serve, tmp_path: Path) -> None:
    shutil.copytree(filmed.path, tmp_path / "lacking")
    shutil.rmtree(tmp_path / "lacking" / "videos")
    ds = gear_data.open(url(serve(tmp_path / "lacking"), serve(filmed.path)))
    for camera in (FRONT, WRIST):
        np.testing.assert_array_equal(ds[3][camera], filmed.frames[camera][3])
    alone = gear_data.open(url(serve(tmp_path / "lacking")))
    with pytest.raises(CorruptShardError, match="is missing"):
        NodePackets(alone.store._client).read([(0, 0, 10)])  # decoded frames may be in the cache


def test_large_ranges_are_cut(filmed: Filmed, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message has few bytes here, so that ranges take several."""
    for module in (video_packets, shard_server):
        monkeypatch.setattr(module, "MESSAGE_BYTES", 700)
    packets = NodePackets(gear_data.open(url(serve(filmed.path))).store._client)
    files = FolderFiles(filmed.path)
    index = read_video_index(files, files.manifest())
    size = index.file(0).size
    ranges = [(0, 0, size), (0, 5, 5), (1, 100, 900), (0, size - 1, size), (2, 0, 30)]
    found = packets.read(ranges)
    contents = [(filmed.path / index.file(number).file).read_bytes() for number in range(3)]
    assert [bytes(data) for data in found] == [contents[file][first:last] for file, first, last in ranges]
    assert [bytes(data) for data in found] == [bytes(data) for data in stored_packets(files, index).read(ranges)]


def test_a_file_that_this_node_lacks_comes_from_another(filmed: Filmed, serve: Serve, tmp_path: Path) -> None:
    shutil.copytree(filmed.path, tmp_path / "lacking")
    (tmp_path / "lacking" / "videos" / "front.mp4").unlink()
    files = FolderFiles(tmp_path / "lacking")
    index = read_video_index(files, files.manifest())
    nodes = NodePackets(gear_data.open(url(serve(filmed.path))).store._client)
    both = LocalOrNodePackets(stored_packets(files, index), nodes)
    assert bytes(both.read([(0, 3, 50)])[0]) == (filmed.path / "videos" / "front.mp4").read_bytes()[3:50]


def test_nodes_that_hold_different_files(filmed: Filmed, serve: Serve, tmp_path: Path) -> None:
    files = FolderFiles(filmed.path)
    index = read_video_index(files, files.manifest())
    held = [{0, 2}, {1, 3, 4, 5}]
    folders = [tmp_path / f"node-{number}" for number in range(2)]
    for folder, numbers in zip(folders, held, strict=True):
        shutil.copytree(filmed.path, folder)
        for number in {*range(len(index))} - numbers:
            (folder / index.file(number).file).unlink()
    servers = [serve(folder) for folder in folders]
    client = gear_data.open(url(*servers)).store._client
    ranges = [(number, 3 * number, 60) for number in (5, 0, 2, 1, 0, 4)]
    expected = [(filmed.path / index.file(file).file).read_bytes()[first:last] for file, first, last in ranges]
    packets = NodePackets(client)
    assert [bytes(data) for data in packets.read(ranges)] == expected
    assert packets._sources == {0: 0, 2: 0, 1: 1, 4: 1, 5: 1}
    assert not client._directory.backoff.active(), "a node that lacks a file is no failed node"
    both = LocalOrNodePackets(stored_packets(FolderFiles(folders[0]), index), packets)
    for _ in range(2):
        assert [bytes(data) for data in both.read(ranges)] == expected
    assert both._missing == {1, 4, 5}


def test_a_node_that_returns_in_time(filmed: Filmed, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(filmed.path)
    port = server.port
    client = gear_data.open(url(server)).store._client
    server.shutdown()
    with pytest.raises(NodeUnreachableError):
        client.video_bytes([(0, 0, 10)], 0)
    wait = client._retries.wait
    restarted = []

    def restart(*arguments: Any) -> float | None:
        if not restarted:
            restarted.append(serve(filmed.path, port))
        return wait(*arguments)

    client._directory.backoff.record_success(0)
    monkeypatch.setattr(client._retries, "policy", RetryPolicy(60.0, 0.05))
    monkeypatch.setattr(client._retries, "wait", restart)
    content = (filmed.path / "videos" / "front.mp4").read_bytes()
    assert client.video_bytes([(0, 2, 30)], 0) == (content[2:30], 0)
    assert restarted


@pytest.mark.parametrize(
    "ranges",
    [
        [[-1, 0, 1]],
        [[99, 0, 1]],
        [[0, -1, 1]],
        [[0, 5, 1]],
        [[0, 0, 1 << 40]],
        [[0, 0, 1 << 70]],
        [[0, 0]],
        [["0", 0, 1]],
        [[0, 0, 1]] * (protocol.MAX_SPANS + 1),
    ],
    ids=lambda ranges: str(ranges)[:20],
)
def test_requests_that_are_refused(filmed: Filmed, serve: Serve, ranges: list[Any]) -> None:
    server = serve(filmed.path)
    identity = ShardServer(FolderFiles(filmed.path)).identity
    body = msgspec.json.encode({**msgspec.json.decode(handshake(identity)), "ranges": ranges})
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        with pytest.raises(flight.FlightError) as error:
            list(client.do_action(flight.Action("video", body), flight.FlightCallOptions(timeout=20)))
        assert "Traceback" not in str(error.value)
    assert gear_data.open(url(server))[0][FRONT].shape == filmed.frames[FRONT][0].shape


def test_a_request_for_too_many_bytes(filmed: Filmed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_server, "MESSAGE_BYTES", 100)
    with pytest.raises(NodeRefusedError, match="at once"):
        ShardServer(FolderFiles(filmed.path)).video_bytes([(0, 0, 60), (0, 0, 60)])
