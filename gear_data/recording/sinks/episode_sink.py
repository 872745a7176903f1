"""EpisodeSink: where a Writer puts finished episodes."""

from __future__ import annotations

from typing import Protocol

from gear_data.growing.publish import Publication
from gear_data.schema import ColumnSpec
from gear_data.storage.journal.episode_log import EpisodeLog


class EpisodeSink(EpisodeLog, Protocol):
    """Takes the finished episodes of a Writer, and makes generations of a dataset of them."""

    @property
    def episodes(self) -> int:
        """The number of finished episodes so far."""

    def columns(self) -> tuple[ColumnSpec, ...] | None:
        """Returns the columns that earlier episodes have; None if there are none, or they are not known."""

    def flush(self) -> None:
        """Brings all episodes to the destination, if they are elsewhere after `sync`.

        Another thread may append meanwhile.

        Raises:
            GearError: the destination cannot take them. They are kept, and `flush` can be called again.
        """

    def seal(self) -> Publication | None:
        """Makes a generation of the dataset with all episodes so far.

        Returns:
            The generation; None: the dataset has all episodes already.

        Raises:
            GearError: there is no new generation, and all episodes are kept. `seal` can be called again.
        """

    def before_close(self) -> None:
        """Waits for what `close` needs, and tries again what failed before.

        Called before the last episodes end, and after that.

        Raises:
            EpisodeRefusedError: an earlier episode was refused, and is dropped. Call it again, for those behind it.
            GearError: `close` would fail. The sink can still be used, and `before_close` be called again.
        """

    def close(self) -> Publication | None:
        """Seals, and releases what the sink holds.

        Raises:
            GearError: see `seal`.
        """
