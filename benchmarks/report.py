"""Seconds and bytes of a report, against the targets: 10 s for 10^6 steps, and 5 MB without frames.

    python benchmarks/report.py --json report.json

Each case is a dataset of random numbers. The script runs `gear-data report` as a process of its own, so the seconds
include Python's start and all imports. Larger datasets are sampled: their reports should not take longer.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    ROOT,
    Episodes,
    command_line,
    cpu_seconds,
    describe_machine,
    figure,
    format_table,
    machine_facts,
    parse_with_quick,
    progress,
    spread,
    synthetic_episodes,
    write_json,
    write_parquet,
)

# The checkout's own gear_data, installed or not.
sys.path.insert(0, str(ROOT))

import gear_data

TARGET_SECONDS, TARGET_BYTES = 10.0, 5_000_000
FULL = {"steps": 1_000_000, "rounds": 3}
QUICK = {"steps": 4000, "rounds": 1}


@dataclass(frozen=True)
class Case:
    """A dataset, and options of the command.

    Attributes:
        name: its name.
        observations, actions: widths of the columns.
        times: the dataset has this many times `--steps` steps.
        episode_steps: steps of each episode; None: 8 to 1000, as Hopper's.
        compared: whether the report compares the dataset with itself, and shows a sampler.
    """

    name: str
    observations: int
    actions: int
    times: int = 1
    episode_steps: int | None = None
    compared: bool = False


CASES = (
    Case("Hopper's shape", 11, 3),
    Case("Hopper's shape, all options", 11, 3, compared=True),
    Case("HalfCheetah's shape", 17, 6),
    Case("robot, 64 + 26 numbers", 64, 26),
    Case("episodes of 10 steps", 11, 3, episode_steps=10),
    Case("three times as many steps", 11, 3, times=3),
)


def make_dataset(case: Case, steps: int, folder: Path) -> Path:
    """Writes the dataset of a case."""
    episodes = synthetic_episodes(steps * case.times, 0, case.observations, case.actions)
    if case.episode_steps is not None:
        lengths = np.full(episodes.steps // case.episode_steps, case.episode_steps)
        terminals = np.zeros(episodes.steps, np.bool_)
        terminals[np.cumsum(lengths) - 1] = True
        episodes = Episodes(episodes.observations, episodes.actions, episodes.rewards, terminals, lengths)
    source = folder / "source.parquet"
    write_parquet(episodes, source)
    gear_data.convert(source, folder / "dataset", progress=False)
    source.unlink()
    return folder / "dataset"


def measure(case: Case, dataset: Path, rounds: int) -> dict[str, Any]:
    """Runs the command `rounds` times."""
    page = dataset.with_name("page.html")
    command = [sys.executable, "-m", "gear_data.cli", "report", str(dataset), str(page), "--json"]
    if case.compared:
        command += ["--compare", str(dataset), "--weights", "return + 1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    seconds, busy = [], []
    for number in range(rounds):
        progress(f"{case.name}: round {number + 1} of {rounds}")
        begun, worked = time.perf_counter(), cpu_seconds(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        seconds.append(time.perf_counter() - begun)
        busy.append(cpu_seconds(resource.RUSAGE_CHILDREN) - worked)
    progress("")
    facts = json.loads(done.stdout)
    sample = facts["sample"]
    return {
        "case": case.name,
        "episodes": sample["of_episodes"],
        "steps": sample["of_steps"],
        "steps_read": sample["steps"],
        "seconds": spread(seconds),
        "cpu_seconds": spread(busy),
        "bytes": facts["output_bytes"],
    }


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, help="steps of a dataset (default 1,000,000)")
    parser.add_argument("--rounds", type=int, help="runs of each case (default 3)")
    parser.add_argument("--quick", action="store_true", help="little data: shows that all of it runs")
    parser.add_argument("--json", type=Path, help="write the full record here")
    parser.set_defaults(**FULL)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse_with_quick(make_parser(), arguments, QUICK)
    facts = machine_facts()
    print(f"`{command_line()}`\n\n{describe_machine(facts)}\n", flush=True)
    cases = []
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="gear-bench-") as scratch:
            cases.append(measure(case, make_dataset(case, args.steps, Path(scratch)), args.rounds))
    rows = [
        [
            each["case"],
            *(f"{each[name]:,}" for name in ("episodes", "steps", "steps_read")),
            *(figure(each["seconds"][name]) for name in ("median", "min", "max")),
            figure(each["cpu_seconds"]["median"]),
            figure(each["bytes"] / 1e6),
        ]
        for each in cases
    ]
    print(
        format_table(["dataset", "episodes", "steps", "steps read", "seconds", "from", "to", "CPU seconds", "MB"], rows)
    )
    slowest, largest = max(each["seconds"]["median"] for each in cases), max(each["bytes"] for each in cases)
    print(
        f"\nslowest: {slowest:.1f} s (target {TARGET_SECONDS:g}: {_met(slowest < TARGET_SECONDS)}); "
        f"largest: {largest / 1e6:.2f} MB (target {TARGET_BYTES / 1e6:g}: {_met(largest < TARGET_BYTES)}); "
        f"median of all: {statistics.median(each['seconds']['median'] for each in cases):.1f} s"
    )
    if args.json is not None:
        write_json(args.json, {"benchmark": "report", "machine": facts, "command": command_line(), "cases": cases})


def _met(met: bool) -> str:
    return "met" if met else "missed"


if __name__ == "__main__":
    main()
