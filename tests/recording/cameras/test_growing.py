"""Datasets with cameras that grow: generations, eviction, and readers of earlier generations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gear_data
from gear_data.errors import UnsupportedColumnError
from gear_data.recording.writer import Writer
from gear_data.video.decoding.frame_cache import FrameCache
from gear_data.video.decoding.frame_reader import FrameReader
from gear_data.video.decoding.process_state import process_state
from gear_data.video.decoding.requests import FileRequest

pytestmark = pytest.mark.processes

FRONT, WRIST = "observations.front", "observations.wrist"
CAMERAS = {name: gear_data.Camera(fps=10, codec="mpeg4") for name in (FRONT, WRIST)}


def frames_of(number: int, camera: str) -> npt.NDArray[np.uint8]:
    """Returns frames whose brightness says the number of the episode, of the step, and the camera."""
    frames = np.empty((4 + number % 3, 32, 32, 3), np.uint8)
    frames[:, :16], frames[:, 16:] = 10 * (number % 20), 20 * np.arange(len(frames))[:, None, None, None]
    return frames if camera == FRONT else 255 - frames


def add(writer: Writer, numbers: range) -> None:
    for number in numbers:
        front, wrist = (frames_of(number, name) for name in (FRONT, WRIST))
        for t in range(len(front)):
            writer.append(observations={"front": front[t], "wrist": wrist[t]}, actions=number, rewards=1.0)
        writer.end_episode(terminated=True, number=number)


def check(ds: gear_data.Dataset, numbers: range) -> None:
    assert ds.episodes["number"].to_list() == list(numbers)
    for row, number in enumerate(numbers):
        for name in (FRONT, WRIST):
            found = ds[row][name][:].astype(int)
            assert np.abs(found - frames_of(number, name)).max() <= 12


def videos(path: Path) -> int:
    return len([file for file in (path / "videos").rglob("*") if file.is_file()])


def test_generations_with_cameras(tmp_path: Path) -> None:
    path = tmp_path / "recorded"
    writer = Writer(path, cameras=CAMERAS, durability="os")
    add(writer, range(3))
    writer.seal()
    first = gear_data.open(path)
    add(writer, range(3, 5))
    writer.append(observations={name[13:]: frames_of(5, name)[0] for name in CAMERAS}, actions=5, rewards=1.0)
    writer.seal()  # an episode is open
    second = first.refresh()
    check(first, range(3))
    check(second, range(5))
    writer.discard()
    add(writer, range(5, 6))
    writer.close()
    check(second.refresh(), range(6))
    assert videos(path) == 12
    assert gear_data.verify(path, decode=True).ok
    assert not (tmp_path / "recorded.journal").exists()
    with Writer(path, cameras=CAMERAS) as writer:
        add(writer, range(6, 7))
    check(gear_data.open(path), range(7))
    assert gear_data.open(path).statistics[FRONT].count.sum() > 0


def test_evicted_videos_are_removed(tmp_path: Path) -> None:
    """They stay as long as somebody reads an earlier generation."""
    path = tmp_path / "recorded"
    writer = Writer(path, cameras=CAMERAS, durability="os", max_steps=24)
    add(writer, range(4))
    writer.seal()
    first = gear_data.open(path)
    for number in range(4, 12, 4):
        add(writer, range(number, number + 4))
        writer.seal()
    check(first, range(4))
    newest = first.refresh()
    left = newest.episodes["number"].to_list()
    assert newest.num_steps <= 24 and left[-1] == 11 and left[0] > 3
    check(newest, range(left[0], 12))
    assert newest.statistics[WRIST].count.sum() > 0
    assert videos(path) >= 8 + 2 * len(left)
    del first
    add(writer, range(12, 13))
    writer.close()
    del newest
    with Writer(path, cameras=CAMERAS, max_steps=24) as writer:
        add(writer, range(13, 14))
    ds = gear_data.open(path)
    check(ds, range(ds.episodes["number"][0], 14))
    assert videos(path) == 2 * len(ds)
    assert gear_data.verify(path).ok


def test_a_converted_dataset_with_cameras_grows(tmp_path: Path) -> None:
    path = tmp_path / "recorded"
    writer = Writer(tmp_path / "other", cameras=CAMERAS)
    add(writer, range(2))
    gear_data.convert(tmp_path / "other.journal", path, jobs=1)
    writer.close()
    reader = gear_data.open(path)
    assert reader.fingerprint == gear_data.open(tmp_path / "other").fingerprint
    with Writer(path, cameras=CAMERAS) as writer:
        add(writer, range(2, 4))
    check(reader, range(2))
    check(gear_data.open(path), range(4))
    assert gear_data.verify(path).ok


def test_video_files_count_for_the_limit(tmp_path: Path) -> None:
    """Each of the 60 videos has 1 kB."""
    path = tmp_path / "recorded"
    with Writer(path, cameras=CAMERAS, durability="os", max_bytes=50_000) as writer:
        add(writer, range(30))
    ds = gear_data.open(path)
    files = [file for folder in ("videos", "shards") for file in (path / folder).rglob("*")]
    assert 30_000 < sum(file.stat().st_size for file in files if file.is_file()) <= 50_000
    assert not [each for each in files if each.is_dir() and not any(each.iterdir())]
    check(ds, range(30 - len(ds), 30))
    assert ds.statistics[FRONT].count.sum() > 0


@pytest.mark.parametrize(
    "cameras, message", [({}, "give it in cameras"), ({FRONT: gear_data.Camera()}, "give it in cameras")]
)
def test_other_cameras_are_refused(tmp_path: Path, cameras: dict[str, gear_data.Camera], message: str) -> None:
    path = tmp_path / "recorded"
    with Writer(path, cameras=CAMERAS) as writer:
        add(writer, range(1))
    with Writer(path, cameras=cameras) as writer, pytest.raises(UnsupportedColumnError, match=message):
        add(writer, range(1, 2))
    check(gear_data.open(path), range(1))


def test_decoded_frames_outlive_a_refresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Videos that stay are not decoded again, also after their shards were joined."""
    decoded: list[str] = []
    decode = FrameReader._decode_missing

    def counted(self: FrameReader, request: FileRequest, *arguments: Any) -> None:
        decoded.append(request.video.file)
        decode(self, request, *arguments)

    monkeypatch.setattr(FrameReader, "_decode_missing", counted)
    monkeypatch.setattr(process_state(), "cache", FrameCache())  # other tests have equal files
    path = tmp_path / "recorded"
    with Writer(path, cameras=CAMERAS, durability="os", max_steps=16) as writer:
        add(writer, range(2))
        writer.seal()
        ds, known = gear_data.open(path), set[str]()
        loader = gear_data.SequenceLoader(ds, 32, context=4, preset="raw", columns=[FRONT], seed=1)
        for number in range(2, 6):
            for _ in range(2):
                next(iter(loader))
            check(ds, range(ds.episodes["number"][0], number))
            files = set(ds.store.videos.index.files.column("file").to_pylist())
            assert set(decoded) == files - known
            known |= files
            decoded.clear()
            add(writer, range(number, number + 1))
            writer.seal()
            loader.refresh()
            ds = ds.refresh()


def test_single_episodes_leave_with_their_videos(tmp_path: Path) -> None:
    path = tmp_path / "recorded"
    with Writer(path, cameras=CAMERAS, durability="os", max_steps=40, evict="actions.mean") as writer:
        for numbers in (range(6), range(6, 9), range(9, 11)):
            for number in numbers:
                front, wrist = (frames_of(number, name) for name in (FRONT, WRIST))
                for t in range(len(front)):
                    writer.append(observations={"front": front[t], "wrist": wrist[t]}, actions=number, rewards=1.0)
                writer.end_episode(terminated=True, number=number, **{"actions.mean": float(number % 4)})
            writer.seal()
    ds = gear_data.open(path)
    left = ds.episodes["number"].to_list()
    assert ds.num_steps <= 40 and left[-2:] == [9, 10] and left != list(range(left[0], 11))
    for row, number in enumerate(left):
        for name in (FRONT, WRIST):
            assert np.abs(ds[row][name][:].astype(int) - frames_of(number, name)).max() <= 12
    assert videos(path) == 2 * len(left)
    assert ds.statistics[FRONT].count.sum() > 0
    assert gear_data.verify(path).ok
