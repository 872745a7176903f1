"""Small LeRobot v2.1 datasets with cameras, and the frames of their files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

import gear_data
from tests.support.cameras.filmed import FPS, decoded, moving_bar, write_video
from tests.support.rollouts import Rollout, write_lerobot

FRONT, WRIST = "observations.images.front", "observations.images.wrist"
_KEYS = {FRONT: "observation.images.front", WRIST: "observation.images.wrist"}
Frames = npt.NDArray[np.uint8]


def write_robot(
    folder: Path, rollouts: Sequence[Rollout], cameras: Sequence[str] = (FRONT, WRIST), *, height: int = 24
) -> dict[str, list[Path]]:
    """Writes a dataset with one file for each episode and camera.

    Returns:
        Camera -> its files. All files differ.
    """
    write_lerobot(folder, rollouts)
    info = json.loads((folder / "meta/info.json").read_text())
    for camera in cameras:
        feature = {"dtype": "video", "shape": [height, 32, 3], "info": {"video.codec": "h264", "video.fps": FPS}}
        info["features"][_KEYS[camera]] = feature
    (folder / "meta/info.json").write_text(json.dumps(info))
    files = {
        camera: [folder / f"videos/chunk-000/{_KEYS[camera]}/episode_{i:06d}.mp4" for i in range(len(rollouts))]
        for camera in cameras
    }
    for number, paths in enumerate(files.values()):
        for i, (path, rollout) in enumerate(zip(paths, rollouts, strict=True)):
            # Text in the first frames would repeat between episodes: each episode is darker than the one before.
            frames = moving_bar(len(rollout), height, 32)[:, :, :: 1 - 2 * number]
            write_video(path, frames // (i + 1), g="5", bf="2")
    return files


def frames_of(files: dict[str, list[Path]]) -> dict[str, list[Frames]]:
    """Returns camera -> the frames of each episode, decoded in sequence."""
    return {camera: [decoded(path) for path in paths] for camera, paths in files.items()}


def check_frames(folder: Path, expected: dict[str, list[Frames]]) -> None:
    """Checks the frames of all episodes, and that the dataset is sound."""
    dataset = gear_data.open(folder)
    for camera, episodes in expected.items():
        assert len(dataset) == len(episodes)
        for i, frames in enumerate(episodes):
            np.testing.assert_array_equal(np.asarray(dataset.episode(i)[camera]), frames)
    report = gear_data.verify(folder, deep=True)
    assert report.ok, report
