"""The data of the episode viewer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.reports.viewer import viewer_data
from tests.reports.conftest import Make, named_dataset, random_episodes


def viewed(ds: gear_data.Dataset) -> dict[str, Any]:
    return viewer_data(ds, np.arange(len(ds)), 0)


def test_the_task_of_each_episode(make: Make) -> None:
    ds = make(random_episodes([4, 5, 6]), task=["lift", None, "x" * 400])
    assert [each["task"] for each in viewed(ds)["episodes"]] == ["lift", None, "x" * 300]
    assert [each["task"] for each in viewed(make(random_episodes([4])))["episodes"]] == [None]


@pytest.mark.parametrize(
    ("state", "action", "overlays", "overlaid"),
    [
        (["a", "b"], ["a", "b"], {"a": (0, 0), "b": (1, 1)}, {"observations", "actions"}),
        (["b", "a", "c"], ["a", "b"], {"a": (1, 0), "b": (0, 1)}, {"actions"}),
        (["a", "b"], ["x", "y"], {}, set()),
    ],
)
def test_elements_of_one_name_are_overlaid(
    tmp_path: Path, state: list[str], action: list[str], overlays: dict[str, tuple[int, int]], overlaid: set[str]
) -> None:
    found = viewed(named_dataset(tmp_path, state, action))
    names = [column["name"] for column in found["columns"]]
    lines = {each["name"]: {(names[c], i) for c, i in each["lines"]} for each in found["overlays"]}
    assert lines == {name: {("observations", first), ("actions", second)} for name, (first, second) in overlays.items()}
    assert {column["name"] for column in found["columns"] if column["overlaid"]} == overlaid


def test_elements_without_names_are_not_overlaid(make: Make) -> None:
    found = viewed(make(random_episodes([4, 5])))
    assert found["overlays"] == []
    assert not any(column["overlaid"] for column in found["columns"])
