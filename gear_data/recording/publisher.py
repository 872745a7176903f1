"""JournalPublisher: how the journals of a writer become generations of a dataset."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from gear_data.growing.publish import Publication
from gear_data.growing.seal_options import SealOptions
from gear_data.recording.acceptance.checks import Acceptance
from gear_data.recording.journal_folder import JournalFolder
from gear_data.storage.manifest import Manifest


def growth_id(manifest: Manifest | None) -> str:
    """Returns the id of the growth of a dataset; empty: it has not grown so far. See `Growth`."""
    return "" if manifest is None or manifest.growth is None else manifest.growth.id


class JournalPublisher(Protocol):
    """Publishes the journals of one writer.

    Attributes:
        location: path or URL of the dataset.
        options: how journals are sealed.
        journals: the journals of the writer.
    """

    location: str
    options: SealOptions
    journals: JournalFolder

    def newest(self) -> Manifest | None:
        """Returns the newest manifest; None if there is no dataset."""

    def acceptance(self) -> Acceptance:
        """Returns the checks of the dataset, as far as this machine knows it, and of the journals here.

        Raises:
            GearError: the dataset cannot be read.
        """

    def num_waiting(self) -> int:
        """Returns the number of episodes of this writer that no generation has.

        Raises:
            CorruptSourceError: a journal cannot be read.
        """

    def publish(
        self, files: Sequence[Path], *, gone: Collection[str] = (), progress: bool | None
    ) -> Publication | None:
        """Publishes ended journals, and removes them.

        Args:
            files: the journals.
            gone: writers on other machines that send no episode any more.
            progress: show progress bars; None shows them on a terminal.

        Returns:
            None if there is no episode that the dataset lacks.

        Raises:
            GearError: the journals cannot be sealed, or the generation cannot be written. The journals stay.
        """

    def publish_left_behind(self, *, progress: bool | None) -> None:
        """Publishes the journals of writers of this machine that died.

        Raises:
            GearError: as `publish`.
        """

    def close(self) -> None:
        """Releases the journals. Those that are left wait for the next writer."""
