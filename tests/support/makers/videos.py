"""Makers of small sources with cameras, for tests/fuzz/readers.py. Not a test."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import gear_data
from tests.support.cameras.encoded import ENCODINGS, encode
from tests.support.rollouts import Rollout, write_lerobot

#: Camera of LeRobot -> the encodings of its episodes, in turn.
_CAMERAS = {
    "observation.images.front": ("h264 with B frames", "h264, open groups"),
    "observation.images.wrist": ("mpeg4",),
}


def lerobot_videos(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes a LeRobot v2.1 folder with two cameras, one file an episode."""
    camera = {"dtype": "video", "shape": [48, 64, 3], "names": ["height", "width", "channels"]}
    features = {"action": {"dtype": "float32"}, "observation.state": {"dtype": "float32"}}
    video_path = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    features |= dict.fromkeys(_CAMERAS, camera)  # type: ignore[arg-type]
    write_lerobot(folder, rollouts, info={"features": features, "video_path": video_path, "chunks_size": 1000})
    for key, names in _CAMERAS.items():
        (folder / f"videos/chunk-000/{key}").mkdir(parents=True)
        for i, rollout in enumerate(rollouts):
            path = folder / f"videos/chunk-000/{key}/episode_{i:06d}.mp4"
            encode(path, ENCODINGS[names[i % len(names)]], frames=len(rollout), seed=i)


def gear_videos(folder: Path, rollouts: Sequence[Rollout]) -> None:
    """Writes a gear dataset with two cameras into a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        lerobot_videos(Path(scratch), rollouts)
        gear_data.convert(scratch, folder / "dataset", shard_bytes=1 << 10, jobs=1, progress=False)


VIDEO_MAKERS = {"lerobot-videos": lerobot_videos, "gear-videos": gear_videos}
