"""Runs the harnesses: `make chaos MINUTES=10 SEED=1`, or `python -m tests.chaos`.

Prints the seed, every failure when its harness ends, and a Markdown table of counts. The exit status is 1 if there is
a failure.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import threading
import time

from gear_data.common.progress import progress_bar
from tests.chaos.result import ChaosResult, Limit, markdown, run_in_own_process

#: Modules below tests.chaos with a function `run(seed, limit) -> ChaosResult`.
HARNESSES = (
    "kills",
    "disks",
    "clocks",
    "memory",
    "mutations",
    "worlds",
    "network.hostile",
    "network.transfers",
    "stops.interrupts",
    "stops.exits",
    "growing.growth",
    "growing.crowd",
    "growing.turnover",
    "growing.refreshes",
    "growing.training",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10, help="time for all harnesses together; default 10")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31), help="default random")
    parser.add_argument("--only", action="append", choices=HARNESSES, help="run only this harness; may be repeated")
    parser.add_argument("--runs", type=int, help="run only this number of cases of each harness")
    parser.add_argument("--case", type=int, help="run only this case of each harness")
    options = parser.parse_args()
    names = options.only or HARNESSES
    print(f"seed {options.seed}", flush=True)
    if options.case is not None:
        limit = Limit(runs=1, first=options.case)
    else:
        limit = Limit(60 * options.minutes / len(names), options.runs)
    results = []
    for name in names:
        result = _run(name, options.seed, limit)
        results.append(result)
        for note in result.notes:
            print(f"{result.harness}: {note}", flush=True)
        for failure in result.failures:
            print(f"FAILED --only {name} --seed {result.seed}: {failure}", flush=True)
    print(markdown(results))
    return 1 if any(result.failures for result in results) else 0


def _run(name: str, seed: int, limit: Limit) -> ChaosResult:
    """Runs a harness; a progress bar on a terminal shows its time."""
    harness = importlib.import_module(f"tests.chaos.{name}")
    started = time.monotonic()
    ended = threading.Event()
    with progress_bar(None if limit.seconds == float("inf") else round(limit.seconds), name, "s", None) as bar:

        def tick() -> None:
            while not ended.wait(1):
                bar.update(round(time.monotonic() - started) - bar.n)

        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        try:
            return run_in_own_process(harness, seed, limit)
        finally:
            ended.set()
            ticker.join()


if __name__ == "__main__":
    sys.exit(main())
