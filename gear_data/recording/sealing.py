"""Sealing: journals become a generation of the dataset."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gear_data.errors import ResumeError
from gear_data.ingest.convert import MIN_SHARD_BYTES, SHARD_BYTES, convert
from gear_data.ingest.growing.eviction import Limits
from gear_data.ingest.growing.publish import Publication, SealedJournal, newest_manifest, publish
from gear_data.recording.journal_folder import JournalFolder, journals_of, segment_of
from gear_data.storage.journal.episode_log import last_sequences
from gear_data.storage.journal.reading import read_journal
from gear_data.storage.manifest import Manifest

#: A growing dataset with a limit has at least so many parts, so that an eviction takes a small share of it.
_PARTS = 8

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SealOptions:
    """How journals are sealed.

    Attributes:
        shard_bytes: the size up to which shards are filled.
        limits: the largest size of the dataset.
    """

    shard_bytes: int = SHARD_BYTES
    limits: Limits = field(default_factory=Limits)

    @property
    def part_bytes(self) -> int:
        """The largest size of a part."""
        most = self.limits.max_bytes
        return self.shard_bytes if most is None else max(1, min(self.shard_bytes, most // _PARTS))

    @property
    def part_steps(self) -> int | None:
        """The most steps of a part; None: no limit."""
        return None if self.limits.max_steps is None else max(1, self.limits.max_steps // _PARTS)


def seal(
    folder: Path, journals: JournalFolder, files: Sequence[Path], options: SealOptions, *, progress: bool | None
) -> Publication | None:
    """Publishes ended journals of a writer, and removes them.

    Args:
        folder: folder of the dataset.
        journals: the journals of one writer.
        files: those that have ended.
        options: how they are sealed.
        progress: show progress bars; None shows them on a terminal.

    Returns:
        None if there is no episode that the dataset lacks.

    Raises:
        GearError: the journals cannot be sealed, or the generation cannot be written. The journals stay.
    """
    published = last_published(newest_manifest(folder), journals.name)
    segments = []
    for file in files:
        if int(file.stem) > published and (segment := _segment(file, journals.name, progress)) is not None:
            segments.append(segment)
    publication = publish(
        folder, segments, options.limits, shard_bytes=options.part_bytes, shard_steps=options.part_steps
    )
    for file in files:
        journals.remove(file)
    return publication


def last_published(manifest: Manifest | None, writer: str) -> int:
    """Returns the number of the last journal of a writer that a dataset has, or -1."""
    growth = None if manifest is None else manifest.growth
    return -1 if growth is None else growth.sealed.get(writer, -1)


def seal_left_behind(folder: Path, options: SealOptions, *, progress: bool | None) -> None:
    """Publishes the journals of writers that died.

    Raises:
        GearError: as `seal`.
    """
    for path in sorted(journals_of(folder).glob("*")):
        if not path.name.isdecimal() or not any(path.glob("*")):
            continue
        journals = JournalFolder(folder, int(path.name))
        try:
            if journals.name == path.name:
                seal(folder, journals, journals.ended(), options, progress=progress)
        finally:
            journals.close()


def _segment(journal: Path, writer: str, progress: bool | None) -> SealedJournal | None:
    """Seals a journal into a dataset of its own; None if it has no episode."""
    contents = read_journal(journal)
    if contents.torn:
        _log.warning("%s: the last %d bytes are of an unfinished episode; left out", journal, contents.torn)
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
