"""Dataset of the tests of views: thirty episodes with images, tasks and levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import gear_data
from tests.support.views import TASKS


def per_episode_columns(rollouts: list[Any]) -> dict[str, Any]:
    """Returns the columns of the episodes: final observations, tasks and levels."""
    finals = [r.final.tolist() if i % 2 else None for i, r in enumerate(rollouts)]
    return {
        "final_observations": pl.Series(finals, dtype=pl.List(pl.Float32)).to_arrow(),
        "task": [TASKS[i % len(TASKS)] for i in range(len(rollouts))],
        "level": [i % 7 if i % 5 else None for i in range(len(rollouts))],
    }


@pytest.fixture(scope="module")
def rollouts(sources: Any) -> list[Any]:
    """Thirty episodes with an image column.

    `per_episode_columns` removes every other final observation.
    """
    rng = np.random.default_rng(2)
    return [
        r.with_columns(**{"observations.image": rng.integers(0, 256, (len(r), 2, 3), dtype=np.uint8)})
        for r in sources.make_rollouts(30, seed=21)
    ]


@pytest.fixture(scope="module")
def path(rollouts: list[Any], sources: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("views")
    source = sources.write_episodes(folder / "source.parquet", rollouts, **per_episode_columns(rollouts))
    assert gear_data.convert(source, folder / "dataset", shard_bytes=2048).shards > 3
    return folder / "dataset"


@pytest.fixture(scope="module")
def ds(path: Path) -> gear_data.Dataset:
    return gear_data.open(path)
