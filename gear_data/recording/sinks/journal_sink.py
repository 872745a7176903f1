"""JournalSink: finished episodes go into journals, and journals into generations of the dataset."""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
import weakref
from collections.abc import Sequence
from copy import copy
from functools import partial
from pathlib import Path

from gear_data.common.cancellation import call_interruptibly
from gear_data.errors import GearError
from gear_data.growing.next_generation import growth_of
from gear_data.growing.publish import Publication
from gear_data.recording.acceptance.checks import Acceptance
from gear_data.recording.publisher import JournalPublisher, growth_id
from gear_data.recording.sinks.episode_sink import EpisodeSink
from gear_data.recording.step_columns import check_joins
from gear_data.schema import ColumnSpec, Role
from gear_data.storage.journal.reading import read_journal
from gear_data.storage.journal.record import RecordedEpisode

#: Facts of new names need a look at the journals of other writers, at most so often.
_LOOK_SECONDS = 1.0
#: Seconds for which the end of the process waits for a publication.
_EXIT_SECONDS = 60.0


class JournalSink(EpisodeSink):
    """Puts episodes into the journals of one writer, and publishes generations of the dataset.

    Args:
        publisher: publishes the journals. `close` releases them.
        every: seconds between generations that a thread publishes; None: there is no thread.

    Raises:
        CorruptSourceError: a journal cannot be read.
    """

    def __init__(self, publisher: JournalPublisher, every: float | None) -> None:
        self._publisher, self._journals = publisher, publisher.journals
        #: Held while the journals change.
        self._mutex = threading.Lock()
        #: Held while a generation is published.
        self._publishing = threading.Lock()
        #: Whether the journals are released. Another Writer may use their folder then.
        self._is_released = False
        self._ended = threading.Event()
        self._error: Exception | None = None
        #: Writers on other machines that send no episode any more. The dataset may still know them.
        self._gone: set[str] = set()
        #: The checks of episodes, and when the dataset and the journals of other writers were looked at.
        self._acceptance = Acceptance(publisher.location, None, None)
        self._looked = -math.inf
        #: Columns and cameras of all episodes, the id of the dataset's growth, and why it takes none of them any more.
        self._columns: tuple[Sequence[ColumnSpec], Sequence[ColumnSpec]] = ((), ())
        self._growth = ""
        self._refusal: GearError | None = None
        try:
            self._left_behind = publisher.num_waiting()
        except BaseException:
            publisher.close()
            raise
        self._thread: threading.Thread | None = None
        if every is not None:
            self._thread = threading.Thread(target=self._run, args=(every,), name="gear-data-publisher", daemon=True)
            _publishing.add(self)
            self._thread.start()

    @property
    def episodes(self) -> int:
        """The number of finished episodes. Those that a writer left behind when it died count."""
        return self._left_behind + self._journals.episodes

    def columns(self) -> tuple[ColumnSpec, ...] | None:
        """Returns the columns of the dataset, or of a journal that waits; None if there is neither."""
        if (manifest := self._publisher.newest()) is not None:
            ends = (Role.TERMINATED, Role.TRUNCATED)
            return tuple(column for column in manifest.schema.source_columns if column.role not in ends)
        return next((found for file in self._journals.ended() if (found := read_journal(file).columns)), None)

    @property
    def video_folder(self) -> Path:
        """The folder of this writer's journals."""
        return self._journals.path

    def begin(self, columns: Sequence[ColumnSpec], cameras: Sequence[ColumnSpec] = ()) -> None:
        """Says the columns and cameras of all episodes.

        Raises:
            UnsupportedColumnError: the dataset has other columns.
            GearError: no dataset can have these columns.
        """
        manifest = self._publisher.newest()
        if manifest is not None:
            check_joins((*columns, *cameras), manifest.schema, self._publisher.location)
        acceptance = self._publisher.acceptance()
        acceptance.check_columns(columns, cameras)
        options = self._publisher.options
        with self._mutex:
            self._acceptance, self._columns, self._growth = acceptance, (columns, cameras), growth_id(manifest)
            self._journals.begin(
                columns, cameras, after=growth_of(manifest).largest_series, most_bytes=options.part_bytes,
                most_steps=options.part_steps,
            )  # fmt: skip

    def append(self, episode: RecordedEpisode) -> None:
        """Appends an episode to the journal.

        Raises:
            InvalidArgumentError: the facts cannot be published beside those of other episodes.
            StorageFullError, UnwritableError: the journal cannot be written.
            UnsupportedColumnError: another dataset with other columns took the place of the dataset; or another
                Writer recorded the first episode of all, with other columns.
            Exception: the thread could not publish a generation. The error is raised once, and the episode is not
                taken. It is a GearError, except after a fault of a library.
        """
        if self._refusal is not None:
            raise copy(self._refusal)
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        with self._mutex:
            if not self._journals.episodes and self._may_lack_columns():
                # Another Writer may have recorded the first episode meanwhile: it decides the columns of all.
                self._acceptance, self._looked = self._publisher.acceptance(), time.monotonic()
                self._acceptance.check_columns(*self._columns)
            elif not self._acceptance.knows(episode.facts) and time.monotonic() > self._looked + _LOOK_SECONDS:
                # Other writers may have recorded facts of these names meanwhile.
                self._acceptance, self._looked = self._publisher.acceptance(), time.monotonic()
            self._acceptance.take_facts(episode.facts, self._publisher.options)
            self._journals.append(episode)

    def _may_lack_columns(self) -> bool:
        """Returns whether another Writer may have decided the columns since `begin`."""
        return not self._growth

    def sync(self) -> None:
        """Waits until the disk has all episodes.

        Raises:
            StorageFullError, UnwritableError: the disk failed, now or before, at an episode that is not published.
        """
        with self._mutex:
            self._journals.sync()

    def forget(self, client: str) -> None:
        """Leaves a writer on another machine out of the next generation."""
        self._gone.add(client)

    def flush(self) -> None:
        """Does nothing: the dataset is on this machine, too."""

    def seal(self) -> Publication | None:
        """Publishes a generation with all episodes so far.

        An interrupt ends the wait, and not the publication: the next call, or `close`, waits for it.

        Raises:
            GearError: it cannot be written. The journals stay.
        """
        # A publication takes locks. An interrupt between a lock and the block that releases it would leave it locked.
        return call_interruptibly(partial(self._publish, progress=None))

    def before_close(self) -> None:
        """Forgets the error of a publication: `close` publishes all episodes, also those that the disk may lack."""
        self._error = None

    def close(self) -> Publication | None:
        """Publishes what is left, also of writers that died, and releases the journals.

        Raises:
            GearError: it cannot be written. The journals stay, for the next writer.
        """
        return call_interruptibly(self._close)

    def _close(self) -> Publication | None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        try:
            publication = self._publish(progress=None)
        finally:
            with self._publishing:
                self._is_released = True
                self._publisher.close()
        self._publisher.publish_left_behind(progress=None)
        return publication

    def _publish(self, *, progress: bool | None) -> Publication | None:
        with self._publishing:
            if self._is_released:  # a call that was interrupted, and waited for `close`
                return None
            gone = frozenset(self._gone)  # first: all of their episodes are in the journals that end now
            publication = self._publisher.publish(self._rotated(), gone=gone, progress=progress)
            if publication is not None:
                self._gone.difference_update(gone)
            self._look_at_dataset()
            return publication

    def _look_at_dataset(self) -> None:
        """Checks later episodes with the dataset that is there now: another one may have taken the place."""
        growth = growth_id(self._publisher.newest())
        if growth != self._growth and self._columns[0]:
            acceptance, refusal = self._publisher.acceptance(), None
            try:
                acceptance.check_columns(*self._columns)
            except GearError as error:
                refusal = error
            with self._mutex:
                self._acceptance, self._growth, self._refusal = acceptance, growth, refusal

    def _rotated(self) -> list[Path]:
        """Ends the journal, and returns the journals that wait."""
        with self._mutex:
            self._journals.rotate()
            return self._journals.ended()

    def _run(self, every: float) -> None:
        while not self._ended.wait(every):
            try:
                self._publish(progress=False)
            except Exception as error:
                # The next `append` raises it. If the process ends, nobody does: no thread begins to work then, so the
                # publication fails. The journals stay, for the next writer.
                self._error = error


#: Sinks that have a thread. A thread that runs keeps its sink.
_publishing: weakref.WeakSet[JournalSink] = weakref.WeakSet()
os.register_at_fork(after_in_child=_publishing.clear)


@atexit.register
def _end_threads() -> None:
    """Ends the threads before the interpreter ends: a call that returns after that would crash the process."""
    sinks = list(_publishing)
    for sink in sinks:
        sink._ended.set()
    deadline = time.monotonic() + _EXIT_SECONDS
    for sink in sinks:
        if sink._thread is not None and sink._thread.is_alive():
            sink._thread.join(max(0.0, deadline - time.monotonic()))
