"""Columns of frames that a LeRobot export writes as videos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.errors import InvalidArgumentError, UnknownNameError, UnsupportedColumnError
from gear_data.exports.lerobot.videos import video_writer
from tests.support.cameras.filmed import decoded, key_frames, moving_bar
from tests.support.command_line import run_json
from tests.support.exports import convert_rollouts

KEY = "observation.images.front"
COLUMN = "observations.images.front"


@pytest.fixture(scope="module")
def frames_dataset(sources: Any, tmp_path_factory: pytest.TempPathFactory) -> gear_data.Dataset:
    rollouts = [r.with_columns(**{COLUMN: moving_bar(len(r))}) for r in sources.make_rollouts(5, seed=2)]
    return convert_rollouts(tmp_path_factory.mktemp("frames"), sources, rollouts, final=False)


@pytest.mark.parametrize("codec", [None, "h264"])
def test_frames_are_encoded_as_lerobot_does(
    frames_dataset: gear_data.Dataset, codec: str | None, tmp_path: Path
) -> None:
    report = gear_data.export(frames_dataset, tmp_path / "out", "lerobot", fps=10, videos=True, video_codec=codec)
    file = f"videos/{KEY}/chunk-000/file-000.mp4"
    assert file in report.files
    assert report.notes == ()
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert info["video_path"] == "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    assert info["features"][KEY] == {
        "dtype": "video",
        "shape": [48, 64, 3],
        "names": ["height", "width", "channels"],
        "info": {
            "video.height": 48,
            "video.width": 64,
            "video.codec": codec or "av1",
            "video.pix_fmt": "yuv420p",
            "video.is_depth_map": False,
            "video.fps": 10,
            "video.channels": 3,
            "has_audio": False,
        },
    }
    frames, keys = decoded(tmp_path / "out" / file), key_frames(tmp_path / "out" / file)
    expected = np.concatenate([episode[COLUMN] for episode in frames_dataset])
    assert frames.shape == expected.shape
    assert np.abs(frames.astype(int) - expected).mean() < 6
    begins = frames_dataset.offsets[:-1]
    assert set(begins.tolist()) <= set(keys)
    assert max(np.diff([*keys, len(frames)])) <= 2
    episodes = pq.read_table(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet")
    column = lambda name: episodes.column(f"videos/{KEY}/{name}").to_numpy()  # noqa: E731
    assert np.allclose(column("from_timestamp"), begins / 10)
    assert np.allclose(column("to_timestamp"), frames_dataset.offsets[1:] / 10)
    assert not column("chunk_index").any()
    assert not column("file_index").any()
    assert KEY not in pq.read_schema(tmp_path / "out/data/chunk-000/file-000.parquet").names


def test_statistics_are_of_channels_between_0_and_1(frames_dataset: gear_data.Dataset, tmp_path: Path) -> None:
    gear_data.export(frames_dataset, tmp_path / "out", "lerobot", fps=10, videos=True, video_codec="h264")
    found = json.loads((tmp_path / "out/meta/stats.json").read_text())[KEY]
    assert found["count"] == [frames_dataset.num_steps]  # fewer than the sample
    pixels = np.concatenate([episode[COLUMN] for episode in frames_dataset]).reshape(-1, 3) / 255
    expected = {
        "min": pixels.min(axis=0),
        "max": pixels.max(axis=0),
        "mean": pixels.mean(axis=0),
        "std": pixels.std(axis=0),
        "q10": np.quantile(pixels, 0.1, axis=0, method="inverted_cdf"),
        "q99": np.quantile(pixels, 0.99, axis=0, method="inverted_cdf"),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(np.array(found[name]), values.reshape(3, 1, 1), atol=1e-12, err_msg=name)


def test_a_file_ends_before_it_is_too_large(sources: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The encoder holds back some 50 frames, whose bytes are not known yet.
    rollouts = [
        rollout.with_columns(**{COLUMN: moving_bar(len(rollout), 16, 32)})
        for rollout in sources.make_rollouts(5, seed=2, max_length=150)
    ]
    ds = convert_rollouts(tmp_path, sources, rollouts, final=False)
    monkeypatch.setattr(video_writer, "VIDEO_MB", 0)
    monkeypatch.setattr(video_writer, "CHUNK_FILES", 2)
    gear_data.export(ds, tmp_path / "out", "lerobot", fps=10, videos=True, video_codec="h264")
    paths = sorted((tmp_path / "out/videos" / KEY).glob("*/*.mp4"))
    assert len(paths) > 1
    assert [path.relative_to(tmp_path / "out/videos" / KEY).as_posix() for path in paths] == [
        f"chunk-{number // 2:03d}/file-{number % 2:03d}.mp4" for number in range(len(paths))
    ]
    episodes = pq.read_table(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet")
    column = lambda name: episodes.column(f"videos/{KEY}/{name}").to_numpy()  # noqa: E731
    numbers = 2 * column("chunk_index") + column("file_index")
    for number, path in enumerate(paths):
        inside = np.flatnonzero(numbers == number)
        assert len(decoded(path)) == ds.lengths[inside].sum()
        assert column("from_timestamp")[inside[0]] == 0


def test_a_dataset_without_frames_has_no_videos(sources: Any, tmp_path: Path) -> None:
    ds = convert_rollouts(tmp_path, sources, sources.make_rollouts(2, seed=1))
    with pytest.raises(UnsupportedColumnError, match="no column has uint8 frames") as error:
        gear_data.export(ds, tmp_path / "out", "lerobot", fps=10, videos=True)
    assert "observations" in error.value.message
    assert not (tmp_path / "out").exists()


def test_h264_needs_even_sizes(sources: Any, tmp_path: Path) -> None:
    rollouts = [r.with_columns(**{COLUMN: moving_bar(len(r), 31, 64)}) for r in sources.make_rollouts(2, seed=2)]
    ds = convert_rollouts(tmp_path, sources, rollouts, final=False)
    with pytest.raises(InvalidArgumentError, match="31 x 64: height and width must be even"):
        gear_data.export(ds, tmp_path / "out", "lerobot", fps=10, videos=True, video_codec="h264")
    assert not (tmp_path / "out").exists()


def test_arguments_of_videos_are_checked(frames_dataset: gear_data.Dataset, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'h264'"):
        gear_data.export(frames_dataset, tmp_path / "out", "lerobot", fps=10, video_codec="h265")
    for arguments in ({"videos": True}, {"video_codec": "av1"}):
        with pytest.raises(InvalidArgumentError, match="the format parquet has no videos"):
            gear_data.export(frames_dataset, tmp_path / "out", "parquet", **arguments)


def test_the_command_writes_videos(
    frames_dataset: gear_data.Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--format", "lerobot", "--fps", "10", "--videos", "--video-codec", "h264"]
    report = run_json(capsys, "export", frames_dataset.path, tmp_path / "out", *options)
    assert f"videos/{KEY}/chunk-000/file-000.mp4" in report["files"]
    failed = run_json(capsys, "export", frames_dataset.path, tmp_path / "b", "--batches", "1", "--videos", status=2)
    assert "--videos does not apply to batches" in json.dumps(failed)


@pytest.mark.parametrize("times", [lambda steps: 0.5 + steps / 10, lambda steps: steps / 20], ids=["later", "faster"])
def test_times_of_other_frames_are_refused(times: Any, sources: Any, tmp_path: Path) -> None:
    """LeRobot looks for the frames of a step at its time, from the episode's first frame on."""
    rollouts = [
        r.with_columns(**{COLUMN: moving_bar(len(r), 16, 32), "timestamp": times(np.arange(len(r)))})
        for r in sources.make_rollouts(2, seed=2)
    ]
    ds = convert_rollouts(tmp_path, sources, rollouts, final=False)
    options: dict[str, Any] = {"fps": 10, "videos": True, "video_codec": "h264"}
    with pytest.raises(UnsupportedColumnError, match="LeRobot would not find them") as error:
        gear_data.export(ds, tmp_path / "out", "lerobot", **options)
    assert error.value.column == "timestamp"
    assert not (tmp_path / "out").exists()
    gear_data.export(ds, tmp_path / "rows", "lerobot", fps=10)
    # As the hint says.
    gear_data.export(ds.rename({"timestamp": "infos.timestamp"}), tmp_path / "renamed", "lerobot", **options)
    table = pq.read_table(tmp_path / "renamed/data/chunk-000/file-000.parquet")
    expected = np.concatenate([np.arange(len(r)) / 10 for r in rollouts])
    np.testing.assert_allclose(table.column("timestamp").to_numpy(), expected, rtol=1e-6)


def test_rounded_times_are_exported(sources: Any, tmp_path: Path) -> None:
    rollouts = [
        r.with_columns(**{COLUMN: moving_bar(len(r), 16, 32), "timestamp": (np.arange(len(r)) / 10).astype(np.float32)})
        for r in sources.make_rollouts(2, seed=2)
    ]
    ds = convert_rollouts(tmp_path, sources, rollouts, final=False)
    gear_data.export(ds, tmp_path / "out", "lerobot", fps=10, videos=True, video_codec="h264")
    (file,) = (tmp_path / "out/data").rglob("*.parquet")
    assert pq.read_table(file).column("timestamp").to_pylist() == ds.steps("timestamp", 0, 2).tolist()
