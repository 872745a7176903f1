"""Runs under torchrun whose nodes read each other's memory, with a stand-in for the device, each process on its own."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import feed_data
import hold_rank
import pytest
from run_ranks import runs

import gear_data

#: In place of a device; and this gear-data.
PYTHONPATH = os.pathsep.join([str(Path(__file__).parent / "site"), str(Path(gear_data.__file__).parent.parent)])
LENGTHS = [7, 1, 23, 40, 2, 20, 19, 21, 5, 9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("verbs-joined") / "d"
    feed_data.convert_episodes(feed_data.locomotion(LENGTHS, seed=21), path, shard_bytes=1024)
    return path


@pytest.fixture
def run():
    with runs() as begin:
        yield begin


@pytest.mark.parametrize(("transport", "reads"), [("auto", True), ("verbs", True), ("flight", False)])
def test_nodes_read_each_others_memory(folder, run, transport, reads):
    expected = list(itertools.islice(hold_rank.digests(gear_data.open(folder), 0), 5))
    ranks = run([(folder, 0), (folder, 1)], f"{{'transport': {transport!r}}}", PYTHONPATH=PYTHONPATH)
    assert [rank.line() for rank in ranks] == ["open"] * 2
    for batch in expected:
        assert [rank.ask("next") for rank in ranks] == [batch] * 2
    assert [int(rank.ask("reads")) > 0 for rank in ranks] == [reads] * 2
