"""JournalFolder: the journals of one writer."""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from copy import copy
from pathlib import Path

from gear_data.errors import DestinationExistsError, GearError, StorageFullError, UnwritableError
from gear_data.schema import ColumnSpec
from gear_data.storage.atomic import typed_write_errors
from gear_data.storage.journal.reading import Journal, read_journal
from gear_data.storage.journal.record import RecordedEpisode
from gear_data.storage.journal.videos import remove_journal, remove_unnamed
from gear_data.storage.journal.writing import SUFFIX, JournalWriter, journal_id, new_series
from gear_data.storage.writing.folder_lock import folder_lock

#: Suffix of the folder of all journals, beside the dataset's folder.
JOURNALS = ".journal"
#: Most writers of one dataset.
MOST_WRITERS = 1000


def journals_of(folder: Path) -> Path:
    """Returns the folder of all writers' journals of a dataset."""
    return folder.with_name(f"{folder.name}{JOURNALS}")


class JournalFolder:
    """The journals of one writer: `DATASET.journal/WRITER/NUMBER.arrows`.

    Episodes go into one journal, until `rotate` ends it, or it is full. Ended journals wait for the next generation. No
    other process uses the folder meanwhile. A folder of a writer that died is used again: its journals wait there.

    Not thread-safe, except `episodes`. A child process that was forked cannot use it.

    Args:
        folder: folder of the dataset.
        first: number of the first folder to try.

    Attributes:
        name: name of this writer, three digits.
        path: the folder.
        new: journals that this object has made, and no publication has got so far.

    Raises:
        DestinationExistsError: there are too many writers.
        UnwritableError: the folder cannot be written to.
    """

    def __init__(self, folder: Path, first: int = 0) -> None:
        self._stack = ExitStack()
        self.name, self.path = self._locked(folder, first)
        self.new: set[Path] = set()
        #: Journals that the dataset has, and that could not be removed.
        self._published: set[Path] = set()
        # Also at the interpreter's exit, before modules are gone that the lock needs.
        weakref.finalize(self, self._stack.close)
        self._journal: JournalWriter | None = None
        #: The newest journal, which may have ended, and the number of episodes in those before it.
        self._counted: tuple[int, JournalWriter | None] = (0, None)
        #: Journals of which the disk may lack episodes, until they are published, and why.
        self._failures: dict[Path, GearError] = {}
        self._columns: tuple[ColumnSpec, ...] = ()
        self._cameras: tuple[ColumnSpec, ...] = ()
        self._series = ""
        #: The journal's largest size; None: no limit.
        self._bytes = 0
        self._most_steps: int | None = None
        self._steps = 0
        self._video_bytes = 0
        self._next = 0
        try:
            with typed_write_errors(self.path):
                remove_unnamed(self.path, self.ended())
        except BaseException:
            self._stack.close()
            raise

    def _locked(self, folder: Path, first: int) -> tuple[str, Path]:
        hint = "end some of them"
        for number in range(first, MOST_WRITERS):
            path = journals_of(folder) / f"{number:03d}"
            try:
                self._lock = self._stack.enter_context(folder_lock(path, name=str(folder), hint=hint))
                return path.name, path
            except DestinationExistsError:
                continue
        raise DestinationExistsError(f"has {MOST_WRITERS} writers already", file=str(folder), hint=hint)

    @property
    def episodes(self) -> int:
        """The number of episodes that this object appended. It rises when a journal has an episode, and no later."""
        before, journal = self._counted
        return before if journal is None else before + journal.episodes

    def begin(
        self,
        columns: Sequence[ColumnSpec],
        cameras: Sequence[ColumnSpec],
        *,
        after: str,
        most_bytes: int,
        most_steps: int | None,
    ) -> None:
        """Opens the folder for episodes.

        Args:
            columns: their columns.
            cameras: their cameras.
            after: see `begin_series`.
            most_bytes: a journal that has this size together with its videos ends.
            most_steps: a journal of so many steps ends; None: no limit.
        """
        self._columns, self._cameras = tuple(columns), tuple(cameras)
        self._bytes, self._most_steps = most_bytes, most_steps
        self.begin_series(after)
        self._next = max([self._next, *(int(file.stem) + 1 for file in self._all_ended())])

    def begin_series(self, after: str) -> None:
        """Begins a series with the next journal.

        It is never one that a journal or a dataset has: both may be copied, and go on in two places.

        Args:
            after: the largest series that the dataset knows.
        """
        self._series = new_series(after)

    def append(self, episode: RecordedEpisode) -> None:
        """Appends an episode, whole or not at all.

        Raises:
            StorageFullError: the disk is full.
            UnwritableError: the journal cannot be written; or the folder was removed, or another process took it.
            ForkedProcessError: this is a forked child of the process that made it.
        """
        self._lock.check()
        # A full journal ends before the next episode: an error must not concern an episode that is written already.
        if self._journal is not None and self._is_full(self._journal):
            self.rotate()
        if self._journal is None:
            number = self._next
            path = self.path / f"{number:06d}{SUFFIX}"
            self.new.add(path)
            # First: after an interrupt there may be a file of this number, an empty journal.
            self._next, self._steps, self._video_bytes = number + 1, 0, 0
            journal = JournalWriter(path, self._columns, self._cameras, journal_id(self._series, number))
            self._counted = self.episodes, journal
            self._journal = journal
        self._journal.append(episode)
        self._steps += episode.steps
        self._video_bytes += sum(video.bytes for video in episode.videos.values())

    def _is_full(self, journal: JournalWriter) -> bool:
        size = journal.bytes + self._video_bytes
        return size >= self._bytes or (self._most_steps is not None and self._steps >= self._most_steps)

    def sync(self) -> None:
        """Waits until the disk has all episodes.

        Raises:
            StorageFullError, UnwritableError: the disk failed, now or before, at an episode that is not published.
        """
        self._lock.check_process()
        for failure in list(self._failures.values()):
            raise copy(failure)
        if self._journal is not None:
            self._journal.sync()

    def rotate(self) -> None:
        """Ends the journal. Later episodes go into another one.

        If the disk fails, `sync` says so until the journal is published.

        Raises:
            ForkedProcessError: see `append`.
        """
        self._lock.check_process()
        if (journal := self._journal) is not None:
            with suppress(StorageFullError, UnwritableError):
                journal.sync()
            if journal.failure is not None:
                self._failures[journal.path] = journal.failure
            self._journal = None
            with suppress(StorageFullError, UnwritableError):  # its episodes are whole without its end, too
                journal.close()

    def ended(self) -> list[Path]:
        """Returns the journals that wait for the next generation, in order."""
        for journal in [*self._published]:
            self.remove(journal)
        return [journal for journal in self._all_ended() if journal not in self._published]

    def _all_ended(self) -> list[Path]:
        files = sorted(self.path.glob(f"*{SUFFIX}"))
        return files if self._journal is None else files[:-1]

    def num_episodes(
        self, is_published: Callable[[Journal, int], bool], is_converted: Callable[[Journal, int], bool]
    ) -> int:
        """Returns the number of episodes in the journals that wait.

        Args:
            is_published: says whether the dataset has a journal of a number.
            is_converted: says whether the dataset has a record of a journal anyway, because it was converted by hand.

        Raises:
            CorruptSourceError: a journal cannot be read.
        """
        waiting = 0
        for file in self.ended():  # one at a time: a journal that was read keeps its file mapped
            journal = read_journal(file)
            if not is_published(journal, int(file.stem)):
                records = (*journal.records, *journal.lost)
                waiting += sum(not is_converted(journal, record.number) for record in records)
        return waiting

    def remove(self, journal: Path) -> None:
        """Removes a journal, after its episodes are in the dataset.

        What cannot be removed now is removed by a later call. The journal is last, so that there is a later call. Until
        then it does not wait: the dataset knows the last journal of a series, and later ones may be removed earlier.
        """
        shutil.rmtree(segment_of(journal), ignore_errors=True)
        if not segment_of(journal).exists():
            with suppress(GearError, OSError):
                remove_journal(journal)
        if journal.exists():
            self._published.add(journal)
        else:
            self._published.discard(journal)
        self._failures.pop(journal, None)

    def close(self) -> None:
        """Ends the journal, and lets other writers use the folder."""
        try:
            self.rotate()
        finally:
            self._stack.close()
            with suppress(OSError):  # journals wait there, or another writer uses it
                os.rmdir(self.path.parent)


def visit_left_behind(folder: Path, pattern: str, visit: Callable[[JournalFolder], None]) -> None:
    """Calls a function for the journals of each writer that died. No other process uses them meanwhile.

    Args:
        folder: folder of the dataset.
        pattern: of the files that a writer left.
        visit: the function.
    """
    for path in sorted(journals_of(folder).glob("*")):
        if not path.name.isdecimal() or not any(path.glob(pattern)):
            continue
        journals = JournalFolder(folder, int(path.name))
        try:
            if journals.name == path.name:  # else its writer runs
                visit(journals)
        finally:
            journals.close()


def segment_of(journal: Path) -> Path:
    """Returns the folder of the dataset that a journal is sealed into."""
    return journal.with_suffix(".part")
