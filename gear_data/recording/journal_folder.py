"""JournalFolder: finished episodes on this machine, in journals."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from gear_data.errors import DestinationExistsError, EmptySourceError, InvalidArgumentError, ResumeError
from gear_data.ingest.convert import ConvertReport, convert
from gear_data.recording.episode_sink import EpisodeSink
from gear_data.schema import ColumnSpec
from gear_data.storage.journal.reading import read_journal
from gear_data.storage.journal.record import RecordedEpisode
from gear_data.storage.journal.writing import SUFFIX, JournalWriter
from gear_data.storage.manifest import MANIFEST_NAME
from gear_data.storage.writing.folder_lock import folder_lock


class JournalFolder(EpisodeSink):
    """Appends finished episodes to a journal in the folder `PATH.journal`.

    `seal` converts all journals of the folder to the dataset `PATH`, and removes them.

    Args:
        path: the folder of the dataset. It must not exist, or must be empty.
        shard_bytes: see `Writer`.

    Raises:
        DestinationExistsError: there is a dataset already, or another Writer is recording there.
        UnwritableError: the folder cannot be written to.
    """

    def __init__(self, path: Path, *, shard_bytes: int) -> None:
        self._folder, self._shard_bytes = path, shard_bytes
        self._journals = path.with_name(f"{path.name}.journal")
        self._journal: JournalWriter | None = None
        self._lock = ExitStack()
        hint = "wait for the end of the other Writer, or choose another path"
        self._lock.enter_context(folder_lock(self._journals, name=str(path), hint=hint))
        try:
            earlier = self._journal_files()
            if earlier and (path / MANIFEST_NAME).exists():
                # The process ended between the dataset and the removal of its journal.
                self._convert()
                earlier = []
            if not earlier and path.exists() and any(path.iterdir()):
                raise DestinationExistsError(
                    "the destination exists and is not empty", file=str(path), hint="choose another path"
                )
            self._episodes = sum(len(read_journal(each).episodes) for each in earlier)
        except BaseException:
            self._lock.close()
            raise

    @property
    def episodes(self) -> int:
        """The number of finished episodes. The episodes of earlier journals count."""
        return self._episodes

    def begin(self, columns: Sequence[ColumnSpec]) -> None:
        """Opens a new journal."""
        earlier = self._journal_files()
        number = int(earlier[-1].stem) + 1 if earlier else 0
        self._journal = JournalWriter(self._journals / f"{number:06d}{SUFFIX}", columns)

    def append(self, episode: RecordedEpisode) -> None:
        """Appends an episode to the journal.

        Raises:
            StorageFullError, UnwritableError: the journal cannot be written.
        """
        if self._journal is None:
            raise InvalidArgumentError("no journal is open", hint="call begin first")
        self._journal.append(episode)
        self._episodes += 1

    def sync(self) -> None:
        """Waits until the disk has all episodes.

        Raises:
            StorageFullError, UnwritableError: the disk failed.
        """
        if self._journal is not None:
            self._journal.sync()

    def seal(self) -> ConvertReport:
        """Makes the dataset of all journals, and removes the journals.

        Raises:
            EmptySourceError: there is no episode.
            GearError: the dataset cannot be written.
        """
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        if not self._episodes:
            raise EmptySourceError("no episode has a step", file=str(self._folder))
        report = self._convert()
        self._lock.close()
        return report

    def close(self) -> ConvertReport | None:
        """Seals if there is an episode. Without one, nothing stays on disk."""
        if self._episodes:
            return self.seal()
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        for each in self._journal_files():
            each.unlink()
        self._lock.close()
        return None

    def _convert(self) -> ConvertReport:
        try:
            report = self._converted(resume=True)
        except ResumeError:
            if (self._folder / MANIFEST_NAME).exists():
                raise
            # A process that was killed inside `seal` left the half of a dataset, of fewer journals.
            report = self._converted(overwrite=True)
        for each in self._journal_files():
            each.unlink()
        return report

    def _converted(self, *, resume: bool = False, overwrite: bool = False) -> ConvertReport:
        return convert(
            self._journals,
            self._folder,
            format="journal",
            shard_bytes=self._shard_bytes,
            resume=resume,
            overwrite=overwrite,
        )

    def _journal_files(self) -> list[Path]:
        return sorted(self._journals.glob(f"*{SUFFIX}"))
