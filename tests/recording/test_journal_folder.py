from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest

import gear_data
from gear_data.errors import DestinationExistsError, StorageFullError, UnwritableError
from gear_data.recording.journal_folder import MOST_WRITERS, JournalFolder, journals_of
from gear_data.schema import ColumnSpec
from gear_data.storage.journal.reading import read_journal
from gear_data.storage.journal.record import RecordedEpisode


def test_a_disk_that_fills_up_between_two_journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error concerns the episode that is not written. It can be appended again, and is there once."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    journals = JournalFolder(tmp_path / "d")
    journals.begin([ColumnSpec("actions", "int64")], (), after="", most_bytes=1, most_steps=None)
    for number in range(4):
        episode = RecordedEpisode({"actions": np.full(3, number)}, True, False)
        if number:
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", fail)
                with pytest.raises(StorageFullError):
                    journals.append(episode)
                # The earlier episode is not on the disk either.
                with pytest.raises(StorageFullError):
                    journals.sync()
        journals.append(episode)
        journals.sync()
    journals.rotate()
    found = [read_journal(file).episodes for file in journals.ended()]
    assert [int(each.columns["actions"][0]) for episodes in found for each in episodes] == [0, 1, 2, 3]
    assert len(found) == 4
    journals.close()


def test_two_writers_without_flock_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has journals of its own, so that none publishes and removes the other's open journal."""

    def no_flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_flock)
    folder, number = tmp_path / "live", 0
    writers = [gear_data.Writer(folder), gear_data.Writer(folder)]
    for _ in range(3):
        for writer in writers:
            for _ in range(2):
                writer.append(actions=1, rewards=1.0)
                writer.end_episode(terminated=True, number=number)
                number += 1
            writer.seal()
    for writer in writers:
        writer.close()
    assert sorted(gear_data.open(folder).episodes["number"]) == list(range(number))
    assert not folder.with_name("live.journal").exists()


def test_a_writer_notices_that_its_folder_is_gone(tmp_path: Path) -> None:
    """Its open journal would have no name any more, and nobody would publish it."""
    writer = gear_data.Writer(tmp_path / "live")
    writer.append(actions=1)
    writer.end_episode(terminated=True)
    shutil.rmtree(tmp_path / "live.journal")
    writer.append(actions=1)
    with pytest.raises(UnwritableError, match="removed or replaced"):
        writer.end_episode(terminated=True)


def test_the_bound_of_writers_that_run_at_once(tmp_path: Path) -> None:
    """Each has a folder of its own. One more is refused, and takes the place of the first that ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * MOST_WRITERS)), hard))
    writers: list[JournalFolder] = []
    try:
        for number in range(MOST_WRITERS):
            writers.append(JournalFolder(tmp_path / "live", number))
        assert [writer.name for writer in writers] == [f"{number:03d}" for number in range(MOST_WRITERS)]
        with pytest.raises(DestinationExistsError, match="has 1000 writers already"):
            JournalFolder(tmp_path / "live")
        writers.pop(500).close()
        writers.append(JournalFolder(tmp_path / "live"))
        assert writers[-1].name == "500"
    finally:
        for writer in writers:
            writer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not journals_of(tmp_path / "live").exists()
