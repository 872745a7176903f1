"""Contender floor: a compiled program that draws and gathers gear-data's batches, and does nothing else.

By default each batch has new tensors. With `--kept` all batches are in the same memory, which stays in the cache.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

from floor_batches import Floor
from harness import Feed, load_steps, main, versions_of


def build(args: argparse.Namespace) -> Feed:
    floor = Floor(load_steps(args.data), args.contract, args.batch_size, args.context, args.seed, fresh=not args.kept)
    steps = itertools.count()

    def next_batch() -> dict[str, Any]:
        return floor.batch(next(steps))

    memory = "all batches in the same memory" if args.kept else "each batch in new tensors"
    return Feed(
        next_batch=next_batch,
        windows=args.batch_size,
        notes=f"compiled by {floor.compiler}; gear-data's windows and arrays; {memory}; one thread",
        versions=versions_of("numpy", "torch"),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kept", action="store_true", help="put all batches in the same memory")


if __name__ == "__main__":
    main(build, "Feed rate of a compiled program; --data is a folder of steps.", configure)
