"""Another grown dataset takes the place of one whose journals wait: no journal counts as published for that."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import gear_data
from gear_data.recording.journal_folder import journals_of
from gear_data.schema import ColumnSpec
from gear_data.storage.journal.record import RecordedEpisode
from gear_data.storage.journal.writing import JournalWriter


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


def test_writers_of_one_folder_share_a_series(tmp_path: Path) -> None:
    """The manifest would grow with each Writer that ever lived."""
    sizes = []
    for number in range(12):
        generations(tmp_path / "live", [number])
        growth = gear_data.open(tmp_path / "live").manifest.growth
        assert growth is not None
        sizes.append(len(growth.sealed))
    assert sizes == [1] * 12


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
