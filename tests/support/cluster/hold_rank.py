"""Program for a rank of a run without an initialized torch.distributed.

Usage: python hold_rank.py DATASET OPTIONS

Opens the dataset with these options and prints one line: `open`, or the error. Then it answers each line of input:

    first   hash of the observations of the first batch
    next    hash of the observations of the next batch of one loader, which prefetches
    reads   number of READs of the stand-in for an RDMA device
    refresh the generation that the dataset then has
    limit S the limit of a refresh is S seconds from now on
    die     as refresh, but ends the process once all ranks have come
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gear_data
from gear_data.dataset.stores import partitioned

OPTIONS = {"batch_size": 32, "context": 6, "seed": 5}


def digests(dataset: gear_data.Dataset, prefetch: int) -> Iterator[str]:
    for batch in gear_data.SequenceLoader(dataset, **OPTIONS, prefetch=prefetch):
        yield hashlib.sha256(batch["observations"].numpy().tobytes()).hexdigest()


def result_of(call: Callable[[], str]) -> str:
    """Returns the result of a call, or the error that it raises."""
    try:
        return call()
    except gear_data.GearError as error:
        return f"{type(error).__name__} {error.file}: {error.message}"


def main(path: str, options: str) -> None:
    opened: list[gear_data.Dataset] = []
    running: list[Iterator[str]] = []

    def open_dataset() -> str:
        opened.append(gear_data.open(path, cluster="torchrun", **ast.literal_eval(options)))
        running.append(digests(opened[0], 2))
        return "open"

    def reads() -> str:
        world: Any = sys.modules["tests.support.rdma.process_stand_in"].world
        return str(len(world.reads))

    def refresh() -> str:
        new = opened[0].refresh()
        running[0], opened[0] = digests(new, 2), new
        return str(new.generation)

    def limit(seconds: str) -> str:
        os.environ["GEAR_DATA_JOIN_TIMEOUT"] = seconds
        return "limit"

    def die() -> str:
        partitioned.await_generation = lambda *_: os._exit(3)
        return refresh()

    answers: dict[str, Callable[..., str]] = {"refresh": refresh, "limit": limit, "die": die, "reads": reads}
    answers |= {"first": lambda: next(digests(opened[0], 0)), "next": lambda: next(running[0])}
    print(result_of(open_dataset), flush=True)
    for line in sys.stdin:
        command, *arguments = line.split()
        print(result_of(partial(answers[command], *arguments)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
