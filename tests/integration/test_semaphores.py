"""Tests that killed processes leave no named semaphore in /dev/shm.

A process maps each semaphore that it has open. So its mappings tell which semaphores are its own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gear_data.ingest.convert import convert
from gear_data.ingest.engine import tasks
from gear_data.ingest.sources.tables import read_units
from tests.support.stopped_process import Stop, stoppable

_SEMAPHORE = re.compile(r"/dev/shm/(sem\.\S+)")

_TRAINING = """
import sys
import torch
import gear_data

dataset = gear_data.open(sys.argv[1], residency="host")
loader = gear_data.SequenceLoader(dataset, 4, context=4, prefetch=2, passes="repeat")
batches = iter(loader)
next(batches)
loaded = iter(torch.utils.data.DataLoader(loader, batch_size=None, num_workers=2, multiprocessing_context="fork"))
next(loaded)
print("ready", flush=True)
sys.stdin.read()
"""


def _group(leader: int) -> list[int]:
    """Returns the processes of a group."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getpgid(int(path.name)) == leader:
                found.append(int(path.name))
    return found


def _semaphores(processes: list[int]) -> set[str]:
    return {name for pid in processes for name in _SEMAPHORE.findall(Path(f"/proc/{pid}/maps").read_text())}


@pytest.mark.parametrize("victims", ["parent", "group"])
def test_a_killed_training_script_leaves_no_semaphore(victims: str, rollouts_path: Path) -> None:
    command = [sys.executable, "-c", _TRAINING, str(rollouts_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        processes = _group(process.pid)
        assert len(processes) >= 3  # two workers
        semaphores = _semaphores(processes)
        assert semaphores  # DataLoader's own
        os.kill(process.pid, signal.SIGKILL) if victims == "parent" else os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert not [name for name in semaphores if Path("/dev/shm", name).exists()]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_gear_data_has_no_semaphores(sources: Any, rollouts: list[Any], tmp_path: Path) -> None:
    """Nor have its progress bars."""
    source = sources.write_episodes(tmp_path / "s.parquet", rollouts, row_group=5)
    stop = Stop("gear_data.ingest.engine.worker_pool:PoolEngine.run")
    with stoppable(_convert_in_two_processes, source, tmp_path / "d", stop=stop) as conversion:
        conversion.expect("stopped")  # with a progress bar
        assert _semaphores([conversion.pid]) == set()


def _convert_in_two_processes(source: Path, destination: Path) -> None:
    tasks.UNIT_BYTES = read_units.UNIT_BYTES = 1
    convert(source, destination, shard_bytes=1024, jobs=2)
