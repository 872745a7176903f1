"""Datasets that the tests of reports share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gear_data
from tests.support.rollouts import Rollout, make_rollouts, write_episodes, write_lerobot

Make = Callable[..., gear_data.Dataset]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """make([{column: values}, ...], fact=[...]) -> the dataset of these episodes; facts have a value for each."""
    count = 0

    def convert(episodes: list[dict[str, npt.NDArray[Any]]], **facts: Any) -> gear_data.Dataset:
        nonlocal count
        count += 1
        rollouts = [Rollout(columns, np.zeros(0)) for columns in episodes]
        source = write_episodes(tmp_path / f"source-{count}.parquet", rollouts, **facts)
        gear_data.convert(source, tmp_path / f"made-{count}", progress=False)
        return gear_data.open(tmp_path / f"made-{count}")

    return convert


def random_episodes(
    lengths: list[int], seed: int = 0, states: int = 3, actions: int = 2
) -> list[dict[str, npt.NDArray[Any]]]:
    """Returns episodes of normal numbers that terminate and are truncated in turn."""
    rng = np.random.default_rng(seed)
    found = []
    for i, length in enumerate(lengths):
        last = np.arange(length) == length - 1
        found.append(
            {
                "observations": rng.normal(size=(length, states)).astype(np.float32).cumsum(axis=0),
                "actions": rng.normal(size=(length, actions)).astype(np.float32),
                "rewards": rng.normal(size=length).astype(np.float32),
                "terminated": last & (i % 2 == 0),
                "truncated": last & (i % 2 == 1),
            }
        )
    return found


def named_dataset(
    folder: Path, state: list[str], action: list[str], rollouts: list[Rollout] | None = None
) -> gear_data.Dataset:
    """Converts a LeRobot dataset whose elements have these names."""
    if rollouts is None:
        rollouts = make_rollouts(3, seed=1, states=len(state), actions=len(action))
    source = write_lerobot(folder / "source", rollouts)
    path = source / "meta" / "info.json"
    info = json.loads(path.read_text())
    for name, feature in info["features"].items():
        if name in ("observation.state", "action"):
            feature["names"] = state if name == "observation.state" else action
    path.write_text(json.dumps(info))
    gear_data.convert(source, folder / "made", progress=False)
    return gear_data.open(folder / "made")
