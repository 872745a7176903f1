"""The nodes of a run share a dataset that grows: all ranks take each generation, or none."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.support.cluster import hold_rank
from tests.support.cluster.growing import shared_growth_rank
from tests.support.cluster.growing.generation_files import is_read
from tests.support.cluster.growing.refresh_rank import loader
from tests.support.cluster.runs import Rank, runs, servers, torchrun
from tests.support.feed.growing import GrowingDataset
from tests.support.running.eventually import eventually


@pytest.fixture
def run() -> Iterator[Callable[..., list[Rank]]]:
    with runs() as begin:
        yield begin


@pytest.fixture
def growing(tmp_path: Path) -> GrowingDataset:
    growing = GrowingDataset(tmp_path / "growing", first=0)
    growing.grow(5)
    return growing


def begun(
    run: Callable[..., list[Rank]], growing: GrowingDataset, nodes: Sequence[int], **variables: object
) -> list[Rank]:
    ranks = run([(growing.path, node) for node in nodes], **variables)
    assert [rank.line() for rank in ranks] == ["open"] * len(nodes)
    return ranks


def ask_all(ranks: Sequence[Rank], command: str) -> list[str]:
    for rank in ranks:
        rank.begin(command)
    return [rank.line() for rank in ranks]


def first_batch(growing: GrowingDataset) -> str:
    return next(hold_rank.digests(growing.open(), 0))


def test_three_nodes_give_the_batches_of_one_process(tmp_path: Path, growing: GrowingDataset) -> None:
    out, steps = tmp_path / "out", shared_growth_rank.STEPS
    assert torchrun(3, 1, shared_growth_rank.__file__, growing.path, out) == [0] * 3
    facts = [json.loads(Path(f"{out}-{rank}.json").read_text()) for rank in range(3)]
    arrays = [dict(np.load(f"{out}-{rank}.npz")) for rank in range(3)]
    assert all(each["from"] == facts[0]["from"] and each["state"] == facts[0]["state"] for each in facts)
    assert facts[0]["from"] == sorted(facts[0]["from"]) and facts[0]["from"][-1] < steps
    single = {key.removeprefix("single/"): values for key, values in arrays[0].items() if key.startswith("single/")}
    first = facts[0]["resumed"]
    for key, whole in single.items():
        joined = np.concatenate([each[f"run/{key}"] for each in arrays], axis=1)
        assert joined.tobytes() == whole[:steps].tobytes(), key
        again = np.concatenate([each[f"again/{key}"] for each in arrays], axis=1)
        assert again.tobytes() == whole[first : first + 4].tobytes(), key
    for key, whole in arrays[0].items():
        if key.startswith("mixed-single/"):
            joined = np.concatenate([each[key.replace("-single", "")] for each in arrays], axis=1)
            assert joined.tobytes() == whole.tobytes(), key
    _check_placement(facts)
    # On another number of ranks.
    resumed = loader(growing.open(), prefetch=0)
    resumed.load_state_dict(facts[2]["state"])
    for step, batch in enumerate(itertools.islice(resumed, 5), steps):
        assert all(batch[key].numpy().tobytes() == values[step].tobytes() for key, values in single.items())


def _check_placement(facts: list[dict]) -> None:  # type: ignore[type-arg]
    """Each shard is on one node, stays there, and is loaded once."""
    nodes = [
        {file: rank for rank, each in enumerate(facts) for file in each["held"][generation]} for generation in range(3)
    ]
    evicted = nodes[1].keys() - nodes[2].keys()
    assert evicted and all(len(set(each.values())) == 3 for each in nodes)
    for before, after, generation in ((nodes[0], nodes[1], 1), (nodes[1], nodes[2], 2)):
        assert all(after[file] == node for file, node in before.items() if file in after)
        for rank, each in enumerate(facts):
            new = {file for file, node in after.items() if node == rank} - before.keys()
            assert set(each["loaded"][generation]) == new
    assert sum(len(each["held"][2]) for each in facts) == len(nodes[2])
    assert all(not any(each["errors"]) for each in facts)


def test_ranks_open_the_generation_of_rank_0(
    run: Callable[..., list[Rank]], growing: GrowingDataset, tmp_path: Path
) -> None:
    """A Writer may publish while the ranks open the dataset."""
    shutil.copytree(growing.path, tmp_path / "copy", copy_function=shutil.copy2)
    ahead = GrowingDataset.at(tmp_path / "copy")
    (ahead.path / "generations" / "000001.json").unlink()
    (ahead.path / "generations" / "000001.json").hardlink_to(ahead.path / "manifest.json")
    kept = ahead.open()
    ahead.grow(2)
    ranks = run([(growing.path, 0), (ahead.path, 1)])
    assert [rank.line() for rank in ranks] == ["open"] * 2
    assert ask_all(ranks, "first") == [next(hold_rank.digests(kept, 0))] * 2


def test_late_ranks_are_named_and_nobody_goes_ahead(run: Callable[..., list[Rank]], growing: GrowingDataset) -> None:
    ranks = begun(run, growing, [0, 1, 1])
    before = first_batch(growing)
    growing.grow(3)
    ask_all(ranks, "limit 1")
    for error in ask_all(ranks[:1], "refresh"):
        assert error.startswith("ClusterError rank 0: timed out after 1 s waiting for ranks 1, 2: no rank takes")
    ask_all(ranks, "limit 60")
    assert all("waiting for ranks 1, 2" in error for error in ask_all(ranks[1:], "refresh"))
    assert ask_all(ranks, "first") == [before] * 3
    assert ask_all(ranks, "refresh") == ["2"] * 3
    assert ask_all(ranks, "first") == [first_batch(growing)] * 3
    assert ask_all(ranks, "refresh") == ["2"] * 3


def test_a_rank_that_dies_while_it_loads(run: Callable[..., list[Rank]], growing: GrowingDataset) -> None:
    ranks = begun(run, growing, [0, 1, 1])
    before = first_batch(growing)
    growing.grow(3)
    ask_all(ranks, "limit 4")
    ranks[2].begin("die")
    errors = ask_all(ranks[:2], "refresh")
    assert all("waiting for rank 2: no rank takes the new generation" in error for error in errors)
    assert ranks[2].process.wait(60) == 3
    assert ask_all(ranks[:2], "first") == [before] * 2


def test_rank_0_dies_while_it_loads(run: Callable[..., list[Rank]], growing: GrowingDataset) -> None:
    """It holds the key-value store."""
    ranks = begun(run, growing, [0, 0, 1])
    before = first_batch(growing)
    growing.grow(3)
    ranks[0].begin("die")
    errors = ask_all(ranks[1:], "refresh")
    assert all("cannot reach the run's key-value store" in error for error in errors)
    assert ask_all(ranks[1:], "first") == [before] * 2


def test_a_damaged_shard_is_an_error_on_all_ranks(run: Callable[..., list[Rank]], growing: GrowingDataset) -> None:
    ranks = begun(run, growing, [0, 1])
    known = set((growing.path / "shards").iterdir())
    growing.grow(3)
    shard = max(set((growing.path / "shards").iterdir()) - known)
    data = shard.read_bytes()
    shard.write_bytes(data[:-8])
    errors = ask_all(ranks, "refresh")
    assert errors[0] == errors[1] and errors[0].startswith("CorruptShardError rank ") and shard.name in errors[0]
    shard.write_bytes(data)
    assert ask_all(ranks, "refresh") == ["2", "2"]
    assert ask_all(ranks, "first") == [first_batch(growing)] * 2


def test_servers_that_die_serve_the_newest_generation_again(
    run: Callable[..., list[Rank]], growing: GrowingDataset
) -> None:
    before = {process.pid for process in servers()}
    ranks = begun(run, growing, [0, 1], GEAR_DATA_NODE_TIMEOUT=30)  # a restart takes seconds
    mine = [process for process in servers() if process.pid not in before]
    for generation in (2, 3):
        growing.grow(3, max_steps=130)
        assert ask_all(ranks, "refresh") == [str(generation)] * 2
        if generation == 2:
            assert eventually(lambda: not is_read(growing.path, 1), 60)  # the servers let go of it
    assert not (growing.path / "generations" / "000001.json").exists()
    for process in mine:
        process.kill()
    assert ask_all(ranks, "first") == [first_batch(growing)] * 2


def test_a_node_without_shards_gets_new_ones(run: Callable[..., list[Rank]], tmp_path: Path) -> None:
    growing = GrowingDataset(tmp_path / "one", first=0)
    growing.grow(1)
    ranks = begun(run, growing, [0, 1])
    growing.grow(6)
    assert ask_all(ranks, "refresh") == ["2"] * 2
    assert ask_all(ranks, "first") == [first_batch(growing)] * 2
