"""Exports with videos, read by LeRobot itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from tests.support.cameras.filmed import FPS, FRONT, WRIST, film

pytest.importorskip(
    "lerobot.datasets.lerobot_dataset",
    reason="LeRobot is not installed: pip install lerobot==0.4.4 in a separate environment",
    exc_type=ImportError,
)
KEYS = {FRONT: "observation.images.front", WRIST: "observation.images.wrist"}


@pytest.mark.parametrize("codec", [None, "av1", "h264"])
def test_lerobot_reads_the_frames(sources: Any, tmp_path: Path, codec: str | None) -> None:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    rollouts = sources.make_rollouts(5, seed=2)
    gear_data.convert(sources.write_d4rl(tmp_path / "source.hdf5", rollouts), tmp_path / "dataset")
    expected = film(tmp_path / "dataset", [len(rollout) for rollout in rollouts])
    ds = gear_data.open(tmp_path / "dataset")
    gear_data.export(ds, tmp_path / "out", "lerobot", fps=FPS, video_codec=codec)
    # Its other decoder, torchcodec, needs the system's FFmpeg.
    theirs = LeRobotDataset("gear/data", root=tmp_path / "out", video_backend="pyav")
    assert (len(theirs), theirs.num_episodes) == (ds.num_steps, 5)
    for camera, key in KEYS.items():
        found = np.stack([theirs[step][key].numpy() for step in range(len(theirs))]) * 255
        wanted = np.concatenate(expected[camera]).transpose(0, 3, 1, 2)
        assert np.abs(found - wanted).mean() < (0.01 if codec is None else 6)
