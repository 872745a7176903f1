"""Training runs: several nodes give the batches of one process, bit for bit.

Also: servers end with their ranks and are restarted, and an error on one rank is raised on all.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import gear_data
from gear_data import SequenceLoader
from gear_data.cluster.key_value_store import KeyValueStore
from gear_data.cluster.server.node_server import LINGER_SECONDS
from gear_data.errors import ClusterError, InvalidArgumentError, StateMismatchError, UnknownNameError
from gear_data.video.indexing.demux import index_file
from gear_data.video.segments import VideoSegments
from tests.support.cameras.attached import attach_cameras
from tests.support.cameras.filmed import moving_bar, write_video
from tests.support.cluster import hold_rank, join_rank
from tests.support.cluster.runs import all_ended, has_ended, runs, servers, torchrun
from tests.support.feed import data as feed_data
from tests.support.feed.arguments import grouped
from tests.support.running.eventually import eventually


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return feed_data.shared_out(tmp_path_factory.mktemp("joining") / "d")


@pytest.fixture(scope="module")
def filmed(folder, tmp_path_factory):
    """The same dataset with a camera: a video file an episode."""
    copy = tmp_path_factory.mktemp("filmed") / "d"
    shutil.copytree(folder, copy)
    lengths = gear_data.open(folder).lengths.tolist()
    names = [f"videos/{episode}.mp4" for episode in range(len(lengths))]
    for length, name in zip(lengths, names, strict=True):
        write_video(copy / name, moving_bar(length), g="4")
    episodes = np.arange(len(lengths))
    files = [index_file(copy / name, name) for name in names]
    attach_cameras(copy, files, {join_rank.CAMERA: VideoSegments(episodes, 0 * episodes)})
    return copy


@pytest.fixture(scope="module")
def expected(filmed):
    """The batches of one process that has all shards."""
    dataset = gear_data.open(filmed)
    found = {
        name: join_rank.stacked(SequenceLoader(dataset, **grouped(**{**join_rank.OPTIONS, **more})))
        for name, more in join_rank.LOADERS.items()
    }
    found["updated"] = join_rank.updated(dataset, None)
    found["filtered"] = join_rank.stacked(SequenceLoader(dataset.filter("length > 6"), **join_rank.OPTIONS))
    found["workers"] = found["pickled"] = found["uniform"]
    return found


def parts(folder, nodes, to):
    """Makes a copy of a dataset for each node, with only its shards.

    Of videos, a node has those of the episodes in its shards.
    """
    dataset = gear_data.open(folder)
    placement = dataset.placement([f"node-{number}" for number in range(nodes)])
    manifest, shard_of = dataset.manifest, dataset.episodes["shard"].to_list()
    for number in range(nodes):
        shutil.copytree(folder, to / f"part-{number}")
        for shard, entry in enumerate(manifest.shards):
            if shard not in placement.held[number]:
                (to / f"part-{number}" / entry.entry.file).unlink()
        for video in (to / f"part-{number}" / "videos").glob("*.mp4"):
            if shard_of[int(video.stem)] not in placement.held[number]:
                video.unlink()
    return to / "part-{node}"


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 1), (2, 2), (3, 1)])
def test_runs_give_the_batches_of_one_process(filmed, expected, tmp_path, nodes, ranks):
    folder, dataset = filmed, parts(filmed, nodes, tmp_path)
    if nodes > 1:
        assert all(len(list((tmp_path / f"part-{node}" / "videos").iterdir())) < 10 for node in range(nodes))
    before = {process.pid for process in servers()}
    assert torchrun(nodes, ranks, join_rank.__file__, dataset, tmp_path / "out") == [0] * nodes
    found = [np.load(tmp_path / f"out-{rank}.npz") for rank in range(nodes * ranks)]
    facts = [json.loads((tmp_path / f"out-{rank}.json").read_text()) for rank in range(nodes * ranks)]
    for name, keys in expected.items():
        for key, whole in keys.items():
            batches = len(whole) // 13 if len(whole) % 13 == 0 else None
            mine = [one[f"{name}/{key}"] for one in found]
            if batches is not None:
                mine = [np.split(one, batches) for one in mine]
                joined = np.concatenate([part for step in zip(*mine, strict=True) for part in step])
                assert joined.tobytes() == whole.tobytes(), (name, key)
            # Each rank has its part of a shorter last batch.
            else:
                assert sum(map(len, mine)) == len(whole), (name, key)
    assert all(one["token"] == [] for one in facts)
    # Resumed on another number of nodes.
    resumed = SequenceLoader(gear_data.open(folder), **join_rank.OPTIONS)
    resumed.load_state_dict(facts[-1]["interrupted"])
    rest = join_rank.stacked(resumed)["observations"]
    assert rest.tobytes() == expected["uniform"]["observations"][3 * 13 :].tobytes()
    with pytest.raises(StateMismatchError, match="another selection"):
        SequenceLoader(gear_data.open(folder), **{**join_rank.OPTIONS, "batch_size": 24}).load_state_dict(
            facts[0]["state"]
        )
    _check_decentralized(folder, found, facts, nodes, ranks)
    assert all_ended([process for process in servers() if process.pid not in before], LINGER_SECONDS + 120)


def _check_decentralized(folder, found, facts, nodes, ranks):
    """Checks the batches of decentralized selection.

    Each node draws only from its own shards and sends no requests. Together the rows form whole batches.
    """
    dataset = gear_data.open(folder)
    shard = dataset.episodes["shard"].to_numpy()
    rows = sum(len(one["decentralized/rewards"]) for one in found)
    assert rows == join_rank.STEPS * 24
    starts = {}
    for episode in range(dataset.num_episodes):
        for value in dataset.episode(episode)["rewards"]:
            starts[float(value)] = episode
    by_node = np.zeros(nodes)
    for rank, (one, fact) in enumerate(zip(found, facts, strict=True)):
        drawn = [starts[float(value)] for value in one["decentralized/rewards"][:, 0]]
        assert set(shard[drawn]) <= set(fact["here"])
        assert set(shard[fact["own"]]) <= set(fact["here"])
        assert fact["requests"][0] == 0
        assert fact["requests"][1] > 0 or nodes == 1
        assert fact["state"] == facts[0]["state"]
        by_node[rank // ranks] += len(drawn)
    steps = np.array([dataset.lengths[np.isin(shard, facts[node * ranks]["here"])].sum() for node in range(nodes)])
    # Rows are divided by a cycle: each node is within one row of its share.
    assert (np.abs(by_node - rows * steps / steps.sum()) <= 1).all()


@pytest.fixture
def run():
    with runs() as begin:
        yield begin


def test_a_server_lives_as_long_as_any_of_its_ranks(folder, run):
    before = {process.pid for process in servers()}
    expected = next(hold_rank.digests(gear_data.open(folder), 0))
    first, second, other = run([(folder, 0), (folder, 0), (folder, 1)])
    assert [rank.line() for rank in (first, second, other)] == ["open"] * 3
    mine = [process for process in servers() if process.pid not in before]
    assert len(mine) == 2
    assert [rank.ask("first") for rank in (first, second, other)] == [expected] * 3
    # The first rank started the server and holds the store.
    first.kill()
    time.sleep(LINGER_SECONDS + 1)
    assert second.ask("first") == expected
    used = time.monotonic()
    assert other.ask("first") == expected
    second.kill()
    assert eventually(lambda: any(map(has_ended, mine)))
    assert time.monotonic() >= used + LINGER_SECONDS
    assert other.ask("first").startswith("NodeUnreachableError gear://127.0.0.1:")
    # The remaining server exits normally with its rank.
    other.process.stdin.close()
    assert other.process.wait(60) == 0
    assert all_ended(mine, LINGER_SECONDS + 120)


def _new_servers(before):
    """Waits for the servers of two nodes, and returns them."""

    def found():
        return [process for process in servers() if process.pid not in before]

    assert eventually(lambda: len(found()) == 2)
    return found()


def test_a_server_that_dies_is_restarted(folder, run):
    """Servers die several times during reads, and the batches do not change."""
    expected = iter(list(itertools.islice(hold_rank.digests(gear_data.open(folder), 0), 91)))
    before = {process.pid for process in servers()}
    ranks = run([(folder, 0), (folder, 0), (folder, 1)], GEAR_DATA_NODE_TIMEOUT=30)
    assert [rank.line() for rank in ranks] == ["open"] * 3
    for _ in range(2):
        # The first node has two ranks: the second holds a lease on a server that it did not start.
        for batch in itertools.islice(expected, 5):
            assert [rank.ask("next") for rank in ranks] == [batch] * 3
        dying = _new_servers(before)
        for process in dying:
            process.kill()
        before |= {process.pid for process in dying}
        # More batches than prefetching had read.
        for batch in itertools.islice(expected, 40):
            assert [rank.ask("next") for rank in ranks] == [batch] * 3
    # The last servers end with their ranks, not before. Only the second rank holds the first node's server.
    mine = _new_servers(before)
    ranks[0].kill()
    time.sleep(LINGER_SECONDS + 1)
    assert ranks[2].ask("next") == next(expected)
    assert not any(map(has_ended, mine))


def test_an_error_on_one_rank_is_raised_on_all(folder, run, tmp_path):
    parted = str(parts(folder, 2, tmp_path))
    mine = [parted.replace("{node}", str(node)) for node in range(2)]
    for shard in (Path(mine[1]) / "shards").iterdir():
        shard.unlink()
    ranks = run([(mine[0], 0), (mine[1], 1), (mine[1], 1)])
    errors = [rank.line() for rank in ranks]
    assert errors[0].startswith("CorruptShardError rank 1: ") and errors[0].endswith("the file is missing")
    assert errors == errors[:1] * 3


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"transport": "verbs"}, "DeviceError rank 0: .*GEAR_DATA_RDMA_DEVICE is 'none'"),
        ({"residency": "pinned"}, r"(MissingExtraError|DeviceError) rank 0: .*(cupy|CUDA)"),
    ],
)
def test_missing_hardware_is_raised_on_all_ranks(folder, run, options, problem):
    ranks = run([(folder, 0), (folder, 1)], repr(options), CUDA_VISIBLE_DEVICES="", GEAR_DATA_RDMA_DEVICE="none")
    errors = [rank.line() for rank in ranks]
    assert re.match(problem, errors[0]), errors
    assert errors[1] == errors[0]


def test_ranks_that_open_different_datasets(folder, run, tmp_path):
    feed_data.convert_episodes(feed_data.locomotion([9, 20], seed=4), tmp_path / "other")
    ranks = run([(folder, 0), (tmp_path / "other", 1)])
    for rank in ranks:
        assert rank.line().startswith("ClusterError rank 0: rank 1 opens another dataset than rank 0")


def test_a_rank_that_never_starts(folder, run):
    (rank,) = run([(folder, 0)], SLURM_NTASKS=2, GEAR_DATA_JOIN_TIMEOUT=2)
    assert rank.line().startswith("ClusterError None: cannot reach torch.distributed's store at 127.0.0.1:")


def test_a_rank_that_publishes_nothing():
    values = KeyValueStore(torch.distributed.HashStore(), "run/", 0.5)
    values.put("a", {"x": 1})
    assert values.take("a", "rank 0").reveal() == b'{"x":1}'
    with pytest.raises(ClusterError, match=r"timed out after 0\.5 s waiting for rank 3"):
        values.take("b", "rank 3")


def test_a_store_that_has_ended():
    master = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)
    store = torch.distributed.TCPStore("127.0.0.1", master.port, is_master=False)
    values = KeyValueStore(store, "run/", 0.5)
    values.put("a", {})
    del master
    with pytest.raises(ClusterError, match="cannot reach the run's key-value store"):
        values.has(["a"])
    with pytest.raises(ClusterError, match="cannot reach the run's key-value store"):
        for _ in range(1000):  # the first messages may still be sent
            values.put("a", {})


def test_a_store_that_ends_while_a_rank_waits():
    master = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True)
    store = torch.distributed.TCPStore("127.0.0.1", master.port, is_master=False)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(KeyValueStore(store, "run/", 60.0).take, "a", "rank 3")
        time.sleep(0.2)
        del master
        with pytest.raises(ClusterError, match="cannot reach the run's key-value store"):
            waiting.result()


def test_no_run(folder, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ClusterError, match="no launcher has set RANK") as error:
        gear_data.open(folder, cluster="torchrun")
    assert "torchrun" in error.value.hint


def test_arguments(folder):
    with pytest.raises(UnknownNameError, match="mpi"):
        gear_data.open(folder, cluster="mpi")
    for options in ({"budget": 10}, {"sampler": "shuffle"}):
        with pytest.raises(InvalidArgumentError, match="pass cluster='torchrun'"):
            gear_data.open(folder, **options)
    for path, options in (("gear://localhost:1", {}), (folder, {"on_bad_shard": "skip"})):
        with pytest.raises(InvalidArgumentError, match="open a folder or URL"):
            gear_data.open(path, cluster="torchrun", **options)
    with pytest.raises(InvalidArgumentError, match="must be 'host', 'pinned' or 'mmap'"):
        gear_data.open(folder, "device", cluster="torchrun")
    for options in ({}, {"cluster": "torchrun"}):
        with pytest.raises(UnknownNameError, match="carrier pigeon"):
            gear_data.open(folder, transport="carrier pigeon", **options)
