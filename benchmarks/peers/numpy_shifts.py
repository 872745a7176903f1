"""Contender NumPy: random images of an array, padded and cut at random places.

This is DrQ's shift (Kostrikov et al., 2020), as loops over arrays of images do it.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from harness import PAD, Feed, draw_windows, load_steps, main, versions_of


def build(args: argparse.Namespace) -> Feed:
    steps = load_steps(args.data)
    draw = draw_windows(steps, args.batch_size, args.context, args.seed)
    random = np.random.default_rng(args.seed + 1)
    images, actions = steps.columns["observations"], steps.columns["actions"]
    height, width = images.shape[1:3]
    around = ((0, 0), (0, 0), (PAD, PAD), (PAD, PAD), *[(0, 0)] * (images.ndim - 3))

    def next_batch() -> dict[str, Any]:
        rows = draw()
        padded = np.pad(images[rows], around, mode="edge")
        places = random.integers(0, 2 * PAD + 1, (len(rows), 2))
        shifted = [window[:, y : y + height, x : x + width] for window, (y, x) in zip(padded, places, strict=True)]
        return {
            "observations": np.stack(shifted),
            "actions": actions[rows],
            "timesteps": steps.timesteps[rows],
            "mask": np.ones(rows.shape, np.float32),
        }

    return Feed(
        next_batch=next_batch,
        windows=args.batch_size,
        notes="np.pad(mode='edge'), then a slice of each image; whole windows only; NumPy arrays; one thread",
        versions=versions_of("numpy"),
    )


if __name__ == "__main__":
    main(build, "Feed rate of a NumPy loop that shifts images; --data is a folder of steps.")
