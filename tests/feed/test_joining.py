"""Runs under torchrun: nodes that share a dataset out give what one process gives, bit for bit, and end with the run."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import feed_data
import join_rank
import numpy as np
import psutil
import pytest

import gear_data
from gear_data import SequenceLoader
from gear_data.errors import ClusterError, InvalidArgumentError, UnknownNameError

HERE = Path(__file__).parent
LENGTHS = [7, 1, 23, 40, 2, 20, 19, 21, 5, 9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("joining") / "d"
    feed_data.convert_episodes(feed_data.locomotion(LENGTHS, seed=21), path, shard_bytes=1024)
    return path


@pytest.fixture(scope="module")
def expected(folder):
    """What one process gives that has all."""
    dataset = gear_data.open(folder)
    found = {
        name: join_rank.stacked(SequenceLoader(dataset, **{**join_rank.OPTIONS, **more}))
        for name, more in join_rank.LOADERS.items()
    }
    found["updated"] = join_rank.updated(dataset, None)
    found["filtered"] = join_rank.stacked(SequenceLoader(dataset.filter("length > 6"), **join_rank.OPTIONS))
    found["workers"] = found["pickled"] = found["uniform"]
    return found


def parts(folder, nodes, to):
    """Copies of a dataset for nodes 0, 1, ..., each with the shards alone that are placed there."""
    placement = gear_data.open(folder).placement([f"node-{number}" for number in range(nodes)])
    manifest = gear_data.open(folder).manifest
    for number in range(nodes):
        shutil.copytree(folder, to / f"part-{number}")
        for shard, entry in enumerate(manifest.shards):
            if shard not in placement.held[number]:
                (to / f"part-{number}" / entry.entry.file).unlink()
    return to / "part-{node}"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def torchrun(nodes, ranks, *arguments):
    """Runs a script with so many agents on this machine, each a node; as many exit statuses."""
    common = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes), "--nproc-per-node", str(ranks)]
    common += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    agents = [subprocess.Popen([*common, "--node-rank", str(node), *map(str, arguments)]) for node in range(nodes)]
    try:
        return [agent.wait(timeout=240) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()


def servers():
    """Processes of node servers."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if "gear_data.cluster.host_server" in (process.info["cmdline"] or [])
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def all_ended(processes, seconds):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and any(process.is_running() for process in processes):
        time.sleep(0.1)
    return not any(process.is_running() for process in processes)


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 2), (2, 2), (3, 1)])
def test_runs_give_what_one_process_gives(folder, expected, tmp_path, nodes, ranks):
    dataset = parts(folder, nodes, tmp_path)
    before = {process.pid for process in servers()}
    assert torchrun(nodes, ranks, HERE / "join_rank.py", dataset, tmp_path / "out") == [0] * nodes
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
            # Of a shorter last batch each rank has its part.
            else:
                assert sum(map(len, mine)) == len(whole), (name, key)
    assert all(one["token"] == [] for one in facts)
    _check_decentralized(folder, found, facts, nodes, ranks)
    assert all_ended([process for process in servers() if process.pid not in before], 10)


def _check_decentralized(folder, found, facts, nodes, ranks):
    """Rows of a node are of its own shards, and were not asked of others; together they are whole batches."""
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
        assert fact["asked"][0] == 0
        assert fact["asked"][1] > 0 or nodes == 1
        assert fact["state"] == facts[0]["state"]
        by_node[rank // ranks] += len(drawn)
    steps = np.array([dataset.lengths[np.isin(shard, facts[node * ranks]["here"])].sum() for node in range(nodes)])
    # A cycle deals rows to within one.
    assert (np.abs(by_node - rows * steps / steps.sum()) <= 1).all()
