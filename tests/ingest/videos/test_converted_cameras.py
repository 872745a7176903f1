"""Conversion of sources with cameras, from their files to the frames of a dataset."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import gear_data
from gear_data.errors import BadEpisodeError, InvalidArgumentError, UnknownNameError

pytest.importorskip("av")
from tests.support.cameras.filmed import FPS, decoded, moving_bar, write_video

KEY, TOP = "observation.images.top", "observations.images.top"


@pytest.fixture
def robot(sources: Any, rollouts: Any, tmp_path: Path) -> tuple[Path, list[Path]]:
    """A LeRobot v2.1 dataset of four episodes with a camera, and its video files."""
    some = rollouts[:4]
    feature = {"dtype": "video", "shape": [24, 32, 3], "info": {"video.codec": "av1", "video.fps": FPS}}
    folder = sources.write_lerobot(tmp_path / "robot", some)
    info = json.loads((folder / "meta/info.json").read_text())
    info["features"] = {**info["features"], KEY: feature}
    (folder / "meta/info.json").write_text(json.dumps(info))
    files = [folder / f"video/chunk-000/{KEY}/episode_{i:06d}.mp4" for i in range(4)]
    for i, (file, rollout) in enumerate(zip(files, some, strict=True)):
        write_video(file, moving_bar(len(rollout), 24, 32)[:, :, ::-1] // (i + 1))
    return folder, files


def fingerprint(*args: Any, **options: Any) -> str:
    return gear_data.convert(*args, **options).fingerprint


def test_frames_and_jpeg(robot: tuple[Path, list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes from one process and from two tasks in two processes."""
    folder, files = robot
    expected = [decoded(file) for file in files]
    pixels = fingerprint(folder, tmp_path / "frames", videos="frames")
    ds = gear_data.open(tmp_path / "frames")
    assert (ds.schema[TOP].dtype, ds.schema[TOP].shape, ds.schema.videos) == ("uint8", (24, 32, 3), ())
    assert not (tmp_path / "frames/videos").exists()
    for i, frames in enumerate(expected):
        np.testing.assert_array_equal(ds.episode(i)[TOP], frames)
    codes = {finding["code"]: finding for finding in ds.manifest.findings}
    assert (codes["video-codec-differs"]["count"], codes["video-codec-differs"]["column"]) == (4, KEY)
    encoded = fingerprint(folder, tmp_path / "jpeg", videos="jpeg", jobs=1)
    ds = gear_data.open(tmp_path / "jpeg")
    assert ds.schema[TOP].dtype == "binary"
    picture = np.asarray(Image.open(io.BytesIO(ds.episode(2)[TOP][1]))).astype(int)
    assert np.abs(picture - expected[2][1]).mean() < 3
    monkeypatch.setattr("gear_data.ingest.engine.tasks.UNIT_BYTES", 1)
    monkeypatch.setattr("gear_data.ingest.sources.tables.read_units.UNIT_BYTES", 1)
    assert fingerprint(folder, tmp_path / "f2", videos="frames", jobs=2, shard_bytes=1 << 10) == pixels
    assert fingerprint(folder, tmp_path / "j2", videos="jpeg", jobs=2, shard_bytes=1 << 10) == encoded
    assert gear_data.verify(tmp_path / "f2").ok


def test_a_size(robot: tuple[Path, list[Path]], tmp_path: Path) -> None:
    gear_data.convert(robot[0], tmp_path / "d", videos="frames", video_size=(12, 10))
    assert gear_data.open(tmp_path / "d").episode(0)[TOP].shape[1:] == (12, 10, 3)
    for wrong in ((12,), (0, 5), "12x10", (1.5, 2), (1 << 20, 1)):
        with pytest.raises(InvalidArgumentError, match="video_size"):
            gear_data.convert(robot[0], tmp_path / "e", videos="frames", video_size=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="stores the files as they are"):
        gear_data.convert(robot[0], tmp_path / "e", video_size=(12, 10))
    with pytest.raises(UnknownNameError):
        gear_data.convert(robot[0], tmp_path / "e", videos="gif")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["keep", "frames"])
def test_a_missing_video(mode: Any, robot: tuple[Path, list[Path]], tmp_path: Path) -> None:
    folder, files = robot
    files[2].unlink()
    with pytest.raises(BadEpisodeError) as error:
        gear_data.convert(folder, tmp_path / "d", videos=mode)
    assert f"{KEY}/episode_000002.mp4" in error.value.message
    assert (error.value.file, error.value.column) == ("data/chunk-000/episode_000002.parquet", KEY)
    assert "--on-bad-episode skip" in str(error.value.hint)
    assert "--columns" in str(error.value.hint)
    report = gear_data.convert(folder, tmp_path / "d", videos=mode, on_bad_episode="skip", overwrite=True)
    assert report.episodes == 3
    ds = gear_data.open(tmp_path / "d")
    np.testing.assert_array_equal(np.asarray(ds.episode(2)[TOP]), decoded(files[3]))
    report = gear_data.convert(folder, tmp_path / "d", columns=["observations", "actions"], overwrite=True)
    assert (report.episodes, gear_data.open(tmp_path / "d").schema.videos) == (4, ())
    assert "bad-episode" in {finding.code for finding in gear_data.lint(folder).findings}


def test_videos_of_a_table(sources: Any, rollouts: Any, tmp_path: Path) -> None:
    """`--video-column` names the videos of any source; sequential decoding gives the same frames."""
    some = rollouts[:3]
    source = sources.write_steps(tmp_path / "s/steps.parquet", some)
    files = [tmp_path / f"s/top/{i}.mp4" for i in range(3)]
    for file, rollout in zip(files, some, strict=True):
        write_video(file, moving_bar(len(rollout), 24, 32), g="4")
    gear_data.convert(source, tmp_path / "d", video_columns={TOP: "top/*.mp4"}, jobs=1)
    ds = gear_data.open(tmp_path / "d")
    for i, file in enumerate(files):
        np.testing.assert_array_equal(np.asarray(ds.episode(i)[TOP]), decoded(file))
