"""Contender d3rlpy: a ReplayBuffer and TransitionMiniBatch, for its Q-learning."""

# mypy: disable-error-code="import-not-found, import-untyped"

from __future__ import annotations

import argparse
from typing import Any

import d3rlpy
import numpy as np
from harness import Feed, load_steps, main, versions_of


def build(args: argparse.Namespace) -> Feed:
    np.random.seed(args.seed)
    steps = load_steps(args.data)
    columns = steps.columns
    episodes = []
    for start, length, terminated in zip(steps.starts, steps.lengths, steps.terminated, strict=True):
        rows = slice(start, start + length)
        arrays = (columns[name][rows] for name in ("observations", "actions", "rewards"))
        episodes.append(d3rlpy.dataset.Episode(*arrays, terminated=bool(terminated)))
    buffer = d3rlpy.dataset.create_infinite_replay_buffer(episodes)

    def next_batch() -> dict[str, Any]:
        batch = buffer.sample_transition_batch(args.batch_size)
        return {
            "observations": batch.observations,
            "actions": batch.actions,
            "rewards": batch.rewards[:, 0],
            "next_observations": batch.next_observations,
            "terminals": batch.terminals[:, 0],
        }

    return Feed(
        next_batch=next_batch,
        windows=args.batch_size,
        notes="sample_transition_batch -> TransitionMiniBatch, with next actions and intervals; NumPy arrays (its own "
        "torch step is not counted); one thread",
        versions=versions_of("d3rlpy", "numpy", "torch"),
    )


if __name__ == "__main__":
    main(build, "Feed rate of d3rlpy's transition batches; --data is a folder of steps.")
