"""Processes that end while threads of gear-data work: none aborts, none hangs.

Each case runs one job. Its script ends as soon as the job returns, or a timer ends it at a random moment by SystemExit.
A thread that is in compiled code then must not abort the process. The moments depend on the machine, so a case may not
fail again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

import gear_data
from tests.chaos.result import ChaosResult, Limit
from tests.support.cameras.filmed import film
from tests.support.chaos import ended_script
from tests.support.feed.data import locomotion, write_episodes
from tests.support.running.warm_python import INTERPRETER

#: Seconds after which a process hangs. On an idle machine, jobs take a few seconds.
PATIENCE = 60.0
#: Most seconds until the timer ends a process.
MOMENTS = 1.5
#: What the interpreter prints about a job that failed.
_TRACEBACK = "Traceback (most recent call last)"


def run(seed: int, limit: Limit) -> ChaosResult:
    """Runs the jobs in turn."""
    tried: Counter[str] = Counter()
    failures: list[str] = []
    cases = 0
    with tempfile.TemporaryDirectory(prefix="gear-chaos-") as folder:
        data, cameras = Path(folder, "data"), Path(folder, "cameras")
        make_data(data, cameras)
        with Scripts(data, cameras) as scripts:
            for number in limit.numbers():
                job = list(ended_script.JOBS)[number % len(ended_script.JOBS)]
                rng = random.Random(f"{seed} {number}")
                failures += [f"case {number}: {job}, {failure}" for failure in scripts.end(job, rng.random() * MOMENTS)]
                tried[job] += 1
                cases += 1
    return ChaosResult("exits", seed, cases, tried, tuple(failures))


def make_data(data: Path, cameras: Path) -> None:
    """Writes a source with its dataset, and a dataset with cameras."""
    data.mkdir()
    write_episodes(locomotion([50 + 7 * n for n in range(400)], seed=5), data / "source.parquet")
    gear_data.convert(data / "source.parquet", data / "dataset", progress=False)
    lengths = [60] * 8
    write_episodes(locomotion(lengths, seed=6), data / "filmed.parquet")
    gear_data.convert(data / "filmed.parquet", cameras, progress=False)
    film(cameras, lengths)


class Scripts:
    """A process that forks scripts, one at a time."""

    def __init__(self, data: Path, cameras: Path) -> None:
        self._folder = data
        self._process = subprocess.Popen(
            [INTERPRETER, ended_script.__file__, str(data), str(cameras)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._lines: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Scripts:
        self._lines.get(timeout=10 * PATIENCE)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line.strip())

    def end(self, job: str, moment: float) -> list[str]:
        """Runs a job in a process that ends by itself, or after some seconds; returns the failures."""
        with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
            errors = Path(scratch, "errors")
            case = {"job": job, "moment": moment, "scratch": scratch, "errors": str(errors)}
            print(json.dumps(case), file=self._process.stdin, flush=True)
            pid = int(self._lines.get(timeout=PATIENCE).removeprefix("pid "))
            with suppress(Empty):
                ended = self._lines.get(timeout=PATIENCE)
                text = errors.read_text(errors="replace")
                fine = ended in ("ended 0", f"ended {ended_script.ENDED}") and _TRACEBACK not in text
                return [] if fine else [f"{ended}, moment {moment:.3f}: {text[-1500:]!r}"]
            os.kill(pid, signal.SIGUSR1)
            time.sleep(1)
            os.kill(pid, signal.SIGKILL)
            self._lines.get(timeout=PATIENCE)
            return [f"hangs, moment {moment:.3f}: {errors.read_text(errors='replace')[-3000:]!r}"]
