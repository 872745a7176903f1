"""Contender NumPy: windows of two arrays, joined by np.concatenate."""

from __future__ import annotations

import argparse

import numpy as np
from harness import Feed, load_steps, main, raw_windows


def build(args: argparse.Namespace) -> Feed:
    steps = load_steps(args.data)
    observations = steps.columns["observations"]
    half = observations.shape[1] // 2
    halves = [np.ascontiguousarray(part) for part in (observations[:, :half], observations[:, half:])]
    return raw_windows(
        args,
        steps,
        lambda rows: np.concatenate([part[rows] for part in halves], axis=-1),
        notes="array[rows] of each column; whole windows only, nothing padded; NumPy arrays; one thread",
    )


if __name__ == "__main__":
    main(build, "Feed rate of a NumPy loop that joins two columns; --data is a folder of steps.")
