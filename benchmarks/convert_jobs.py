"""Numbers of jobs for benchmarks/convert.py --jobs: the default, one, and two, beside pyarrow.

Each conversion runs in a fresh process that has imported gear_data, in alternating rounds, on all cores. Seconds of
wall time depend on what else runs on the machine. The processor seconds beside them are of this process and of its
workers, user and system. Their quotient says how many cores were busy. pyarrow reads the same Parquet and writes it as
one Arrow IPC file, with fsync.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import Episodes, cpu_seconds, figure, format_table, progress, synthetic_episodes
from convert_hdf5 import write_plain_d4rl
from convert_layouts import floor_parquet, write_episode_rows, write_lerobot
from convert_small import (
    FILES,
    MANY,
    STEPS,
    STEPS_OF_A_FILE,
    equal_episodes,
    write_archives,
    write_flat,
)

FLOOR, DEFAULT, ONE, TWO = "pyarrow", "default", "1", "2"


@dataclass(frozen=True)
class Case:
    """A source, and what is measured of it.

    Attributes:
        name: for the table.
        write: writes the source, with sizes divided by a number.
        ways: numbers of jobs, and `FLOOR`.
        targets: (way, way it is compared with) -> the most time it may take, as a multiple.
    """

    name: str
    write: Callable[[Path, int], None]
    ways: Sequence[str]
    targets: Mapping[tuple[str, str], float]


def _synthetic(write: Callable[[Episodes, Path], None], steps: int) -> Callable[[Path, int], None]:
    def run(folder: Path, divisor: int) -> None:
        folder.mkdir()
        write(synthetic_episodes(max(30, steps // divisor)), folder)

    return run


def _archives(folder: Path, divisor: int) -> None:
    write_archives(equal_episodes(max(2, FILES // divisor), STEPS_OF_A_FILE), folder)


def _lerobot(folder: Path, divisor: int) -> None:
    files = max(2, FILES // divisor)
    write_lerobot(equal_episodes(files, STEPS_OF_A_FILE), folder, files=files)


def _short(folder: Path, divisor: int) -> None:
    write_flat(equal_episodes(max(4, MANY // divisor), STEPS // MANY), folder)


_BY_DEFAULT = (DEFAULT, ONE)
CASES = (
    Case(
        "Parquet, 3.7e6 steps",
        _synthetic(write_episode_rows, 3_700_000),
        (FLOOR, *_BY_DEFAULT),
        {_BY_DEFAULT: 1.0, (DEFAULT, FLOOR): 1.3},
    ),
    Case("HDF5, 5.5e6 steps", _synthetic(write_plain_d4rl, 5_500_000), _BY_DEFAULT, {_BY_DEFAULT: 1.0}),
    Case("Parquet, 11.1e6 steps", _synthetic(write_episode_rows, 11_100_000), _BY_DEFAULT, {_BY_DEFAULT: 0.65}),
    Case("2,000 npz", _archives, (TWO, ONE), {(TWO, ONE): 0.65}),
    Case("2,000 LeRobot Parquet", _lerobot, (TWO, ONE), {(TWO, ONE): 0.65}),
    Case("100,000 episodes of 10 steps", _short, (TWO, ONE), {(TWO, ONE): 0.65}),
)


def run_way(way: str, source: Path, destination: Path) -> dict[str, float]:
    """Converts the source in this process, and returns the seconds that passed and that processors were busy."""
    import gear_data

    convert = gear_data.convert  # names are loaded when first used
    before = cpu_seconds(resource.RUSAGE_SELF)
    started = time.perf_counter()
    if way == FLOOR:
        floor_parquet(source, destination)
    else:
        convert(source, destination, jobs=None if way == DEFAULT else int(way), progress=False)
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "own_busy": cpu_seconds(resource.RUSAGE_SELF) - before,
        "workers_busy": cpu_seconds(resource.RUSAGE_CHILDREN),
    }


def measure_jobs(
    scratch: Path, repetitions: int, divisor: int, script: Path, environment: dict[str, str]
) -> list[dict[str, Any]]:
    """Measures all cases. Each conversion runs in a fresh process that executes `script`."""

    def run(way: str, source: Path) -> dict[str, float]:
        command = [sys.executable, str(script), "--worker-jobs", way, "--source", str(source)]
        command += ["--destination", str(scratch / "out")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise SystemExit(f"measuring {way} failed:\n{done.stderr}")
        shutil.rmtree(scratch / "out")
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found

    records = []
    for case in CASES:
        source = scratch / "source"
        case.write(source, divisor)
        run(case.ways[-1], source)
        rounds = []
        for number in range(repetitions):
            progress(f"{case.name}: round {number + 1} of {repetitions}")
            rounds.append({way: run(way, source) for way in case.ways})
        ratios = {
            f"{way} / {other}": {
                "seconds": statistics.median(one[way]["seconds"] / one[other]["seconds"] for one in rounds),
                "target": target,
            }
            for (way, other), target in case.targets.items()
        }
        size = sum(os.path.getsize(file) for file in source.rglob("*") if file.is_file())
        records.append({"case": case.name, "bytes": size, "rounds": rounds, "ratios": ratios})
        shutil.rmtree(source)
    progress("")
    return records


def print_jobs(records: Sequence[Mapping[str, Any]]) -> None:
    rows, ratios = [], []
    for record in records:
        for way in record["rounds"][0]:
            found = [
                statistics.median(one[way][name] for one in record["rounds"])
                for name in ("seconds", "own_busy", "workers_busy")
            ]
            rows.append([record["case"], figure(record["bytes"] / 1e6), _label(way), *map(figure, found)])
        for name, ratio in record["ratios"].items():
            first, second = name.split(" / ")
            what = f"{_label(first)} / {_label(second)}"
            ratios.append([record["case"], what, figure(ratio["seconds"]), figure(ratio["target"])])
    print(format_table(["source", "MB", "way", "s", "own busy s", "workers busy s"], rows))
    print()
    print(format_table(["source", "seconds of", "ratio", "target"], ratios))


def _label(way: str) -> str:
    return way if way == FLOOR else f"jobs: {way}"
