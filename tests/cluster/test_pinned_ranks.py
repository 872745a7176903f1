"""A node with shards in pinned memory, on a stand-in for a GPU.

Kernels read the node's own shards in place, and rows of other nodes from a staging buffer.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import gear_data
from gear_data import Dataset, SequenceLoader
from gear_data.cluster.addresses import Address
from gear_data.cluster.credentials import ServerCredentials
from gear_data.cluster.flight import grpc_fork
from gear_data.cluster.flight.server import FlightServer
from gear_data.cluster.rendezvous import JoinRequest, Membership, _start_server
from gear_data.cluster.run_credentials import create_run_credentials
from gear_data.cluster.server.node_server import ServerInfo
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.dataset.stores.partitioned import PartitionedDatasetStore
from gear_data.dataset.views import View
from gear_data.errors import InvalidArgumentError
from gear_data.storage.dataset_files import open_files
from tests.support.cuda.gpu_stand_in import StandInGpu, stand_in
from tests.support.cuda.loader_checks import CASES, OPTIONS, GpuUnderTest, convert, copies, from_device, on_gpu, same
from tests.support.cuda.streams import ORDERS
from tests.support.feed.arguments import grouped

Join = Callable[..., Dataset]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("joined")


@pytest.fixture
def path(folder: Path) -> Path:
    return convert(11, folder / "one")


@pytest.fixture(params=["all late"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, libraries: Path) -> Iterator[StandInGpu]:
    with stand_in(monkeypatch, libraries, order=request.param) as found:
        yield found


@pytest.fixture(scope="module")
def join(folder: Path) -> Iterator[Join]:
    """join(nodes) -> the dataset as the first of N nodes sees it.

    The other nodes' servers are in this process.
    """
    path, running = convert(11, folder / "one"), dict[tuple[Path, tuple[int, ...]], FlightServer]()
    credentials = create_run_credentials(tls=False)

    def serve(at: Path, shards: tuple[int, ...]) -> ServerInfo:
        server = running.get((at, shards))
        if server is None:
            served = ShardServer(open_files(at), shards, "host")
            server = running[at, shards] = FlightServer(
                served, Address("127.0.0.1", 0), ServerCredentials(credentials.token)
            )
            threading.Thread(target=server.serve, daemon=True).start()
        return ServerInfo(Address("127.0.0.1", server.port), False)

    def begin(nodes: int, residency: str = "pinned", node: int = 0, at: Path = path) -> Dataset:
        placement = gear_data.open(at).placement([f"node-{number}" for number in range(nodes)])
        held = enumerate(placement.held)
        servers = tuple(serve(at, shards) if shards and number != node else None for number, shards in held)
        membership = Membership(credentials.run, node, 0, 1, servers, placement, placement)
        return Dataset(PartitionedDatasetStore(open_files(at), residency, "auto", membership), View())

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"GEAR_DATA_RUN_{credentials.run}", "")
        credentials.export()
        yield begin
    grpc_fork._close_all()
    for server in running.values():
        server.shutdown()


@pytest.mark.parametrize("gpu", ORDERS, indirect=True)
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_in_every_order_of_the_streams(gpu: StandInGpu, path: Path, join: Join, nodes: int) -> None:
    options = {**OPTIONS, "preset": "decision_transformer", "steps": 40}
    expected = copies(SequenceLoader(gear_data.open(path), **grouped(**options)), 40)
    dataset = join(nodes)
    assert dataset.is_remote == (nodes > 1)
    same(from_device(gpu, on_gpu(dataset, **options), 40), expected)
    assert len(gpu.cupy.registered) == 1
    # If all shards are local, the device draws the windows too.
    drawn = {"gear_draw_windows"} if nodes == 1 else set()
    assert set(gpu.cupy.launched) == {"gear_collect"} | drawn
    del dataset
    gc.collect()
    assert not gpu.cupy.registered


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_every_option(gpu: GpuUnderTest, path: Path, join: Join, case: str, nodes: int) -> None:
    expected = copies(SequenceLoader(gear_data.open(path), **grouped(**{**OPTIONS, **CASES[case]})))
    same(from_device(gpu, on_gpu(join(nodes), **CASES[case])), expected)


def test_decentralized_selection_sends_no_requests(gpu: GpuUnderTest, path: Path, join: Join) -> None:
    dataset = join(2)

    def refuse(*_: object) -> None:
        raise AssertionError

    dataset.store._client.fetching = refuse  # type: ignore[attr-defined]
    options = {**OPTIONS, "selection": "decentralized"}
    same(from_device(gpu, on_gpu(dataset, **options)), copies(SequenceLoader(join(2, "host"), **grouped(**options))))


@pytest.mark.parametrize(("residency", "discount"), [("host", 1.0), ("mmap", 1.0), ("host", 0.9)])
def test_columns_that_kernels_cannot_read_in_place(
    gpu: GpuUnderTest, path: Path, join: Join, residency: str, discount: float
) -> None:
    expected = copies(SequenceLoader(gear_data.open(path), **grouped(**OPTIONS, discount=discount)))
    # Returns of another discount are all local.
    same(from_device(gpu, on_gpu(join(2, residency), discount=discount)), expected)


@pytest.mark.parametrize("discount", [None, 0.9])
def test_kernels_read_the_nodes_own_shards(gpu: StandInGpu, path: Path, join: Join, discount: float | None) -> None:
    dataset, local = join(2), gear_data.open(path)
    if discount is not None:
        dataset, local = dataset.with_discount(discount), local.with_discount(discount)
    member, found = dataset.store.membership, dataset.store.device_columns()
    assert member is not None
    steps = [shard.steps for shard in dataset.manifest.shards]
    assert (found.shard.tolist(), found.last.tolist()) == (list(range(len(steps))), steps)
    assert not found.first.any()
    for shard in range(len(steps)):
        for index, column in enumerate(dataset.schema):
            address = int(found.addresses[shard, index])
            # Returns of another discount are all local.
            assert bool(address) == (
                shard in member.shards or (column.name == "returns_to_go" and discount is not None)
            )
            if address:
                values = local.store.shards.column(shard, index)
                assert ctypes.string_at(address, values.nbytes) == values.tobytes()
    assert len(gpu.cupy.registered) == (1 if discount is None else 2)
    batches = copies(SequenceLoader(dataset, **grouped(**OPTIONS, preset="decision_transformer")))
    same(batches, copies(SequenceLoader(local, **grouped(**OPTIONS, preset="decision_transformer"))))
    same(from_device(gpu, on_gpu(dataset, preset="decision_transformer")), batches)
    del dataset, found
    gc.collect()
    assert not gpu.cupy.registered


def test_shards_of_a_growing_dataset_are_registered_once(gpu: StandInGpu, tmp_path: Path, join: Join) -> None:
    """Ranks and generations share the segment of each shard: no rank copies it to memory of its own."""
    with gear_data.Writer(tmp_path / "d", shard_bytes=1024) as writer:
        for number in range(4):
            for step in range(20):
                observations = np.array([number, step, number * step], np.float32)
                writer.append(observations=observations, actions=np.array([step]), rewards=1.0)
            writer.end_episode(terminated=True)
            writer.seal()
    dataset, local = join(2, at=tmp_path / "d"), gear_data.open(tmp_path / "d")
    member, found = dataset.store.membership, dataset.store.device_columns()
    assert member is not None and local.generation
    assert len(gpu.cupy.registered) == len(member.shards) > 0
    for shard in range(len(dataset.manifest.shards)):
        for index in range(len(dataset.schema)):
            address = int(found.addresses[shard, index])
            assert bool(address) == (shard in member.shards)
            if address:
                values = local.store.shards.column(shard, index)
                assert ctypes.string_at(address, values.nbytes) == values.tobytes()
    again = join(2, at=tmp_path / "d")
    assert (again.store.device_columns().addresses == found.addresses).all()
    assert len(gpu.cupy.registered) == len(member.shards)
    same(from_device(gpu, on_gpu(dataset)), copies(SequenceLoader(local, **grouped(**OPTIONS))))
    del dataset, again, found
    gc.collect()
    assert not gpu.cupy.registered


def holders(inode: str) -> dict[int, list[str]]:
    """Returns process -> permissions of each mapping of a segment."""
    found: dict[int, list[str]] = {}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # the process ended
            for line in maps.read_text().splitlines():
                if "/memfd:gear-data-pinned." in line and line.split()[4] == inode:
                    found.setdefault(int(maps.parent.name), []).append(line.split()[1])
    return found


def test_ranks_and_the_node_s_server_share_one_copy(gpu: StandInGpu, path: Path, join: Join) -> None:
    """The server is another process, which needs no GPU."""
    datasets = [join(2), join(2)]
    membership = datasets[0].store.membership
    assert membership is not None
    request = JoinRequest(str(path), None, None, "pinned", "flight", lambda: None, lambda nodes: None)  # type: ignore
    report, lease = _start_server(request, membership.placement, 0, create_run_credentials(tls=False))
    assert report.server is not None
    assert lease is not None
    address = datasets[0].store.shards.local.touch(0)[0].address  # type: ignore[union-attr]
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    (inode,) = [line[4] for line in lines if line[0].startswith(f"{address:x}-")]
    found = holders(inode)
    assert found.pop(os.getpid()) == ["r--s", "r--s"]
    assert list(found.values()) == [["r--s"]]


def test_a_node_without_shards(gpu: StandInGpu, path: Path, join: Join) -> None:
    shards = len(gear_data.open(path).manifest.shards)
    dataset = join(shards + 1, node=shards)
    assert dataset.store.membership is not None and dataset.store.membership.shards == ()
    assert not dataset.store.device_columns().addresses.any() and not gpu.cupy.registered
    same(
        copies(SequenceLoader(dataset, **grouped(**OPTIONS))),
        copies(SequenceLoader(gear_data.open(path), **grouped(**OPTIONS))),
    )


def test_a_copy_for_another_process(gpu: GpuUnderTest, path: Path, join: Join) -> None:
    expected = copies(SequenceLoader(gear_data.open(path), **grouped(**OPTIONS, discount=0.9)))
    dataset = pickle.loads(pickle.dumps(join(2).with_discount(0.9)))
    assert dataset.residency == "pinned"
    same(copies(SequenceLoader(dataset, **grouped(**OPTIONS, discount=0.9))), expected)


def test_a_plan(gpu: GpuUnderTest, path: Path, join: Join) -> None:
    single, dataset = join(1), join(2)
    with pytest.raises(InvalidArgumentError, match="is served by other nodes"):
        dataset.place(dataset.residency_plan(1 << 20, 1 << 20))
    placed = single.place(single.residency_plan(10_000, 10_000))
    same(from_device(gpu, on_gpu(placed)), copies(SequenceLoader(gear_data.open(path), **grouped(**OPTIONS))))
    with pytest.raises(InvalidArgumentError, match="whose shards the nodes of a run share, stays at its generation"):
        placed.refresh()
