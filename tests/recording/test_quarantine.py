"""Journals that were damaged, and publications that failed: the next one publishes all that is intact."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import gear_data
from gear_data.cli import main
from gear_data.errors import BadEpisodeError, InvalidArgumentError, StorageFullError, UnsupportedColumnError
from gear_data.growing.publish import publish
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
    assert f"{folder} {entry.name}: " in caplog.text


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
        patch.setattr("gear_data.growing.next_generation.write_table", full)
        with pytest.raises(StorageFullError):
            writer.seal()
    record(writer, 72)
    writer.close()
    report = gear_data.verify(folder, deep=True, progress=False)
    assert report.ok, report.differences


def poisoned(folder: Path, facts: list[dict[str, Any]], columns: Any = COLUMNS, number: int = 0) -> Path:
    """Writes a journal of a Writer of an earlier version, which did not check facts."""
    path = folder.with_name(f"{folder.name}.journal") / "000" / f"{number:06d}.arrows"
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = JournalWriter(path, columns)
    for place, each in enumerate(facts):
        values = {column.name: np.full((4, *column.shape), place, column.dtype) for column in columns}
        writer.append(RecordedEpisode(values, True, False, facts=each))
    writer.close()
    return path


def test_episodes_that_cannot_join_are_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "live"
    path = poisoned(
        folder, [{"n": 0, "a": 1}, {"n": 1, "a": "x"}, {"n": 2, "a": 2}, {"n": 3, "": 1}, {"n": 4, "a": "y"}, {"n": 5}]
    )
    gear_data.Writer(folder).close()
    assert numbers_of(folder) == [0, 2, 5]
    assert not path.exists()
    assert main(["journal", "list", str(folder), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["entries"]
    assert sorted(each["reason"] for each in listed) == [
        "the fact : a fact cannot have this name: it is empty, not UTF-8, or contains NUL",
        "the fact a: it is of text, and earlier episodes have whole numbers",
    ]
    name = next(each["name"] for each in listed if "text" in each["reason"])
    assert name in caplog.text
    assert main(["journal", "rescue", str(folder), name, str(tmp_path / "rescued")]) == 0
    assert numbers_of(tmp_path / "rescued") == [1, 4]
    assert gear_data.open(tmp_path / "rescued")[1]["actions"].tolist() == [4] * 4
    assert main(["journal", "show", str(folder), name]) == 0
    assert "journal: 000/000000.arrows" in capsys.readouterr().out
    for each in listed:
        assert main(["journal", "drop", str(folder), each["name"]]) == 0
    capsys.readouterr()
    assert main(["journal", "list", str(folder)]) == 0
    assert "all recorded episodes are in the dataset" in capsys.readouterr().out
    assert not folder.with_name("live.quarantine").exists()
    assert main(["journal", "drop", str(folder), name]) == 2
    assert main(["journal", "rescue", str(folder), name]) == 2


def numbers_of(folder: Path) -> list[int]:
    return list(gear_data.open(folder).episodes["n"])


def test_damaged_bytes_cannot_be_rescued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "live"
    path, ends = left_behind(folder)
    content = bytearray(path.read_bytes())
    content[ends[1] + 7] ^= 0x40
    path.write_bytes(content)
    gear_data.Writer(folder).close()
    [entry] = quarantined(folder)
    assert main(["journal", "rescue", str(folder), entry.name, str(tmp_path / "rescued")]) == 1
    assert "the header of an episode is damaged" in capsys.readouterr().err


def test_a_journal_of_other_columns_is_set_aside(tmp_path: Path) -> None:
    """The journals before and behind it are published."""
    folder = tmp_path / "live"
    others = (*COLUMNS, ColumnSpec("terminated", "float32"))
    poisoned(folder, [{"n": 0}])
    poisoned(folder, [{"n": 1}, {"n": 2}], others, number=1)
    poisoned(folder, [{"n": 3}], number=2)
    gear_data.Writer(folder).close()
    assert numbers_of(folder) == [0, 3]
    [entry] = quarantined(folder)
    [record] = entry.glob("*.arrows")
    assert [episode.facts["n"] for episode in read_journal(record).episodes] == [1, 2]


def test_a_journal_that_no_longer_joins_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process makes the dataset after the checks, and before the publication takes its turn."""
    folder = tmp_path / "live"
    poisoned(folder, [{"n": 0}])
    poisoned(folder, [{"n": 1, "a": 1}, {"n": 2}], number=1)
    poisoned(folder, [{"n": 3, "a": "y"}], number=2)
    poisoned(tmp_path / "other", [{"n": 9, "a": "x"}])

    def overtaken(*arguments: Any) -> Any:
        gear_data.convert(tmp_path / "other.journal", folder, progress=False)
        return publish(*arguments)

    monkeypatch.setattr("gear_data.recording.sealing.publish", overtaken)
    monkeypatch.setattr("gear_data.recording.sealing.Acceptance.refused", lambda *_: {})
    gear_data.Writer(folder).close()
    assert numbers_of(folder) == [9, 0, 3]
    assert gear_data.open(folder).generation == 2
    [entry] = quarantined(folder)
    assert [episode.facts["n"] for episode in read_journal(entry / "episodes.arrows").episodes] == [1, 2]
    assert not folder.with_name("live.journal").exists()
    assert gear_data.verify(folder, deep=True, progress=False).ok


def test_an_episode_that_the_conversion_refuses_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For what nobody thought of: publication goes on without the first episode with which it fails, and so on."""
    folder = tmp_path / "live"
    poisoned(folder, [{"n": number} for number in range(9)])

    def choosy(block: Any, columns: Any) -> None:
        for value in block.metadata.get("n", []):
            if value in (2, 7):
                raise BadEpisodeError(f"nobody likes {value}", file="x")

    monkeypatch.setattr("gear_data.ingest.pipeline.prepare.check_block", choosy)
    gear_data.Writer(folder).close()
    assert numbers_of(folder) == [0, 1, 3, 4, 5, 6, 8]
    assert len(quarantined(folder)) == 2
    assert not folder.with_name("live.journal").exists()


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_converted_journal_is_not_published_again(goes_on: bool, tmp_path: Path) -> None:
    folder = tmp_path / "live"
    writer = gear_data.Writer(folder)

    def record(writer: gear_data.Writer, first: int) -> None:
        for number in range(first, first + 2):
            for _ in range(3):
                writer.append(observations=[0.0], actions=number)
            writer.end_episode(terminated=True, n=number)

    record(writer, 0)
    gear_data.convert(folder.with_name("live.journal"), folder, progress=False)
    if goes_on:
        record(writer, 2)
        writer.close()
    else:
        writer._sink._journals._stack.close()  # type: ignore[attr-defined]  # as if it died
        with gear_data.Writer(folder) as writer:
            assert writer.episodes == 0  # those of the dead Writer are in the dataset
            record(writer, 2)
    assert numbers_of(folder) == [0, 1, 2, 3]
    assert not folder.with_name("live.quarantine").exists()


@pytest.mark.parametrize("how", ["converted at once", "merged", "merged and saved"])
def test_a_journal_that_was_converted_beside_others_is_not_published_again(how: str, tmp_path: Path) -> None:
    folder = tmp_path / "live"
    left_behind(folder, 3)
    left_behind(tmp_path / "other", 2)
    journals = [tmp_path / "live.journal", tmp_path / "other.journal"]
    if how == "converted at once":
        gear_data.convert(journals, folder, progress=False)
    else:
        for journal, name in zip(journals, "ab", strict=True):
            gear_data.convert(journal, tmp_path / name, progress=False)
        merged = tmp_path / "ab" if how == "merged and saved" else folder
        gear_data.merge([tmp_path / "a", tmp_path / "b"], merged, progress=False)
        if merged != folder:
            gear_data.open(merged)[:4].save(folder, progress=False)
    expected = numbers(folder)
    with gear_data.Writer(folder) as writer:
        assert writer.episodes == 0
    assert numbers(folder) == expected and not folder.with_name("live.journal").exists()
    assert not folder.with_name("live.quarantine").exists()


def test_facts_of_other_writers_are_known(tmp_path: Path) -> None:
    first, second = gear_data.Writer(tmp_path / "live"), gear_data.Writer(tmp_path / "live")

    def record(writer: gear_data.Writer, **facts: Any) -> None:
        writer.append(actions=1)
        writer.end_episode(terminated=True, **facts)

    record(first, a=1, task="lift")
    with pytest.raises(InvalidArgumentError, match=r"the fact a is 'x': .* earlier episodes have whole numbers"):
        record(second, a="x")
    second.discard()
    record(second, a=0.5)
    record(second, b=True)
    with pytest.raises(InvalidArgumentError, match="would not be exact"):
        record(second, a=2**53 + 1)
    second.discard()
    first.close()
    second.close()
    episodes = gear_data.open(tmp_path / "live").episodes
    assert episodes["a"].to_list() == [1.0, 0.5, None]
    assert not (tmp_path / "live.quarantine").exists()


def test_writers_that_begin_at_once_need_the_same_columns(tmp_path: Path) -> None:
    """The first episode decides. A Writer with other columns is told before it acknowledges an episode."""
    first, second = gear_data.Writer(tmp_path / "live"), gear_data.Writer(tmp_path / "live")
    first.append(actions=0.5)
    second.append(actions=1)
    first.end_episode(terminated=True)
    for _ in range(2):
        with pytest.raises(UnsupportedColumnError, match="actions"):
            second.end_episode(terminated=True)
    assert second.episodes == 0 and second.open_episodes() == [0]
    second.discard()
    second.close()
    first.close()
    assert len(gear_data.open(tmp_path / "live")) == 1
    assert not (tmp_path / "live.quarantine").exists()


@pytest.mark.parametrize(
    ("evict", "problem"),
    [
        ("wieght", "small wieght leave .*no episode has a fact of this name"),
        ("source", "small source leave .*has text"),
        ("robot", "small robot leave .*has text"),
    ],
)
def test_no_episode_is_taken_that_cannot_leave(evict: str, problem: str, tmp_path: Path) -> None:
    """The publication that goes beyond the limit would fail, and each one after it."""
    options: dict[str, Any] = {"durability": "os", "max_steps": 4}
    writer = gear_data.Writer(tmp_path / "ds", evict=evict, **options)
    for number in range(3):
        writer.append(actions=number, rewards=1.0)
        with pytest.raises(InvalidArgumentError, match=problem):
            writer.end_episode(weight=1.0, robot="left")
        assert writer.open_episodes() == [0]
    writer.discard()
    assert writer.close() is None
    with gear_data.Writer(tmp_path / "ds", evict="weight", **options) as writer:
        for number in range(9):
            writer.append(actions=number, rewards=1.0)
            writer.end_episode(**({"weight": 9.0 - number} if number % 2 == 0 else {}))
    assert 0 < gear_data.open(tmp_path / "ds").num_steps <= 4


def test_a_converted_dataset_without_final_observations_grows(tmp_path: Path) -> None:
    source = [
        {
            "observations": np.zeros((3, 4), "f4"), "actions": np.zeros(3, np.int64), "rewards": np.zeros(3),
            "terminations": np.r_[False, False, True], "truncations": np.zeros(3, bool),
        }
    ]  # fmt: skip
    folder = tmp_path / "live"
    gear_data.convert(source, folder, progress=False)
    env = gear_data.record(gymnasium.make("CartPole-v1", max_episode_steps=5), folder)
    for seed in range(2):
        env.reset(seed=seed)
        while not any(env.step(0)[2:4]):
            pass
    env.close()  # type: ignore[no-untyped-call]
    ds = gear_data.open(folder)
    assert len(ds) == 3
    assert ds.final(2) is None
    writer = gear_data.Writer(folder)
    # The order of the columns does not matter.
    writer.append(rewards=1.0, actions=1, observations=np.zeros(4, "f4"))
    with pytest.raises(InvalidArgumentError, match="the dataset has no final observations"):
        writer.end_episode(terminated=True, final=np.zeros(4, "f4"))
    writer.end_episode(terminated=True)
    writer.close()
    assert len(gear_data.open(folder)) == 4
