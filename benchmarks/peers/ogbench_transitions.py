"""Contender OGBench: `Dataset.sample`, reimplemented from its algorithm.

The class is in impls/utils/datasets.py of github.com/seohongpark/ogbench, which the package does not contain. `sample`
draws rows by `np.random.randint`, and takes them from each array by `jax.tree_util.tree_map`.
"""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import argparse
from typing import Any

import jax
import numpy as np
from harness import Feed, load_steps, main, transitions_of, versions_of


def build(args: argparse.Namespace) -> Feed:
    np.random.seed(args.seed)
    arrays = transitions_of(load_steps(args.data))
    count = len(arrays["rewards"])

    def next_batch() -> dict[str, Any]:
        rows = np.random.randint(count, size=args.batch_size)
        batch: dict[str, Any] = jax.tree_util.tree_map(lambda array: array[rows], arrays)
        return batch

    return Feed(
        next_batch=next_batch,
        windows=args.batch_size,
        notes="reimplemented from the published algorithm; five arrays in memory, next observations stored; NumPy "
        "arrays; one thread",
        versions=versions_of("jax", "numpy"),
    )


if __name__ == "__main__":
    main(build, "Feed rate of OGBench's Dataset.sample; --data is a folder of steps.")
