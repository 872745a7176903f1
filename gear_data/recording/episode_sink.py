"""EpisodeSink: where a Writer puts finished episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from gear_data.ingest.growing.publish import Publication
from gear_data.schema import ColumnSpec
from gear_data.storage.journal.record import RecordedEpisode


class EpisodeSink(Protocol):
    """Takes the finished episodes of a Writer, and keeps them.

    Its user calls it from one thread at a time.
    """

    @property
    def episodes(self) -> int:
        """The number of finished episodes so far."""

    @property
    def video_folder(self) -> Path | None:
        """The folder to which the videos of episodes are relative. None: episodes cannot have videos."""

    def begin(self, columns: Sequence[ColumnSpec], cameras: Sequence[ColumnSpec] = ()) -> None:
        """Says the columns and cameras of all episodes. Called once, before the first `append`.

        Raises:
            GearError: The sink cannot take such episodes. `begin` can be called again.
        """

    def append(self, episode: RecordedEpisode) -> None:
        """Takes an episode, whole or not at all. It outlives the process when this returns.

        Args:
            episode: the episode. Its values may change after the call.

        Raises:
            GearError: The sink does not have the episode.
        """

    def sync(self) -> None:
        """Waits until all episodes outlive a loss of power.

        Raises:
            GearError: They may be lost then.
        """

    def seal(self) -> Publication | None:
        """Makes a generation of the dataset with all episodes so far.

        Returns:
            The generation; None: the dataset has all episodes already.

        Raises:
            GearError: There is no new generation, and all episodes are kept. `seal` can be called again.
        """

    def close(self) -> Publication | None:
        """Seals, and releases what the sink holds.

        Raises:
            GearError: See `seal`.
        """
