"""Processes that end while threads of gear-data work: none aborts, none hangs.

Each case runs one job. Its script ends as soon as the job returns, or a timer ends it at a random moment by SystemExit.
A thread that is in compiled code then must not abort the process. The moments depend on the machine, so a case may not
fail again.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path

import gear_data
from tests.chaos.result import ChaosResult, Limit
from tests.chaos.stops.scripts import Scripts
from tests.support.cameras.filmed import film
from tests.support.chaos import ended_script
from tests.support.feed.data import locomotion, write_episodes

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
        with Scripts(ended_script, [str(data), str(cameras)], Path(folder, "errors"), PATIENCE) as scripts:
            for number in limit.numbers():
                job = list(ended_script.JOBS)[number % len(ended_script.JOBS)]
                rng = random.Random(f"{seed} {number}")
                found = end(scripts, job, rng.random() * MOMENTS, Path(folder))
                failures += [f"case {number}: {job}, {failure}" for failure in found]
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


def end(scripts: Scripts, job: str, moment: float, folder: Path) -> list[str]:
    """Runs a job in a process that ends by itself, or after some seconds; returns the failures."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        scripts.fork(job=job, moment=moment, scratch=scratch)
        line = scripts.said()
        if line is None:
            stacks = scripts.stacks()
            scripts.kill()
            return [f"hangs, moment {moment:.3f}: {stacks}"]
        errors = scripts.errors()
        fine = line in ("ended 0", f"ended {ended_script.ENDED}") and _TRACEBACK not in errors
        return [] if fine else [f"{line}, moment {moment:.3f}: {errors[-1500:]!r}"]
