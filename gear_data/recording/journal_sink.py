"""JournalSink: finished episodes go into journals, and journals into generations of the dataset."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from gear_data.errors import DestinationExistsError, GearError
from gear_data.ingest.card import CARD_NAME
from gear_data.ingest.growing.publish import Publication, newest_manifest
from gear_data.ingest.videos.placing import VIDEOS
from gear_data.recording.episode_sink import EpisodeSink
from gear_data.recording.journal_folder import JournalFolder, journals_of
from gear_data.recording.sealing import SealOptions, last_published, seal, seal_left_behind
from gear_data.recording.step_columns import check_joins
from gear_data.schema import ColumnSpec
from gear_data.storage.generations.growth import GROWING_FOLDERS
from gear_data.storage.journal.record import RecordedEpisode
from gear_data.storage.writing.progress_files import PROGRESS


class JournalSink(EpisodeSink):
    """Puts episodes into the journals of one writer, and publishes generations of the dataset.

    Args:
        folder: folder of the dataset.
        options: how journals are sealed.
        every: seconds between generations that a thread publishes; None: there is no thread.

    Raises:
        DestinationExistsError: the folder holds other files.
        UnwritableError: it cannot be written to.
    """

    def __init__(self, folder: Path, options: SealOptions, every: float | None) -> None:
        manifest = newest_manifest(folder)
        if manifest is None and folder.exists() and not _is_unfinished(folder):
            raise DestinationExistsError(
                "the destination exists and is not a dataset", file=str(folder), hint="choose another path"
            )
        self._folder, self._options = folder, options
        #: Held while the journals change.
        self._mutex = threading.Lock()
        #: Held while a generation is published.
        self._publishing = threading.Lock()
        self._ended = threading.Event()
        self._error: GearError | None = None
        self._journals = JournalFolder(folder)
        try:
            self._episodes = self._journals.num_episodes(last_published(newest_manifest(folder), self._journals.name))
        except BaseException:
            self._journals.close()
            raise
        self._thread: threading.Thread | None = None
        if every is not None:
            self._thread = threading.Thread(target=self._run, args=(every,), name="gear-data-publisher", daemon=True)
            self._thread.start()

    @property
    def episodes(self) -> int:
        """The number of finished episodes. Those that a writer left behind when it died count."""
        return self._episodes

    @property
    def video_folder(self) -> Path:
        """The folder of this writer's journals."""
        return self._journals.path

    def begin(self, columns: Sequence[ColumnSpec], cameras: Sequence[ColumnSpec] = ()) -> None:
        """Says the columns and cameras of all episodes.

        Raises:
            UnsupportedColumnError: the dataset has other columns.
        """
        manifest = newest_manifest(self._folder)
        if manifest is not None:
            check_joins((*columns, *cameras), manifest.schema, str(self._folder))
        first = last_published(manifest, self._journals.name) + 1
        with self._mutex:
            self._journals.begin(
                columns, cameras, first=first, most_bytes=self._options.part_bytes, most_steps=self._options.part_steps
            )

    def append(self, episode: RecordedEpisode) -> None:
        """Appends an episode to the journal.

        Raises:
            StorageFullError, UnwritableError: the journal cannot be written.
            GearError: the thread could not publish a generation. The error is raised once, and the episode is not
                taken.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        with self._mutex:
            self._journals.append(episode)
            self._episodes += 1

    def sync(self) -> None:
        """Waits until the disk has all episodes.

        Raises:
            StorageFullError, UnwritableError: the disk failed.
        """
        with self._mutex:
            self._journals.sync()

    def seal(self) -> Publication | None:
        """Publishes a generation with all episodes so far.

        Raises:
            GearError: it cannot be written. The journals stay.
        """
        return self._publish(progress=None)

    def close(self) -> Publication | None:
        """Publishes what is left, also of writers that died, and releases the journals.

        Raises:
            GearError: it cannot be written. The journals stay, for the next writer.
        """
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        try:
            publication = self._publish(progress=None)
        finally:
            self._journals.close()
        seal_left_behind(self._folder, self._options, progress=None)
        return publication

    def _publish(self, *, progress: bool | None) -> Publication | None:
        with self._publishing:
            with self._mutex:
                self._journals.rotate()
                files = self._journals.ended()
            return seal(self._folder, self._journals, files, self._options, progress=progress)

    def _run(self, every: float) -> None:
        while not self._ended.wait(every):
            try:
                self._publish(progress=False)
            except GearError as error:
                self._error = error


def _is_unfinished(folder: Path) -> bool:
    """Returns whether a folder is empty, or has what a killed writer left of the first generation."""
    names = {path.name for path in folder.iterdir()}
    return names <= {PROGRESS, "shards", VIDEOS, CARD_NAME, *GROWING_FOLDERS} and (
        names <= {PROGRESS} or journals_of(folder).exists()
    )
