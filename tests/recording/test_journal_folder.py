from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from gear_data.errors import StorageFullError
from gear_data.recording.journal_folder import JournalFolder
from gear_data.schema import ColumnSpec
from gear_data.storage.journal.reading import read_journal
from gear_data.storage.journal.record import RecordedEpisode


def test_a_disk_that_fills_up_between_two_journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error concerns the episode that is not written. It can be appended again, and is there once."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    journals = JournalFolder(tmp_path / "d")
    journals.begin([ColumnSpec("actions", "int64")], (), first=0, most_bytes=1, most_steps=None)
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
