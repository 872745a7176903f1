"""Tests that the independent readings see what a damaged reader would do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

import gear_data
from tests.fuzz.plain_readings import READERS, differences, source_differs, statistics_differ
from tests.support.rollouts import make_rollouts
from tests.support.source_makers import MAKERS


@pytest.mark.parametrize("name", READERS)
def test_sources_are_compared(name: str, tmp_path: Path) -> None:
    rollouts = make_rollouts(4, seed=1, max_length=9)
    MAKERS[name](tmp_path / "s", rollouts)
    gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    dataset = gear_data.open(tmp_path / "d")
    assert source_differs(name, tmp_path / "s", dataset) is None
    assert np.concatenate(READERS[name](tmp_path / "s", "rewards")).size == dataset.num_steps
    assert source_differs(name, tmp_path / "s", dataset[: len(dataset) - 1]) is not None


def test_a_changed_value_is_seen(rollouts_path: Path) -> None:
    source = rollouts_path.parent / "source.hdf5"
    dataset = gear_data.open(rollouts_path)
    episodes = [{name: np.array(episode[name]) for name in episode} for episode in dataset]
    assert differences(rollouts_path, iter(episodes)) is None
    assert statistics_differ(rollouts_path, dataset.statistics) is None
    wrong = dict(dataset.statistics)
    wrong["rewards"] = replace(wrong["rewards"], mean=wrong["rewards"].mean + 1e-6)
    assert "rewards" in str(statistics_differ(rollouts_path, wrong))
    episodes[3]["rewards"][0] += 1
    assert "episode 3, column rewards" in str(differences(rollouts_path, iter(episodes)))
    folder = rollouts_path.parent / "sources"
    folder.mkdir()
    source.rename(folder / "source.hdf5")
    with h5py.File(folder / "source.hdf5", "r+") as file:
        file["rewards"][0] += 1
    assert source_differs("d4rl", folder, dataset) == "rewards: the values are not the source's"
