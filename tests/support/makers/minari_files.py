"""Minari HDF5 files for tests/ingest/sources/minari. Not a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer

from gear_data.ingest.location import locate
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.minari import hdf5 as minari_format
from gear_data.storage.episode_block import BEGIN, END, EpisodeBlock

Write = Callable[..., Path]
MAIN = "data/main_data.hdf5"
METADATA = "data/metadata.json"


def episode(
    steps: int, observations: Any, *, actions: Any = None, rewards: Any = None, infos: Any = None, **facts: Any
) -> EpisodeBuffer:
    """An episode that terminates after `steps` steps."""
    return EpisodeBuffer(
        observations=observations,
        actions=list(range(steps)) if actions is None else actions,
        rewards=[0.5] * steps if rewards is None else rewards,
        terminations=[False] * (steps - 1) + [True],
        truncations=[False] * steps,
        infos=infos,
        **facts,
    )


def plain(write: Write, lengths: tuple[int, ...] = (3, 1, 4), **options: Any) -> Path:
    """A dataset of vectors, in which all numbers are different."""
    rng = np.random.default_rng(0)
    buffers = [episode(n, rng.normal(size=(n + 1, 2)), seed=i, **options) for i, n in enumerate(lengths)]
    return write(buffers, spaces.Box(-9, 9, (2,), np.float64), spaces.Discrete(99))


def blocks(source: Path, **options: Any) -> tuple[EpisodeBlock, dict[str, Any]]:
    """Reads a source that fits one block; returns it, and findings by code and column.

    The findings include those made when the source was opened.
    """
    opened = minari_format.open_(locate(str(source), None), SourceOptions(**options))
    (block,) = list(opened.blocks(BEGIN, END))
    return block, {f.code if f.column is None else f"{f.code} {f.column}": f for f in opened.findings}


def nested_dataset(write: Write) -> Path:
    """Writes a dataset with Dict, Tuple and Text spaces."""
    space = spaces.Dict(
        {
            "grid": spaces.Box(0, 255, (2, 2, 3), np.uint8),
            "pair": spaces.Tuple((spaces.Discrete(5), spaces.Box(-9, 9, (3,), np.float32))),
            "mission": spaces.Text(50, charset="abcdefghijklmnopqrstuvwxyz éß"),
        }
    )
    rng = np.random.default_rng(1)
    buffers = []
    for i, steps in enumerate((2, 1, 3)):
        rows = steps + 1
        observations = {
            "grid": rng.integers(0, 256, (rows, 2, 2, 3), np.uint8),
            "pair": (rng.integers(0, 5, rows), rng.normal(size=(rows, 3)).astype(np.float32)),
            "mission": [f"go to é {i} {t}" for t in range(rows)],
        }
        actions = (list(range(steps)), rng.normal(size=(steps, 2)).astype(np.float32))
        infos = {"x": rng.normal(size=rows), "deep": {"y": rng.integers(0, 9, (rows, 2))}}
        options = {"level": i, "room": {"colour": "red"}}
        buffers.append(episode(steps, observations, actions=actions, infos=infos, options=options))
    return write(buffers, space, spaces.Tuple((spaces.Discrete(9), spaces.Box(-9, 9, (2,), np.float32))))
