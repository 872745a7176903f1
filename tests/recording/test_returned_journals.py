"""Journals that come back after their publication: a generation remembers a bounded number of series."""

from __future__ import annotations

import random
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gear_data
from gear_data.cli import main
from gear_data.growing import next_generation
from gear_data.growing.next_generation import REMEMBERED
from gear_data.recording.earlier_episodes import earlier_episodes
from gear_data.recording.journal_folder import journals_of
from gear_data.storage.generations.growth import Growth, LastJournal
from gear_data.storage.journal.quarantine import entries
from gear_data.storage.journal.reading import read_journal
from gear_data.storage.journal.writing import is_series, journal_id, new_series, series_of


def record(writer: gear_data.Writer, number: int) -> None:
    writer.append(actions=number)
    writer.end_episode(terminated=True, number=number)


def kill(writer: gear_data.Writer) -> None:
    """Leaves the journals of a Writer as a process does that dies."""
    writer._sink._journals._stack.close()  # type: ignore[attr-defined]


def publish(folder: Path, *numbers: int) -> None:
    """Publishes each episode by a Writer of its own."""
    for number in numbers:
        with gear_data.Writer(folder) as writer:
            record(writer, number)


def bring_back(copy: Path, folder: Path) -> None:
    """Puts a copy of a Writer's journals beside those that are there."""
    shutil.copytree(copy, journals_of(folder) / "007", ignore=shutil.ignore_patterns(".lock"))


def numbers_in(folder: Path) -> list[int]:
    return list(gear_data.open(folder).episodes["number"])


def kept(folder: Path) -> list[list[int]]:
    """Returns the numbers of the episodes of each entry in the quarantine."""
    found = [read_journal(entry.episodes).episodes for entry in entries(folder)]
    return [[int(episode.facts["number"]) for episode in episodes] for episodes in found]


def growth_of(folder: Path) -> Growth:
    growth = gear_data.open(folder).manifest.growth
    assert growth is not None
    return growth


def change_growth(folder: Path, growth: Growth) -> None:
    manifest = replace(gear_data.open(folder).manifest, growth=growth)
    (folder / "manifest.json").write_text(manifest.to_text())


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_generation, "REMEMBERED", 2)


def copy_and_publish(folder: Path, copy: Path, number: int) -> None:
    """Publishes an episode, and keeps a copy of its journal."""
    with gear_data.Writer(folder) as writer:
        record(writer, number)
        shutil.copytree(journals_of(folder) / "000", copy)


@pytest.mark.usefixtures("forgetful")
def test_a_journal_that_comes_back_when_its_series_is_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = tmp_path / "live"
    copy_and_publish(live, tmp_path / "copy", 1)
    publish(live, 2, 3, 4)
    bring_back(tmp_path / "copy", live)
    publish(live, 5)
    assert numbers_in(live) == [1, 2, 3, 4, 5]
    assert not journals_of(live).exists()
    (entry,) = entries(live)
    assert "has forgotten" in entry.reason
    assert main(["journal", "rescue", str(live), entry.name, str(tmp_path / "rescued")]) == 0
    assert numbers_in(tmp_path / "rescued") == [1]


@pytest.mark.usefixtures("forgetful")
def test_a_journal_that_waited_for_long(tmp_path: Path) -> None:
    """Its machine was off. Nobody knows that it was not published: it is kept."""
    live = tmp_path / "live"
    writer = gear_data.Writer(live)
    record(writer, 1)
    kill(writer)
    shutil.move(journals_of(live) / "000", tmp_path / "copy")
    publish(live, 2, 3, 4)
    bring_back(tmp_path / "copy", live)
    publish(live, 5)
    assert (numbers_in(live), kept(live)) == ([2, 3, 4, 5], [[1]])


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("published", [False, True])
def test_a_writer_that_runs_while_others_publish(published: bool, tmp_path: Path) -> None:
    """It knows that its own journals are new, however many others publish."""
    live = tmp_path / "live"
    slow = gear_data.Writer(live)
    if published:
        record(slow, 0)
        slow.seal()
    record(slow, 1)
    publish(live, 2, 3, 4)
    slow.seal()
    publish(live, 5, 6, 7)
    record(slow, 8)
    slow.close()
    assert sorted(numbers_in(live)) == [*([0] if published else []), *range(1, 9)]
    assert not entries(live)


@pytest.mark.usefixtures("forgetful")
def test_a_machine_without_a_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its series begin in 1970, but after those that the dataset knows."""
    live = tmp_path / "live"
    publish(live, 1, 2, 3, 4)
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: 0.0)
        writer = gear_data.Writer(live)
        record(writer, 5)
        kill(writer)
    publish(live, 6)
    assert (sorted(numbers_in(live)), entries(live)) == ([1, 2, 3, 4, 5, 6], [])


def test_a_copy_of_an_open_journal_is_published_first(tmp_path: Path) -> None:
    """A machine was copied while its Writer ran. The journal went on there; its copy is another one."""
    live = tmp_path / "live"
    writer = gear_data.Writer(live)
    record(writer, 1)
    shutil.copytree(journals_of(live) / "000", tmp_path / "copy")
    record(writer, 2)
    bring_back(tmp_path / "copy", live)
    publish(live, 3)
    writer.seal()
    assert (sorted(numbers_in(live)), kept(live)) == ([1, 3], [[1, 2]])
    record(writer, 4)
    writer.close()
    assert (sorted(numbers_in(live)), kept(live)) == ([1, 3, 4], [[1, 2]])


def test_a_copy_of_an_open_journal_is_published_last(tmp_path: Path) -> None:
    live = tmp_path / "live"
    with gear_data.Writer(live) as writer:
        record(writer, 1)
        shutil.copytree(journals_of(live) / "000", tmp_path / "copy")
        record(writer, 2)
    bring_back(tmp_path / "copy", live)
    publish(live, 3)
    assert (numbers_in(live), kept(live)) == ([1, 2, 3], [[1]])


def test_two_writers_of_one_series(tmp_path: Path) -> None:
    """Two copies of a machine record in turns: every episode is in the dataset or kept, and both notice."""
    live = tmp_path / "live"
    writers = [gear_data.Writer(live), gear_data.Writer(live)]
    for number, writer in enumerate(writers):
        record(writer, number)
        writer.seal()
    first, second = (writer._sink._journals for writer in writers)  # type: ignore[attr-defined]
    second._series, second._next = first._series, first._next
    for number in range(2, 8):
        writer = writers[number % 2]
        record(writer, number)
        writer.seal()
    for writer in writers:
        writer.close()
    assert first._series != second._series
    assert (numbers_in(live), kept(live)) == ([0, 1, 2, 4, 5, 6, 7], [[3]])


def test_several_journals_that_come_back_together(tmp_path: Path) -> None:
    """The dataset remembers the last one of a series. The others are known by it."""
    live = tmp_path / "live"
    writer = gear_data.Writer(live)
    for number in range(3):
        record(writer, number)
        writer._sink._rotated()  # type: ignore[attr-defined]
    shutil.copytree(journals_of(live) / "000", tmp_path / "copy")
    writer.close()
    bring_back(tmp_path / "copy", live)
    publish(live, 3)
    assert (numbers_in(live), entries(live)) == ([0, 1, 2, 3], [])


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("seed", range(4))
def test_any_turns(seed: int, tmp_path: Path) -> None:
    """Whatever was recorded is in the dataset once, or kept, however often journals come back."""
    rng, live = random.Random(seed), tmp_path / "live"
    running = gear_data.Writer(live)
    copies: list[Path] = []
    for number in range(30):
        match rng.choice(["close", "die", "copy", "return", "record", "record and seal"]):
            case "close":
                publish(live, number)
            case "die" | "copy" as how:
                writer = gear_data.Writer(live)
                record(writer, number)
                path = writer._sink._journals.path  # type: ignore[attr-defined]
                kill(writer)
                if how == "copy":
                    copies.append(tmp_path / f"copy-{number}")
                    shutil.copytree(path, copies[-1], ignore=shutil.ignore_patterns(".lock"))
            case "return" if copies:
                place = journals_of(live) / f"{500 + number}"
                shutil.copytree(rng.choice(copies), place)
                publish(live, number)
            case how:
                record(running, number)
                if how == "record and seal":
                    running.seal()
    running.close()
    found = numbers_in(live)
    assert len(found) == len(set(found))
    assert {*found, *(each for numbers in kept(live) for each in numbers)} == set(range(30))


def test_the_bound_of_series_and_clients(tmp_path: Path) -> None:
    """One series less than the bound, and it is known; one more, and it is forgotten. Nothing grows with them."""
    live = tmp_path / "live"
    copy_and_publish(live, tmp_path / "copy", 0)
    growth = growth_of(live)
    (first,) = growth.sealed
    series = [first]
    while len(series) < REMEMBERED:
        series.append(new_series(series[-1]))
    last = LastJournal(0, "0" * 8)
    clients = {f"{each}-{0:016x}": 7 for each in series}
    change_growth(
        live, replace(growth, sealed={each: growth.sealed.get(each, last) for each in series}, sequences=clients)
    )
    sizes = [(live / "manifest.json").stat().st_size]

    bring_back(tmp_path / "copy", live)
    gear_data.Writer(live).close()
    assert (numbers_in(live), entries(live)) == ([0], [])

    for number in range(1, 4):
        publish(live, number)
        sizes.append((live / "manifest.json").stat().st_size)
        growth = growth_of(live)
        assert len(growth.sealed) == len(growth.sequences) == REMEMBERED
        assert (growth.forgotten, growth.forgotten_clients) == (series[number - 1], "")
    assert max(sizes) - sizes[0] < 1500  # three shards
    assert sizes[0] < 100_000

    bring_back(tmp_path / "copy", live)
    publish(live, 4)
    assert (numbers_in(live), kept(live)) == ([0, 1, 2, 3, 4], [[0]])
    assert earlier_episodes(live).sequences == clients


def test_series() -> None:
    found = [new_series() for _ in range(3)]
    for series in found:
        assert is_series(series)
        for number in (0, 1, 63, 1 << 18, (1 << 22) + 5):
            assert series_of(journal_id(series, number).encode()) == series
            assert len(journal_id(series, number)) == 16
    assert len({journal_id(found[0], number) for number in range(1000)}) == 1000
    assert found[0] < (second := new_series(found[0])) < (third := new_series(second)) < new_series(third)
    largest = "v" * 14 + "s"
    assert is_series(new_series(largest))
    for earlier in ("0123456789abcdef", "ffffffffffffffff", ""):
        assert series_of(earlier.encode()) == ""


def test_what_a_disk_does_not_remove_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of a sealed journal cannot be removed, after its publication. The next Writer seals the journal again."""
    folder, rmtree = tmp_path / "d", shutil.rmtree

    def all_but_the_card(path: Path, ignore_errors: bool) -> None:
        rmtree(path)
        path.mkdir()
        (path / "README.md").touch()

    writer = gear_data.Writer(folder)
    record(writer, 0)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", all_but_the_card)
        writer.seal()
    kill(writer)
    assert [file.name for file in journals_of(folder).rglob("*.part/*")] == ["README.md"]
    publish(folder, 1)
    assert numbers_in(folder) == [0, 1]
    assert not journals_of(folder).exists()


def test_a_journal_that_is_removed_after_later_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not come back: its Writer knows that the dataset has it."""
    folder, rmtree = tmp_path / "d", shutil.rmtree

    def all_but_the_first(path: Path | str, *arguments: Any, **options: Any) -> None:
        if Path(path).name != "000000.part":
            rmtree(path, *arguments, **options)

    writer = gear_data.Writer(folder)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", all_but_the_first)
        for number in range(3):
            record(writer, number)
            writer.seal()
    assert [file.name for file in journals_of(folder).rglob("*.arrows")] == ["000000.arrows"]
    record(writer, 3)
    writer.close()
    assert (numbers_in(folder), entries(folder)) == ([0, 1, 2, 3], [])
    assert not journals_of(folder).exists()
