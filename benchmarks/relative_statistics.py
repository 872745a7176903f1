"""Seconds of exact statistics of relative actions, against the target: 60 s for 10^7 frames on two cores.

    python benchmarks/relative_statistics.py --json relative.json

A frame has 14 actions and 14 numbers of state, and a chunk 16 steps. Beside them the script runs a plain loop, as the
script `compute_norm_stats.py` of openpi does (`shared/normalize.py`, commit 138701c): it takes each frame's chunk,
subtracts the state, and gives batches to running means and to histograms of 5,000 bins. openpi's loader also reads
videos; the loop reads arrays in memory. It runs over some frames, and its seconds are scaled to all.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from common import (
    ROOT,
    command_line,
    cpu_seconds,
    describe_machine,
    figure,
    format_table,
    machine_facts,
    parse_with_quick,
    progress,
    synthetic_episodes,
    write_json,
    write_parquet,
)

# The checkout's own gear_data, installed or not.
sys.path.insert(0, str(ROOT))

import gear_data

TARGET_SECONDS = 60.0
WIDTH, CHUNK, BATCH, BINS = 14, 16, 256, 5000
FULL = {"frames": 10_000_000, "loop_frames": 100_000}
QUICK = {"frames": 3000, "loop_frames": 1000}
#: Whether each step has statistics of its own, and the number of processes; None: threads.
CASES: tuple[tuple[bool, int | None], ...] = ((False, None), (True, None))
_PROCESSES = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN


class RunningStatistics:
    """Means, and histograms whose bins follow the least and the largest value."""

    def __init__(self) -> None:
        self._count = 0
        self._mean = self._squares = np.zeros(WIDTH)
        self._low, self._high = np.full(WIDTH, np.inf), np.full(WIDTH, -np.inf)
        self._counts = np.zeros((WIDTH, BINS))
        self._edges = np.zeros((WIDTH, BINS + 1))

    def update(self, batch: npt.NDArray[np.float32]) -> None:
        """Adds a batch, [n, WIDTH]."""
        low, high = np.minimum(self._low, batch.min(0)), np.maximum(self._high, batch.max(0))
        if (low < self._low).any() or (high > self._high).any():
            edges = np.linspace(low - 1e-10, high + 1e-10, BINS + 1, axis=1)
            if self._count:
                for element in range(WIDTH):
                    old = self._edges[element, :-1], self._counts[element]
                    self._counts[element] = np.histogram(old[0], bins=edges[element], weights=old[1])[0]
            self._low, self._high, self._edges = low, high, edges
        self._count += len(batch)
        part = len(batch) / self._count
        self._mean = self._mean + (batch.mean(0) - self._mean) * part
        self._squares = self._squares + ((batch**2).mean(0) - self._squares) * part
        for element in range(WIDTH):
            self._counts[element] += np.histogram(batch[:, element], bins=self._edges[element])[0]

    def result(self) -> dict[str, npt.NDArray[np.float64]]:
        std = np.sqrt(np.maximum(0, self._squares - self._mean**2))
        found = {"mean": self._mean, "std": std}
        for name, share in (("q01", 0.01), ("q99", 0.99)):
            places = [int(np.searchsorted(np.cumsum(own), share * self._count)) for own in self._counts]
            found[name] = self._edges[np.arange(WIDTH), places]
        return found


def measure_loop(dataset: gear_data.Dataset, frames: int) -> dict[str, Any]:
    """Runs the loop over the first episodes that have `frames` frames."""
    progress("the plain loop")
    last = int(np.searchsorted(np.cumsum(dataset.lengths), frames)) + 1
    arrays = [
        (dataset.steps("actions", number, number + 1), dataset.steps("observations", number, number + 1))
        for number in range(min(last, len(dataset)))
    ]
    begun, running, done = time.perf_counter(), RunningStatistics(), 0
    items: list[npt.NDArray[np.float32]] = []
    for actions, states in arrays:
        for start in range(len(actions)):
            # The last action is repeated.
            chunk = actions[np.minimum(np.arange(start, start + CHUNK), len(actions) - 1)]
            items.append(chunk - states[start])
            done += 1
            if len(items) == BATCH:
                running.update(np.stack(items).reshape(-1, WIDTH))
                items = []
    if items:
        running.update(np.stack(items).reshape(-1, WIDTH))
    found = running.result()
    progress("")
    return {
        "seconds": time.perf_counter() - begun,
        "frames": done,
        **{name: own.tolist() for name, own in found.items()},
    }


def make_dataset(frames: int, folder: Path) -> Path:
    """Writes the dataset."""
    progress(f"writing {frames:,} frames")
    write_parquet(synthetic_episodes(frames, 0, WIDTH, WIDTH), folder / "source.parquet")
    gear_data.convert(folder / "source.parquet", folder / "dataset", progress=False)
    (folder / "source.parquet").unlink()
    return folder / "dataset"


def measure(dataset: Path, per_step: bool, jobs: int | None) -> dict[str, Any]:
    """Computes the statistics, and then reads the stored ones."""
    progress(f"statistics of {'each step' if per_step else 'all steps'}, jobs={jobs}")
    shutil.rmtree(dataset / "sidecars", ignore_errors=True)
    relative = gear_data.Relative("observations", per_step=per_step)
    seconds, busy = [], []
    for _ in range(2):
        ds = gear_data.open(dataset)
        begun, worked = time.perf_counter(), cpu_seconds(*_PROCESSES)
        gear_data.relative_statistics(ds, "actions", relative, (0, CHUNK), jobs=jobs, progress=False)
        seconds.append(time.perf_counter() - begun)
        busy.append(cpu_seconds(*_PROCESSES) - worked)
    progress("")
    return {"per_step": per_step, "jobs": jobs, "seconds": seconds[0], "cpu_seconds": busy[0], "stored": seconds[1]}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, help="frames of the dataset (default 10,000,000)")
    parser.add_argument("--loop-frames", type=int, help="frames of the plain loop (default 100,000)")
    parser.add_argument("--processes", type=int, default=2, help="processes of the third row (default 2)")
    parser.add_argument("--scratch", type=Path, help="folder for the dataset, which takes 1.3 GB")
    parser.add_argument("--quick", action="store_true", help="few frames: shows that all of it runs")
    parser.add_argument("--json", type=Path, help="write the full record here")
    parser.set_defaults(**FULL)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse_with_quick(make_parser(), arguments, QUICK)
    facts = machine_facts()
    print(f"`{command_line()}`\n\n{describe_machine(facts)}\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="gear-bench-", dir=args.scratch) as scratch:
        dataset = make_dataset(args.frames, Path(scratch))
        # Kernels are compiled once for a machine.
        gear_data.relative_statistics(gear_data.open(dataset)[:1], "actions", "observations", (0, 2), progress=False)
        cases = [measure(dataset, per_step, jobs) for per_step, jobs in CASES]
        cases.append(measure(dataset, False, args.processes))
        loop = measure_loop(gear_data.open(dataset), args.loop_frames)
    rows = [
        [
            "a step and element" if each["per_step"] else "an element",
            "threads" if each["jobs"] is None else f"{each['jobs']} processes",
            *(figure(each[name]) for name in ("seconds", "cpu_seconds", "stored")),
        ]
        for each in cases
    ]
    scaled = figure(loop["seconds"] * args.frames / loop["frames"])
    rows.append(["an element, estimated", f"plain loop, of {loop['frames']:,} frames", scaled, "-", "-"])
    print(format_table(["statistics of", "by", "seconds", "CPU seconds", "stored: seconds"], rows))
    slowest = max(each["seconds"] for each in cases)
    print(f"\nslowest: {slowest:.1f} s (target {TARGET_SECONDS:g}: {'met' if slowest < TARGET_SECONDS else 'missed'})")
    if args.json is not None:
        record = {"benchmark": "relative_statistics", "machine": facts, "command": command_line()}
        write_json(args.json, {**record, "frames": args.frames, "cases": cases, "loop": loop})


if __name__ == "__main__":
    main()
