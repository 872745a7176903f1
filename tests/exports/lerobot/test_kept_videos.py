"""Cameras in exports: LeRobot gets their files, other formats refuse them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest

import gear_data
from gear_data.errors import CorruptShardError, UnsupportedColumnError
from gear_data.video.indexing.demux import index_file
from tests.support.cameras.filmed import FPS, FRONT, WRIST, Filmed, decoded, film
from tests.support.exports import FORMATS

KEYS = {FRONT: "observation.images.front", WRIST: "observation.images.wrist"}


@pytest.fixture
def filmed(sources: Any, tmp_path: Path) -> Filmed:
    rollouts = sources.make_rollouts(5, seed=2)
    gear_data.convert(sources.write_d4rl(tmp_path / "source.hdf5", rollouts), tmp_path / "dataset", shard_bytes=1024)
    return Filmed(tmp_path / "dataset", film(tmp_path / "dataset", [len(rollout) for rollout in rollouts]))


def exported_frames(folder: Path, camera: str) -> list[npt.NDArray[np.uint8]]:
    """Returns the frames of each episode as LeRobot finds them: by times in a file, decoded in sequence."""
    info = json.loads((folder / "meta/info.json").read_text())
    episodes = pq.read_table(folder / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    key, result = KEYS[camera], []
    for row in episodes:
        place = {name: row[f"videos/{key}/{name}"] for name in ("chunk_index", "file_index")}
        frames = decoded(folder / info["video_path"].format(video_key=key, **place))
        begin, end = (row[f"videos/{key}/{name}"] for name in ("from_timestamp", "to_timestamp"))
        times = begin + np.arange(row["length"]) / info["fps"]
        assert end == pytest.approx(begin + row["length"] / info["fps"])
        numbers = np.rint(times * info["fps"]).astype(int)
        assert np.abs(numbers / info["fps"] - times).max() < 1e-4  # LeRobot's tolerance
        result.append(frames[numbers])
    return result


def test_files_of_whole_datasets_are_copied(filmed: Filmed, tmp_path: Path) -> None:
    ds = gear_data.open(filmed.path)
    report = gear_data.export(ds, tmp_path / "out", "lerobot", fps=FPS)
    assert report.notes == ()
    first = tmp_path / "out/videos" / KEYS[FRONT] / "chunk-000/file-000.mp4"
    assert first.read_bytes() == (filmed.path / "videos/front.mp4").read_bytes()
    for number in range(5):
        copied = tmp_path / "out/videos" / KEYS[WRIST] / f"chunk-000/file-{number:03d}.mp4"
        assert copied.read_bytes() == (filmed.path / f"videos/wrist/{number}.mp4").read_bytes()
    for camera in (FRONT, WRIST):
        for found, expected in zip(exported_frames(tmp_path / "out", camera), filmed.frames[camera], strict=True):
            np.testing.assert_array_equal(found, expected)
    info = json.loads((tmp_path / "out/meta/info.json").read_text())["features"]
    assert info[KEYS[FRONT]]["info"]["video.codec"] == "h264"
    assert (info[KEYS[WRIST]]["info"]["video.codec"], info[KEYS[WRIST]]["shape"]) == ("mpeg4", [32, 48, 3])
    # Metadata about our own files is not exported.
    names = pq.read_schema(tmp_path / "out/meta/episodes/chunk-000/file-000.parquet").names
    assert not [name for name in names if name.startswith(f"videos/{FRONT}")]


def test_files_with_other_episodes_are_encoded_again(filmed: Filmed, tmp_path: Path) -> None:
    view = gear_data.open(filmed.path)[[0, 2, 3]]
    report = gear_data.export(view, tmp_path / "out", "lerobot", fps=FPS)
    assert report.notes == (
        f"{FRONT}: encoded again as av1: 3 episodes, whose files have episodes that are not exported",
    )
    for found, episode in zip(exported_frames(tmp_path / "out", FRONT), (0, 2, 3), strict=True):
        expected = filmed.frames[FRONT][episode]
        assert found.shape == expected.shape
        assert np.abs(found.astype(int) - expected).mean() < 6
    # Each episode has a file of this camera.
    for found, episode in zip(exported_frames(tmp_path / "out", WRIST), (0, 2, 3), strict=True):
        np.testing.assert_array_equal(found, filmed.frames[WRIST][episode])


def test_frames_at_other_times_get_new_times(filmed: Filmed, tmp_path: Path) -> None:
    report = gear_data.export(gear_data.open(filmed.path), tmp_path / "out", "lerobot", fps=2 * FPS)
    # Packets of files without B frames are copied.
    assert report.notes == (f"{FRONT}: encoded again as av1: 5 episodes, whose frames have other times than fps says",)
    for found, expected in zip(exported_frames(tmp_path / "out", FRONT), filmed.frames[FRONT], strict=True):
        assert np.abs(found.astype(int) - expected).mean() < 6
    for found, expected in zip(exported_frames(tmp_path / "out", WRIST), filmed.frames[WRIST], strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_codec_encodes_all_videos(filmed: Filmed, tmp_path: Path) -> None:
    report = gear_data.export(gear_data.open(filmed.path), tmp_path / "out", "lerobot", fps=FPS, video_codec="h264")
    assert report.notes == ()
    assert [file for file in report.files if file.endswith(".mp4")] == [
        f"videos/{key}/chunk-000/file-000.mp4" for key in sorted(KEYS.values())
    ]
    for found, expected in zip(exported_frames(tmp_path / "out", WRIST), filmed.frames[WRIST], strict=True):
        assert np.abs(found.astype(int) - expected).mean() < 6


def test_a_damaged_video_is_an_error(filmed: Filmed, tmp_path: Path) -> None:
    path = filmed.path / "videos/wrist/2.mp4"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptShardError, match="its checksum is") as error:
        gear_data.export(gear_data.open(filmed.path), tmp_path / "out", "lerobot", fps=FPS)
    assert error.value.file == "videos/wrist/2.mp4"
    assert not (tmp_path / "out").exists()


def test_a_damaged_packet_is_not_copied(filmed: Filmed, tmp_path: Path) -> None:
    number = max(range(5), key=lambda each: len(filmed.frames[WRIST][each]))
    path = filmed.path / f"videos/wrist/{number}.mp4"
    packets, content = index_file(path, path.name).packets, bytearray(path.read_bytes())
    content[int(packets.position[1]) + int(packets.size[1]) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptShardError, match="has changed") as error:
        gear_data.export(gear_data.open(filmed.path)[[number]], tmp_path / "out", "lerobot", fps=2 * FPS)
    assert error.value.file == f"videos/wrist/{number}.mp4"
    # The copy finds it: statistics decode only a sample of the frames of a large dataset.
    assert error.value.message.startswith("packet 1 at byte")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("format", sorted(set(FORMATS) - {"lerobot"}))
def test_other_formats_refuse_cameras(filmed: Filmed, tmp_path: Path, format: str) -> None:
    name, arguments = FORMATS[format]
    with pytest.raises(UnsupportedColumnError, match=f"the format {format} cannot hold video") as error:
        gear_data.export(gear_data.open(filmed.path), tmp_path / name, format, **arguments)
    assert error.value.column == FRONT
    assert WRIST in error.value.message
    assert "--columns" in str(error.value.hint)
    assert not (tmp_path / name).exists()
