"""EpisodeLog: what takes finished episodes. EarlierEpisodes: what it took before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gear_data.schema import ColumnSpec
from gear_data.storage.journal.record import RecordedEpisode


class EpisodeLog(Protocol):
    """Takes finished episodes, and keeps them.

    Its user calls it from one thread at a time.
    """

    @property
    def video_folder(self) -> Path | None:
        """The folder to which the videos of episodes are relative. None: episodes cannot have videos."""

    @property
    def episodes(self) -> int:
        """The number of episodes so far, also of one whose `append` has failed after it was written."""

    def begin(self, columns: Sequence[ColumnSpec], cameras: Sequence[ColumnSpec] = ()) -> None:
        """Says the columns and cameras of all episodes. Called once, before the first `append`.

        Raises:
            GearError: the log cannot take such episodes. `begin` can be called again.
        """

    def append(self, episode: RecordedEpisode) -> None:
        """Takes an episode, whole or not at all.

        Args:
            episode: the episode. Its values may change after the call.

        Raises:
            GearError: the log does not have the episode.
        """

    def sync(self) -> None:
        """Waits until all episodes outlive a loss of power.

        Raises:
            GearError: they may be lost then.
        """

    def forget(self, client: str) -> None:
        """Forgets the last sequence number of a writer on another machine, which sends no episode any more."""


@dataclass(frozen=True)
class EarlierEpisodes:
    """What is known of the episodes that a log took before its process began.

    Attributes:
        columns: their columns and cameras; empty: there are none. Cameras have a `video`.
        sequences: id of a writer on another machine -> the sequence number of its last episode.
        forgotten: ids up to this one that are not in `sequences` may have episodes, too. See `Growth`.
    """

    columns: tuple[ColumnSpec, ...] = ()
    sequences: Mapping[str, int] = field(default_factory=dict)
    forgotten: str = ""


def last_sequences(episodes: Iterable[RecordedEpisode], published: Mapping[str, int]) -> dict[str, int]:
    """Returns the last sequence number of each writer on another machine.

    Args:
        episodes: the episodes of journals, in any order.
        published: the same of all earlier episodes, which are in no journal any more.
    """
    found = dict(published)
    for episode in episodes:
        if episode.origin is not None:
            client, sequence = episode.origin.client, episode.origin.sequence
            found[client] = max(sequence, found.get(client, -1))
    return found
