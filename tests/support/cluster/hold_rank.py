"""A rank of a run that torch.distributed knows nothing of yet: python hold_rank.py DATASET OPTIONS

Opens the dataset with these options, and says on a line how that went. After every line it reads it answers with one:

    first   what the observations of the first batch hash to
    next    those of the next batch of one loader, which makes them ahead
    reads   how many READs a stand-in for an RDMA device made
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gear_data

OPTIONS = {"batch_size": 32, "context": 6, "seed": 5}


def digests(dataset: gear_data.Dataset, prefetch: int) -> Iterator[str]:
    for batch in gear_data.SequenceLoader(dataset, **OPTIONS, prefetch=prefetch):
        yield hashlib.sha256(batch["observations"].numpy().tobytes()).hexdigest()


def told(call: Callable[[], str]) -> str:
    """What it returns, or the error that it raises."""
    try:
        return call()
    except gear_data.GearError as error:
        return f"{type(error).__name__} {error.file}: {error.message}"


def main(path: str, options: str) -> None:
    opened: list[gear_data.Dataset] = []
    running: list[Iterator[str]] = []

    def open_it() -> str:
        opened.append(gear_data.open(path, cluster="torchrun", **ast.literal_eval(options)))
        running.append(digests(opened[0], 2))
        return "open"

    def reads() -> str:
        world: Any = sys.modules["process_stand_in"].world
        return str(len(world.reads))

    answers = {"first": lambda: next(digests(opened[0], 0)), "next": lambda: next(running[0]), "reads": reads}
    print(told(open_it), flush=True)
    for line in sys.stdin:
        print(told(answers[line.strip()]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
