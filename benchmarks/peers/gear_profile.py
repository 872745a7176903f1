"""Time of the stages of one batch, with gear-data's loader called inline.

Clocks around four functions of the loader time the stages while it runs: selection (`WindowSource.sample`: the step's
windows), kernel (`ColumnReader.read`: all bytes of the batch), buffers (the rest of `Collector.__call__`: the lease,
and the arrays over it) and tensors (`torch.from_numpy`). The cost of a clock is measured and subtracted. The whole is
timed without clocks, in alternating rounds. `rest` is the time in no stage: the iterator, the meter, the dict. The same
batch with a prefetch thread, and its ratio to the batch without, show what the thread costs or gains in a loop that
only takes batches: both are medians, because batches come in groups. All other figures are microseconds: the 5th
percentile of short stretches, so that other load on the machine counts little.

The floor (see `floor_batches`) draws the same windows in the same rounds, with new tensors and with tensors that are
used again. How many times as long gear-data's batch takes is the median over the rounds.

For comparison, libc's memmove copies the bytes of a batch in one call: between two places in the cache (hot), and from
memory that no cache holds (1 GiB) to a place in the cache (cold).
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from floor_batches import CONTRACTS, Floor
from gear_source import open_loader
from harness import claim_stdout, load_steps, parse_arguments, say, touch

from gear_data.collection.collector import Collector
from gear_data.loaders.window_source import SingleSource

PREFETCH = 2
STRETCH_SECONDS = 0.002
CALIBRATION_ROUNDS, CALIBRATION_CALLS = 100, 1000


class Clock:
    """Adds up the time inside one function."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        now = time.perf_counter

        def timed(*args: Any, **options: Any) -> Any:
            start = now()
            result = function(*args, **options)
            self.seconds += now() - start
            self.calls += 1
            return result

        return timed


def clock_costs() -> tuple[float, float]:
    """Returns the seconds that a clock adds in one call.

    The first is the part in the clock's own count, the second the caller's whole cost.
    """

    def nothing() -> None:
        pass

    clock = Clock()
    timed = clock.around(nothing)
    bare, whole, counted = [], [], []
    for _ in range(CALIBRATION_ROUNDS):
        clock.seconds, starts = 0.0, [time.perf_counter()]
        for function in (nothing, timed):
            for _ in range(CALIBRATION_CALLS):
                function()
            starts.append(time.perf_counter())
        bare.append((starts[1] - starts[0]) / CALIBRATION_CALLS)
        whole.append((starts[2] - starts[1]) / CALIBRATION_CALLS)
        counted.append(clock.seconds / CALIBRATION_CALLS)
    return min(counted), min(whole) - min(bare)


@contextmanager
def clocks_on(places: dict[str, tuple[Any, str]]) -> Iterator[dict[str, Clock]]:
    """Puts a clock around each function, given by its owner and name.

    Removes the clocks at the end.
    """
    clocks = {name: Clock() for name in places}
    originals = {name: getattr(owner, attribute) for name, (owner, attribute) in places.items()}
    for name, (owner, attribute) in places.items():
        setattr(owner, attribute, clocks[name].around(originals[name]))
    try:
        yield clocks
    finally:
        for name, (owner, attribute) in places.items():
            setattr(owner, attribute, originals[name])


def draw(batches: Iterator[dict[str, torch.Tensor]], seconds: float) -> tuple[int, float, dict[str, torch.Tensor]]:
    """Draws batches for `seconds`.

    Returns their number, the elapsed seconds and the last batch.
    """
    count, start = 0, time.perf_counter()
    now = start
    while now < start + seconds:
        batch = next(batches)
        touch(batch)
        count += 1
        now = time.perf_counter()
    return count, now - start, batch


def stage_times(clocks: dict[str, Clock], batches: int, costs: tuple[float, float]) -> dict[str, float]:
    """Returns the microseconds per batch of each stage.

    Raises:
        RuntimeError: the loader does not call one of the functions.
    """
    for name, clock in clocks.items():
        if clock.calls < batches:
            raise RuntimeError(f"the loader does not call the function of stage {name}; move its clock")
    counted, whole = costs
    net = {name: clock.seconds - clock.calls * counted for name, clock in clocks.items()}
    # The kernel runs inside the collector, and so does its clock.
    net["buffers"] -= net["kernel"] + clocks["kernel"].calls * whole
    return {name: 1e6 * seconds / batches for name, seconds in net.items()}


def undisturbed(values: list[float]) -> float:
    """Returns the 5th percentile.

    It is the figure of stretches that no other process interrupted.
    """
    return float(np.percentile(values, 5))


def copy_times(size: int, cold_bytes: int, seconds: float) -> tuple[float, float]:
    """Returns the median microseconds of one memmove of `size` bytes: (hot, cold)."""
    source, target = np.ones(cold_bytes, np.uint8), np.ones(size, np.uint8)
    results = []
    for places in ([0], range(0, cold_bytes - size + 1, size)):
        times: list[float] = []
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            address = source.ctypes.data + places[len(times) % len(places)]
            start = time.perf_counter()
            ctypes.memmove(target.ctypes.data, address, size)
            times.append(time.perf_counter() - start)
        results.append(1e6 * statistics.median(times))
    return results[0], results[1]


def floors(args: argparse.Namespace) -> list[Iterator[dict[str, torch.Tensor]]]:
    """Returns the floor's batches, with new tensors and without; empty if the contract has no floor."""
    if args.steps is None or args.contract not in CONTRACTS:
        return []
    steps, shape = load_steps(args.steps), (args.contract, args.batch_size, args.context, args.seed)
    return [map(Floor(steps, *shape, fresh=fresh).batch, itertools.count()) for fresh in (True, False)]


def floor_figures(wholes: list[float], floored: list[list[float]]) -> dict[str, float]:
    """Returns the figures of the floor, by the names of feeding/report.py."""
    if not floored:
        return {}
    fresh, kept = zip(*floored, strict=True)

    def times(floor: tuple[float, ...]) -> float:
        return statistics.median(whole / each for whole, each in zip(wholes, floor, strict=True))

    return {
        "floor_us": undisturbed([*fresh]),
        "kept_floor_us": undisturbed([*kept]),
        "times_the_floor": times(fresh),
        "times_the_kept_floor": times(kept),
    }


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=Path, help="the same data as a folder of steps, for the floor")
    parser.add_argument("--repetitions", type=int, default=5, help="rounds (default 5)")


def main() -> None:
    args = parse_arguments("Time of the stages of a batch; --data is a gear-data dataset.", configure)
    out = claim_stdout()
    loader = open_loader(args, 0)
    batches = iter(loader)
    _, _, batch = draw(batches, min(0.5, args.seconds / 4))
    size = sum(tensor.nbytes for tensor in batch.values() if isinstance(tensor, torch.Tensor))
    places = {
        "selection": (SingleSource, "sample"),
        "buffers": (Collector, "__call__"),
        "kernel": (type(loader.dataset.store.reader()), "read"),
        "tensors": (torch, "from_numpy"),
    }
    costs = clock_costs()
    wholes: list[float] = []
    floored: list[list[float]] = []
    compiled = floors(args)
    handed: list[float] = []
    ratios: list[float] = []
    stages: list[dict[str, float]] = []
    # Short alternating stretches: some of each run without interruption.
    for _ in range(max(1, round(args.repetitions * args.seconds / (3 * STRETCH_SECONDS)))):
        count, seconds, _ = draw(batches, STRETCH_SECONDS)
        wholes.append(1e6 * seconds / count)
        if compiled:
            drawn = [draw(each, STRETCH_SECONDS) for each in compiled]
            floored.append([1e6 * seconds / count for count, seconds, _ in drawn])
        with clocks_on(places) as clocks:
            count, _, _ = draw(batches, STRETCH_SECONDS)
        stages.append(stage_times(clocks, count, costs))
    # Only now: the clocks would count the calls of its thread too.
    threaded = iter(open_loader(args, PREFETCH))
    draw(threaded, min(0.5, args.seconds / 4))
    for _ in range(max(1, round(args.repetitions * args.seconds / (20 * STRETCH_SECONDS)))):
        count, seconds, _ = draw(batches, 5 * STRETCH_SECONDS)
        inline = 1e6 * seconds / count
        count, seconds, _ = draw(threaded, 5 * STRETCH_SECONDS)
        handed.append(1e6 * seconds / count)
        ratios.append(handed[-1] / inline)
    whole = undisturbed(wholes)
    parts = {name: undisturbed([stage[name] for stage in stages]) for name in stages[0]}
    hot, cold = copy_times(size, args.cold_bytes, args.seconds / 2)
    record = {
        "batch_us": whole,
        "threads_us": statistics.median(handed),
        "threads_ratio": statistics.median(ratios),
        "batch_bytes": size,
        "hot_copy_us": hot,
        "cold_copy_us": cold,
        **floor_figures(wholes, floored),
    }
    say(out, {**record, "stages_us": {**parts, "rest": whole - sum(parts.values())}})


if __name__ == "__main__":
    main()
