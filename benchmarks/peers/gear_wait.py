"""Time that a trainer waits for gear-data's loader.

The loader has a prefetch thread, and a step takes 5 ms.

There are three kinds of step. `sleep` sleeps, like the Python thread of a GPU trainer until the device is done.
`matmul` keeps one core busy without the interpreter lock, like a CPU trainer. `python` holds the interpreter lock; a
prefetch thread gets it only when the interpreter switches threads (every 5 ms, Python's switch interval).

The script prints one line of JSON. For each kind and round it has the wait as a share of the whole step (wait and
5 ms), and the wait's median and 99th percentile in microseconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from gear_source import open_loader
from harness import claim_stdout, parse_arguments, say, touch

STEP_SECONDS = 0.005
WARM_STEPS = 20
PREFETCH = 2


def multiply() -> Callable[[], None]:
    torch.set_num_threads(1)
    left, right = torch.rand(128, 128), torch.rand(128, 128)
    out = torch.empty(128, 128)

    def run() -> None:
        torch.mm(left, right, out=out)

    return run


def busy(work: Callable[[], None]) -> Callable[[], None]:
    def step() -> None:
        until = time.perf_counter() + STEP_SECONDS
        while time.perf_counter() < until:
            work()

    return step


STEPS: dict[str, Callable[[], None]] = {
    "sleep": lambda: time.sleep(STEP_SECONDS),
    "matmul": busy(multiply()),
    "python": busy(lambda: None),
}


def train(batches: Iterator[dict[str, torch.Tensor]], step: Callable[[], None], seconds: float) -> dict[str, Any]:
    waits: list[float] = []
    start = asked = time.perf_counter()
    while asked < start + seconds or len(waits) <= WARM_STEPS:
        batch = next(batches)
        waits.append(time.perf_counter() - asked)
        touch(batch)
        step()
        asked = time.perf_counter()
        if len(waits) == WARM_STEPS:
            begun = asked
    counted = np.array(waits[WARM_STEPS:])
    return {
        "wait_fraction": float(counted.sum() / (asked - begun)),
        "wait_us_median": float(np.median(counted) * 1e6),
        "wait_us_p99": float(np.percentile(counted, 99) * 1e6),
        "steps": len(counted),
    }


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repetitions", type=int, default=5, help="rounds (default 5)")


def main() -> None:
    args = parse_arguments("Time that a trainer waits for batches; --data is a gear-data dataset.", configure)
    out = claim_stdout()
    batches = iter(open_loader(args, PREFETCH))
    rounds = [
        {"consumer": name, **train(batches, step, args.seconds)}
        for _ in range(args.repetitions)
        for name, step in STEPS.items()
    ]
    say(out, {"rounds": rounds})


if __name__ == "__main__":
    main()
