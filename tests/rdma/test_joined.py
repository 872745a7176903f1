"""Training runs whose nodes read each other's memory.

Each process has a stand-in for the device.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path

import pytest

import gear_data
from gear_data.cluster.server.node_server import LINGER_SECONDS
from tests.support.cluster import hold_rank
from tests.support.cluster.runs import all_ended, runs, servers
from tests.support.feed import data as feed_data
from tests.support.feed.growing import GrowingDataset
from tests.support.rdma import stand_in

#: The stand-in for a device, and this gear-data.
PYTHONPATH = os.pathsep.join(
    [str(Path(stand_in.__file__).parent / "site"), str(Path(gear_data.__file__).parent.parent)]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return feed_data.shared_out(tmp_path_factory.mktemp("verbs-joined") / "d")


@pytest.fixture
def run():
    with runs() as begin:
        yield begin


@pytest.mark.parametrize(("transport", "reads"), [("auto", True), ("flight", False)])
def test_nodes_read_each_others_memory(folder, run, transport, reads):
    expected = list(itertools.islice(hold_rank.digests(gear_data.open(folder), 0), 5))
    ranks = run([(folder, 0), (folder, 1)], f"{{'transport': {transport!r}}}", PYTHONPATH=PYTHONPATH)
    assert [rank.line() for rank in ranks] == ["open"] * 2
    for batch in expected:
        assert [rank.ask("next") for rank in ranks] == [batch] * 2
    assert [int(rank.ask("reads")) > 0 for rank in ranks] == [reads] * 2


def test_memory_of_a_restarted_server(folder, run):
    expected = iter(list(itertools.islice(hold_rank.digests(gear_data.open(folder), 0), 91)))
    before = {process.pid for process in servers()}
    options = "{'transport': 'verbs'}"
    ranks = run([(folder, 0), (folder, 1)], options, PYTHONPATH=PYTHONPATH, GEAR_DATA_NODE_TIMEOUT=60)
    assert [rank.line() for rank in ranks] == ["open"] * 2
    for batch in itertools.islice(expected, 5):
        assert [rank.ask("next") for rank in ranks] == [batch] * 2
    for process in servers():
        if process.pid not in before:
            process.send_signal(signal.SIGKILL)
    reads = [int(rank.ask("reads")) for rank in ranks]
    # More batches than prefetching had read.
    for batch in expected:
        assert [rank.ask("next") for rank in ranks] == [batch] * 2
    assert all(int(rank.ask("reads")) > was for rank, was in zip(ranks, reads, strict=True))


def test_a_generation_is_read_from_memory(run, tmp_path):
    growing = GrowingDataset(tmp_path / "growing", first=0)
    growing.grow(5)
    ranks = run([(growing.path, 0), (growing.path, 1)], "{'transport': 'verbs'}", PYTHONPATH=PYTHONPATH)
    assert [rank.line() for rank in ranks] == ["open"] * 2
    for generation in (2, 3):
        growing.grow(4, max_steps=130)
        for rank in ranks:
            rank.begin("refresh")
        assert [rank.line() for rank in ranks] == [str(generation)] * 2
        reads = [int(rank.ask("reads")) for rank in ranks]
        for batch in itertools.islice(hold_rank.digests(growing.open(), 0), 5):
            assert [rank.ask("next") for rank in ranks] == [batch] * 2
        assert all(int(rank.ask("reads")) > was for rank, was in zip(ranks, reads, strict=True))


def test_a_server_whose_memory_is_read_stays(folder, run):
    """The server's ranks have exited, and another node still reads from it.

    Both servers end with that node's rank.
    """
    expected = iter(list(itertools.islice(hold_rank.digests(gear_data.open(folder), 0), 91)))
    before = {process.pid for process in servers()}
    first, other = run([(folder, 1), (folder, 0)], "{'transport': 'verbs'}", PYTHONPATH=PYTHONPATH)
    assert [rank.line() for rank in (first, other)] == ["open"] * 2
    assert other.ask("next") == next(expected)
    first.kill()
    time.sleep(LINGER_SECONDS + 1)
    for batch in expected:
        assert other.ask("next") == batch
    mine = [process for process in servers() if process.pid not in before]
    assert len(mine) == 2
    other.process.stdin.close()
    assert other.process.wait(60) == 0
    assert all_ended(mine, LINGER_SECONDS + 120)
