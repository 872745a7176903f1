"""StoredVideos: the tables of a dataset's cameras, read and checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import gear_data
from gear_data.errors import CorruptShardError, ManifestError
from gear_data.video.file_index import DISCARD
from gear_data.video.segments import VideoSegments, segment_columns
from tests.support.cameras.attached import attach_cameras, video_file
from tests.support.manifests import read_ipc, replace_table

CAMERA = "observations.images.front"


@pytest.fixture
def segments(rollouts: list[Any]) -> VideoSegments:
    """Episodes divided over two files, one after the other."""
    lengths = np.array([len(rollout) for rollout in rollouts])
    file = (np.arange(len(lengths)) >= 20).astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    return VideoSegments(file, starts - np.where(file == 1, starts[20], 0))


@pytest.fixture
def camera_path(rollouts: list[Any], rollouts_path: Path, segments: VideoSegments) -> Path:
    lengths = np.array([len(rollout) for rollout in rollouts])
    files = [video_file(f"videos/{number}.mp4", int(lengths[segments.file == number].sum())) for number in (0, 1)]
    attach_cameras(rollouts_path, files, {CAMERA: segments})
    return rollouts_path


def test_tables_are_read(camera_path: Path, segments: VideoSegments) -> None:
    videos = gear_data.open(camera_path).store.videos
    assert len(videos.index) == 2
    assert videos.index.file(1).file == "videos/1.mp4"
    assert np.array_equal(videos.segments[CAMERA].file, segments.file)
    assert np.array_equal(videos.segments[CAMERA].first_frame, segments.first_frame)


def test_a_dataset_without_cameras_has_no_videos(rollouts_path: Path) -> None:
    videos = gear_data.open(rollouts_path).store.videos
    assert (len(videos.index), videos.segments) == (0, {})


def test_frames_that_an_edit_list_discards_are_not_counted(
    camera_path: Path, segments: VideoSegments, rollouts: list[Any]
) -> None:
    steps = sum(map(len, rollouts))
    video = video_file("videos/a.mp4", steps + 2)
    video.packets.flags[:2] |= DISCARD
    attach_cameras(camera_path, [video], {"observations.wrist": VideoSegments(segments.file * 0, segments.file * 0)})
    assert gear_data.open(camera_path).store.videos.index.frame_counts.tolist() == [steps]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda file, first: file.__setitem__(7, 2), "episode 7: the number of its video file does not exist"),
        (lambda file, first: file.__setitem__(7, -1), "episode 7: the number of its video file does not exist"),
        (lambda file, first: first.__setitem__(39, first[39] + 1), "episode 39: its frames lie outside"),
        (lambda file, first: first.__setitem__(3, -1), "episode 3: its frames lie outside"),
        (lambda file, first: first.__setitem__(3, np.iinfo(np.int64).max), "episode 3: its frames lie outside"),
    ],
)
def test_an_episode_outside_its_file_is_an_error(
    camera_path: Path, segments: VideoSegments, change: Callable[[Any, Any], None], problem: str
) -> None:
    file, first = segments.file.copy(), segments.first_frame.copy()
    change(file, first)
    table = read_ipc(camera_path / "episodes.arrow")
    for name, values in zip(segment_columns(CAMERA), (file, first), strict=True):
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
    replace_table(camera_path, "episodes.arrow", table)
    with pytest.raises(ManifestError, match=problem):
        _ = gear_data.open(camera_path).store.videos


def test_a_missing_column_of_the_episode_table_is_an_error(camera_path: Path) -> None:
    table = read_ipc(camera_path / "episodes.arrow").drop_columns(segment_columns(CAMERA)[0])
    replace_table(camera_path, "episodes.arrow", table)
    with pytest.raises(CorruptShardError, match="occurs 0 times, not once") as error:
        _ = gear_data.open(camera_path).store.videos
    assert error.value.column == segment_columns(CAMERA)[0]


def test_a_file_with_frames_of_another_size_is_an_error(
    camera_path: Path, segments: VideoSegments, rollouts: list[Any]
) -> None:
    steps = sum(map(len, rollouts))
    files = [video_file("videos/0.mp4", steps), video_file("videos/1.mp4", steps, height=32)]
    attach_cameras(camera_path, files, {"observations.wrist": dataclasses.replace(segments)})
    with pytest.raises(ManifestError, match="episode 20: its video file has frames of another size"):
        _ = gear_data.open(camera_path).store.videos


def test_a_changed_table_is_an_error(camera_path: Path) -> None:
    content = bytearray((camera_path / "video_packets.arrow").read_bytes())
    content[len(content) // 2] ^= 1
    (camera_path / "video_packets.arrow").write_bytes(content)
    with pytest.raises(CorruptShardError, match="its checksum is"):
        _ = gear_data.open(camera_path).store.videos
