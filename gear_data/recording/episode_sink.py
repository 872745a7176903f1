"""EpisodeSink: where a Writer puts finished episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from gear_data.ingest.growing.publish import Publication
from gear_data.schema import ColumnSpec
from gear_data.storage.journal.episode_log import EpisodeLog


class EpisodeSink(EpisodeLog, Protocol):
    """Takes the finished episodes of a Writer, and makes generations of a dataset of them."""

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
