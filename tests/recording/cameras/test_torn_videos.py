"""Journals with cameras after a loss of power, and with damage: whole episodes or a report, never a half."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import gear_data
from gear_data.errors import CorruptSourceError, GearError
from gear_data.recording import sealing
from gear_data.recording.writer import Writer
from gear_data.storage.atomic import checksum
from gear_data.storage.journal import quarantine, reading
from gear_data.storage.journal.reading import read_journal

pytestmark = pytest.mark.processes

FRONT, WRIST = "observations.front", "observations.wrist"
CAMERAS = {name: gear_data.Camera(fps=10, codec="mpeg4") for name in (FRONT, WRIST)}
#: Episodes 0 and 1 were flushed; the others were not.
EPISODES, FLUSHED = 5, 2


def frames_of(number: int, camera: str) -> npt.NDArray[np.uint8]:
    frames = np.empty((4 + number % 3, 32, 32, 3), np.uint8)
    frames[:, :16], frames[:, 16:] = 40 * number, 20 * np.arange(len(frames))[:, None, None, None]
    return frames if camera == FRONT else 255 - frames


@dataclass(frozen=True)
class Recording:
    """What a writer left that lost its power, and what it recorded.

    Attributes:
        folder: a folder `data.journal`, which tests copy.
        frames: camera -> the decoded frames of each episode.
    """

    folder: Path
    frames: dict[str, list[npt.NDArray[np.uint8]]]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    path = tmp_path_factory.mktemp("recording")
    writer = Writer(path / "data", cameras=CAMERAS, durability="flush")
    for number in range(EPISODES):
        front, wrist = (frames_of(number, name) for name in (FRONT, WRIST))
        for t in range(len(front)):
            writer.append(observations={"front": front[t], "wrist": wrist[t]}, actions=10 * number + t)
        writer.end_episode(terminated=True, number=number)
        if number == FLUSHED - 1:
            writer.flush()
    # A later episode says how many were flushed.
    shutil.copytree(path / "data.journal", path / "left" / "data.journal")
    (path / "left/data.journal/000/.gear-data.lock").unlink(missing_ok=True)
    writer.close()
    ds = gear_data.open(path / "data")
    yield Recording(path / "left", {name: [episode[name][:] for episode in ds] for name in CAMERAS})


def published(folder: Path) -> list[int]:
    """Goes on with what was left, and returns the numbers of the published episodes."""
    with Writer(folder / "data", cameras=CAMERAS) as writer:
        count = writer.episodes
    assert not (folder / "data.journal").exists()
    entries = [each for each in quarantine.entries(folder / "data") if each.holds == quarantine.EPISODES]
    kept = [read_journal(each.episodes) for each in entries]
    set_aside = sum(len(each.episodes) for each in kept)
    if not (folder / "data/manifest.json").exists():
        assert count == set_aside
        return []
    ds = gear_data.open(folder / "data")
    assert len(ds) + set_aside == count
    return [int(number) for number in ds.episodes["number"]]


def check(folder: Path, recording: Recording, numbers: list[int]) -> None:
    """Every published episode has all its steps and frames."""
    if not numbers:
        return
    ds = gear_data.open(folder / "data")
    for row, number in enumerate(numbers):
        expected = recording.frames[FRONT][number]
        assert ds[row]["actions"].tolist() == [10 * number + t for t in range(len(expected))]
        for name in CAMERAS:
            np.testing.assert_array_equal(ds[row][name][:], recording.frames[name][number])
    assert gear_data.verify(folder / "data", progress=False).ok


def damaged(data: bytes, kind: str, choose: random.Random) -> bytes | None:
    if kind == "missing":
        return None
    place = choose.randrange(len(data))
    if kind == "cut":
        return data[:place]
    if kind == "zeros":
        return data[:place] + bytes(len(data) - place)
    return data[:place] + bytes([data[place] ^ 1 << choose.randrange(8)]) + data[place + 1 :]


def put(path: Path, data: bytes | None) -> None:
    path.unlink()
    if data is not None:
        path.write_bytes(data)


@pytest.mark.parametrize("kind", ["cut", "zeros", "missing"])
def test_episodes_that_were_not_flushed_are_set_aside(
    tmp_path: Path, recording: Recording, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Their videos did not reach the disk. The others are published. A conversion leaves the same ones out."""
    shutil.copytree(recording.folder, tmp_path, dirs_exist_ok=True)
    journal = tmp_path / "data.journal/000"
    for camera, number in ((FRONT, 2), (WRIST, 4)):
        path = journal / f"videos/{camera}/{number:06d}.mp4"
        put(path, damaged(path.read_bytes(), kind, random.Random(number)))
    assert len(read_journal(journal / "000000.arrows").lost) == 2
    report = gear_data.convert(journal, tmp_path / "converted", jobs=1)
    assert report.episodes == EPISODES - 2
    (finding,) = [each for each in gear_data.open(tmp_path / "converted").manifest.findings if "torn" in each["code"]]
    assert finding["count"] == 2 and "000002.mp4" in finding["message"]
    with caplog.at_level(logging.WARNING):
        assert published(tmp_path) == [0, 1, 3]
    check(tmp_path, recording, [0, 1, 3])
    assert sum("1 episodes cannot be published, and are kept" in each for each in caplog.messages) == 2
    kept = [read_journal(each.episodes) for each in quarantine.entries(tmp_path / "data")]
    assert sorted(int(episode.facts["number"]) for each in kept for episode in each.episodes) == [2, 4]


@pytest.mark.parametrize("kind", ["cut", "zeros"])
def test_a_flushed_episode_with_a_damaged_video_is_set_aside(tmp_path: Path, recording: Recording, kind: str) -> None:
    """The other episodes are published. If the file is restored, the episode can be rescued."""
    shutil.copytree(recording.folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / f"data.journal/000/videos/{WRIST}/000001.mp4"
    content = path.read_bytes()
    put(path, damaged(content, kind, random.Random(0)))
    assert published(tmp_path) == [0, 2, 3, 4]
    check(tmp_path, recording, [0, 2, 3, 4])
    [entry] = quarantine.entries(tmp_path / "data")
    assert "000001.mp4" in entry.reason
    assert entry.holds == quarantine.EPISODES
    (entry.episodes.parent / f"videos/{WRIST}/000001.mp4").write_bytes(content)
    gear_data.convert(entry.episodes, tmp_path / "rescued/data", progress=False)
    check(tmp_path / "rescued", recording, [1])


@pytest.mark.parametrize("seed", range(3))
def test_any_damage_leaves_whole_episodes(
    tmp_path: Path, recording: Recording, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    choose = random.Random(seed)
    outcomes = set()
    for case in range(5):
        folder = tmp_path / str(case)
        shutil.copytree(recording.folder, folder)
        files = sorted(path for path in (folder / "data.journal").rglob("*") if path.suffix in (".mp4", ".arrows"))
        for path in choose.sample(files, choose.choice((1, 1, 2))):
            put(path, damaged(path.read_bytes(), choose.choice(("cut", "zeros", "flip", "flip", "missing")), choose))
        caplog.clear()
        left = [path for path in files if path.exists()]
        try:
            numbers = published(folder)
        except GearError as error:
            outcomes.add("error")
            assert error.file
            # The journals are still there.
            assert [path for path in left if path.suffix == ".arrows" and not path.exists()] == []
            continue
        outcomes.add("published" if len(numbers) == EPISODES else "left out")
        check(folder, recording, numbers)
        assert numbers == sorted(set(numbers))
        journal_gone = not any(path.suffix == ".arrows" for path in left)
        reported = any("left out" in message or "are kept" in message for message in caplog.messages)
        assert len(numbers) == EPISODES or reported or journal_gone
    assert outcomes


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_video_that_cannot_be_read_once_costs_nothing(
    tmp_path: Path, recording: Recording, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Neither when a Writer looks for videos without an episode, nor when it publishes."""
    shutil.copytree(recording.folder, tmp_path, dirs_exist_ok=True)
    calls, at = 0, number

    def once(path: Path) -> str:
        nonlocal calls
        calls += 1
        if calls == at:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return checksum(path)

    with monkeypatch.context() as patch:
        patch.setattr(reading, "checksum", once)
        for _ in range(3):
            with suppress(CorruptSourceError):
                Writer(tmp_path / "data", cameras=CAMERAS).close()
                break
    assert calls > at
    assert [int(number) for number in gear_data.open(tmp_path / "data").episodes["number"]] == list(range(EPISODES))
    assert quarantine.entries(tmp_path / "data") == []


def test_a_conversion_that_reads_less_than_the_publication(
    tmp_path: Path, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A video is whole when the journal is read, and not when it is converted. The journal stays until all is well."""
    shutil.copytree(recording.folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / f"data.journal/000/videos/{FRONT}/000003.mp4"
    content = path.read_bytes()
    real = sealing.convert

    def convert(*arguments: Any, **options: Any) -> Any:
        path.write_bytes(content[:-1])
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(sealing, "convert", convert)
        with pytest.raises(CorruptSourceError, match="has 5 episodes, of which a conversion read 4"):
            Writer(tmp_path / "data", cameras=CAMERAS).close()
    assert not (tmp_path / "data").exists()
    path.write_bytes(content)
    assert published(tmp_path) == list(range(EPISODES))
    check(tmp_path, recording, list(range(EPISODES)))
