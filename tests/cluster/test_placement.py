"""Placement: equal to plain loops, and invariants of every placement."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gear_data
from gear_data.cli import main
from gear_data.cluster.placement import Placement, extend_placement, place_shards
from gear_data.errors import InvalidArgumentError, UnknownNameError
from gear_data.storage.manifest import FileEntry, ShardEntry


def entries(sizes: list[int]) -> list[ShardEntry]:
    return [ShardEntry(FileEntry(f"shards/{i:06d}.arrow", size, ""), 1, 1, {}) for i, size in enumerate(sizes)]


def by_plain_loop(sizes: list[int], shares: list[float], nodes: list[str], budget: int | None) -> dict[str, set[int]]:
    held: dict[str, set[int]] = {node: set() for node in sorted(nodes)}

    def used(node: str) -> int:
        return sum(sizes[shard] for shard in held[node])

    left = list(range(len(sizes)))
    while left:
        largest = max(left, key=lambda shard: (sizes[shard], -shard))
        left.remove(largest)
        held[min(held, key=lambda node: (used(node), node))].add(largest)
    while budget is not None:
        fits = [
            (shares[shard] / sizes[shard], -shard, node)
            for node in held
            for shard in range(len(sizes))
            if shares[shard] and shard not in held[node] and used(node) + sizes[shard] <= budget
        ]
        if not fits:
            break
        _, shard, node = max(fits)
        held[node].add(-shard)
    return held


CASES = st.tuples(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0.0, 0.5, 1.0, 3.0, 20.0])), min_size=1, max_size=12),
    st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True),
    st.one_of(st.none(), st.integers(0, 200)),
).filter(lambda case: any(share for _, share in case[0]))


@given(CASES, st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_placements_equal_a_plain_loop(
    case: tuple[list[tuple[int, float]], list[str], int | None], order: random.Random
) -> None:
    shards, nodes, budget = case
    sizes = [size for size, _ in shards]
    shares = np.array([share for _, share in shards])
    shares /= shares.sum()
    expected = by_plain_loop(sizes, shares.tolist(), nodes, budget)
    try:
        placement = place_shards(entries(sizes), nodes, shares, budget)
    except InvalidArgumentError as error:
        once = by_plain_loop(sizes, shares.tolist(), nodes, None)
        assert budget is not None and "does not fit" in str(error)
        assert max(sum(sizes[shard] for shard in held) for held in once.values()) > budget
        return

    assert {node: set(placement.shards_of(node)) for node in placement.nodes} == expected
    for shard in range(len(sizes)):
        assert placement.nodes_of(shard) == tuple(node for node in sorted(nodes) if shard in expected[node])
        assert placement.nodes_of(shard)
        if not shares[shard] or budget is None:
            assert len(placement.nodes_of(shard)) == 1  # a replica would save no reads
    for node in placement.nodes:
        assert placement.bytes_of(node) == sum(sizes[shard] for shard in expected[node])
        assert budget is None or placement.bytes_of(node) <= budget
        remote = sum(share for shard, share in enumerate(shares.tolist()) if shard not in expected[node])
        assert placement.remote_share(node) == pytest.approx(remote)
    assert Placement.from_json(json.loads(json.dumps(placement.to_json()))) == placement

    # The order of the shards and nodes does not change the placement of a file.
    mixed = list(range(len(sizes)))
    order.shuffle(mixed)
    order.shuffle(nodes)
    again = place_shards([entries(sizes)[i] for i in mixed], nodes, shares[mixed], budget)
    assert {node: {mixed[i] for i in again.shards_of(node)} for node in again.nodes} == expected


def test_invalid_placements() -> None:
    even = np.array([0.5, 0.5])
    for nodes in ([], ["a", "a"], ["a", ""]):
        with pytest.raises(InvalidArgumentError, match="all different"):
            place_shards(entries([1, 2]), nodes, even)
    for shares in ([1.0], [1.0, -1.0], [0.0, 0.0], [1.0, np.nan]):
        with pytest.raises(InvalidArgumentError, match="finite numbers"):
            place_shards(entries([1, 2]), ["a"], np.array(shares))
    placement = place_shards(entries([1, 2]), ["a"], even)
    with pytest.raises(UnknownNameError, match="unknown node 'b'"):
        placement.shards_of("b")
    for change in ({"nodes": []}, {"shards": None}, {"nodes": [{"name": "a", "shards": [0, 1, 2]}]}):
        with pytest.raises(InvalidArgumentError, match="is not a placement"):
            Placement.from_json({**placement.to_json(), **change})


def test_plan_command(rollouts_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ds = gear_data.open(rollouts_path)
    table = ds.episodes
    weight = "length * (episode_id % 3)"
    size = sum(shard.entry.bytes for shard in ds.manifest.shards)
    arguments = ["plan", str(rollouts_path), "--weights", weight, "--json"]
    assert main([*arguments, "--nodes", "3", "--budget", str(size)]) == 0
    found = Placement.from_json(json.loads(capsys.readouterr().out))
    assert found.nodes == ("node-0", "node-1", "node-2")
    drawn = [0.0] * len(ds.manifest.shards)
    for row in table.iter_rows(named=True):
        drawn[row["shard"]] += row["length"] ** 2 * (row["episode_id"] % 3)
    assert found.shard_shares == pytest.approx([value / sum(drawn) for value in drawn], rel=1e-6)
    # Every node has room for everything. Shards that are never drawn have no replica.
    assert [found.remote_share(node) for node in found.nodes] == [0, 0, 0]
    assert all(len(found.nodes_of(shard)) == (3 if value else 1) for shard, value in enumerate(drawn))

    assert main(["plan", str(rollouts_path), "--nodes", "east,west"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["node", "east", "west"]
    assert main(["plan", str(rollouts_path), "--nodes", "2", "--budget", "10"]) == 2
    assert "does not fit on 2 nodes" in capsys.readouterr().err


def test_nodes_of_equal_width(rollouts_path: Path) -> None:
    nodes = [f"node-{number:02}" for number in range(12)]
    placement = gear_data.open(rollouts_path).placement(nodes)
    assert list(placement.nodes) == nodes


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=10),
    st.lists(st.integers(1, 40), max_size=6),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(0, 150)),
    st.randoms(use_true_random=False),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_extended_placements_leave_shards_where_they_are(
    sizes: list[int], added: list[int], count: int, budget: int | None, random: random.Random
) -> None:
    nodes, before = [f"n{number}" for number in range(count)], entries(sizes)
    shares = np.array([random.choice((0.0, 1.0, 4.0)) for _ in sizes]) + 0.01
    new = [ShardEntry(FileEntry(f"new/{i}", size, ""), 1, 1, {}) for i, size in enumerate(added)]
    kept = [entry for entry in before if random.random() < 0.7]
    after = [*kept, *new] or before[:1]
    try:
        owners = place_shards(before, nodes, shares / shares.sum())
        placement = place_shards(before, nodes, shares / shares.sum(), budget)
        moved, moved_owners = extend_placement(before, placement, owners, after, budget)
    except InvalidArgumentError as error:
        assert budget is not None and "does not fit" in str(error)
        return

    def files(of: Placement, shards: list[ShardEntry], node: str) -> set[str]:
        return {shards[shard].entry.file for shard in of.shards_of(node)}

    # By a plain loop: each new shard, from the largest on, goes to the first node with the fewest bytes.
    size_of = {entry.entry.file: entry.entry.bytes for entry in after}
    expected = {node: {name for name in files(owners, before, node) if name in size_of} for node in nodes}
    known = set().union(*expected.values())
    for name in sorted(size_of.keys() - known, key=lambda name: (-size_of[name], name)):
        expected[min(nodes, key=lambda node: (sum(map(size_of.__getitem__, expected[node])), node))].add(name)
    assert {node: files(moved_owners, after, node) for node in nodes} == expected
    assert sum(moved.shard_shares) == pytest.approx(1)
    for node in nodes:
        held = files(moved, after, node)
        assert expected[node] <= held
        if budget is None:
            assert held == expected[node]
            continue
        assert sum(map(size_of.__getitem__, held)) <= budget
        # A replica leaves only for shards that the node owns now, or for replicas that it had and that are drawn more.
        room = budget - sum(map(size_of.__getitem__, held))
        assert all(size_of[name] > room for name in (files(placement, before, node) & size_of.keys()) - held)
