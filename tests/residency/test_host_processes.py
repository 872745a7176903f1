"""Residency `host` between processes: one copy as long as any process lives."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gear_data

pytestmark = pytest.mark.processes

# Prints the inode of its copy and the sum of the rewards, and holds the copy until its input ends.
HOLD = """
import sys, gear_data
ds = gear_data.open(sys.argv[1], residency="host")
maps = [line.split() for line in open("/proc/self/maps") if "/memfd:gear-data-" in line]
rewards = sum(float(ds.episode(i)["rewards"].sum(dtype="float64")) for i in range(ds.num_episodes))
print(*{fields[4] for fields in maps}, rewards, flush=True)
sys.stdin.read()
"""

# The same, but hangs in the middle of loading.
STUCK = """
import sys, time
import gear_data.residency.host as host
def copy(*arguments):
    sys.stdout.write("loading\\n")  # in one write: several threads copy
    sys.stdout.flush()
    time.sleep(600)
host._copy = copy
import gear_data
gear_data.open(sys.argv[1], residency="host")
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def start(rollouts_path: Path) -> Iterator[Start]:
    """start(code) starts a process with the same user, on the same machine.

    It shares nothing else with this process.
    """
    processes = []

    def run(code: str = HOLD) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, str(rollouts_path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


def next_words(process: subprocess.Popen[str]) -> list[str]:
    """Returns the words of the next line that a process prints."""
    if process.stdout is None:
        raise RuntimeError("its output is not read here")
    return process.stdout.readline().split()


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def holders(inode: str) -> list[int]:
    """Returns the processes of this machine that have a segment mapped."""
    found = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_text().splitlines()
        except OSError:  # the process ended, or belongs to another user
            continue
        if any("/memfd:gear-data-" in line and line.split()[4] == inode for line in lines):
            found.append(int(maps.parent.name))
    return found


def test_one_copy_as_long_as_any_process_lives(start: Start, runtime: Path) -> None:
    # If several processes start at the same time, one loads.
    processes = [start() for _ in range(3)]
    copies = [next_words(process) for process in processes]
    assert copies == copies[:1] * 3
    inode, rewards = copies[0]
    assert set(holders(inode)) == {process.pid for process in processes}
    (rows,) = runtime.rglob("*.json")
    creator = json.loads(rows.read_text())[0][0]
    kill(next(process for process in processes if process.pid == creator))
    processes.append(start())
    assert next_words(processes[-1]) == copies[0]
    for process in processes:
        kill(process)
    assert holders(inode) == []
    # The rows of the ended processes lead nowhere.
    later = next_words(start())
    assert later[0] != inode
    assert later[1] == rewards


def test_a_process_killed_while_it_loads(start: Start) -> None:
    stuck = start(STUCK)
    assert next_words(stuck) == ["loading"]
    waiting = start()
    deadline = time.monotonic() + 30
    # Waits until the process waits for the lock.
    while not _blocked(waiting.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert waiting.poll() is None
    kill(stuck)
    assert len(next_words(waiting)) == 2


def _blocked(pid: int) -> bool:
    """Returns whether a process waits in flock(2).

    The kernel's list of locks marks waiting processes with `->`.
    """
    waiting = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
    return any(fields[1] == "->" and int(fields[5]) == pid for fields in waiting)


def inodes() -> set[str]:
    """Returns the inodes of the host memory that this process maps."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "/memfd:gear-data-" in line}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_dataloader_workers_map_the_copy(rollouts_path: Path, method: str) -> None:
    import torch
    from torch.utils.data import DataLoader

    options: dict[str, Any] = {"batch_size": 4, "context": 5, "seed": 3, "steps": 12}
    expected = [
        {name: tensor.clone() for name, tensor in batch.items()}
        for batch in gear_data.SequenceLoader(gear_data.open(rollouts_path), prefetch=0, **options)
    ]
    before = inodes()  # a failed test of the same process may keep its own
    ds = gear_data.open(rollouts_path, residency="host")
    (inode,) = inodes() - before
    loader = DataLoader(
        gear_data.SequenceLoader(ds, **options),
        batch_size=None,
        num_workers=2,
        multiprocessing_context=multiprocessing.get_context(method),
        persistent_workers=True,
    )
    batches = list(loader)
    assert {os.getpid(), *(child.pid for child in multiprocessing.active_children())} <= set(holders(inode))
    assert len(multiprocessing.active_children()) == 2
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert batch.keys() == other.keys()
        assert all(torch.equal(batch[name], other[name]) for name in batch)
