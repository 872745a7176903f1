"""`gear-data serve` takes new generations when clients ask for them, and keeps earlier ones for their readers."""

from __future__ import annotations

import gc
import itertools
import json
import pickle
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import gear_data
from gear_data.cli import main
from gear_data.cluster.addresses import Address
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.client.peer import Peer
from gear_data.cluster.credentials import ServerCredentials
from gear_data.cluster.flight.server import FlightServer
from gear_data.cluster.placement import ShardPart
from gear_data.cluster.server.served_generations import GenerationOpener, ServedGenerations
from gear_data.errors import ClusterError, GenerationGoneError, InvalidArgumentError, NodeUnreachableError
from gear_data.storage.dataset_files import open_files
from tests.support.cluster.growing import refresh_rank
from tests.support.cluster.growing.generation_files import is_read
from tests.support.cluster.growing.refresh_rank import loader
from tests.support.cluster.nodes import NodeProcess, url
from tests.support.feed.batches import clones, same
from tests.support.feed.data import run_two_ranks
from tests.support.feed.growing import GrowingDataset
from tests.support.running.eventually import eventually

#: Seconds that a response may take.
TIMEOUT = 3.0
Start = Callable[..., NodeProcess]


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", str(TIMEOUT))


@pytest.fixture
def growing(tmp_path: Path) -> GrowingDataset:
    return GrowingDataset(tmp_path / "growing")


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts servers, which end with the test."""
    nodes: list[NodeProcess] = []

    def begin(folder: Path, *options: str) -> NodeProcess:
        nodes.append(NodeProcess(folder, options=options))
        nodes[-1].wait()
        return nodes[-1]

    yield begin
    for node in nodes:
        if node.is_running:
            node.kill()


def replace_folder(path: Path, source: Path) -> None:
    """Makes a copy of a dataset as new as the dataset; the manifest comes last."""
    for name in ("tables", "parts", "shards", "generations"):
        shutil.copytree(source / name, path / name, dirs_exist_ok=True)
    shutil.copy(source / "manifest.json", path / "manifest.new")
    (path / "manifest.new").rename(path / "manifest.json")


def test_a_served_dataset_gives_the_batches_of_the_folder(growing: GrowingDataset, start: Start) -> None:
    node = start(growing.path, "--residency", "host")
    served = gear_data.open(url(node))
    first = pickle.dumps(served)
    remote, local = loader(served, prefetch=2), loader(growing.open(), prefetch=0)
    steps, expected = iter(remote), iter(local)
    for limits in ({}, {"max_steps": 130}):
        same(clones(itertools.islice(steps, 9)), clones(itertools.islice(expected, 9)))
        generation = growing.grow(4, **limits)
        local.refresh(from_step=remote.refresh())
        assert remote.dataset.generation == local.dataset.generation == generation
    same(clones(itertools.islice(steps, 40)), clones(itertools.islice(expected, 40)))
    again = pickle.loads(first)
    assert (again.generation, len(again)) == (0, 4)
    assert again.at_generation(1)[3]["rewards"].tolist() == growing.episodes[3]["rewards"].tolist()
    view = served.filter("length > 5").filter_steps("rewards > 0").refresh()
    assert view.fingerprint == growing.open().filter("length > 5").filter_steps("rewards > 0").fingerprint
    assert view.refresh() is view
    resumed = loader(gear_data.open(url(node)), prefetch=0)
    resumed.load_state_dict(remote.state_dict())
    same(clones(itertools.islice(resumed, 3)), clones(itertools.islice(expected, 3)))


def test_two_ranks_read_a_served_dataset(
    growing: GrowingDataset, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVED", url(start(growing.path)))
    run_two_ranks(Path(refresh_rank.__file__), growing.path, tmp_path)
    first, second = (json.loads((tmp_path / f"out-{rank}.json").read_text()) for rank in range(2))
    assert first["state"] == second["state"] and first["generations"] == [1, 2]
    whole = loader(growing.open(), prefetch=0)
    whole.load_state_dict({**first["state"], "step": 0})
    arrays = [np.load(tmp_path / f"out-{rank}.npz") for rank in range(2)]
    for step, batch in enumerate(itertools.islice(whole, refresh_rank.STEPS)):
        joined = np.concatenate([each["rewards"][step] for each in arrays])
        assert joined.tobytes() == batch["rewards"].numpy().tobytes()


def test_clients_read_the_generation_that_all_servers_have(
    growing: GrowingDataset, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing.grow(2)
    shutil.copytree(growing.path, tmp_path / "copy", copy_function=shutil.copy2)
    ahead, behind = start(growing.path), start(tmp_path / "copy")
    growing.grow(2)
    served = gear_data.open(url(ahead, behind))
    assert (served.generation, served.refresh().generation) == (1, 1)
    replace_folder(tmp_path / "copy", growing.path)
    assert served.refresh().generation == 2
    assert served.at_generation(2).fingerprint == growing.open().fingerprint
    # The first server no longer has the generation of the second one.
    ahead.kill()
    growing.grow(2)
    growing.grow(1)
    started = start(growing.path)
    with pytest.raises(ClusterError, match=r"is behind: it has generation 2; .*newest: 4") as error:
        gear_data.open(url(started, behind))
    assert behind.address in str(error.value)
    with pytest.raises(ClusterError, match="is behind: it has generation 2"):
        served.at_generation(4)
    monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", "60")  # this time the server is behind for a second only
    threading.Timer(1.0, replace_folder, (tmp_path / "copy", growing.path)).start()
    assert gear_data.open(url(started, behind)).generation == 4


def test_a_server_lets_go_of_generations(growing: GrowingDataset, start: Start) -> None:
    node = start(growing.path, "--keep", "0.5")
    reads = gear_data.open(url(node))
    batches = iter(loader(reads, prefetch=0))
    next(batches)  # has a connection from now on
    idle = gear_data.open(url(node))
    growing.grow(2)
    second = reads.refresh()
    growing.grow(2)
    assert reads.refresh().generation == 2
    assert eventually(lambda: not is_read(growing.path, 1))
    growing.grow(1)
    assert sorted(int(path.stem) for path in (growing.path / "generations").iterdir()) == [0, 2, 3]
    next(batches)
    with pytest.raises(GenerationGoneError, match="generation 1 is no longer on disk"):
        second.episode(0)["rewards"]
    assert len(idle.episode(0)["rewards"]) == 7  # another client keeps its generation
    assert second.refresh().generation == 3


def test_servers_of_parts_follow(growing: GrowingDataset, start: Start) -> None:
    """They do not know of each other, and a restarted server has the same shards."""
    nodes = [start(growing.path, "--residency", "host", "--shards", f"{number}/3") for number in (1, 2, 3)]
    served = gear_data.open(url(*nodes))
    remote, local = loader(served, prefetch=2), loader(growing.open(), prefetch=0)
    steps, expected = iter(remote), iter(local)
    homes: dict[str, set[int]] = {}
    for limits in ({}, {}, {"max_steps": 130}):
        same(clones(itertools.islice(steps, 9)), clones(itertools.islice(expected, 9)))
        generation = growing.grow(4, **limits)
        nodes[generation % 3].kill()
        nodes[generation % 3].begin()
        nodes[generation % 3].wait()
        local.refresh(from_step=remote.refresh())
        assert remote.dataset.generation == generation
        entries = growing.open().manifest.shards
        held = [Peer(Address.parse(node.address), ClientOptions.from_environment()).describe().shards for node in nodes]
        assert set().union(*held) == set(range(len(entries))) and sum(map(len, held)) <= len(entries) + 2
        for number, shards in enumerate(held):
            for shard in shards:
                homes.setdefault(entries[shard].entry.file, set()).add(number)
    same(clones(itertools.islice(steps, 40)), clones(itertools.islice(expected, 40)))
    assert len(homes) > 8 and all(len(each) == 1 for file, each in homes.items() if "000000" not in file)


def test_parts_of_shards(growing: GrowingDataset) -> None:
    growing.grow(12)
    before = growing.open().manifest.shards
    growing.grow(2, max_steps=130)
    after = growing.open().manifest.shards
    for count in (1, 2, 3, 7):
        parts = [ShardPart(number + 1, count) for number in range(count)]
        for shards in (before, after):
            held = [each.shards(shards) for each in parts]
            assert sorted(set(itertools.chain(*held))) == list(range(len(shards)))
            replicas = [each for each in held if each == (0,)]
            assert sum(map(len, held)) <= len(shards) + len(replicas) and all(held)
        for part in parts:
            old, new = ({shards[each].entry.file for each in part.shards(shards)} for shards in (before, after))
            stay = {each.entry.file for each in before} & {each.entry.file for each in after}
            if (0,) not in (part.shards(before), part.shards(after)):
                assert old & stay == new & stay


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/", "/3", "1/3/3", "a/3", "-1/3"])
def test_invalid_parts(text: str, growing: GrowingDataset, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", str(growing.path), f"--shards={text}", "--listen", "127.0.0.1:0"])
    assert f"expected a part such as 1/3, 2/3 or 3/3, not '{text}'" in capsys.readouterr().err


def test_a_server_of_some_shards_stays(growing: GrowingDataset, start: Start) -> None:
    count = len(growing.open().manifest.shards)
    node = start(growing.path, "--shards", f"0-{count - 1}")
    served = gear_data.open(url(node))
    growing.grow(2)
    assert served.refresh() is served
    with pytest.raises(ClusterError, match="is behind: it has generation 0") as error:
        served.at_generation(1)
    assert "start each of N servers with its part, --shards 1/N to N/N" in str(error.value)
    with pytest.raises(InvalidArgumentError, match="stays at its generation"):
        served[:2].refresh()


def test_follow_waits_for_servers(growing: GrowingDataset, start: Start) -> None:
    node = start(growing.path)
    node.kill()
    with pytest.raises(NodeUnreachableError):
        gear_data.open(url(node))
    threading.Timer(1.0, node.begin).start()
    assert len(gear_data.open(url(node), follow=True)) == 4


def test_the_memory_of_a_generation_is_freed(growing: GrowingDataset) -> None:
    opener = GenerationOpener(open_files(growing.path), "host", "flight")
    first = opener.first()
    shards = weakref.ref(first.shards)
    server = FlightServer(ServedGenerations(first, opener, 0.2), Address("127.0.0.1", 0), ServerCredentials())
    del first
    peer = Peer(Address("127.0.0.1", server.port), ClientOptions(None, None, 10.0))
    identity = peer.describe().dataset
    stream, _ = peer.acquire_stream(identity)
    growing.grow(3)
    assert peer.describe().generation == 1
    time.sleep(1.2)
    assert shards() is not None  # the stream reads it
    peer.abandon_stream(stream)
    assert eventually(lambda: gc.collect() >= 0 and shards() is None)
    server.shutdown()
