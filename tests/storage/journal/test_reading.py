from __future__ import annotations

import errno
import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gear_data.errors import CorruptSourceError, StorageFullError
from gear_data.schema import ColumnSpec, VideoFormat, video_column
from gear_data.storage.journal.reading import is_journal, read_journal
from gear_data.storage.journal.record import RecordedEpisode, RecordedVideo
from gear_data.storage.journal.videos import next_number, remove_journal, remove_unnamed, video_file
from gear_data.storage.journal.writing import JournalWriter

COLUMNS = (
    ColumnSpec("observations", "float64", (3, 2), has_final=True),
    ColumnSpec("actions", "float32", (3,)),
    ColumnSpec("rewards", "float16"),
    ColumnSpec("infos.words", "string"),
    ColumnSpec("infos.bytes", "binary"),
    ColumnSpec("infos.contact", "bool", (2,)),
)


def episodes(count: int = 20) -> list[RecordedEpisode]:
    generator = np.random.default_rng(0)
    found = []
    for number in range(count):
        steps = int(generator.integers(1, 30))
        columns: dict[str, Any] = {
            "observations": generator.random((steps, 3, 2)),
            "actions": generator.random((steps, 3), np.float32),
            "rewards": generator.random(steps).astype(np.float16),
            "infos.words": pa.array([f"é{t}" for t in range(steps)], pa.large_string()),
            "infos.bytes": pa.array([bytes(t % 4) for t in range(steps)], pa.large_binary()),
            "infos.contact": generator.random((steps, 2)) < 0.5,
        }
        finals = {"observations": generator.random((3, 2))} if number % 3 else {}
        facts = {"seed": number, "task": "öffnen", "score": 0.1 * number, "good": bool(number % 2)}
        found.append(RecordedEpisode(columns, bool(number % 2), not number % 2, finals, facts))
    return found


def write(path: Path, recorded: list[RecordedEpisode], *, close: bool = True) -> list[int]:
    """Writes a journal, and returns its size before the first and after each episode.

    Arrow writes the schema with the first episode.
    """
    writer = JournalWriter(path, COLUMNS)
    sizes = [writer.bytes]
    for episode in recorded:
        writer.append(episode)
        sizes.append(writer.bytes)
    if close:
        writer.close()
    return sizes


def assert_equal(found: RecordedEpisode, expected: RecordedEpisode) -> None:
    assert (found.terminated, found.truncated, found.facts) == (
        expected.terminated,
        expected.truncated,
        expected.facts,
    )
    for mine, other in ((found.columns, expected.columns), (found.finals, expected.finals)):
        assert mine.keys() == other.keys()
        for name, values in other.items():
            if isinstance(values, pa.Array):
                assert mine[name].equals(values)
            else:
                assert mine[name].dtype == values.dtype
                np.testing.assert_array_equal(mine[name], values)


def test_episodes_are_read_as_they_were_written(tmp_path: Path) -> None:
    recorded = episodes()
    write(tmp_path / "a.arrows", recorded)
    journal = read_journal(tmp_path / "a.arrows")
    assert (journal.columns, journal.torn) == (COLUMNS, 0)
    for found, expected in zip(journal.episodes, recorded, strict=True):
        assert_equal(found, expected)


def test_any_arrow_reader_opens_a_journal(tmp_path: Path) -> None:
    """The final observation is one more row."""
    recorded = episodes(4)
    write(tmp_path / "a.arrows", recorded)
    with pa.ipc.open_stream(tmp_path / "a.arrows") as stream:
        batches = list(stream)
    assert [len(batch) for batch in batches] == [each.steps + bool(each.finals) for each in recorded]
    assert batches[1]["infos.words"].to_pylist() == [*recorded[1].columns["infos.words"].to_pylist(), ""]


@pytest.mark.parametrize("close", [True, False])
def test_a_torn_end_is_cut_off(tmp_path: Path, close: bool) -> None:
    """Wherever a journal ends, it has the episodes that are whole."""
    path = tmp_path / "a.arrows"
    sizes = write(path, recorded := episodes(6), close=close)
    content = path.read_bytes()
    cuts = {0, 1, len(content), *sizes, *(size - 1 for size in sizes[1:]), *(size + 9 for size in sizes[:-1])}
    cuts |= {random.Random(1).randrange(len(content)) for _ in range(40)}
    for cut in sorted(cuts):
        path.write_bytes(content[:cut])
        journal = read_journal(path)
        whole = sum(size <= cut for size in sizes[1:])
        assert len(journal.episodes) == whole, cut
        if whole:
            assert journal.end == sizes[whole]
        assert journal.torn == (0 if close and cut == len(content) else cut - journal.end)
        for found, expected in zip(journal.episodes, recorded, strict=False):
            assert_equal(found, expected)


def test_damage_is_noticed(tmp_path: Path) -> None:
    """A changed bit is an error, or cuts the last episode off, or changes nothing that is read."""
    path = tmp_path / "a.arrows"
    sizes = write(path, recorded := episodes(5))
    content = path.read_bytes()
    choose = random.Random(0)
    errors = 0
    for _ in range(200):
        damaged = bytearray(content)
        damaged[choose.randrange(len(damaged))] ^= 1 << choose.randrange(8)
        path.write_bytes(damaged)
        try:
            journal = read_journal(path)
        except CorruptSourceError as error:
            errors += 1
            assert error.file == str(path)
            continue
        for found, expected in zip(journal.episodes, recorded, strict=False):
            assert_equal(found, expected)
    assert errors > 50
    path.write_bytes(content[: sizes[2]] + content[sizes[2] :].replace(b"\xc3\xb6ffnen", b"xxffnen", 1))
    with pytest.raises(CorruptSourceError) as raised:
        read_journal(path)
    assert raised.value.row == 2


def test_files_that_are_no_journals(tmp_path: Path) -> None:
    with pa.ipc.new_stream(tmp_path / "other.arrows", schema := pa.schema([("a", pa.int64())])) as stream:
        stream.write_batch(pa.record_batch([[1]], schema=schema))
    (tmp_path / "text.arrows").write_text("no Arrow at all, but long enough for a header")
    assert not is_journal(tmp_path / "other.arrows") and not is_journal(tmp_path / "text.arrows")
    with pytest.raises(CorruptSourceError, match="is no journal"):
        read_journal(tmp_path / "other.arrows")
    with pytest.raises(CorruptSourceError, match="cannot be read"):
        read_journal(tmp_path / "missing.arrows")
    write(tmp_path / "a.arrows", episodes(1))
    assert is_journal(tmp_path / "a.arrows")


def test_a_full_disk_keeps_the_episodes_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system writes a part of an episode, and then says that the disk is full."""
    recorded = episodes(3)
    writer = JournalWriter(tmp_path / "a.arrows", COLUMNS)
    real = os.pwrite
    for episode in recorded:
        first = writer.bytes

        def full(file: int, data: Any, offset: int, first: int = first) -> int:
            if offset > first:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(file, data[:100], offset)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(StorageFullError):
                writer.append(episode)
        assert (tmp_path / "a.arrows").stat().st_size == first
        writer.append(episode)
    writer.close()
    for found, expected in zip(read_journal(tmp_path / "a.arrows").episodes, recorded, strict=True):
        assert_equal(found, expected)


CAMERA = video_column("observations.front", VideoFormat(48, 64, 3, 30.0))


def write_filmed(path: Path, videos: list[dict[str, RecordedVideo]]) -> None:
    writer = JournalWriter(path, COLUMNS, [CAMERA])
    for video, episode in zip(videos, episodes(len(videos)), strict=True):
        for each in video.values():
            (path.parent / each.file).parent.mkdir(parents=True, exist_ok=True)
            (path.parent / each.file).write_bytes(bytes(each.bytes))
        writer.append(replace(episode, videos=video))
    writer.close()


def test_videos_of_episodes(tmp_path: Path) -> None:
    path = tmp_path / "000003.arrows"
    videos = [{CAMERA.name: RecordedVideo(video_file(CAMERA.name, number), 5, f"sum {number}")} for number in range(3)]
    write_filmed(path, videos)
    journal = read_journal(path)
    assert journal.cameras == (CAMERA,)
    assert [episode.videos for episode in journal.episodes] == videos
    unnamed = tmp_path / video_file(CAMERA.name, 3)
    unnamed.write_bytes(b"half")
    assert remove_unnamed(tmp_path, [path]) == 1
    assert remove_unnamed(tmp_path, [path]) == 0
    assert [each.name for each in sorted(tmp_path.rglob("*.mp4"))] == ["000000.mp4", "000001.mp4", "000002.mp4"]
    assert next_number(tmp_path) == 3
    remove_journal(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "videos",
    [
        {},
        {"observations.wrist": RecordedVideo("videos/a.mp4", 0, "")},
        {CAMERA.name: RecordedVideo("../../etc/passwd", 0, "")},
        {CAMERA.name: RecordedVideo("/etc/passwd", 0, "")},
        {CAMERA.name: RecordedVideo("videos/a\0.mp4", 0, "")},
        {CAMERA.name: RecordedVideo("videos/a.mp4", -1, "")},
    ],
)
def test_videos_that_no_writer_records(tmp_path: Path, videos: dict[str, RecordedVideo]) -> None:
    """A journal of somebody else cannot name files outside its folder."""
    path = tmp_path / "000000.arrows"
    writer = JournalWriter(path, COLUMNS, [CAMERA])
    for episode in episodes(2):
        writer.append(replace(episode, videos=videos))
    with pytest.raises(CorruptSourceError, match="an episode has"):
        read_journal(path)
