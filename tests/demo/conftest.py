"""Dataset of the trainer's tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gear_data


@pytest.fixture(scope="session")
def dataset(sources: Any, tmp_path_factory: pytest.TempPathFactory) -> gear_data.Dataset:
    """Dataset whose actions a model can learn from the observations.

    The actions are (tanh(o0 - o1), tanh(o2) / 2).
    """
    folder = tmp_path_factory.mktemp("learnable")
    rollouts = []
    for rollout in sources.make_rollouts(40, seed=3, max_length=25):
        o = rollout.columns["observations"]
        actions = np.stack([np.tanh(o[:, 0] - o[:, 1]), np.tanh(o[:, 2]) / 2], axis=1)
        rollouts.append(rollout.with_columns(actions=actions))
    gear_data.convert(sources.write_episodes(folder / "source.parquet", rollouts), folder / "dataset")
    return gear_data.open(folder / "dataset")
