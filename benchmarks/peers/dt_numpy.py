"""Decision Transformer's own loader, reimplemented from the published algorithm (github.com/kzl/decision-transformer).

An honest stand-in and not a copy. For each sequence of a batch it draws an episode in proportion to its length, then a
first step; slices the columns; pads on the left (states with 0, actions with -10, the rest with 0); at the end joins
the pieces, normalises states after padding, scales the return-to-go and hands torch tensors over.

Nothing slows it down on purpose: columns are float32 from the start, so that no cast is paid; whole windows skip the
padding; normalising is done once a batch; the done flags, which training never reads, are left out; and by default the
return-to-go is sliced from a column made once. `--returns published` sums it anew for every window in a Python loop
from the window's first step to the episode's end, as the published code does.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from harness import Feed, FloatArray, Steps, load_steps, main, versions_of

Array = npt.NDArray[Any]

MAX_EPISODE_STEPS = 1000
RETURN_SCALE = 1000.0


def summed_returns(rewards: FloatArray) -> FloatArray:
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
        self.state_mean = steps.observations.mean(axis=0)
        self.state_std = steps.observations.std(axis=0) + np.float32(1e-6)
        self.episodes = [
            {
                "states": steps.observations[start : start + length],
                "actions": steps.actions[start : start + length],
                "rewards": steps.rewards[start : start + length, None],
                "returns_to_go": steps.returns_to_go[start : start + length, None],
            }
            for start, length in zip(steps.starts, steps.lengths, strict=True)
        ]

    def next_batch(self) -> dict[str, torch.Tensor]:
        chosen = self.random.choice(len(self.episodes), size=self.batch_size, p=self.probability)
        windows = [self.window(self.episodes[index]) for index in chosen]
        batch = {name: np.stack([window[name] for window in windows]) for name in windows[0]}
        batch["states"] = (batch["states"] - self.state_mean) / self.state_std
        batch["returns_to_go"] /= np.float32(RETURN_SCALE)
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def window(self, episode: dict[str, Array]) -> dict[str, Array]:
        first = int(self.random.integers(len(episode["rewards"])))
        rows = slice(first, first + self.context)
        states = episode["states"][rows]
        if self.sum_returns:
            returns = summed_returns(episode["rewards"][first:])[: self.context]
        else:
            returns = episode["returns_to_go"][rows]
        timesteps = np.minimum(np.arange(first, first + len(states)), MAX_EPISODE_STEPS - 1)
        return {
            "states": left_padded(states, self.context, 0),
            "actions": left_padded(episode["actions"][rows], self.context, -10),
            "rewards": left_padded(episode["rewards"][rows], self.context, 0),
            "returns_to_go": left_padded(returns, self.context, 0),
            "timesteps": left_padded(timesteps, self.context, 0),
            "mask": left_padded(np.ones(len(states), np.float32), self.context, 0),
        }


def build(args: argparse.Namespace) -> Feed:
    published = args.returns == "published"
    loader = Loader(load_steps(args.data), args.batch_size, args.context, args.seed, sum_returns=published)
    returns = "summed anew for every window, as published" if published else "sliced from a column made once"
    return Feed(
        next_batch=loader.next_batch,
        windows=args.batch_size,
        notes=f"reimplemented from the published algorithm, return-to-go {returns}; left-padded, normalised; "
        "torch tensors; one thread",
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
    main(build, "Feed rate of Decision Transformer's loader; --data is the .npz that feed.py writes.", configure)
