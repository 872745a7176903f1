"""A rank of a run that torch.distributed knows nothing of yet: python hold_rank.py DATASET

Says on a line how opening went, and after every line it reads what a batch's observations hash to.
"""

from __future__ import annotations

import hashlib
import sys

import gear_data

OPTIONS = {"batch_size": 32, "context": 6, "seed": 5, "prefetch": 0}


def digest(dataset: gear_data.Dataset) -> str:
    batch = next(iter(gear_data.SequenceLoader(dataset, **OPTIONS)))
    return hashlib.sha256(batch["observations"].numpy().tobytes()).hexdigest()


def told(call: object) -> str:
    """What it returns, or the error that it raises."""
    try:
        return call()  # type: ignore[operator,no-any-return]
    except gear_data.GearError as error:
        return f"{type(error).__name__} {error.file}: {error.message}"


def main(path: str) -> None:
    opened: list[gear_data.Dataset] = []
    print(told(lambda: [opened.append(gear_data.open(path, cluster="torchrun")), "open"][1]), flush=True)
    for _ in sys.stdin:
        print(told(lambda: digest(opened[0])), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
