"""Contender Decision Transformer loader, reimplemented from its algorithm.

The source is github.com/kzl/decision-transformer.

For each sequence of a batch the loader draws an episode in proportion to its length, then a first step. It slices the
columns and pads on the left (states with 0, actions with -10, the rest with 0). At the end it joins the pieces,
normalises states after padding, scales the return-to-go and returns torch tensors.

The code is as fast as this algorithm allows. Columns are float32 from the start, so there is no cast. Full windows skip
the padding. States are normalised once per batch. The done flags, which training never reads, are left out. By default
the return-to-go is sliced from a column computed once. `--returns published` sums it again for each window in a Python
loop, from the window's first step to the episode's end, as the published code does.

Steps without rewards (the raw contract) use the same loop without return-to-go and normalising, padded with zeros.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from harness import Feed, Steps, load_steps, main, versions_of

Array = npt.NDArray[Any]

MAX_EPISODE_STEPS = 1000
RETURN_SCALE = 1000.0
#: Padding values of the Decision Transformer's columns; zero for others.
FILL = {"actions": -10.0}


def summed_returns(rewards: Array) -> Array:
    totals = np.zeros_like(rewards)
    running = np.float32(0)
    for step in range(len(rewards) - 1, -1, -1):
        running = rewards[step] + running
        totals[step] = running
    return totals


def left_padded(piece: Array, context: int, fill: float) -> Array:
    if len(piece) == context:
        return piece
    return np.concatenate([np.full((context - len(piece), *piece.shape[1:]), fill, piece.dtype), piece])


class Loader:
    def __init__(self, steps: Steps, batch_size: int, context: int, seed: int, sum_returns: bool) -> None:
        self.batch_size, self.context, self.sum_returns = batch_size, context, sum_returns
        self.random = np.random.default_rng(seed)
        self.probability = steps.lengths / steps.lengths.sum()
        self.fill = FILL if "returns_to_go" in steps.columns else {}
        self.normalised = "returns_to_go" in steps.columns
        if self.normalised:
            observations = steps.columns["observations"]
            self.state_mean = observations.mean(axis=0)
            self.state_std = observations.std(axis=0) + np.float32(1e-6)
        self.episodes = [
            {name: column[start : start + length] for name, column in steps.columns.items()}
            for start, length in zip(steps.starts, steps.lengths, strict=True)
        ]

    def next_batch(self) -> dict[str, torch.Tensor]:
        chosen = self.random.choice(len(self.episodes), size=self.batch_size, p=self.probability)
        windows = [self.window(self.episodes[index]) for index in chosen]
        batch = {name: np.stack([window[name] for window in windows]) for name in windows[0]}
        if self.normalised:
            batch["observations"] = (batch["observations"] - self.state_mean) / self.state_std
            batch["returns_to_go"] /= np.float32(RETURN_SCALE)
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def window(self, episode: dict[str, Array]) -> dict[str, Array]:
        count = len(episode["actions"])
        first = int(self.random.integers(count))
        rows = slice(first, first + self.context)
        window = {name: column[rows] for name, column in episode.items()}
        if self.sum_returns:
            window["returns_to_go"] = summed_returns(episode["rewards"][first:])[: self.context]
        valid = min(count - first, self.context)
        window["timesteps"] = np.minimum(np.arange(first, first + valid), MAX_EPISODE_STEPS - 1)
        window["mask"] = np.ones(valid, np.float32)
        return {name: left_padded(piece, self.context, self.fill.get(name, 0)) for name, piece in window.items()}


def build(args: argparse.Namespace) -> Feed:
    published = args.returns == "published"
    loader = Loader(load_steps(args.data), args.batch_size, args.context, args.seed, sum_returns=published)
    returns = "summed again for every window, as published" if published else "sliced from a column made once"
    batch = f"return-to-go {returns}; left-padded, normalised" if loader.normalised else "no rewards; left-padded"
    return Feed(
        next_batch=loader.next_batch,
        windows=args.batch_size,
        notes=f"reimplemented from the published algorithm, {batch}; torch tensors; one thread",
        versions=versions_of("numpy", "torch"),
    )


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--returns",
        choices=("column", "published"),
        default="column",
        help="return-to-go from a column made once, or summed for every window as in the published code",
    )


if __name__ == "__main__":
    main(build, "Feed rate of Decision Transformer's loader; --data is a folder of steps.", configure)
