"""Packets of a dataset's video files, from memory maps."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.dataset.stores.store import DatasetStore
from gear_data.errors import CorruptShardError, ManifestError
from gear_data.storage.mapped_files import CHECK_SECONDS
from gear_data.video import packet_bytes
from gear_data.video.file_index import VideoFile
from gear_data.video.segments import VideoSegments
from tests.support.cameras.attached import attach_cameras, video_file

CAMERA = "observations.images.front"


def store_with(folder: Path, files: list[VideoFile]) -> DatasetStore:
    """Opens the dataset with the files attached. Every episode is in the first file."""
    zeros = np.zeros(40, np.int64)
    attach_cameras(folder, files, {CAMERA: VideoSegments(zeros, zeros)})
    return gear_data.open(folder).store


def mapped_files(folder: Path) -> int:
    """Returns how many files of a folder this process has mapped."""
    return sum(line.split()[-1].startswith(f"{folder}/") for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.fixture
def video(rollouts_path: Path) -> Iterator[Path]:
    """A file of 12 packets of 10 bytes, in the folder of the dataset."""
    path = rollouts_path / "videos" / "a.mp4"
    path.parent.mkdir()
    path.write_bytes(bytes(range(120)))
    yield path


def test_ranges_are_read_in_order(rollouts_path: Path, video: Path) -> None:
    linked = rollouts_path.parent / "b.mp4"
    linked.write_bytes(bytes(range(120, 240)))
    packets = store_with(rollouts_path, [video_file("videos/a.mp4", 12), video_file(str(linked), 12)]).videos.packets
    first, second, third, empty = packets.read([(1, 10, 20), (0, 110, 120), (0, 0, 3), (0, 5, 5)])
    assert bytes(first) == bytes(range(130, 140))
    assert bytes(second) == bytes(range(110, 120))
    assert (bytes(third), bytes(empty)) == (b"\0\1\2", b"")


def test_old_mappings_are_closed_and_their_bytes_stay(
    rollouts_path: Path, video: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packet_bytes, "_FILES_MAPPED", 2)
    names = [f"videos/{number}.mp4" for number in range(6)]
    for name in names:
        os.link(video, rollouts_path / name)
    packets = store_with(rollouts_path, [video_file(name, 12) for name in names]).videos.packets
    kept = [packets.read([(number, 0, 4)])[0] for number in range(6)]
    assert mapped_files(rollouts_path / "videos") == 6  # slices keep their mappings
    del kept[0]
    assert {bytes(each) for each in kept} == {b"\0\1\2\3"}
    kept.clear()
    assert mapped_files(rollouts_path / "videos") == 2


@pytest.mark.parametrize("span", [(0, 110, 121), (0, -1, 4), (0, 8, 7), (0, 2**62, 2**62 + 1)])
def test_bytes_outside_a_file_are_an_error(rollouts_path: Path, video: Path, span: Any) -> None:
    packets = store_with(rollouts_path, [video_file("videos/a.mp4", 12)]).videos.packets
    with pytest.raises(CorruptShardError, match="the file has 120 bytes"):
        packets.read([span])


def test_a_missing_file_is_an_error(rollouts_path: Path, video: Path) -> None:
    packets = store_with(rollouts_path, [video_file("videos/a.mp4", 12)]).videos.packets
    video.unlink()
    with pytest.raises(CorruptShardError, match=r"a\.mp4: the file is missing"):
        packets.read([(0, 0, 10)])


def test_a_file_that_is_truncated_after_it_was_mapped_is_an_error(
    rollouts_path: Path, video: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packets = store_with(rollouts_path, [video_file("videos/a.mp4", 12)]).videos.packets
    packets.read([(0, 0, 10)])
    os.truncate(video, 60)
    now = time.monotonic
    monkeypatch.setattr("gear_data.storage.mapped_files.time.monotonic", lambda: now() + CHECK_SECONDS)
    with pytest.raises(CorruptShardError, match="60 bytes now"):
        packets.read([(0, 0, 10)])


@pytest.mark.parametrize("name", ["../a.mp4", "videos/../../a.mp4", "videos\\..\\a.mp4"])
def test_a_path_that_leaves_the_folder_is_an_error(rollouts_path: Path, name: str) -> None:
    packets = store_with(rollouts_path, [video_file(name, 12)]).videos.packets
    with pytest.raises(ManifestError, match="outside the dataset's folder"):
        packets.read([(0, 0, 1)])
