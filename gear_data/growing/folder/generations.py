"""Generations in a folder: a rename replaces the manifest, and processes take turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gear_data.errors import DatasetNotFoundError
from gear_data.growing.added_journals import AddedJournal, SealedJournal, placed
from gear_data.growing.folder.sweep import has_earlier, sweep
from gear_data.growing.publish import GenerationStore
from gear_data.growing.returned import sort_journals
from gear_data.ingest.card import CARD_NAME
from gear_data.storage.atomic import fsync, link_file, typed_write_errors
from gear_data.storage.generations.growth import Growth, generation_file
from gear_data.storage.manifest import MANIFEST_NAME, Manifest
from gear_data.storage.writing.file_store import LocalFileStore, put_text
from gear_data.storage.writing.progress_files import PROGRESS


def newest_manifest(folder: Path) -> Manifest | None:
    """Returns the newest manifest of a folder; None if there is no dataset."""
    if not (folder / MANIFEST_NAME).exists():
        return None
    try:
        return Manifest.load(folder)
    except DatasetNotFoundError:
        return None


def remove_unread_files(folder: Path) -> bool:
    """Removes the files of earlier generations that no reader needs.

    A publication does so, too. But its journals are sealed before, and a full disk may have no room for that.

    Returns:
        Whether there was an earlier generation.
    """
    if newest_manifest(folder) is None:
        return False
    with LocalFileStore(folder).locked(PROGRESS, wait=True):
        newest = newest_manifest(folder)
        if newest is None or not has_earlier(folder, newest):
            return False
        sweep(folder, newest)
        return True


class FolderGenerations(GenerationStore[SealedJournal]):
    """The generations of a dataset in a folder of this machine.

    Args:
        folder: the dataset's folder, which need not exist.
        journals: the sealed journals to publish.
        set_aside: puts one of them into the quarantine, with the reason.
    """

    def __init__(
        self, folder: Path, journals: Sequence[SealedJournal], set_aside: Callable[[SealedJournal, str], None]
    ) -> None:
        self.name, self.files, self.kept = str(folder), LocalFileStore(folder), ()
        self._folder, self._journals, self._set_aside = folder, journals, set_aside

    @contextmanager
    def turn(self) -> Iterator[Manifest | None]:
        """Waits until no other process publishes. See `GenerationStore`."""
        with self.files.locked(PROGRESS, wait=True) as self._lock:
            self._current = newest_manifest(self._folder)
            yield self._current

    def waiting(self, growth: Growth) -> Sequence[SealedJournal]:
        found = sort_journals(growth, self._journals)
        for journal, reason in found.doubtful:
            self.set_aside(journal, reason)
        if found.new and self._current is not None and has_earlier(self._folder, self._current):
            # Readers may have gone since the last publication, and the disk may be full.
            sweep(self._folder, self._current)
        return found.new

    def named(self, generation: int) -> str:
        return f"{generation:06d}"

    def added(self, journal: SealedJournal, part: str) -> AddedJournal:
        draft = placed(self.files, journal.folder, journal.manifest, part)
        return AddedJournal(journal.writer, journal.number, journal.sequences, journal.manifest, draft)

    def set_aside(self, journal: SealedJournal, reason: str) -> None:
        self._journals = [each for each in self._journals if each is not journal]
        self._set_aside(journal, reason)

    def replace(self, manifest: Manifest, text: str, card: str | None) -> None:
        with typed_write_errors(self._folder):
            fsync(self._folder / "shards")
        if card is not None:
            put_text(self.files, CARD_NAME, card)
        if self._current is not None and self._current.growth is None:
            self._keep_first(self._current)
        self._lock.check()
        file = generation_file(manifest.generation)
        put_text(self.files, file, text)
        # Two names of one file: a lease of one is a lease of both.
        second = self._folder / f".{MANIFEST_NAME}.{manifest.generation}.tmp"
        if link_file(self._folder / file, second):
            with typed_write_errors(second):
                os.replace(second, self._folder / MANIFEST_NAME)
                fsync(self._folder)
        else:
            put_text(self.files, MANIFEST_NAME, text)

    def _keep_first(self, manifest: Manifest) -> None:
        """Keeps the manifest of a dataset that has not grown so far, as generation 0."""
        if not link_file(self._folder / MANIFEST_NAME, self._folder / generation_file(0)):
            put_text(self.files, generation_file(0), manifest.to_text())

    def clean(self, newest: Manifest) -> None:
        sweep(self._folder, newest)
