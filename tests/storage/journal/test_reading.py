from __future__ import annotations

import errno
import itertools
import os
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from gear_data.errors import CorruptSourceError, StorageFullError, UnwritableError
from gear_data.schema import ColumnSpec, VideoFormat, video_column
from gear_data.storage.atomic import checksum
from gear_data.storage.journal import reading
from gear_data.storage.journal.frames import find_frame, framed
from gear_data.storage.journal.reading import is_journal, read_journal, recorded_facts
from gear_data.storage.journal.record import RecordedEpisode, RecordedVideo, arrow_schema, describe_columns, to_batch
from gear_data.storage.journal.videos import next_number, remove_journal, remove_unnamed, video_file
from gear_data.storage.journal.writing import JournalWriter
from tests.support.running.interrupts import interrupted

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
    """Wherever a journal ends, it has the episodes that are whole. Other bytes are torn, or may be an episode."""
    path = tmp_path / "a.arrows"
    sizes = write(path, recorded := episodes(6), close=close)
    content = path.read_bytes()
    cuts = {0, 1, len(content), *sizes, *(size - 1 for size in sizes[1:]), *(size + 9 for size in sizes[:-1])}
    cuts |= {random.Random(1).randrange(len(content)) for _ in range(40)}
    torn = 0
    for cut in sorted(cuts):
        path.write_bytes(content[:cut])
        journal = read_journal(path)
        whole = sum(size <= cut for size in sizes[1:])
        assert len(journal.episodes) == whole, cut
        end = journal.records[-1].end if whole else 0
        assert end == (sizes[whole] if whole else 0)
        left = journal.torn + sum(each.end - each.start for each in journal.damaged)
        # Without a whole episode, the schema of the stream may be intact.
        assert left == (0 if close and cut == len(content) else cut - end) or not whole
        assert not (journal.torn and journal.damaged)
        torn += journal.torn > 0
        for found, expected in zip(journal.episodes, recorded, strict=False):
            assert_equal(found, expected)
    assert torn > 10


def hit(sizes: list[int], at: int) -> set[int]:
    """Returns the episode that has a byte."""
    return {sum(size <= at for size in sizes) - 1} & set(range(len(sizes) - 1))


def test_a_flipped_bit_costs_no_other_episode(tmp_path: Path) -> None:
    """Each of 4,000 flips leaves all episodes but the one that has the byte. The bytes of this one are found."""
    path = tmp_path / "a.arrows"
    recorded = [
        RecordedEpisode(
            {"observations": np.full((3, 2), number, "f4"), "infos.words": pa.array(["a"] * 3, pa.large_string())},
            True, False, {"observations": np.full(2, -number, "f4")} if number % 2 else {}, {"number": number},
        )
        for number in range(5)
    ]  # fmt: skip
    columns = (ColumnSpec("observations", "float32", (2,), has_final=True), ColumnSpec("infos.words", "string"))
    writer = JournalWriter(path, columns)
    sizes = [writer.bytes]
    for episode in recorded:
        writer.append(episode)
        sizes.append(writer.bytes)
    writer.close()
    content, choose = path.read_bytes(), random.Random(0)
    lost = 0
    for _ in range(4000):
        damaged = bytearray(content)
        at = choose.randrange(len(damaged))
        damaged[at] ^= 1 << choose.randrange(8)
        path.write_bytes(damaged)
        journal = read_journal(path)
        numbers = [episode.facts["number"] for episode in journal.episodes]
        missing = set(range(5)) - set(numbers)
        assert numbers == sorted(set(numbers))
        assert missing <= hit(sizes, at), at
        for episode in journal.episodes:
            assert (
                episode.columns["observations"].tobytes()
                == recorded[episode.facts["number"]].columns["observations"].tobytes()
            )
        if missing:
            lost += 1
            [extent] = journal.damaged
            assert (extent.start, extent.end) == (sizes[max(missing)] or extent.start, sizes[max(missing) + 1]) or (
                missing == {4} and extent.end == len(content)
            )
            assert extent.start <= at < extent.end
            assert extent.damage
    assert lost > 2400


def test_damage_over_several_episodes(tmp_path: Path) -> None:
    """Missing, overwritten and inserted bytes cost the episodes that they touch."""
    path = tmp_path / "a.arrows"
    sizes = write(path, episodes(8))
    content = path.read_bytes()

    def seeds(data: bytes) -> list[int]:
        path.write_bytes(data)
        return [episode.facts["seed"] for episode in read_journal(path).episodes]

    middle = (sizes[3] + sizes[4]) // 2
    assert seeds(content[:middle] + content[sizes[5] :]) == [0, 1, 2, 5, 6, 7]
    assert seeds(content[: middle - 40] + content[middle:]) == [0, 1, 2, 4, 5, 6, 7]
    assert seeds(content[: sizes[2]] + bytes(sizes[4] - sizes[2]) + content[sizes[4] :]) == [0, 1, 4, 5, 6, 7]
    assert seeds(content[: sizes[2]] + b"\xff" * 999 + content[sizes[2] :]) == list(range(8))
    assert seeds(bytes(4096) + content[4096:]) == list(range(hit(sizes, 4095).pop() + 1, 8))
    assert seeds(content[: sizes[2]] + content[sizes[1] :]) == list(range(8)), "a record twice"
    other = tmp_path / "b.arrows"
    write(other, episodes(3))
    assert seeds(content[: sizes[2]] + other.read_bytes()) == [0, 1], "records of another journal"


def write_plain(path: Path, recorded: list[RecordedEpisode]) -> list[int]:
    """Writes a journal as earlier versions did: an Arrow stream whose batches have facts as metadata."""
    metadata = {b"gear.journal": describe_columns(COLUMNS)}
    metadata[b"gear.checksum"] = xxhash.xxh3_128_hexdigest(metadata[b"gear.journal"] + b"\0").encode()
    sizes = []
    with path.open("wb") as file, pa.ipc.new_stream(file, arrow_schema(COLUMNS).with_metadata(metadata)) as stream:
        for episode in recorded:
            sizes.append(file.tell())
            batch, facts = to_batch(episode, COLUMNS)
            stream.write_batch(batch, {b"gear.episode": facts})
        sizes.append(file.tell())
    return sizes


def test_journals_of_earlier_versions(tmp_path: Path) -> None:
    """They have no frames: behind a damaged header nothing is found, and all of it may be episodes."""
    path = tmp_path / "a.arrows"
    sizes = write_plain(path, recorded := episodes(8))
    assert is_journal(path)
    journal = read_journal(path)
    assert (journal.id, journal.damaged, journal.torn, journal.columns) == (b"", (), 0, COLUMNS)
    for found, expected in zip(journal.episodes, recorded, strict=True):
        assert_equal(found, expected)
    content = path.read_bytes()
    path.write_bytes(content[: sizes[3]] + content[sizes[3] :].replace(b"\xc3\xb6ffnen", b"xxffnen", 1))
    journal = read_journal(path)
    assert [episode.facts["seed"] for episode in journal.episodes] == [0, 1, 2, 4, 5, 6, 7]
    assert [(each.start, each.end) for each in journal.damaged] == [(sizes[3], sizes[4])]
    path.write_bytes(content[: sizes[3] + 7] + b"\x40" + content[sizes[3] + 8 :])
    journal = read_journal(path)
    assert len(journal.episodes) == 3
    assert [(each.start, each.end) for each in journal.damaged] == [(sizes[3], len(content))]


def test_files_that_are_no_journals(tmp_path: Path) -> None:
    with pa.ipc.new_stream(tmp_path / "other.arrows", schema := pa.schema([("a", pa.int64())])) as stream:
        stream.write_batch(pa.record_batch([[1]], schema=schema))
    (tmp_path / "text.arrows").write_text("no Arrow at all, but long enough for a header")
    assert not is_journal(tmp_path / "other.arrows") and not is_journal(tmp_path / "text.arrows")
    for name in ("other.arrows", "text.arrows"):
        journal = read_journal(tmp_path / name)
        assert journal.episodes == ()
        assert (journal.damaged != ()) != (journal.torn > 0)
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
    journal = read_journal(path)
    assert journal.episodes == ()
    assert ["an episode has" in each.damage for each in journal.damaged] == [True, True]


def test_an_interrupt_leaves_an_episode_whole_or_unwritten(tmp_path: Path) -> None:
    """At each moment of `append`. No two records have one number, and the next episode is behind the last one."""
    writer = JournalWriter(tmp_path / "a.arrows", COLUMNS, [CAMERA])
    [first, second] = episodes(2)
    writer.append(numbered(first, 0))
    kept, both = [0], set()
    for moment in itertools.count():
        before = writer.episodes
        episode = numbered(second, moment + 1)
        is_interrupted = interrupted(lambda episode=episode: writer.append(episode), moment)  # type: ignore[misc]
        assert (tmp_path / "a.arrows").stat().st_size == writer.bytes
        assert writer.episodes - before in ((0, 1) if is_interrupted else (1,))
        both.add(writer.episodes - before)
        if writer.episodes > before:
            kept.append(moment + 1)
        if not is_interrupted:
            break
    assert both == {0, 1}
    assert len(writer._videos) == len(kept)
    data = reading._read(tmp_path / "a.arrows")
    reader = reading._Reader(data, "a")
    reader.read_framed(b"", 0)
    assert not reader.damaged
    assert [episode.facts["number"] for episode in reader.episodes] == kept
    assert [record.number for record in reader.records] == list(range(len(kept)))


def numbered(episode: RecordedEpisode, number: int) -> RecordedEpisode:
    video = RecordedVideo(video_file(CAMERA.name, number), 5, "")
    return replace(episode, facts={"number": number}, videos={CAMERA.name: video})


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_after_a_disk_failed_no_sync_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """The system tells one fsync of it. The journal has no end then, which would say that the disk has its videos."""
    path = tmp_path / "a.arrows"
    writer = JournalWriter(path, COLUMNS)
    recorded = episodes(3)
    writer.append(recorded[0])
    fail = iter([OSError(code, os.strerror(code))])
    real = os.fsync

    def once(file: int) -> None:
        for error in fail:
            raise error
        real(file)

    monkeypatch.setattr(os, "fsync", once)
    for episode in recorded[1:]:
        with pytest.raises((StorageFullError, UnwritableError), match=r"seal\(\)"):
            writer.sync()
        writer.append(episode)
    with pytest.raises((StorageFullError, UnwritableError)):
        writer.close()
    assert not path.read_bytes().endswith(b"\xff\xff\xff\xff\0\0\0\0")
    assert len(read_journal(path).episodes) == 3


def filmed_without_end(path: Path, count: int = 4) -> list[Path]:
    """Writes a journal with videos that has no end, as that of a writer that died; returns the videos."""
    writer = JournalWriter(path, COLUMNS, [CAMERA])
    videos = []
    for number, episode in enumerate(episodes(count)):
        file = video_file(CAMERA.name, number)
        videos.append(path.parent / file)
        videos[-1].parent.mkdir(parents=True, exist_ok=True)
        videos[-1].write_bytes(bytes([number]) * 9)
        video = RecordedVideo(file, 9, checksum(videos[-1]))
        writer.append(replace(episode, facts={"number": number}, videos={CAMERA.name: video}))
    return videos


def test_lost_episodes_keep_their_bytes_and_videos(tmp_path: Path) -> None:
    """Their videos are missing or damaged. Nothing is removed that a damaged journal may name."""
    path = tmp_path / "000000.arrows"
    videos = filmed_without_end(path)
    videos[0].write_bytes(b"\x01" + bytes(8))
    videos[1].write_bytes(b"")
    videos[2].unlink()
    journal = read_journal(path)
    assert [episode.facts["number"] for episode in journal.episodes] == [3]
    assert [record.number for record in journal.lost] == [0, 1, 2]
    assert [
        problem in record.damage
        for problem, record in zip(("checksum", "0 of 9", "No such"), journal.lost, strict=True)
    ]
    assert journal.lost[2].end == journal.records[0].start
    assert remove_unnamed(tmp_path, [path]) == 0
    assert videos[0].exists() and videos[1].exists()


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES, errno.EMFILE])
def test_a_video_that_cannot_be_read_now_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = tmp_path / "000000.arrows"
    videos = filmed_without_end(path)

    def fail(path: Path) -> str:
        if path == videos[2]:
            raise OSError(code, os.strerror(code))
        return checksum(path)

    with monkeypatch.context() as patch:
        patch.setattr(reading, "checksum", fail)
        for call in (lambda: read_journal(path), lambda: remove_unnamed(tmp_path, [path])):
            with pytest.raises((CorruptSourceError, OSError), match=r"000002\.mp4"):
                call()
    assert len(read_journal(path).episodes) == 4
    assert all(video.exists() for video in videos)


def test_journals_that_become_shorter_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their writer removes an episode for which the disk has no space. A map would end this process by SIGBUS."""
    path = tmp_path / "a.arrows"
    sizes = write(path, episodes(40), close=False)
    content = path.read_bytes()
    wanted = [{**episode.facts} for episode in episodes(40)]
    for block in (64, 1000, 1 << 20):
        monkeypatch.setattr(reading, "_BLOCK", block)
        path.write_bytes(content)
        facts = recorded_facts(path)
        found = [dict(next(facts)) for _ in range(10)]
        assert found == wanted[:10]
        os.truncate(path, sizes[20])
        found += map(dict, facts)
        assert found == wanted[: len(found)] and len(found) >= 10
        path.write_bytes(content)
        assert list(map(dict, recorded_facts(path))) == wanted
    journal = read_journal(path, is_written=True)
    os.truncate(path, 0)
    for found_episode, expected in zip(journal.episodes, episodes(40), strict=True):
        assert_equal(found_episode, expected)
    assert read_journal(path, is_written=True).episodes == () and list(recorded_facts(path)) == []


def test_sync_waits_for_the_name_of_the_journal_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders above may be new, too. A video may be the first of its camera."""
    folder = tmp_path / "d.journal" / "000"
    folder.mkdir(parents=True)
    writer = JournalWriter(folder / "a.arrows", COLUMNS, [CAMERA])
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}")))
    writer.sync()
    assert {str(folder / "a.arrows"), str(folder), str(folder.parent), str(tmp_path)} <= set(synced)
    synced.clear()
    writer.sync()
    assert synced == [str(folder / "a.arrows")]
    synced.clear()
    video = folder / video_file(CAMERA.name, 0)
    video.parent.mkdir(parents=True)
    video.write_bytes(b"12345")
    writer.append(numbered(episodes(1)[0], 0))
    writer.sync()
    assert {str(video), *map(str, video.parents[:3])} <= set(synced)


def open_files(folder: Path) -> list[str]:
    """Returns the files of a folder that this process has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [file for file in found if file.startswith(f"{folder}/")]


def test_journals_that_were_read_keep_no_descriptor(tmp_path: Path) -> None:
    """A source may have more journals than a process may have open files."""
    for number in range(3):
        write(tmp_path / f"{number}.arrows", episodes(2))
    journals = [read_journal(tmp_path / f"{number}.arrows") for number in range(3)]
    assert open_files(tmp_path) == []
    for number, journal in enumerate(journals):
        (tmp_path / f"{number}.arrows").unlink()
        for found, expected in zip(journal.episodes, episodes(2), strict=True):
            assert_equal(found, expected)


def test_a_record_may_have_more_than_2_to_the_31_elements() -> None:
    """Nulls are elements that take no bytes."""
    batch = pa.record_batch({"x": pa.Array.from_buffers(pa.null(), 1 << 31, [None])})
    record = framed(batch, b"j" * 16, 0, [b"text"])
    frame = find_frame(record, 0, 0)
    assert frame is not None
    assert (frame.start, frame.end, frame.texts) == (0, len(record), (b"text",))
    message = pa.ipc.read_message(pa.py_buffer(record))
    assert pa.ipc.read_record_batch(message, batch.schema).num_rows == 1 << 31
