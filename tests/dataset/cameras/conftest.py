"""A dataset with two cameras."""

from __future__ import annotations

from typing import Any

import pytest

import gear_data
from tests.support.cameras.filmed import Filmed, film


@pytest.fixture(scope="session")
def filmed(sources: Any, tmp_path_factory: pytest.TempPathFactory) -> Filmed:
    folder = tmp_path_factory.mktemp("filmed")
    rollouts = sources.make_rollouts(5, seed=2)
    gear_data.convert(sources.write_d4rl(folder / "source.hdf5", rollouts), folder / "dataset", shard_bytes=1024)
    return Filmed(folder / "dataset", film(folder / "dataset", [len(rollout) for rollout in rollouts]))
