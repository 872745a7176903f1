"""Conversion of sources with cameras, from their files to the frames of a dataset."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image

import gear_data
from gear_data.errors import BadEpisodeError, InvalidArgumentError, UnknownNameError
from gear_data.ingest.location import locate

pytest.importorskip("av")
from gear_data.ingest.videos.sampled_statistics import _Needed
from gear_data.video.frame_statistics import FrameSample
from gear_data.video.index_tables import index_tables
from gear_data.video.indexing.demux import index_file
from gear_data.video.indexing.worker_process import WorkerProcess
from tests.support.cameras.filmed import FPS, damage_a_frame, decoded, moving_bar, write_video

pytestmark = pytest.mark.processes

KEY, TOP = "observation.images.top", "observations.images.top"


@pytest.fixture
def robot(sources: Any, rollouts: Any, tmp_path: Path) -> tuple[Path, list[Path]]:
    """A LeRobot v2.1 dataset of four episodes with a camera, and its video files."""
    some = rollouts[:4]
    details = {"video.codec": "av1", "video.fps": FPS, "video.is_depth_map": True}
    feature = {"dtype": "video", "shape": [24, 32, 3], "info": details}
    folder = sources.write_lerobot(tmp_path / "robot", some)
    info = json.loads((folder / "meta/info.json").read_text())
    info["features"] = {**info["features"], KEY: feature}
    (folder / "meta/info.json").write_text(json.dumps(info))
    files = [folder / f"video/chunk-000/{KEY}/episode_{i:06d}.mp4" for i in range(4)]
    for i, (file, rollout) in enumerate(zip(files, some, strict=True)):
        write_video(file, moving_bar(len(rollout), 24, 32)[:, :, ::-1] // (i + 1))
    return folder, files


def damage_second_packet(file: Path) -> None:
    packets = index_file(file, file.name).packets
    data = bytearray(file.read_bytes())
    first, size = int(packets.position[1]), int(packets.size[1])
    data[first : first + size] = bytes(size)
    file.write_bytes(data)


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
    assert codes["depth-as-rgb"]["count"] == 4
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
    gear_data.convert(robot[0], tmp_path / "d", videos=gear_data.VideoStorage(mode="frames", size=(12, 10)))
    assert gear_data.open(tmp_path / "d").episode(0)[TOP].shape[1:] == (12, 10, 3)
    for wrong in ((12,), (0, 5), "12x10", (1.5, 2), (1 << 20, 1)):
        with pytest.raises(InvalidArgumentError, match="size of frames must be"):
            gear_data.VideoStorage(mode="frames", size=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="stores video files as they are"):
        gear_data.VideoStorage(size=(12, 10))
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
    assert "bad-episode" in {finding.code for finding in gear_data.lint(folder, videos=mode).findings}


@pytest.mark.parametrize("damage", [damage_second_packet, damage_a_frame])
def test_lint_reads_cameras_as_the_conversion_does(damage: Any, robot: tuple[Path, list[Path]], tmp_path: Path) -> None:
    """A packet that cannot be decoded, or is damaged, is found only if its frames are stored."""
    folder, files = robot
    damage(files[1])
    for videos in (gear_data.VideoStorage(mode="frames"), gear_data.VideoStorage(mode="jpeg", size=(12, 16))):
        report = gear_data.lint(folder, videos=videos)
        assert report.episodes == 3
        gear_data.convert(folder, tmp_path / "d", videos=videos, on_bad_episode="skip", overwrite=True, jobs=1)
        assert [each.to_json() for each in report.findings] == list(gear_data.open(tmp_path / "d").manifest.findings)
    assert gear_data.lint(folder).episodes == 4


def test_videos_of_a_table(sources: Any, rollouts: Any, tmp_path: Path) -> None:
    """`--video-column` names the videos of any source; sequential decoding gives the same frames."""
    some = rollouts[:3]
    source = sources.write_steps(tmp_path / "s/steps.parquet", some)
    files = [tmp_path / f"s/top/{i}.mp4" for i in range(3)]
    for file, rollout in zip(files, some, strict=True):
        write_video(file, moving_bar(len(rollout), 24, 32), g="4")
    gear_data.convert(source, tmp_path / "d", videos=gear_data.VideoStorage(cameras={TOP: "top/*.mp4"}), jobs=1)
    ds = gear_data.open(tmp_path / "d")
    for i, file in enumerate(files):
        np.testing.assert_array_equal(np.asarray(ds.episode(i)[TOP]), decoded(file))


def test_statistics_of_a_sample(robot: tuple[Path, list[Path]], tmp_path: Path) -> None:
    """Few frames: the sample is all of them."""
    folder, files = robot
    gear_data.convert(folder, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    pixels = np.concatenate([decoded(file) for file in files]).reshape(-1, 3)
    found = ds.statistics[TOP]
    assert found.sampled_frames == ds.num_steps
    assert found.count.tolist() == [len(pixels)] * 3
    np.testing.assert_allclose(found.mean, pixels.mean(axis=0))
    np.testing.assert_allclose(found.std, pixels.std(axis=0), atol=1e-9)
    assert found.max.tolist() == pixels.max(axis=0).tolist()
    quantiles = np.quantile(pixels, (0.01, 0.1, 0.5, 0.9, 0.99), axis=0, method="inverted_cdf")
    np.testing.assert_array_equal(found.quantiles, quantiles)
    assert ds.statistics["observations"].sampled_frames is None
    assert "video-statistics-left-out" not in {finding["code"] for finding in ds.manifest.findings}
    # The same statistics from files at a URL, which another process cannot open.
    fsspec.filesystem("memory").put(str(folder), "/camera-statistics", recursive=True)
    gear_data.convert("memory://camera-statistics", tmp_path / "remote")
    np.testing.assert_array_equal(gear_data.open(tmp_path / "remote").statistics[TOP].mean, found.mean)


@pytest.mark.parametrize("damage", [damage_second_packet, damage_a_frame])
def test_damaged_frames_leave_statistics_out(damage: Any, robot: tuple[Path, list[Path]], tmp_path: Path) -> None:
    folder, files = robot
    damage(files[3])
    gear_data.convert(folder, tmp_path / "d")
    ds = gear_data.open(tmp_path / "d")
    (found,) = [finding for finding in ds.manifest.findings if finding["code"] == "video-statistics-left-out"]
    assert found["column"] == TOP
    assert TOP not in ds.statistics


class _Crash:
    """Ends the process that receives it."""

    def __reduce__(self) -> Any:
        return os.abort, ()


def test_a_crash_is_contained(robot: tuple[Path, list[Path]]) -> None:
    tables = index_tables([index_file(robot[1][0], "0.mp4")])
    needed = _Needed(tables, [_Crash()], FrameSample(np.zeros(1, np.int64), np.zeros(1, np.int64)))  # type: ignore[list-item]
    alone = _Needed(tables, locate(str(robot[1][0]), None).files, needed.sample)
    with WorkerProcess("gear_data.ingest.videos.sampled_statistics") as worker:
        assert "status -6" in str(needed.counts_in(worker))
        np.testing.assert_array_equal(alone.counts_in(worker), alone.counts())
