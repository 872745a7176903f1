"""Code that the contenders of benchmarks/in_place.py share: empty caches, the lines, the times."""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import claim_stdout, parse_arguments, say, versions_of


@dataclass(frozen=True)
class Batches:
    """Batches of a contender: the libraries are imported, and nothing was asked for.

    Attributes:
        drawn: None when the dataset is open, then the batches.
        facts: what the contender says about the batches that were drawn so far.
        packages: the packages whose versions are recorded.
    """

    drawn: Iterator[Any]
    facts: dict[str, Any]
    packages: tuple[str, ...]


def processor_seconds() -> float:
    """Returns the seconds of all cores that this process and its children took."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    running = 0
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            with suppress(OSError):
                # The fields behind the name, which may have spaces: the times are the 14th and the 15th of all.
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                running += int(fields[11]) + int(fields[12])
    return sum(each.ru_utime + each.ru_stime for each in used) + running / os.sysconf("SC_CLK_TCK")


def run(
    make: Callable[[Any], Batches],
    description: str,
    configure: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> None:
    """Runs a contender. It has empty caches, which are removed at the end."""

    def own(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--endpoint", required=True, help="URL of the hub")
        parser.add_argument("--repository", required=True, help="name of the dataset")
        parser.add_argument("--steps", type=int, required=True, help="batches to draw")
        parser.add_argument("--step", type=float, required=True, help="seconds of a training step")
        configure(parser)

    args = parse_arguments(description, own)
    out = claim_stdout()
    with tempfile.TemporaryDirectory(prefix="caches-") as folder:
        caches = {"HF_HOME": "hub", "HF_LEROBOT_HOME": "lerobot", "GEAR_DATA_CACHE": "gear", "TORCH_HOME": "torch"}
        os.environ.update({name: str(Path(folder) / place) for name, place in caches.items()})
        os.environ.update(HF_ENDPOINT=args.endpoint, HF_HUB_DISABLE_XET="1", HF_HUB_OFFLINE="0")
        begun = time.perf_counter()
        batches = make(args)
        say(out, {"imports": time.perf_counter() - begun, "processor": processor_seconds()})
        for _ in ("open", "first"):
            sys.stdin.readline()
            begun, used = time.perf_counter(), processor_seconds()
            next(batches.drawn)
            spent = {"seconds": time.perf_counter() - begun, "processor": processor_seconds() - used}
            say(out, {**spent, **batches.facts})
        sys.stdin.readline()
        waited, count, used = 0.0, 0, processor_seconds()
        for _ in range(args.steps - 1):
            time.sleep(args.step)
            asked = time.perf_counter()
            if next(batches.drawn, None) is None:
                break
            waited += time.perf_counter() - asked
            count += 1
        record = {"waited": waited, "steps": count, "processor": processor_seconds() - used, **batches.facts}
        say(out, {**record, "versions": versions_of(*batches.packages)})
        # The workers of a DataLoader would go on to draw.
        out.flush()
        os._exit(0)
