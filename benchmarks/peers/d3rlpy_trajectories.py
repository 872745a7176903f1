"""Contender d3rlpy: a ReplayBuffer and TrajectoryMiniBatch.

Its transformers train on TrajectoryMiniBatch.
"""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import argparse
from typing import Any

import d3rlpy
import numpy as np
from harness import Feed, load_steps, main, versions_of

DELIVERED = ("observations", "actions", "rewards", "returns_to_go", "terminals", "timesteps", "masks")


def build(args: argparse.Namespace) -> Feed:
    np.random.seed(args.seed)
    steps = load_steps(args.data)
    columns = steps.columns
    episodes = []
    for start, length, terminated in zip(steps.starts, steps.lengths, steps.terminated, strict=True):
        rows = slice(start, start + length)
        episodes.append(
            d3rlpy.dataset.Episode(
                columns["observations"][rows],
                columns["actions"][rows],
                columns["rewards"][rows],
                terminated=bool(terminated),
            )
        )
    buffer = d3rlpy.dataset.create_infinite_replay_buffer(episodes)

    def next_batch() -> dict[str, Any]:
        batch = buffer.sample_trajectory_batch(args.batch_size, length=args.context)
        return {name: getattr(batch, name) for name in DELIVERED}

    return Feed(
        next_batch=next_batch,
        windows=args.batch_size,
        notes="sample_trajectory_batch -> TrajectoryMiniBatch, left-padded, with terminals, timesteps as float32; "
        "NumPy arrays (its own torch step is not counted); one thread",
        versions=versions_of("d3rlpy", "numpy", "torch"),
    )


if __name__ == "__main__":
    main(build, "Feed rate of d3rlpy's trajectory batches; --data is a folder of steps.")
