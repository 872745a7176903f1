"""`split_by`: views by the values of a column of the episode table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gear_data
from gear_data.errors import InvalidArgumentError, UnknownNameError

STEP = {"observations": np.zeros((1, 1), np.float32), "actions": np.zeros((1, 1)), "rewards": np.zeros(1)}
FACTS = [
    {"split": "val", "seed": 3, "success": True},
    {"split": "train", "seed": 1, "success": False},
    {"seed": 3, "success": None},
    {"split": "train", "seed": None, "success": True},
    {"split": "val", "seed": 1, "success": True},
]


@pytest.fixture
def dataset(tmp_path: Path) -> gear_data.Dataset:
    episodes = [{**STEP, "split": None, **facts, "rewards": np.full(1, i)} for i, facts in enumerate(FACTS)]
    gear_data.convert(episodes, tmp_path / "d", progress=False)
    return gear_data.open(tmp_path / "d")


@pytest.mark.parametrize("column", ["split", "seed", "success"])
def test_every_episode_is_in_the_view_of_its_value(column: str, dataset: gear_data.Dataset) -> None:
    expected: dict[object, list[int]] = {}
    for index, facts in enumerate(FACTS):
        expected.setdefault(facts.get(column), []).append(index)
    views = dataset.split_by(column)
    assert list(views) == list(expected)
    assert {value: view.episodes["episode_id"].to_list() for value, view in views.items()} == expected


def test_views_of_views(dataset: gear_data.Dataset) -> None:
    views = dataset.select([1, 3, 4]).split_by("split")
    assert {name: [float(episode["rewards"][0]) for episode in view] for name, view in views.items()} == {
        "train": [1.0, 3.0],
        "val": [4.0],
    }
    assert [len(view) for view in dataset.split_by("terminated").values()] == [5]


def test_columns_that_name_nothing(dataset: gear_data.Dataset) -> None:
    with pytest.raises(UnknownNameError, match="splits"):
        dataset.split_by("splits")
    for column in ("return", "content"):
        with pytest.raises(InvalidArgumentError, match=rf"'{column}' of type"):
            dataset.split_by(column)
