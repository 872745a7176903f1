"""Cameras of several sources, of several splits, and of merged datasets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import BadEpisodeError, UnsupportedColumnError
from tests.support.checks import folder_contents
from tests.support.rollouts import make_rollouts

pytest.importorskip("av")
from tests.support.cameras.robots import FRONT, WRIST, Frames, check_frames, frames_of, write_robot

pytestmark = pytest.mark.processes

OPTIONS: dict[str, Any] = {"progress": False, "jobs": 1}


@pytest.fixture
def robots(tmp_path: Path) -> tuple[list[Path], dict[str, list[Frames]]]:
    """Two sources, and the frames of the episodes of both."""
    folders = [tmp_path / name for name in ("left", "right")]
    files = [write_robot(folder, make_rollouts(3, seed=i)) for i, folder in enumerate(folders)]
    parts = [frames_of(each) for each in files]
    return folders, {camera: parts[0][camera] + parts[1][camera] for camera in (FRONT, WRIST)}


def test_several_sources(robots: tuple[list[Path], dict[str, list[Frames]]], tmp_path: Path) -> None:
    """Both sources have files of the same names."""
    sources, frames = robots
    gear_data.convert(sources, tmp_path / "out", **OPTIONS)
    check_frames(tmp_path / "out", frames)
    gear_data.convert(sources, tmp_path / "pixels", videos="frames", columns=["actions", FRONT], **OPTIONS)
    check_frames(tmp_path / "pixels", {FRONT: frames[FRONT]})


def test_merge(robots: tuple[list[Path], dict[str, list[Frames]]], tmp_path: Path) -> None:
    sources, frames = robots
    parts = [tmp_path / "a", tmp_path / "b"]
    for source, part in zip(sources, parts, strict=True):
        gear_data.convert(source, part, **OPTIONS)
    whole = gear_data.convert(sources, tmp_path / "whole", **OPTIONS)
    report = gear_data.merge(parts, tmp_path / "out", progress=False)
    check_frames(tmp_path / "out", frames)
    assert report.linked == 2 and report.fingerprint == whole.fingerprint
    assert report.bytes == sum(path.stat().st_size for path in (tmp_path / "out").rglob("*.*") if _is_data(path))
    kept = sorted((tmp_path / "out/videos").rglob("*.mp4"))
    assert len(kept) == 12 and all(os.stat(path).st_nlink > 1 for path in kept)
    again = gear_data.merge(parts, tmp_path / "out", progress=False, overwrite=True)
    assert again.fingerprint == report.fingerprint


def _is_data(path: Path) -> bool:
    return path.is_file() and path.suffix in (".arrow", ".mp4")


def test_a_merge_that_writes_shards_again(
    robots: tuple[list[Path], dict[str, list[Frames]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns differ, and one dataset refers to its files."""
    sources, frames = robots
    gear_data.convert(sources[0], tmp_path / "a", videos="link", **OPTIONS)
    gear_data.convert(sources[1], tmp_path / "b", rename={"observation.state": "infos.state"}, **OPTIONS)
    gear_data.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", progress=False)
    check_frames(tmp_path / "out", frames)
    assert len(list((tmp_path / "out/videos").rglob("*.mp4"))) == 12
    gear_data.convert(sources[1], tmp_path / "c", videos="link", rename={"observation.state": "infos.state"}, **OPTIONS)
    gear_data.merge([tmp_path / "a", tmp_path / "c"], tmp_path / "linked", progress=False)
    check_frames(tmp_path / "linked", frames)
    assert not (tmp_path / "linked/videos").exists()


def test_other_cameras_are_refused(tmp_path: Path) -> None:
    write_robot(tmp_path / "left", make_rollouts(2))
    write_robot(tmp_path / "right", make_rollouts(2), [FRONT], height=40)
    sources = [tmp_path / "left", tmp_path / "right"]
    with pytest.raises(UnsupportedColumnError, match=r"missing here, and a camera in .*left"):
        gear_data.convert(sources, tmp_path / "out", **OPTIONS)
    gear_data.convert(sources[0], tmp_path / "a", **OPTIONS)
    gear_data.convert(sources[1], tmp_path / "b", **OPTIONS)
    before = folder_contents(tmp_path / "a")
    with pytest.raises(UnsupportedColumnError, match=r"frames of 40 x 32 here, but of 24 x 32 in .*a"):
        gear_data.merge([tmp_path / "a", tmp_path / "b"], tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists() and folder_contents(tmp_path / "a") == before


def test_frames_of_several_sizes_are_scaled(tmp_path: Path) -> None:
    sources = [tmp_path / "left", tmp_path / "right"]
    for source, height in zip(sources, (24, 40), strict=True):
        write_robot(source, make_rollouts(1), [FRONT], height=height)
    with pytest.raises(BadEpisodeError, match=r"40 x 32, and the camera's first file has 24 x 32 .*--video-size"):
        gear_data.convert(sources, tmp_path / "out", videos="frames", **OPTIONS)
    gear_data.convert(sources, tmp_path / "out", videos=gear_data.VideoStorage(mode="frames", size=(16, 20)), **OPTIONS)
    frames = [np.asarray(episode[FRONT]) for episode in gear_data.open(tmp_path / "out")]
    assert [each.shape[1:] for each in frames] == [(16, 20, 3)] * 2
    means = [np.abs(each.mean((1, 2)) - frames[0].mean((1, 2))).max() for each in frames]
    assert max(means) < 8 and not np.array_equal(*frames)  # the same picture, from two sizes
