"""Contender NumPy: random images of an array, padded and cut at random places.

This is DrQ's shift (Kostrikov et al., 2020), as loops over arrays of images do it.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import numpy.typing as npt
from harness import PAD, Feed, IntArray, load_steps, main, raw_windows


def build(args: argparse.Namespace) -> Feed:
    steps = load_steps(args.data)
    random = np.random.default_rng(args.seed + 1)
    images = steps.columns["observations"]
    height, width = images.shape[1:3]
    around = ((0, 0), (0, 0), (PAD, PAD), (PAD, PAD), *[(0, 0)] * (images.ndim - 3))

    def shifted(rows: IntArray) -> npt.NDArray[Any]:
        padded = np.pad(images[rows], around, mode="edge")
        places = random.integers(0, 2 * PAD + 1, (len(rows), 2))
        return np.stack(
            [window[:, y : y + height, x : x + width] for window, (y, x) in zip(padded, places, strict=True)]
        )

    return raw_windows(
        args,
        steps,
        shifted,
        notes="np.pad(mode='edge'), then a slice of each image; whole windows only; NumPy arrays; one thread",
    )


if __name__ == "__main__":
    main(build, "Feed rate of a NumPy loop that shifts images; --data is a folder of steps.")
