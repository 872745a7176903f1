from __future__ import annotations

import errno
import fcntl
import gc
import itertools
import os
import resource
import shutil
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import gear_data
from gear_data.errors import DestinationExistsError, StorageFullError, UnwritableError
from gear_data.recording.journal_folder import MOST_WRITERS, JournalFolder, journals_of
from gear_data.schema import ColumnSpec
from gear_data.storage.journal.reading import read_journal
from gear_data.storage.journal.record import RecordedEpisode
from tests.support.running.interrupts import interrupted


def test_a_disk_that_fails_between_two_journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next episode goes into another one. `sync` says that the disk failed, until the journal is published."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    journals = JournalFolder(tmp_path / "d")
    journals.begin([ColumnSpec("actions", "int64")], (), after="", most_bytes=1, most_steps=None)
    for number in range(4):
        episode = RecordedEpisode({"actions": np.full(3, number)}, True, False)
        with monkeypatch.context() as patch:
            if number == 2:
                patch.setattr(os, "fsync", fail)
            journals.append(episode)
        assert journals.episodes == number + 1
        with pytest.raises(StorageFullError, match=r"000001\.arrows") if number >= 2 else nullcontext():
            journals.sync()
    journals.rotate()
    found = [read_journal(file).episodes for file in journals.ended()]
    assert [int(each.columns["actions"][0]) for episodes in found for each in episodes] == [0, 1, 2, 3]
    assert len(found) == 4
    journals.remove(journals.ended()[0])
    with pytest.raises(StorageFullError):
        journals.sync()
    journals.remove(journals.ended()[0])
    journals.sync()
    journals.close()


def test_an_interrupt_while_a_journal_is_made(tmp_path: Path) -> None:
    """Its number is not used again: the file may be there."""
    journals = JournalFolder(tmp_path / "d")
    journals.begin([ColumnSpec("actions", "int64")], (), after="", most_bytes=1 << 20, most_steps=None)
    numbers = []
    for moment in itertools.count():
        episode = RecordedEpisode({"actions": np.full(3, moment)}, True, False)
        before = journals.episodes
        is_interrupted = interrupted(lambda episode=episode: journals.append(episode), moment)  # type: ignore[misc]
        numbers += [moment] * (journals.episodes - before)
        if not is_interrupted:
            break
        journals.rotate()
    journals.append(RecordedEpisode({"actions": np.full(3, -1)}, True, False))
    journals.rotate()
    found = [int(each.columns["actions"][0]) for file in journals.ended() for each in read_journal(file).episodes]
    assert found == [*numbers, -1] and len(numbers) > 1
    journals.close()


def in_child(function: Callable[[], object]) -> list[str]:
    """Calls a function in a forked process that ends as `sys.exit` does, and returns the names of errors."""
    receiver, sender = os.pipe()
    if not (child := os.fork()):
        try:
            function()
        except BaseException as error:
            os.write(sender, f"{type(error).__name__} ".encode())
        gc.collect()
        os.write(sender, b"ended")
        os._exit(0)
    os.close(sender)
    os.waitpid(child, 0)
    with os.fdopen(receiver) as file:
        return file.read().split()


@pytest.fixture
def only_new_garbage() -> None:
    """Objects of earlier tests stay in children: collecting them takes seconds, and not all can be finalized there."""
    gc.freeze()


@pytest.mark.processes
@pytest.mark.usefixtures("only_new_garbage")
def test_a_forked_child_writes_nothing_and_releases_nothing(tmp_path: Path) -> None:
    """It has the parent's descriptors. What it wrote would be where the parent writes next."""
    writer = gear_data.Writer(tmp_path / "live")
    journals = JournalFolder(tmp_path / "live")
    journals.begin([ColumnSpec("actions", "int64")], (), after="", most_bytes=1 << 20, most_steps=None)

    def append(number: int) -> None:
        journals.append(RecordedEpisode({"actions": np.full(3, number)}, True, False))

    append(0)
    writer.append(actions=1)
    calls: list[Callable[[], object]] = [
        lambda: append(9), journals.sync, journals.rotate, journals.close,
        writer.end_episode, lambda: writer.append(actions=2), writer.discard, writer.flush, writer.seal, writer.close,
    ]  # fmt: skip
    for call in calls:
        assert in_child(call) == ["ForkedProcessError", "ended"]

    def drop() -> None:
        nonlocal journals, writer
        del journals, writer
        calls.clear()

    assert in_child(drop) == ["ended"]
    append(1)
    journals.close()
    writer.end_episode(terminated=True)
    files = sorted((tmp_path / "live.journal").glob("*/*.arrows"))
    assert [len(read_journal(file).episodes) for file in files] == [1, 2]
    writer.close()
    assert gear_data.open(tmp_path / "live").num_steps == 7


def test_two_writers_without_flock_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has journals of its own, so that none publishes and removes the other's open journal."""

    def no_flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_flock)
    # Other processes have locks, and would remove folders for temporary files that nobody has locked.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
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


def test_a_disk_that_failed_once_is_remembered_until_the_episodes_are_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fsync` fails once. The journal has the episode, and no later call says that the disk has it."""
    writer = gear_data.Writer(tmp_path / "live")
    fail = iter([OSError(errno.EIO, "Input/output error")])
    real = os.fsync

    def once(file: int) -> None:
        for error in fail:
            raise error
        real(file)

    monkeypatch.setattr(os, "fsync", once)
    for number in range(3):
        writer.append(actions=number)
        with pytest.raises(UnwritableError, match=r"seal\(\) publishes them"):
            writer.end_episode(terminated=True, number=number)
        assert writer.open_episodes() == []
        with pytest.raises(UnwritableError):
            writer.flush()
    publication = writer.seal()
    assert publication is not None and publication.episodes == 3
    writer.append(actions=3)
    writer.end_episode(terminated=True, number=3)
    writer.flush()
    fail = iter([OSError(errno.EIO, "Input/output error")])
    writer.append(actions=4)
    with pytest.raises(UnwritableError):
        writer.end_episode(terminated=True, number=4)
    writer.append(actions=5)
    writer.close()  # publishes all of them, also the one that was open
    assert gear_data.open(tmp_path / "live").num_steps == 6
