"""Datasets whose episodes have names, timestamps, and runs without motion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data

LENGTHS = (34, 12, 9, 30, 1, 27, 18, 40)


def make_episodes() -> list[dict[str, Any]]:
    """Returns episodes of which the actions stand still now and then, for 1 to 12 steps."""
    rng = np.random.default_rng(5)
    episodes = []
    for number, length in enumerate(LENGTHS):
        moves = rng.normal(size=(length, 2))
        step = 0
        while step < length:
            still = int(rng.integers(1, 13))
            moves[step : step + still] = rng.uniform(-4e-4, 4e-4, (len(moves[step : step + still]), 2))
            step += still + int(rng.integers(1, 9))
        episodes.append(
            {
                "observations": rng.normal(size=(length, 3)).astype(np.float32),
                "actions": moves.cumsum(axis=0).astype(np.float32),
                "counts": rng.integers(0, 2, (length, 1)).astype(np.uint8),
                "rewards": rng.normal(size=length),
                "prompt": [f"{number} {step}" for step in range(length)],
                "timestamp": np.arange(length) / 10,
                "name": f"demo-{number}",
                "task": "open" if number % 3 else "close",
                "recording_folderpath": f"gs://r/{number // 2}/MP4",
                "file_path": f"gs://r/{number // 2}/{number % 2}.h5",
                "alias": str(number + 3) if number in (1, 6) else None,
            }
        )
    return episodes


@pytest.fixture(scope="session")
def episodes() -> list[dict[str, Any]]:
    return make_episodes()


@pytest.fixture(scope="session")
def named(episodes: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("named") / "data"
    gear_data.convert(episodes, folder, shard_bytes=2048, progress=False)
    return folder


@pytest.fixture
def ds(named: Path) -> gear_data.Dataset:
    dataset = gear_data.open(named)
    assert len(dataset.manifest.shards) > 2
    return dataset
