"""The data of the episode viewer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.reports.viewer import ViewerSize, viewed_positions, viewer_data
from tests.reports.conftest import Make, named_dataset, random_episodes


def viewed(ds: gear_data.Dataset) -> dict[str, Any]:
    return viewer_data(ds, np.arange(len(ds)), 0, ViewerSize())


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


def pictured(lengths: list[int], noise: float, side: int = 64) -> list[dict[str, Any]]:
    """Returns episodes with a column of pictures, `noise` of 1 of which do not compress."""
    rng = np.random.default_rng(0)
    episodes = random_episodes(lengths)
    for episode in episodes:
        frames = rng.integers(0, 256, (len(episode["rewards"]), side, side, 3)) * noise
        episode["observations.image"] = frames.astype(np.uint8)
    return episodes


def test_pictures_fill_the_size_that_they_may_have(make: Make) -> None:
    lengths = [100, 37, 60, 80, 90]
    for noise in (0.1, 1):
        ds = make(pictured(lengths, noise))
        found = viewer_data(ds, np.arange(5), 0, ViewerSize(picture_bytes=300_000))
        used = 0
        for episode in found["episodes"]:
            steps, (images,) = episode["frames"]["steps"], episode["frames"]["images"]
            assert len(steps) == len(images) >= 3
            assert (steps[0], steps[-1]) == (0, episode["length"] - 1)
            assert steps == sorted(set(steps))
            used += sum(map(len, images))
        assert used <= 1.05 * 300_000
        every = all(len(each["frames"]["steps"]) == each["length"] for each in found["episodes"])
        assert every or used > 0.8 * 300_000


def test_frames_are_as_many_as_asked(make: Make) -> None:
    ds = make(pictured([20, 3], 1))
    found = viewer_data(ds, np.arange(2), 5, ViewerSize(picture_bytes=1))
    assert [each["frames"]["steps"] for each in found["episodes"]] == [[0, 5, 10, 14, 19], [0, 1, 2]]


@pytest.mark.parametrize(("viewers", "episodes"), [(1, 12), (3, 4), (100, 3)])
def test_viewers_of_one_page_share_its_size(viewers: int, episodes: int, make: Make) -> None:
    ds = make(random_episodes([30] * 50))
    size = ViewerSize(12, 4000, 1).shared(viewers)
    positions = viewed_positions(ds, {}, np.arange(50), 0, ViewerSize(12, 10**6, 1).shared(viewers))
    assert len(positions) == episodes
    returns = ds.episodes["return"].to_numpy()
    assert {returns.argmin(), returns.argmax()} <= set(positions.tolist())
    found = viewer_data(ds, positions, 0, size)
    width = sum(len(each) for each in found["episodes"][0]["values"])
    assert found["points"] == max(20, min(200, 4000 // viewers // (width * episodes)))
    assert all(len(each["steps"]) == min(30, found["points"]) for each in found["episodes"])


def test_the_rate_of_the_source(tmp_path: Path, make: Make) -> None:
    assert viewed(named_dataset(tmp_path, ["a"], ["b"]))["rate"] == 30
    assert viewed(make(random_episodes([4])))["rate"] is None


def test_pictures_do_not_depend_on_how_many_are_decoded_at_once(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = make(pictured([7], 1))
    found = viewer_data(ds, np.arange(1), 0, ViewerSize())["episodes"][0]["frames"]
    assert len(set(found["images"][0])) == 7
    monkeypatch.setattr("gear_data.reports.pictures._DECODED_BYTES", 3 * 64 * 64 * 3)
    assert viewer_data(ds, np.arange(1), 0, ViewerSize())["episodes"][0]["frames"] == found
