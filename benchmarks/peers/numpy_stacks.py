"""Contender NumPy: windows of two arrays, joined by np.concatenate."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from harness import Feed, draw_windows, load_steps, main, versions_of


def build(args: argparse.Namespace) -> Feed:
    steps = load_steps(args.data)
    draw = draw_windows(steps, args.batch_size, args.context, args.seed)
    observations, actions = steps.columns["observations"], steps.columns["actions"]
    half = observations.shape[1] // 2
    halves = [np.ascontiguousarray(part) for part in (observations[:, :half], observations[:, half:])]

    def next_batch() -> dict[str, Any]:
        rows = draw()
        return {
            "observations": np.concatenate([part[rows] for part in halves], axis=-1),
            "actions": actions[rows],
            "timesteps": steps.timesteps[rows],
            "mask": np.ones(rows.shape, np.float32),
        }

    return Feed(
        next_batch=next_batch,
        windows=args.batch_size,
        notes="array[rows] of each column; whole windows only, nothing padded; NumPy arrays; one thread",
        versions=versions_of("numpy"),
    )


if __name__ == "__main__":
    main(build, "Feed rate of a NumPy loop that joins two columns; --data is a folder of steps.")
