"""Two datasets of equal layout, and ways to put one in the place of the other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gear_data

EPISODES, STEPS = 8, 40
#: Most columns of the first dataset hold `OLD` only, and `NEW` in the second.
OLD, NEW = 1, 2


def convert(folder: Path, value: int, **options: Any) -> Path:
    """Converts a dataset of one value, in one shard per episode.

    The files of two such datasets have the same names and sizes.
    """
    episodes = [
        {
            "observations": np.full((STEPS + 1, 8), value, np.float32),
            "actions": np.full(STEPS, value),
            "rewards": np.full(STEPS, value, np.float32),
            "text": [f"value {value}"] * STEPS,
            "infos.number": np.full(STEPS, number),
            "terminated": True,
            "seed": value,
        }
        for number in range(EPISODES)
    ]
    gear_data.convert(episodes, folder, shard_bytes=1 << 10, **options)
    return folder


def overwrite(folder: Path) -> None:
    """Replaces a dataset as `gear-data convert --overwrite` does."""
    convert(folder, NEW, overwrite=True)


def move(folder: Path) -> None:
    """Moves the dataset away, and another dataset to its place."""
    folder.rename(folder.with_name("old"))
    convert(folder, NEW)


def copy_over(folder: Path) -> None:
    """Copies another dataset's files over the files."""
    other = convert(folder.with_name("other"), NEW)
    shutil.copytree(other, folder, dirs_exist_ok=True)


def remove(folder: Path) -> None:
    """Removes the dataset."""
    shutil.rmtree(folder)


REPLACEMENTS: tuple[Callable[[Path], None], ...] = (overwrite, move, copy_over, remove)
