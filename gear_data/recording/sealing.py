"""Sealing: journals become a generation of the dataset."""

from __future__ import annotations

import logging
import os
import shutil
from bisect import bisect_left
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from gear_data.errors import (
    BadEpisodeError,
    CorruptShardError,
    CorruptSourceError,
    DestinationExistsError,
    EmptySourceError,
    InvalidArgumentError,
    ResumeError,
    StorageFullError,
    UnsupportedColumnError,
)
from gear_data.growing.added_journals import SealedJournal
from gear_data.growing.folder.generations import FolderGenerations, newest_manifest, remove_unread_files
from gear_data.growing.next_generation import growth_of
from gear_data.growing.publish import Publication, publish
from gear_data.growing.seal_options import SealOptions
from gear_data.ingest.card import CARD_NAME
from gear_data.ingest.convert import convert
from gear_data.ingest.engine.spec import MIN_SHARD_BYTES
from gear_data.ingest.videos.placing import VIDEOS
from gear_data.recording.acceptance.checks import Acceptance
from gear_data.recording.journal_folder import JournalFolder, journals_of, segment_of, visit_left_behind
from gear_data.recording.publisher import JournalPublisher
from gear_data.storage.atomic import is_unrenamed, typed_write_errors
from gear_data.storage.episode_tables import read_episodes
from gear_data.storage.generations.growth import GROWING_FOLDERS
from gear_data.storage.journal.episode_log import last_sequences
from gear_data.storage.journal.quarantine import keep_only, set_aside
from gear_data.storage.journal.reading import Extent, Journal, read_journal
from gear_data.storage.journal.videos import VIDEOS as JOURNAL_VIDEOS
from gear_data.storage.journal.writing import SUFFIX
from gear_data.storage.manifest import MANIFEST_NAME, Manifest
from gear_data.storage.writing.progress_files import PROGRESS

#: Errors of a conversion that are about the episodes.
_UNFIT = (BadEpisodeError, CorruptSourceError, EmptySourceError, InvalidArgumentError, UnsupportedColumnError)

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

    def acceptance(self) -> Acceptance:
        """Returns the checks of the dataset and of all writers' journals."""
        found = self._of_dataset(self.newest())
        found.add_journals(sorted(journals_of(self._folder).glob(f"*/*{SUFFIX}")))
        return found

    def _of_dataset(self, manifest: Manifest | None) -> Acceptance:
        return Acceptance(self.location, manifest, episode_table(self._folder, manifest))

    def num_waiting(self) -> int:
        """Returns the number of episodes in the journals that wait."""
        manifest = self.newest()
        growth, is_converted = growth_of(manifest), Acceptance(self.location, manifest, None).is_converted
        return self.journals.num_episodes(
            lambda journal, number: growth.has_journal(journal.series or self.journals.name, number), is_converted
        )

    def publish(
        self, files: Sequence[Path], *, gone: Collection[str] = (), progress: bool | None
    ) -> Publication | None:
        """Publishes ended journals, and removes them. See `JournalPublisher`."""
        return self._publish(self.journals, files, progress, gone)

    def _publish(
        self, journals: JournalFolder, files: Sequence[Path], progress: bool | None, gone: Collection[str] = ()
    ) -> Publication | None:
        newest = self.newest()
        try:
            segments = self._sealed(journals, files, progress, newest)
        except StorageFullError:
            if not remove_unread_files(self._folder):
                raise
            segments = self._sealed(journals, files, progress, newest)
        journals.new.difference_update(files)
        publication = None
        if segments:

            def keep(segment: SealedJournal, reason: str) -> None:
                set_aside_whole(segment.folder, reason)
                journals.begin_series(growth_of(newest).largest_series)  # a copy of this machine may use the same one

            publication = publish(FolderGenerations(self._folder, segments, keep), self.options, gone)
        for file in files:
            journals.remove(file)
        return publication

    def _sealed(
        self, journals: JournalFolder, files: Sequence[Path], progress: bool | None, newest: Manifest | None
    ) -> list[SealedJournal]:
        """Seals journals. Those without an episode to publish are left out."""
        acceptance, segments = self._of_dataset(newest), list[SealedJournal]()
        for file in files:
            contents = read_journal(file)
            if (folder := sealed(file, contents, progress, acceptance)) is not None:
                series, sequences = contents.series or journals.name, last_sequences(contents.episodes, {})
                comes_back = file not in journals.new
                manifest = Manifest.load(folder)
                segments.append(SealedJournal(series, int(file.stem), folder, manifest, comes_back, sequences))
        return segments

    def publish_left_behind(self, *, progress: bool | None) -> None:
        """Publishes the journals of writers that died."""

        def publish_ended(journals: JournalFolder) -> None:
            self._publish(journals, journals.ended(), progress)

        visit_left_behind(self._folder, "*", publish_ended)

    def close(self) -> None:
        """Releases the journals."""
        self.journals.close()


def episode_table(folder: Path, manifest: Manifest | None) -> pa.Table | None:
    """Returns the episode table of a dataset; None: there is none, or another process replaced it meanwhile."""
    try:
        return None if manifest is None else read_episodes(folder / manifest.tables["episodes"].file, manifest)
    except (CorruptShardError, FileNotFoundError):
        return None  # the publication reads the newest one, and says what is wrong


def _is_unfinished(folder: Path) -> bool:
    """Returns whether a folder is empty, or has what other writers, running or killed, make of the first generation."""
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir() if not is_unrenamed(path.name, MANIFEST_NAME, CARD_NAME)}
    return MANIFEST_NAME in names or (
        names <= {PROGRESS, "shards", VIDEOS, CARD_NAME, *GROWING_FOLDERS}
        and (names <= {PROGRESS} or journals_of(folder).exists())
    )


def sealed(journal: Path, contents: Journal, progress: bool | None, acceptance: Acceptance) -> Path | None:
    """Seals a journal into a dataset of its own, and returns its folder; None if it has no episode to publish.

    Episodes that cannot join the dataset are set aside, and leave the journal.

    Args:
        journal: the journal, which has ended.
        contents: its contents.
        progress: show progress bars; None shows them on a terminal.
        acceptance: the checks of the dataset.

    Raises:
        GearError: the journal cannot be read, or a disk failed.
    """
    if contents.torn:
        _log.warning("%s: the last %d bytes are of an unfinished episode; left out", journal, contents.torn)
    for damaged in contents.damaged:
        _set_aside(journal, contents, [damaged], damaged.damage)
    for lost in contents.lost:
        _set_aside(journal, contents, [lost], lost.damage)
    new = [record for record in contents.records if not acceptance.is_converted(contents, record.number)]
    contents = _with_records(journal, contents, new)
    refused = acceptance.refused(contents)
    while True:
        for reason in dict.fromkeys(refused.values()):
            extents = [contents.records[place] for place, each in refused.items() if each == reason]
            _set_aside(journal, contents, extents, reason)
        left = [record for place, record in enumerate(contents.records) if place not in refused]
        contents = _with_records(journal, contents, left)
        if not contents.episodes:
            return None
        try:
            folder = _converted(journal, progress)
        except _UNFIT as error:
            refused = {_first_unfit(journal, contents): str(error)}
        else:
            _check_whole(folder, journal, contents)
            return folder


def _converted(journal: Path, progress: bool | None) -> Path:
    """Converts a journal, and returns the folder of the dataset."""
    folder = segment_of(journal)
    # One shard, whatever its size: journals end at the size of a shard.
    size = max(MIN_SHARD_BYTES, 2 * journal.stat().st_size)
    convert_again = partial(
        convert, journal, folder, format="journal", shard_bytes=size, resume=True, jobs=1, progress=progress
    )
    try:
        convert_again()
    except (ResumeError, DestinationExistsError):
        # The half of a dataset that a killed process left, of another version or of another journal; or what is left of
        # a dataset that could not be removed whole.
        with typed_write_errors(folder):
            shutil.rmtree(folder)
        convert_again()
    return folder


def _check_whole(folder: Path, journal: Path, contents: Journal) -> None:
    """Checks that a converted journal has all episodes: what it lacks would be removed with the journal.

    Raises:
        CorruptSourceError: the journal was read differently at the conversion. A second call converts it again.
    """
    converted = Manifest.load(folder).episodes
    if converted != len(contents.episodes):
        with typed_write_errors(folder):
            shutil.rmtree(folder)
        raise CorruptSourceError(
            f"has {len(contents.episodes)} episodes, of which a conversion read {converted}",
            file=str(journal),
            hint="publish again; if it stays so, check the disk",
        )


def _first_unfit(journal: Path, contents: Journal) -> int:
    """Returns the first episode with which the episodes before it cannot be converted."""

    def is_unfit(count: int) -> bool:
        prefix, parent = ".gear-data-", journal.parent
        with typed_write_errors(parent), TemporaryDirectory(prefix=prefix, dir=parent) as scratch:
            part = Path(scratch, journal.name)
            with suppress(OSError):  # there are no videos
                os.symlink(journal.parent / JOURNAL_VIDEOS, Path(scratch, JOURNAL_VIDEOS))
            shutil.copyfile(journal, part)
            keep_only(part, contents, contents.records[:count])
            try:
                _converted(part, False)
            except _UNFIT:
                return True
            return False

    return bisect_left(range(1, len(contents.records)), True, key=is_unfit)


def _with_records(journal: Path, contents: Journal, records: Sequence[Extent]) -> Journal:
    """Returns a journal that has only some of its records, and none of the lost ones."""
    if len(records) == len(contents.records) and not contents.lost:
        return contents
    keep_only(journal, contents, records)
    return read_journal(journal)


def set_aside_whole(segment: Path, reason: str) -> None:
    """Puts all episodes of a journal into the quarantine of its dataset.

    Args:
        segment: the folder of the dataset that it was sealed into.
        reason: why they are not in the dataset.
    """
    journal = segment.with_suffix(SUFFIX)
    contents = read_journal(journal)
    _set_aside(journal, contents, contents.records, reason)


def _set_aside(journal: Path, contents: Journal, extents: Sequence[Extent], reason: str) -> None:
    folder = set_aside(journal, contents, extents, reason)
    what = f"bytes {extents[0].start:,} to {extents[0].end:,}" if extents[0].number < 0 else f"{len(extents)} episodes"
    text = "%s: %s cannot be published, and are kept: see gear-data journal show %s %s: %s"
    dataset = journal.parent.parent.with_suffix("")
    _log.warning(text, journal, what, dataset, folder.name, reason)
