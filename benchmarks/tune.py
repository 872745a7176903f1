"""Compares the choice of `gear_data.tune` with the best of an exhaustive run.

    python benchmarks/tune.py --json tune.json

For each case, the script tunes a loader within `--seconds`. Then it measures every setting that tuning could choose, in
alternating rounds, and prints the table. The best of many medians is partly the luckiest. So the choice and the best
are measured once more, in turns, and the ratio of the two is the median of the rounds' ratios. The target is at most
1.05. The data is random, of Hopper's shape, and batches are 256 x 20 for Decision Transformer.

The script runs on the CPU. Run it while nothing else runs: `--quick` shows that all parts run; its figures mean little.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import (
    ROOT,
    command_line,
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
from gear_data.loaders.tuning.setting import Setting
from gear_data.loaders.tuning.training_step import make_step
from gear_data.loaders.tuning.trial import Trials

#: The choice may take this many times as long as the best setting.
TARGET = 1.05
BATCH = {"batch_size": 256, "context": 20, "preset": "decision_transformer"}
FULL = {"steps": 200_000, "seconds": 60.0, "rounds": 5, "run_seconds": 0.5}
QUICK = {"steps": 5000, "seconds": 1.0, "rounds": 1, "run_seconds": 0.01}


@dataclass(frozen=True)
class Case:
    """A training step, and the loader's further arguments."""

    name: str
    step_ms: float
    step_cores: int
    transform: Callable[[Any, Any], Any] | None = None


def waits(batch: Any, rng: Any) -> Any:
    """Waits for 2 ms without the interpreter lock, as a read from a slow disk does."""
    time.sleep(2e-3)
    return batch


CASES = (
    Case("no step", 0.0, 0),
    Case("1 ms on a core", 1.0, 1),
    Case("5 ms on a core", 5.0, 1),
    Case("1 ms asleep, batches that take 2 ms", 1.0, 0, waits),
)


def measure_all(trials: Trials, settings: Sequence[Setting], rounds: int, seconds: float) -> list[list[float]]:
    """Returns the seconds of a step, one list of `rounds` numbers for each setting.

    Every second round runs backwards.
    """
    found: list[list[float]] = [[] for _ in settings]
    for number in range(rounds):
        order = range(len(settings)) if number % 2 == 0 else reversed(range(len(settings)))
        for place in order:
            progress(f"round {number + 1} of {rounds}: {settings[place]}")
            found[place].append(trials.measure(settings[place], seconds))
    progress("")
    return found


def run(case: Case, dataset: gear_data.Dataset, args: argparse.Namespace) -> dict[str, Any]:
    """Tunes and measures one case, and prints its table."""
    arguments = {**BATCH, **({} if case.transform is None else {"transform": case.transform})}
    report = gear_data.tune(
        dataset, step_ms=case.step_ms, step_cores=case.step_cores, seconds=args.seconds, **arguments
    )
    trials = Trials(dataset, arguments, make_step(None, case.step_ms, case.step_cores, gpu=False))
    settings = [each.setting for each in report.outcome.candidates]
    found = measure_all(trials, settings, args.rounds, args.run_seconds)
    medians = [statistics.median(runs) for runs in found]
    ranked = sorted(range(len(settings)), key=medians.__getitem__)
    best = settings[ranked[0]]
    ones, others = measure_all(trials, [report.setting, best], 2 * args.rounds, args.run_seconds)
    ratio = 1.0 if best == report.setting else statistics.median(a / b for a, b in zip(ones, others, strict=True))
    tuned = sum(1 for each in report.outcome.candidates if each.runs)
    rows = [
        [
            str(settings[place]),
            *(figure(value * 1e3, 4) for value in (medians[place], min(found[place]), max(found[place]))),
            f"{medians[place] / medians[ranked[0]]:.2f}",
            "chosen" if settings[place] == report.setting else "",
        ]
        for place in ranked
    ]
    print(f"\n## {case.name}\n")
    print(format_table(["setting", "step ms", "from", "to", "to the best", ""], rows))
    print(
        f"\ntuning took {report.seconds:.0f} s and measured {tuned} of {len(settings)} settings; the choice takes "
        f"{ratio:.3f} times as long as the best (target {TARGET}: {'met' if ratio <= TARGET else 'missed'})",
        flush=True,
    )
    return {
        "case": case.name,
        "tuning": report.to_json(),
        "exhaustive": [
            {"setting": str(each), "step_ms": spread([run * 1e3 for run in runs])}
            for each, runs in zip(settings, found, strict=True)
        ],
        "best": str(best),
        "ratio": ratio,
    }


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, help="steps of the dataset (default 200,000)")
    parser.add_argument("--seconds", type=float, help="time of one tuning (default 60)")
    parser.add_argument("--rounds", type=int, help="exhaustive measurements of each setting (default 5)")
    parser.add_argument("--run-seconds", type=float, help="length of one exhaustive measurement (default 0.5)")
    parser.add_argument(
        "--quick", action="store_true", help="little data, short measurements: shows that all of it runs"
    )
    parser.add_argument("--json", type=Path, help="write the full record here")
    parser.set_defaults(**FULL)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse_with_quick(make_parser(), arguments, QUICK)
    # The default on Linux before Python 3.14. Workers that are spawned take seconds to start.
    multiprocessing.set_start_method("fork", force=True)
    facts = machine_facts()
    print(f"`{command_line()}`\n\n{describe_machine(facts)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="gear-bench-") as scratch:
        write_parquet(synthetic_episodes(args.steps), Path(scratch) / "source.parquet")
        gear_data.convert(Path(scratch) / "source.parquet", Path(scratch) / "dataset", progress=False)
        dataset = gear_data.open(Path(scratch) / "dataset")
        cases = [run(case, dataset, args) for case in CASES]
    print(f"\nlargest ratio: {max(each['ratio'] for each in cases):.3f}")
    if args.json is not None:
        write_json(args.json, {"benchmark": "tune", "machine": facts, "command": command_line(), "cases": cases})


if __name__ == "__main__":
    main()
