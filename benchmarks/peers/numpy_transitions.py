"""Contender NumPy: random rows of arrays, as loops over D4RL's datasets take them."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from harness import Feed, load_steps, main, transitions_of, versions_of


def build(args: argparse.Namespace) -> Feed:
    random = np.random.default_rng(args.seed)
    arrays = transitions_of(load_steps(args.data))
    count = len(arrays["rewards"])

    def next_batch() -> dict[str, Any]:
        rows = random.integers(0, count, args.batch_size)
        return {name: array[rows] for name, array in arrays.items()}

    return Feed(
        next_batch=next_batch,
        windows=args.batch_size,
        notes="array[rows] of five arrays in memory, next observations stored; NumPy arrays; one thread",
        versions=versions_of("numpy"),
    )


if __name__ == "__main__":
    main(build, "Feed rate of a NumPy index loop; --data is a folder of steps.")
