"""A dataset with two cameras, whose frames were decoded in sequence."""

from __future__ import annotations

from typing import Any

import pytest

import gear_data
from tests.support.cameras.filmed import Filmed, film


@pytest.fixture(scope="session")
def filmed(sources: Any, tmp_path_factory: pytest.TempPathFactory) -> Filmed:
    """6 episodes. Tests do not change them."""
    folder = tmp_path_factory.mktemp("filmed")
    rollouts = sources.make_rollouts(6, seed=3)
    gear_data.convert(sources.write_d4rl(folder / "source.hdf5", rollouts), folder / "dataset", shard_bytes=2048)
    return Filmed(folder / "dataset", film(folder / "dataset", [len(rollout) for rollout in rollouts]))


@pytest.fixture
def dataset(filmed: Filmed) -> gear_data.Dataset:
    return gear_data.open(filmed.path)
