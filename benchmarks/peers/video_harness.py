"""Code that the contenders of benchmarks/video.py and the peers of benchmarks/mixture.py share.

It needs only the standard library and NumPy.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import claim_stdout, parse_arguments, say

#: Steps of the frames and of the actions of a sample, relative to its own step.
FRAME_STEPS, ACTION_STEPS = (-10, 0), 16


@dataclass(frozen=True)
class Batches:
    """A contender's batches.

    Attributes:
        start: begins an endless iteration.
        samples: of a batch.
        versions: of the packages measured.
        notes: facts that only the contender knows.
    """

    start: Callable[[], Iterator[Mapping[str, Any]]]
    samples: int
    versions: Mapping[str, str]
    notes: str = ""


def cpu_seconds() -> float:
    """Returns the processor time of this process and of its children that have ended."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def draw(batches: Iterator[Mapping[str, Any]], enough: Callable[[int, float], bool]) -> dict[str, Any]:
    """Draws batches until `enough(batches, seconds)`. Each batch lives until the next one arrives."""
    count, used, begun = 0, cpu_seconds(), time.perf_counter()
    batch: Mapping[str, Any] = {}
    while not enough(count, time.perf_counter() - begun):
        batch = next(batches)
        count += 1
    return {
        "batches": count,
        "seconds": time.perf_counter() - begun,
        "cpu_seconds": cpu_seconds() - used,
        "delivers": {
            name: [list(array.shape), str(array.dtype).removeprefix("torch.")]
            for name, array in batch.items()
            if hasattr(array, "dtype")
        },
    }


def memory_bytes() -> dict[str, int]:
    """Returns the resident bytes of this process, the anonymous ones, and the most that were ever resident."""
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    fields = {name: text.split() for name, _, text in lines}
    names = {"resident": "VmRSS", "anonymous": "RssAnon", "peak": "VmHWM"}
    return {name: int(fields[field][0]) << 10 for name, field in names.items()}


def cost(batches: Iterator[Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """Returns what a batch costs after the first one, drawing at least one, and the resident bytes that were added."""
    next(batches)
    before = memory_bytes()["resident"]
    drawn = draw(batches, lambda count, passed: count > 0 and passed >= seconds)
    return {
        "us": 1e6 * drawn["seconds"] / drawn["batches"],
        "processor_us": 1e6 * drawn["cpu_seconds"] / drawn["batches"],
        "batches": drawn["batches"],
        "rss_bytes_added": memory_bytes()["resident"] - before,
    }


def serve(
    build: Callable[[argparse.Namespace], Batches],
    description: str,
    configure: Callable[[argparse.ArgumentParser], None] | None = None,
) -> None:
    """Measures as the lines of standard input ask.

    `cold N` draws the first N batches of a new iteration. `warm SECONDS` and `memory N` go on with the iteration.
    """

    def add(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--resize", type=int, default=0, help="height and width of frames (default as stored)")
        if configure is not None:
            configure(parser)

    args = parse_arguments(description, add)
    out = claim_stdout()
    source = build(args)
    facts = {"samples": source.samples, "versions": dict(source.versions), "notes": source.notes}
    say(out, {"ready": True})
    batches: Iterator[Mapping[str, Any]] | None = None
    for line in sys.stdin:
        what, number = line.split()
        begun = time.perf_counter()
        if batches is None or what == "cold":
            batches = source.start()
        begun = time.perf_counter() - begun
        if what == "warm":
            seconds = float(number)
            record = draw(batches, lambda count, passed, limit=seconds: passed >= limit)
        else:
            most = int(number)
            record = draw(batches, lambda count, passed, limit=most: count >= limit)
            record["seconds"] += begun
        say(out, {**facts, **record, "memory": memory_bytes()})
