"""Another grown dataset takes the place of one whose journals wait: no journal counts as published for that."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import gear_data
from gear_data.errors import UnsupportedColumnError
from gear_data.growing import next_generation
from gear_data.recording.journal_folder import journals_of
from gear_data.schema import ColumnSpec
from gear_data.storage.generations.growth import Growth
from gear_data.storage.journal.quarantine import entries
from gear_data.storage.journal.reading import read_journal
from gear_data.storage.journal.record import EpisodeOrigin, RecordedEpisode
from gear_data.storage.journal.writing import JournalWriter, journal_id, new_series


def record(writer: gear_data.Writer, number: int) -> None:
    writer.append(actions=number)
    writer.end_episode(terminated=True, number=number)


def kill(writer: gear_data.Writer) -> None:
    """Leaves the journals of a Writer as a process does that dies."""
    writer._sink._journals._stack.close()  # type: ignore[attr-defined]


def generations(folder: Path, numbers: list[int]) -> None:
    """Records episodes, each one in a journal of its own."""
    with gear_data.Writer(folder) as writer:
        for number in numbers:
            record(writer, number)
            writer.seal()


def replace(folder: Path, other: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(other, folder)


def growth_of(folder: Path) -> Growth:
    growth = gear_data.open(folder).manifest.growth
    assert growth is not None
    return growth


def numbers_in(folder: Path) -> list[int]:
    return list(gear_data.open(folder).episodes["number"])


@pytest.mark.parametrize("before", [[], [100]], ids=["no dataset", "a dataset"])
def test_waiting_journals_join_the_other_dataset(before: list[int], tmp_path: Path) -> None:
    live = tmp_path / "live"
    generations(tmp_path / "other", [1, 2, 3])
    generations(live, before)
    for number in (101, 102):
        writer = gear_data.Writer(live)
        record(writer, number)
        kill(writer)
    replace(live, tmp_path / "other")
    with gear_data.Writer(live) as writer:
        assert writer.episodes == 2
        record(writer, 103)
    assert numbers_in(live) == [1, 2, 3, 101, 102, 103]
    assert not journals_of(live).exists()


def test_a_dataset_that_grew_elsewhere_comes_back(tmp_path: Path) -> None:
    """A copy of the dataset grew in another place, while a journal waited here: both continue the same dataset."""
    live, other = tmp_path / "live", tmp_path / "other"
    generations(live, [1, 2])
    shutil.copytree(live, other)
    writer = gear_data.Writer(live)
    record(writer, 101)
    kill(writer)
    generations(other, [3, 4])
    replace(live, other)
    generations(live, [102])
    assert numbers_in(live) == [1, 2, 3, 4, 101, 102]


def test_datasets_that_take_turns(tmp_path: Path) -> None:
    """A journal of the first dataset joins the second one, and the first one comes back."""
    live, first, second = tmp_path / "live", tmp_path / "first", tmp_path / "second"
    generations(first, [1])
    generations(second, [10])
    replace(live, first)
    writer = gear_data.Writer(live)
    record(writer, 101)
    kill(writer)
    replace(live, second)
    generations(live, [102])
    replace(second, live)
    replace(live, first)
    writer = gear_data.Writer(live)
    record(writer, 103)
    kill(writer)
    replace(live, second)
    generations(live, [])
    assert numbers_in(live) == [10, 101, 102, 103]


def test_a_running_writer_goes_on_in_the_other_dataset(tmp_path: Path) -> None:
    live = tmp_path / "live"
    generations(tmp_path / "other", [1, 2])
    with gear_data.Writer(live) as writer:
        record(writer, 100)
        writer.seal()
        record(writer, 101)
        replace(live, tmp_path / "other")
        published = writer.seal()
        assert published is not None
        assert published.total_episodes == 3
        record(writer, 102)
    assert numbers_in(live) == [1, 2, 101, 102]


def test_a_running_writer_notices_that_the_other_dataset_has_other_columns(tmp_path: Path) -> None:
    """Episodes that were acknowledged before are kept. Later ones are refused, and not acknowledged."""
    live, other = tmp_path / "live", tmp_path / "other"
    with gear_data.Writer(other) as writer:
        writer.append(actions=1, rewards=0.5)
        writer.end_episode(terminated=True, number=1)
    writer = gear_data.Writer(live)
    record(writer, 100)
    writer.seal()
    record(writer, 101)
    replace(live, other)
    assert writer.seal() is None
    (entry,) = entries(live)
    assert "rewards" in entry.reason
    assert [episode.facts["number"] for episode in read_journal(entry.episodes).episodes] == [101]
    for _ in range(2):
        writer.append(actions=1)
        with pytest.raises(UnsupportedColumnError, match=r"rewards.*the new episodes lack it"):
            writer.end_episode(terminated=True)
        writer.discard()
    assert writer.close() is None
    assert numbers_in(live) == [1]


@pytest.mark.parametrize("seed", range(3))
def test_any_turns(seed: int, tmp_path: Path) -> None:
    """Whatever was recorded is in the dataset of the next Writer that closes, once."""
    rng, live = random.Random(seed), tmp_path / "live"
    copies = [tmp_path / name for name in ("first", "second")]
    number = 0
    for folder in (live, *copies):
        generations(folder, [number := number + 1])
    expected = {folder: numbers_in(folder) for folder in (live, *copies)}
    waiting: list[int] = []
    for _ in range(14):
        number += 1
        other = rng.choice(copies)
        match rng.choice(["die", "close", "swap", "save", "grow"]):
            case "die":
                writer = gear_data.Writer(live)
                record(writer, number)
                kill(writer)
                waiting.append(number)
            case "close":
                generations(live, [number])
                expected[live] += [*waiting, number]
                waiting = []
            case "swap":
                replace(live, other)
                expected[live] = list(expected[other])
            case "save":
                replace(other, live)
                expected[other] = list(expected[live])
            case _:
                generations(other, [number])
                expected[other].append(number)
    generations(live, [])
    assert sorted(numbers_in(live)) == sorted([*expected[live], *waiting])


def test_published_journals_that_come_back_are_not_published_again(tmp_path: Path) -> None:
    """A process may die between the publication and the removal of its journals; a disk may be restored."""
    live = tmp_path / "live"
    writer = gear_data.Writer(live)
    record(writer, 1)
    shutil.copytree(journals_of(live), tmp_path / "copy")
    writer.close()
    generations(live, [2])
    shutil.copytree(tmp_path / "copy", journals_of(live))
    generations(live, [3])
    assert numbers_in(live) == [1, 2, 3]


def test_a_dataset_forgets_the_writers_that_published_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest would grow with each Writer that ever lived. Writers that go on publishing are remembered."""
    monkeypatch.setattr(next_generation, "REMEMBERED", 3)
    live = tmp_path / "live"
    with gear_data.Writer(live) as lasting:
        record(lasting, 100)
        first = lasting.seal()
        assert first is not None
        (series,) = growth_of(live).sealed
        sizes = []
        for number in range(6):
            generations(live, [number])
            record(lasting, 101 + number)
            lasting.seal()
            sizes.append(len(growth_of(live).sealed))
            assert growth_of(live).sealed[series].number == number + 1
    assert sizes == [2, 3, 3, 3, 3, 3]
    assert sorted(numbers_in(live)) == [*range(6), *range(100, 107)]


def test_a_dataset_forgets_the_clients_that_published_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_generation, "REMEMBERED", 2)
    live = tmp_path / "live"
    clients, series = [], ""
    for number, client in enumerate(["a", "b", "a", "c", "d"]):
        path = journals_of(live) / "000" / "000000.arrows"
        path.parent.mkdir(parents=True)
        series = new_series(series)
        journal = JournalWriter(path, [ColumnSpec("actions", "int64")], journal=journal_id(series, 0))
        journal.append(
            RecordedEpisode({"actions": np.array([number])}, True, False, origin=EpisodeOrigin(client, number))
        )
        journal.close()
        gear_data.Writer(live).close()
        clients.append(dict(growth_of(live).sequences))
    assert clients == [{"a": 0}, {"a": 0, "b": 1}, {"b": 1, "a": 2}, {"a": 2, "c": 3}, {"c": 3, "d": 4}]
    assert len(gear_data.open(live)) == 5


def test_journals_of_earlier_versions_are_published_by_their_numbers(tmp_path: Path) -> None:
    live = tmp_path / "live"
    for number in range(3):
        path = journals_of(live) / "000" / f"{number:06d}.arrows"
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = JournalWriter(path, [ColumnSpec("actions", "int64")])
        values = {"actions": np.array([number])}
        writer.append(RecordedEpisode(values, True, False, facts={"number": number}))
        writer.close()
    shutil.copytree(journals_of(live), tmp_path / "copy")
    generations(live, [3])
    shutil.copytree(tmp_path / "copy", journals_of(live))
    generations(live, [4])
    assert numbers_in(live) == [0, 1, 2, 3, 4]
