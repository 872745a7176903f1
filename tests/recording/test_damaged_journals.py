"""Journals that were damaged, and publications that failed: the next one publishes all that is intact."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import StorageFullError
from gear_data.schema import ColumnSpec, VideoFormat, video_column
from gear_data.storage.journal.reading import read_journal
from gear_data.storage.journal.record import RecordedEpisode, RecordedVideo
from gear_data.storage.journal.videos import video_file
from gear_data.storage.journal.writing import JournalWriter

COLUMNS = (ColumnSpec("observations", "float32", (2,), has_final=True), ColumnSpec("actions", "int64"))


def left_behind(folder: Path, count: int = 6, columns: Any = COLUMNS) -> tuple[Path, list[int]]:
    """Writes the journal of a writer that died, and returns it with the ends of its episodes."""
    path = folder.with_name(f"{folder.name}.journal") / "000" / "000000.arrows"
    path.parent.mkdir(parents=True)
    writer = JournalWriter(path, columns)
    ends = []
    for number in range(count):
        values = {"observations": np.full((4, 2), number, "f4"), "actions": np.full(4, number)}
        writer.append(RecordedEpisode(values, True, False, facts={"number": number}))
        ends.append(writer.bytes)
    writer.sync()
    return path, ends


def numbers(folder: Path) -> list[int]:
    return list(gear_data.open(folder).episodes["number"])


def quarantined(folder: Path) -> list[Path]:
    return sorted(folder.with_name(f"{folder.name}.quarantine").iterdir())


@pytest.mark.parametrize("place", ["header", "steps", "last", "schema"])
def test_only_the_damaged_episode_is_set_aside(place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "live"
    path, ends = left_behind(folder)
    content = bytearray(path.read_bytes())
    at, lost = {
        "header": (ends[1] + 7, 2), "steps": (ends[2] - 9, 2), "last": (ends[-2] + 40, 5), "schema": (7, None)
    }[place]  # fmt: skip
    content[at] ^= 0x40
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING), gear_data.Writer(folder) as writer:
        assert writer.episodes == 6 - (lost is not None)
    assert numbers(folder) == [number for number in range(6) if number != lost]
    assert not path.exists()
    if lost is None:
        assert not folder.with_name("live.quarantine").exists()
        return
    [entry] = quarantined(folder)
    assert (entry / "damaged.bin").read_bytes() == content[ends[lost - 1] : ends[lost]]
    reason = json.loads((entry / "reason.json").read_text())
    assert (reason["first_byte"], reason["journal"]) == (ends[lost - 1], "000/000000.arrows")
    assert str(entry) in caplog.text


def test_a_torn_end_needs_no_quarantine(tmp_path: Path) -> None:
    """The header says that the episode has more bytes: its writer died before the end of the episode."""
    folder = tmp_path / "live"
    path, ends = left_behind(folder)
    path.write_bytes(path.read_bytes()[: ends[-1] - 20])
    gear_data.Writer(folder).close()
    assert numbers(folder) == [0, 1, 2, 3, 4]
    assert not folder.with_name("live.quarantine").exists()


def test_a_killed_publication_sets_aside_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "live"
    path, ends = left_behind(folder)
    content = bytearray(path.read_bytes())
    content[ends[1] + 7] ^= 0x40
    path.write_bytes(content)

    def killed(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("gear_data.recording.sealing.convert", killed)
        with pytest.raises(KeyboardInterrupt):
            gear_data.Writer(folder).close()
    assert path.exists()
    gear_data.Writer(folder).close()
    assert numbers(folder) == [0, 1, 3, 4, 5]
    assert len(quarantined(folder)) == 1


def test_videos_of_a_damaged_episode_are_kept(tmp_path: Path) -> None:
    """A journal that is damaged may name any video of its folder: none is removed before the bytes are set aside."""
    folder = tmp_path / "live"
    path = folder.with_name("live.journal") / "000" / "000000.arrows"
    camera = video_column("observations.front", VideoFormat(48, 64, 3, 30.0))
    (path.parent / "videos" / camera.name).mkdir(parents=True)
    writer = JournalWriter(path, COLUMNS, [camera])
    name = video_file(camera.name, 0)
    (path.parent / name).write_bytes(b"a film")
    values = {"observations": np.zeros((4, 2), "f4"), "actions": np.zeros(4, int)}
    writer.append(RecordedEpisode(values, True, False, videos={camera.name: RecordedVideo(name, 6, "")}))
    writer.sync()
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
    assert read_journal(path).episodes == ()
    gear_data.Writer(folder).close()
    [entry] = quarantined(folder)
    assert (entry / name).read_bytes() == b"a film"
    assert not path.exists()


def test_a_publication_that_failed_leaves_no_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one makes the same generation, and other episodes leave."""
    folder = tmp_path / "live"

    def record(writer: gear_data.Writer, first: int) -> None:
        for number in range(first, first + 12):
            writer.append(actions=100 * number, rewards=1.0)
            writer.end_episode(terminated=True, weight=number * 7 % 84)

    writer = gear_data.Writer(folder, durability="os", shard_bytes=1 << 14, max_steps=64, evict="weight")
    for first in range(0, 60, 12):
        record(writer, first)
        writer.seal()
    record(writer, 60)

    def full(*arguments: Any, **options: Any) -> None:
        raise StorageFullError("no space left on the device")

    with monkeypatch.context() as patch:
        patch.setattr("gear_data.ingest.growing.next_generation.write_table", full)
        with pytest.raises(StorageFullError):
            writer.seal()
    record(writer, 72)
    writer.close()
    report = gear_data.verify(folder, deep=True, progress=False)
    assert report.ok, report.differences
