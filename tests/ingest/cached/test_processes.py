"""Several processes that open one source at once, and processes that are killed while they convert it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import gear_data
from gear_data import ConvertOptions
from gear_data.ingest.cached.entries import list_entries
from tests.ingest.cached.test_opening import check
from tests.support.rollouts import Rollout
from tests.support.running.eventually import eventually
from tests.support.running.warm_python import python

pytestmark = pytest.mark.processes

# Waits for all processes, opens the source, and prints the fingerprint. A conversion adds a line to a file. It may kill
# its process when it begins its third shard.
_PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import gear_data
from gear_data.ingest import convert
from gear_data.storage.writing.shard_writer import ShardWriter

folder, source, number, count, kills = Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6])
run, write = convert.run_conversion, ShardWriter._write_shard

def counted(*arguments, **options):
    with open(folder / "conversions", "a") as file:
        file.write(f"{os.getpid()}\\n")
    return run(*arguments, **options)

def killed(writer, **arguments):
    if kills and len(writer.shards) == 2:
        (folder / "killing").touch()
        while kills == 2 and not (folder / "go").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return write(writer, **arguments)

convert.run_conversion, ShardWriter._write_shard = counted, killed
(folder / f"ready-{number}").touch()
while len(list(folder.glob("ready-*"))) < count:
    time.sleep(0.001)
dataset = gear_data.open(source, convert=gear_data.ConvertOptions(shard_bytes=2048, jobs=1))
print(dataset.fingerprint, dataset.num_steps)
"""


def start(tmp_path: Path, source: Path, number: int = 0, count: int = 1, kills: int = 0) -> subprocess.Popen[str]:
    command = [python(), "-c", _PROGRAM, str(tmp_path), str(source), str(number), str(count), str(kills)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_at_once_convert_once(tmp_path: Path, source: Path, rollouts: list[Rollout]) -> None:
    processes = [start(tmp_path, source, number, 6) for number in range(6)]
    printed = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0] * 6, printed
    steps = sum(map(len, rollouts))
    assert {out.split()[1] for out, _ in printed} == {str(steps)}
    assert len({out for out, _ in printed}) == 1
    assert len((tmp_path / "conversions").read_text().splitlines()) == 1


def test_a_killed_conversion_is_continued(tmp_path: Path, source: Path, rollouts: list[Rollout], cache: Path) -> None:
    process = start(tmp_path, source, kills=1)
    process.communicate(timeout=240)
    assert process.returncode == -signal.SIGKILL
    (entry,) = list_entries(cache)
    assert entry.source is None  # nobody opens it
    first = min(entry.folder.glob("*/shards/*"))
    before = first.stat().st_ino
    check(gear_data.open(source, convert=ConvertOptions(shard_bytes=2048)), rollouts)
    assert first.stat().st_ino == before
    (entry,) = list_entries(cache)
    assert entry.source == str(source)


def test_a_process_that_waits_takes_over(tmp_path: Path, source: Path) -> None:
    killed = start(tmp_path, source, 0, 1, kills=2)
    assert eventually((tmp_path / "killing").exists)
    waiting = start(tmp_path, source, 1, 1)
    assert eventually((tmp_path / "ready-1").exists)
    time.sleep(0.3)  # it waits for the lock by now; if not, the test is a weaker one
    assert waiting.poll() is None
    (tmp_path / "go").touch()
    out, error = waiting.communicate(timeout=240)
    killed.communicate(timeout=240)
    assert (killed.returncode, waiting.returncode) == (-signal.SIGKILL, 0), error
    assert len(out.split()) == 2
    assert len((tmp_path / "conversions").read_text().splitlines()) == 2
    assert not [name for name in os.listdir(tmp_path / "cache/datasets") if "new" in name]
