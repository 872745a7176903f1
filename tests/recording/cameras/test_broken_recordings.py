"""Recordings with cameras that are killed, or whose disk fills up."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import gear_data
from gear_data.errors import GearError, StorageFullError
from gear_data.recording.writer import Writer
from gear_data.storage.journal.reading import read_journal
from tests.support.cameras.filmed import moving_bar

pytestmark = pytest.mark.processes

CAMERA = "observations.front"
CAMERAS = {CAMERA: gear_data.Camera(fps=10, codec="mpeg4")}


def frames_of(number: int) -> npt.NDArray[np.uint8]:
    """Returns frames whose brightness says the number of the episode and of the step."""
    frames = np.empty((5 + number % 7, 32, 32, 3), np.uint8)
    frames[:, :16], frames[:, 16:] = 3 * (number % 80), 10 * np.arange(len(frames))[:, None, None, None]
    return frames


def check(ds: gear_data.Dataset, count: int) -> None:
    """Checks that every episode has its own frames, in order."""
    assert ds.episodes["number"].to_list() == list(range(count))
    for number in range(count):
        found = ds[number][CAMERA][:].astype(int)
        assert np.abs(found - frames_of(number)).max() <= 12
        assert ds[number]["actions"].tolist() == list(range(len(found)))


def record_for_ever(folder: Path, pipe: int) -> None:
    writer = Writer(folder, cameras=CAMERAS, durability="os")
    while True:
        number = writer.episodes
        for t, frame in enumerate(frames_of(number)):
            writer.append(observations={"front": frame}, actions=t)
            os.write(pipe, b"t")
        if number % 4 == 3 and t % 2:
            writer.discard()
            for t, frame in enumerate(frames_of(number)):
                writer.append(observations={"front": frame}, actions=t)
        writer.end_episode(terminated=True, number=number)
        os.write(pipe, b"E")


def test_killed_processes_lose_the_open_episode_only(tmp_path: Path) -> None:
    """Each process is killed after another number of steps. The next one continues."""
    folder = tmp_path / "recorded"
    finished = 0
    for steps in (1, 7, 12, 26, 33):
        reader, pipe = os.pipe()
        child = multiprocessing.get_context("fork").Process(target=record_for_ever, args=(folder, pipe))
        child.start()
        os.close(pipe)
        seen = b""
        while seen.count(b"t") < steps:
            seen += os.read(reader, 1)
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        while part := os.read(reader, 4096):
            seen += part
        os.close(reader)
        finished += seen.count(b"E")
        journals = tmp_path / "recorded.journal"
        episodes = sum(len(read_journal(each).episodes) for each in journals.rglob("*.arrows"))
        assert finished <= episodes <= finished + 1
        finished = episodes
        # At most the files of the open episode, and of one that was complete and not in the journal yet.
        assert finished <= len(list(journals.rglob("*.mp4"))) <= finished + 1
    with Writer(folder, cameras=CAMERAS) as writer:
        assert writer.episodes == finished > 5
        assert len(list((tmp_path / "recorded.journal").rglob("*.mp4"))) == finished
    check(gear_data.open(folder), finished)
    assert gear_data.verify(folder).ok
    assert [path.name for path in tmp_path.iterdir()] == ["recorded"]


def test_a_journal_converts_without_a_writer(tmp_path: Path) -> None:
    """A damaged video makes its episode malformed."""
    writer = Writer(tmp_path / "recorded", cameras=CAMERAS)
    for number in range(3):
        for t, frame in enumerate(frames_of(number)):
            writer.append(observations={"front": frame}, actions=t)
        writer.end_episode(number=number)
    writer.append(observations={"front": frames_of(0)[0]}, actions=0)
    journal = tmp_path / "recorded.journal"
    gear_data.convert(journal, tmp_path / "converted", jobs=1)
    check(gear_data.open(tmp_path / "converted"), 3)
    gear_data.convert(journal, tmp_path / "rows", columns=["actions"], jobs=1)
    assert gear_data.open(tmp_path / "rows").schema.videos == ()
    gear_data.convert(journal, tmp_path / "frames", videos="frames", rename={CAMERA: "observations.images"}, jobs=1)
    decoded = gear_data.open(tmp_path / "frames")[1]["observations.images"]
    np.testing.assert_array_equal(decoded, gear_data.open(tmp_path / "converted")[1][CAMERA][:])
    videos = sorted(journal.rglob("*.mp4"))
    with open(videos[0], "r+b") as file:  # a link of the dataset: its checksum is in the journal
        file.seek(videos[0].stat().st_size // 2)
        file.write(b"damage")
    videos[1].unlink()
    with pytest.raises(GearError, match=r"000000\.mp4 differs from its checksum"):
        gear_data.convert(journal, tmp_path / "damaged", jobs=1)
    report = gear_data.convert(journal, tmp_path / "skipped", on_bad_episode="skip", jobs=1)
    assert report.episodes == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small tmpfs is not allowed here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_loses_no_frame(small_disk: Path) -> None:
    """The episode stays open. It is complete after there is room."""
    frames = moving_bar(60)
    noise = np.random.default_rng(0).integers(0, 60, frames.shape, np.uint8)
    frames += noise
    writer = Writer(small_disk / "recorded", cameras=CAMERAS)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(200 * 1024))
    for t, frame in enumerate(frames):
        writer.append(observations={"front": frame}, actions=t)
    for _ in range(2):
        with pytest.raises(StorageFullError):
            writer.end_episode(terminated=True)
    assert writer.open_episodes() == [0]
    with pytest.raises(GearError, match="call end_episode again"):
        writer.append(observations={"front": frames[0]}, actions=1)
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    writer.end_episode(terminated=True)
    writer.close()
    ds = gear_data.open(small_disk / "recorded")
    assert ds[0]["actions"].tolist() == list(range(60))
    assert np.abs(ds[0][CAMERA][:].astype(int) - frames).mean() < 15
    assert gear_data.verify(small_disk / "recorded", decode=True).ok


def test_a_discarded_episode_frees_a_full_disk(small_disk: Path) -> None:
    writer = Writer(small_disk / "recorded", cameras=CAMERAS, durability="os")
    noise = np.random.default_rng(0).integers(0, 256, (80, 64, 64, 3), np.uint8)
    for t, frame in enumerate(noise):
        writer.append(observations={"front": frame}, actions=t)
    with pytest.raises(StorageFullError):
        writer.end_episode()
    writer.discard()
    assert list(small_disk.rglob("*.mp4")) == []
    writer.append(observations={"front": noise[0] // 8}, actions=1)
    writer.close()
    assert len(gear_data.open(small_disk / "recorded")[0][CAMERA]) == 1
