"""Some episodes of a LeRobot dataset, and the files that are not read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import GearError, InvalidArgumentError
from tests.support.makers.videos import lerobot_videos
from tests.support.rollouts import make_rollouts

pytestmark = pytest.mark.processes


def only(*episodes: int) -> gear_data.EpisodeBoundaries:
    return gear_data.EpisodeBoundaries(only_episodes=episodes)


def converted(source: Path, folder: Path, **options: Any) -> gear_data.Dataset:
    gear_data.convert(source, folder, progress=False, **options)
    return gear_data.open(folder)


def check_episodes(found: Any, whole: Any, numbers: Sequence[int]) -> None:
    assert found.schema.columns == whole.schema.columns and len(found) == len(numbers)
    assert [camera.name for camera in found.schema.videos] == [camera.name for camera in whole.schema.videos]
    for episode, number in zip(found, (whole[number] for number in numbers), strict=True):
        for name in found.schema.names:
            np.testing.assert_array_equal(episode[name], number[name], err_msg=name)
        for camera in found.schema.videos:
            np.testing.assert_array_equal(episode[camera.name][:], number[camera.name][:])
    names = [name for name in found.episodes.columns if name not in ("episode_id", "shard", "start")]
    rows = whole.episodes[list(numbers)]
    for name in names:
        if not name.startswith("videos/"):
            assert found.episodes[name].to_list() == rows[name].to_list(), name


@pytest.mark.parametrize("numbers", [(0,), (1, 4), (5,), (0, 1, 2, 3, 4, 5)])
def test_episodes_that_share_files(shared_data: Path, tmp_path: Path, numbers: tuple[int, ...]) -> None:
    source = shared_data / "lerobot_v30_video"
    found = converted(source, tmp_path / "some", episodes=only(*numbers))
    check_episodes(found, converted(source, tmp_path / "whole"), numbers)
    assert not [each for each in found.manifest.findings if each["code"] == "metadata-disagrees"]


def test_other_files_are_not_read(tmp_path: Path) -> None:
    rollouts = make_rollouts(5, seed=1)
    source = tmp_path / "robot"
    lerobot_videos(source, rollouts)
    whole = converted(source, tmp_path / "whole")
    for number in (0, 2, 4):
        for path in source.rglob(f"episode_{number:06d}.*"):
            path.write_bytes(b"damaged")
    found = converted(source, tmp_path / "some", episodes=only(3, 1))
    check_episodes(found, whole, (1, 3))
    assert len(list((tmp_path / "some/videos").rglob("*.mp4"))) == 4
    with pytest.raises(GearError, match="episode_000000"):
        converted(source, tmp_path / "damaged", episodes=only(0, 1))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((0, 9), r"the dataset lists no episode 9; its last one is 5[\s\S]*only_episodes \(--only-episodes\)"),
        ([], r"only_episodes must be numbers of episodes, such as \[0, 1\], not \[\]"),
        ([-1], "must be numbers of episodes"),
        ([0, 1.5], "must be numbers of episodes"),
        ("0-3", "must be numbers of episodes"),
        (True, "must be numbers of episodes"),
        ([1 << 64], "must be numbers of episodes"),
    ],
)
def test_episodes_that_do_not_exist(shared_data: Path, tmp_path: Path, given: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        boundaries = gear_data.EpisodeBoundaries(only_episodes=given)
        gear_data.convert(shared_data / "lerobot_v30_video", tmp_path / "out", episodes=boundaries)
    assert not (tmp_path / "out").exists()


def test_numbers_are_sorted() -> None:
    numbers = gear_data.EpisodeBoundaries(only_episodes=np.array([7, 3, 7])).only_episodes
    assert numbers == (3, 7) and {type(number) for number in numbers or ()} == {int}


def test_other_formats_refuse_them(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"the format npz does not support only_episodes"):
        np.savez(tmp_path / "a.npz", observations=np.zeros((3, 2)), actions=np.zeros((3, 1)), terminals=np.ones(3))
        gear_data.convert(tmp_path / "a.npz", tmp_path / "out", episodes=only(0))
