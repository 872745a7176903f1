"""Nodes that serve or share a dataset in a bucket take its generations."""

from __future__ import annotations

import gear_data
from tests.support.cluster import hold_rank
from tests.support.cluster.nodes import NodeProcess
from tests.support.cluster.nodes import url as served_url
from tests.support.cluster.runs import runs


def grow(url: str, episodes: int) -> None:
    with gear_data.Writer(url, shard_bytes=1024) as writer:
        for number in range(episodes):
            for t in range(20 + number):
                writer.append(observations=[number, 0.5 * t], actions=t % 2, rewards=1.0)
            writer.end_episode(terminated=True)


def test_nodes_take_generations_of_a_bucket(url: str) -> None:
    grow(url, 5)
    node = NodeProcess(url)  # type: ignore[arg-type]
    try:
        node.wait()
        served = gear_data.open(served_url(node))
        with runs() as run:
            ranks = run([(url, 0), (url, 1)])
            assert [rank.line() for rank in ranks] == ["open"] * 2
            grow(url, 7)
            for rank in ranks:
                rank.begin("refresh")
            assert [rank.line() for rank in ranks] == ["2"] * 2
            expected = next(hold_rank.digests(gear_data.open(url), 0))
            assert [rank.ask("first") for rank in ranks] == [expected] * 2
        served = served.refresh()
        assert (served.generation, next(hold_rank.digests(served, 0))) == (2, expected)
    finally:
        node.kill()
