"""A node of a training run, its shards in pinned memory, on a stand-in for a GPU: kernels read them where they are, and
what other nodes hold is brought to them; batches are those of the CPU."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from cuda_loader_checks import CASES, OPTIONS, Gpu, convert, copies, from_device, on_gpu, same
from cupy_stand_in import ORDERS, StandIn, stand_in

import gear_data
from gear_data import Dataset, SequenceLoader
from gear_data.cluster import waiting
from gear_data.cluster.addresses import Address
from gear_data.cluster.flight_server import FlightServer, Guard
from gear_data.cluster.host_server import Serving
from gear_data.cluster.joined_dataset import JoinedRoot
from gear_data.cluster.joining import Membership
from gear_data.cluster.run_secret import make_secret
from gear_data.cluster.served import ServedShards
from gear_data.errors import InvalidArgumentError
from gear_data.storage.dataset_files import open_files
from gear_data.views import View

Join = Callable[..., Dataset]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("joined")


@pytest.fixture
def path(folder: Path) -> Path:
    return convert(11, folder / "one")


@pytest.fixture(params=["all late"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[StandIn]:
    with stand_in(monkeypatch, folder, order=request.param) as found:
        yield found


@pytest.fixture
def join(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Join]:
    """join(nodes) -> the dataset as one of so many nodes has it, the first; the others' servers are in this process."""
    running: list[FlightServer] = []
    secret = make_secret(tls=False)
    monkeypatch.setenv(f"GEAR_DATA_RUN_{secret.run}", "")
    secret.keep()

    def serve(shards: tuple[int, ...]) -> Serving:
        server = FlightServer(
            ServedShards(open_files(path), shards, "host"), Address("127.0.0.1", 0), Guard(secret.token)
        )
        running.append(server)
        threading.Thread(target=server.serve, daemon=True).start()
        return Serving(Address("127.0.0.1", server.port), False)

    def begin(nodes: int, residency: str = "pinned", node: int = 0) -> Dataset:
        placement = gear_data.open(path).placement([f"node-{number}" for number in range(nodes)])
        held = enumerate(placement.held)
        servers = tuple(serve(shards) if shards and number != node else None for number, shards in held)
        membership = Membership(secret.run, node, 0, 1, servers, placement, placement)
        return Dataset(JoinedRoot(open_files(path), residency, "auto", membership), View())

    yield begin
    waiting._close_all()
    for server in running:
        server.shutdown()


@pytest.mark.parametrize("gpu", ORDERS, indirect=True)
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_in_every_order_of_the_streams(gpu: StandIn, path: Path, join: Join, nodes: int) -> None:
    options = {**OPTIONS, "preset": "decision_transformer", "steps": 40}
    expected = copies(SequenceLoader(gear_data.open(path), **options), 40)
    dataset = join(nodes)
    assert dataset.is_remote == (nodes > 1)
    same(from_device(gpu, on_gpu(dataset, **options), 40), expected)
    assert len(gpu.cupy.registered) == 1
    # Where all is here the device draws too.
    drawn = {"gear_draw_windows"} if nodes == 1 else set()
    assert set(gpu.cupy.launched) == {"gear_collect"} | drawn
    del dataset
    assert not gpu.cupy.registered


@pytest.mark.parametrize("case", CASES)
def test_every_option(gpu: Gpu, path: Path, join: Join, case: str) -> None:
    expected = copies(SequenceLoader(gear_data.open(path), **{**OPTIONS, **CASES[case]}))
    same(from_device(gpu, on_gpu(join(2), **CASES[case])), expected)


def test_its_own_shards_are_read_where_they_are(gpu: Gpu, path: Path, join: Join) -> None:
    """What each node draws by itself goes over no wire, nor through the CPU."""
    dataset = join(2)

    def refuse(*_: object) -> None:
        raise AssertionError

    dataset._root._nodes.fetch = refuse
    options = {**OPTIONS, "selection": "decentralized"}
    got = from_device(gpu, on_gpu(dataset, **options))
    same(got, copies(SequenceLoader(join(2, "host"), **options)))
    whole, member = dataset.device_columns(), dataset.membership
    assert member is not None
    fixed = [not column.variable_length for column in dataset.schema]
    here = np.isin(np.arange(len(dataset.manifest.shards)), member.shards)
    assert whole.addresses[:, fixed].all(axis=1).tolist() == here.tolist()


def test_what_no_kernel_reads_in_place(gpu: StandIn, path: Path, join: Join) -> None:
    """Shards in shared memory or files, and nodes that have none: the device collects all the same."""
    expected = copies(SequenceLoader(gear_data.open(path), **OPTIONS))
    for residency in ("host", "mmap"):
        same(from_device(gpu, on_gpu(join(2, residency))), expected)
    shards = len(gear_data.open(path).manifest.shards)
    none = join(shards + 1, node=shards)
    assert none.membership is not None and none.membership.shards == ()
    same(from_device(gpu, on_gpu(none)), expected)
    assert not gpu.cupy.registered


def test_a_copy_for_another_process(gpu: Gpu, path: Path, join: Join) -> None:
    expected = copies(SequenceLoader(gear_data.open(path), **OPTIONS, discount=0.9))
    dataset = pickle.loads(pickle.dumps(join(2).with_discount(0.9)))
    assert dataset.residency == "pinned"
    same(copies(SequenceLoader(dataset, **OPTIONS, discount=0.9)), expected)


def test_a_plan_where_others_hold_some(gpu: Gpu, path: Path, join: Join) -> None:
    dataset = join(2)
    with pytest.raises(InvalidArgumentError, match="what other machines serve"):
        dataset.place(dataset.residency_plan(1 << 20, 1 << 20))
    alone = join(1)
    placed = alone.place(alone.residency_plan(10_000, 10_000))
    same(from_device(gpu, on_gpu(placed)), copies(SequenceLoader(gear_data.open(path), **OPTIONS)))
