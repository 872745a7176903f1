"""Datasets with cameras: converted, exported to LeRobot, and converted again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from tests.support.cameras.filmed import FPS, FRONT, WRIST, film

pytestmark = pytest.mark.processes


@pytest.fixture
def converted(sources: Any, tmp_path: Path) -> gear_data.Dataset:
    """A dataset whose source is a LeRobot dataset with two cameras."""
    rollouts = sources.make_rollouts(5, seed=2)
    gear_data.convert(sources.write_d4rl(tmp_path / "source.hdf5", rollouts), tmp_path / "filmed")
    film(tmp_path / "filmed", [len(rollout) for rollout in rollouts])
    gear_data.export(gear_data.open(tmp_path / "filmed"), tmp_path / "lerobot", "lerobot", fps=FPS)
    gear_data.convert(tmp_path / "lerobot", tmp_path / "converted", progress=False)
    return gear_data.open(tmp_path / "converted")


def round_trip(ds: gear_data.Dataset, tmp_path: Path, **arguments: Any) -> gear_data.Dataset:
    gear_data.export(ds, tmp_path / "out", "lerobot", **arguments)
    gear_data.convert(tmp_path / "out", tmp_path / "again", progress=False)
    return gear_data.open(tmp_path / "again")


def test_copied_files_give_an_equal_dataset(converted: gear_data.Dataset, tmp_path: Path) -> None:
    again = round_trip(converted, tmp_path)
    assert again.fingerprint == converted.fingerprint
    filmed = gear_data.open(tmp_path / "filmed")
    for camera in (FRONT, WRIST):
        for found, first in zip(again, filmed, strict=True):
            np.testing.assert_array_equal(found[camera], first[camera])


def test_a_view_has_nearly_equal_frames(converted: gear_data.Dataset, tmp_path: Path) -> None:
    view = converted[[0, 2, 3]]
    again = round_trip(view, tmp_path)
    assert again.num_steps == view.num_steps
    for found, first in zip(again, view, strict=True):
        np.testing.assert_array_equal(found["observations"], first["observations"])
        assert np.abs(np.asarray(found[FRONT], int) - np.asarray(first[FRONT])).mean() < 6
        np.testing.assert_array_equal(found[WRIST], first[WRIST])  # one file an episode


def test_encoding_again_changes_the_fingerprint(converted: gear_data.Dataset, tmp_path: Path) -> None:
    again = round_trip(converted, tmp_path, video_codec="h264")
    assert again.fingerprint != converted.fingerprint
    for found, first in zip(again, converted, strict=True):
        assert np.abs(np.asarray(found[WRIST], int) - np.asarray(first[WRIST])).mean() < 6


@pytest.mark.parametrize("codec", ["av1", "h264"])
def test_packets_of_views_are_copied_from_key_frames_on(
    converted: gear_data.Dataset, tmp_path: Path, codec: str
) -> None:
    # Every episode begins with a key frame here, as in LeRobot's own files.
    encoded = round_trip(converted, tmp_path, video_codec=codec)
    view = encoded[[0, 2, 4]]
    report = gear_data.export(view, tmp_path / "view", "lerobot")
    assert report.notes == ()
    gear_data.convert(tmp_path / "view", tmp_path / "of-view", progress=False)
    again = gear_data.open(tmp_path / "of-view")
    assert again.fingerprint == view.fingerprint
    for found, first in zip(again, view, strict=True):
        for camera in (FRONT, WRIST):
            np.testing.assert_array_equal(found[camera], first[camera])
