"""Servers for writers in this process, and what tests send to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gear_data.cluster.addresses import Address
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.credentials import ServerCredentials
from gear_data.cluster.flight.client import Endpoint
from gear_data.cluster.writing.connection import OutgoingEpisode, WriteConnection, outgoing
from gear_data.cluster.writing.intake import EpisodeIntake, IntakeLimits
from gear_data.cluster.writing.server import WriteServer
from gear_data.recording.writer import Writer
from gear_data.schema import ColumnSpec
from gear_data.storage.journal.episode_log import EarlierEpisodes
from gear_data.storage.journal.record import EpisodeOrigin, RecordedEpisode

LIMITS = IntakeLimits(episode_bytes=64 << 20, memory_bytes=128 << 20, calls=8)
_NO_CREDENTIALS = ServerCredentials()
COLUMNS = (ColumnSpec("actions", "int64"),)


@dataclass
class MemoryLog:
    """A log in memory, whose calls can fail or take long."""

    taken: list[RecordedEpisode] = field(default_factory=list)
    fail: Callable[[str], None] = lambda _: None
    #: It takes no videos.
    video_folder: None = None

    @property
    def episodes(self) -> int:
        return len(self.taken)

    def begin(self, columns: Sequence[ColumnSpec], cameras: Sequence[ColumnSpec] = ()) -> None:
        self.fail("begin")

    def append(self, episode: RecordedEpisode) -> None:
        self.fail("append")
        values = {name: each.copy() for name, each in episode.columns.items()}
        self.taken.append(replace(episode, columns=values))
        self.fail("appended")

    def sync(self) -> None:
        self.fail("sync")

    def forget(self, client: str) -> None:
        self.fail("forget")


def serve(
    to: MemoryLog | EpisodeIntake, limits: IntakeLimits = LIMITS, credentials: ServerCredentials = _NO_CREDENTIALS
) -> WriteServer:
    """Starts a server. `shutdown` ends it."""
    intake = to if isinstance(to, EpisodeIntake) else EpisodeIntake(to, EarlierEpisodes(), limits)
    return WriteServer(intake, Address("127.0.0.1", 0), credentials)


def url(server: WriteServer) -> str:
    """Returns the URL for a Writer."""
    return f"gear://127.0.0.1:{server.port}"


def add(writer: Writer, number: int, steps: int = 3) -> None:
    """Records an episode."""
    for t in range(steps):
        writer.append(actions=10 * number + t)
    writer.end_episode(terminated=True)


def numbers(log: MemoryLog) -> list[int]:
    """Returns the numbers of the episodes that the server took."""
    return [int(each.columns["actions"][0]) // 10 for each in log.taken]


def connection(server: WriteServer, client: str = "a") -> WriteConnection:
    """Returns a connection of one writer."""
    options = ClientOptions(None, None, 10.0)
    return WriteConnection(Endpoint(Address("127.0.0.1", server.port), options), client)


def episode(sequence: int, client: str = "a", steps: int = 5) -> OutgoingEpisode:
    """Returns an episode that the server has not seen."""
    recorded = RecordedEpisode({"actions": np.arange(10 * sequence, 10 * sequence + steps)}, True, False)
    return outgoing(recorded, EpisodeOrigin(client, sequence), COLUMNS)
