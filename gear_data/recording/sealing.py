"""Sealing: journals become a generation of the dataset."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from gear_data.errors import DestinationExistsError, ResumeError
from gear_data.ingest.card import CARD_NAME
from gear_data.ingest.convert import convert
from gear_data.ingest.engine.spec import MIN_SHARD_BYTES
from gear_data.ingest.growing.added_journals import SealedJournal
from gear_data.ingest.growing.publish import Publication, newest_manifest, publish
from gear_data.ingest.videos.placing import VIDEOS
from gear_data.recording.journal_folder import JournalFolder, journals_of, segment_of, visit_left_behind
from gear_data.recording.publisher import JournalPublisher
from gear_data.recording.seal_options import SealOptions
from gear_data.storage.generations.growth import GROWING_FOLDERS
from gear_data.storage.journal.episode_log import last_sequences
from gear_data.storage.journal.quarantine import set_aside
from gear_data.storage.journal.reading import read_journal
from gear_data.storage.manifest import Manifest
from gear_data.storage.writing.progress_files import PROGRESS

_log = logging.getLogger(__name__)


class FolderPublisher(JournalPublisher):
    """Publishes the journals of one writer in a folder of this machine.

    Args:
        folder: folder of the dataset.
        options: how journals are sealed.

    Raises:
        DestinationExistsError: the folder holds other files.
        UnwritableError: it cannot be written to.
    """

    def __init__(self, folder: Path, options: SealOptions) -> None:
        if newest_manifest(folder) is None and folder.exists() and not _is_unfinished(folder):
            raise DestinationExistsError(
                "the destination exists and is not a dataset", file=str(folder), hint="choose another path"
            )
        self.location = str(folder)
        self._folder, self.options = folder, options
        self.journals = JournalFolder(folder)

    def newest(self) -> Manifest | None:
        """Returns the newest manifest; None if there is no dataset."""
        return newest_manifest(self._folder)

    def last_number(self, manifest: Manifest | None) -> int:
        """Returns the number of the writer's last journal that the dataset has, or -1."""
        return last_published(manifest, self.journals.name)

    def num_waiting(self) -> int:
        """Returns the number of episodes in the journals that wait."""
        return self.journals.num_episodes(self.last_number(self.newest()))

    def publish(self, files: Sequence[Path], *, progress: bool | None) -> Publication | None:
        """Publishes ended journals, and removes them. See `JournalPublisher`."""
        return _publish(self._folder, self.journals, files, self.options, progress)

    def publish_left_behind(self, *, progress: bool | None) -> None:
        """Publishes the journals of writers that died."""

        def publish_ended(journals: JournalFolder) -> None:
            _publish(self._folder, journals, journals.ended(), self.options, progress)

        visit_left_behind(self._folder, "*", publish_ended)

    def close(self) -> None:
        """Releases the journals."""
        self.journals.close()


def _publish(
    folder: Path, journals: JournalFolder, files: Sequence[Path], options: SealOptions, progress: bool | None
) -> Publication | None:
    published = last_published(newest_manifest(folder), journals.name)
    segments = []
    for file in files:
        if int(file.stem) > published and (segment := sealed(file, journals.name, progress)) is not None:
            segments.append(segment)
    publication = publish(
        folder, segments, options.limits, shard_bytes=options.part_bytes, shard_steps=options.part_steps
    )
    for file in files:
        journals.remove(file)
    return publication


def _is_unfinished(folder: Path) -> bool:
    """Returns whether a folder is empty, or has what a killed writer left of the first generation."""
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()}
    return names <= {PROGRESS, "shards", VIDEOS, CARD_NAME, *GROWING_FOLDERS} and (
        names <= {PROGRESS} or journals_of(folder).exists()
    )


def last_published(manifest: Manifest | None, writer: str) -> int:
    """Returns the number of the last journal of a writer that a dataset has, or -1."""
    growth = None if manifest is None else manifest.growth
    return -1 if growth is None else growth.sealed.get(writer, -1)


def sealed(journal: Path, writer: str, progress: bool | None) -> SealedJournal | None:
    """Seals a journal into a dataset of its own; None if it has no episode."""
    contents = read_journal(journal)
    if contents.torn:
        _log.warning("%s: the last %d bytes are of an unfinished episode; left out", journal, contents.torn)
    for each in contents.damaged:
        kept = set_aside(journal, each)
        text = "%s: bytes %d to %d are left out, and kept in %s: %s"
        _log.warning(text, journal, each.start, each.end, kept, each.damage)
    for lost in contents.lost:
        _log.warning("%s: %s: the episode was not flushed; left out", journal, lost)
    if not contents.episodes:
        return None
    folder = segment_of(journal)
    # One shard, whatever its size: journals end at the size of a shard.
    size = max(MIN_SHARD_BYTES, 2 * journal.stat().st_size)
    try:
        convert(journal, folder, format="journal", shard_bytes=size, resume=True, jobs=1, progress=progress)
    except ResumeError:
        # The half of a dataset that a killed process left, of another version or of a longer journal.
        convert(journal, folder, format="journal", shard_bytes=size, overwrite=True, jobs=1, progress=progress)
    return SealedJournal(writer, int(journal.stem), folder, last_sequences(contents.episodes, {}))
