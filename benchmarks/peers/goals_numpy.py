"""Contender OGBench's GCDataset, reimplemented in NumPy from its definition.

The source is `impls/utils/datasets.py` of github.com/seohongpark/ogbench.

A batch has uniform transitions of a compact dataset, whose next observations are the following rows. Value goals are
the current step (0.2), a geometric later step (0.5), or a random one (0.3); actor goals are uniform later steps.
Rewards and masks say whether the value goal is reached. All columns are NumPy arrays in memory; each is indexed once
for a batch, and the result becomes a torch tensor.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from harness import Feed, IntArray, Steps, load_steps, main, versions_of

DISCOUNT = 0.99


class Loader:
    def __init__(self, steps: Steps, batch_size: int, seed: int) -> None:
        self.batch_size = batch_size
        self.random = np.random.default_rng(seed)
        self.observations, self.actions = steps.columns["observations"], steps.columns["actions"]
        last = np.cumsum(steps.lengths) - 1
        # The last state of an episode has no transition.
        self.valid: IntArray = np.setdiff1d(np.arange(len(steps)), last)
        self.last: IntArray = last - 1

    def goals(self, at: IntArray, current: float, trajectory: float, geometric: bool) -> IntArray:
        size, random = len(at), self.random
        anywhere = self.valid[random.integers(len(self.valid), size=size)]
        last = self.last[np.searchsorted(self.last, at)]
        if geometric:
            later = np.minimum(at + random.geometric(1 - DISCOUNT, size=size), last)
        else:
            distance = random.random(size)
            later = np.round(np.minimum(at + 1, last) * distance + last * (1 - distance)).astype(np.int64)
        drawn = np.where(random.random(size) < trajectory / (1 - current), later, anywhere)
        return np.where(random.random(size) < current, at, drawn)

    def next_batch(self) -> dict[str, torch.Tensor]:
        at = self.valid[self.random.integers(len(self.valid), size=self.batch_size)]
        value, actor = self.goals(at, 0.2, 0.5, True), self.goals(at, 0.0, 1.0, False)
        reached = (at == value).astype(np.float32)
        batch: dict[str, npt.NDArray[Any]] = {
            "observations": self.observations[at],
            "actions": self.actions[at],
            "next_observations": self.observations[at + 1],
            "value_goals": self.observations[value],
            "actor_goals": self.observations[actor],
            "rewards": reached - 1,
            "masks": 1 - reached,
        }
        return {name: torch.from_numpy(array) for name, array in batch.items()}


def build(args: argparse.Namespace) -> Feed:
    return Feed(
        next_batch=Loader(load_steps(args.data), args.batch_size, args.seed).next_batch,
        windows=args.batch_size,
        notes="reimplemented from the published definition; torch tensors; one thread",
        versions=versions_of("numpy", "torch"),
    )


if __name__ == "__main__":
    main(build, "Feed rate of OGBench's GCDataset; --data is a folder of steps.")
