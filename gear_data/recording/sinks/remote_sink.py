"""RemoteSink: finished episodes are sent to a server on another machine."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from gear_data.cluster.addresses import parse_nodes
from gear_data.cluster.client.options import WRITE_TOKEN_VARIABLE, ClientOptions
from gear_data.cluster.flight.client import Endpoint
from gear_data.cluster.writing.connection import WriteConnection, outgoing
from gear_data.cluster.writing.intake import episode_too_large
from gear_data.cluster.writing.messages import ServerHello, hello_columns
from gear_data.cluster.writing.sender import LAST_DELAY, WRITE_BUFFER_VARIABLE, WRITE_TIMEOUT_VARIABLE, EpisodeSender
from gear_data.common.environment import env_int, env_seconds
from gear_data.common.private_folder import OwnedFolder
from gear_data.errors import GearError, InvalidArgumentError, NodeUnreachableError
from gear_data.recording.acceptance.facts import FactTypes
from gear_data.recording.sinks.episode_sink import EpisodeSink
from gear_data.schema import ColumnSpec, split_cameras
from gear_data.storage.journal.record import EpisodeOrigin, RecordedEpisode
from gear_data.storage.journal.writing import new_series

_DEFAULT_TIMEOUT, _DEFAULT_BUFFER = 300.0, 256 << 20


class RemoteSink(EpisodeSink):
    """Sends finished episodes to `gear-data serve --writable`.

    Episodes stay in memory until the server's disk has them. After a broken connection or a restart of the server they
    are sent again, and the server has each one exactly once.

    Args:
        url: `gear://host:port`, the server.

    Raises:
        InvalidArgumentError: the URL names several servers, or an environment variable has a wrong value.
        NodeUnreachableError: the server cannot be reached.
        NodeRefusedError: it does not accept the token.
    """

    def __init__(self, url: str) -> None:
        addresses = parse_nodes(url)
        if len(addresses) != 1:
            raise InvalidArgumentError(f"a Writer sends to one server, and {url} names {len(addresses)}")
        options = ClientOptions.from_environment(WRITE_TOKEN_VARIABLE)
        options.check(addresses[0])
        self._seconds = env_seconds(WRITE_TIMEOUT_VARIABLE, _DEFAULT_TIMEOUT)
        self._buffer_bytes = env_int(WRITE_BUFFER_VARIABLE, _DEFAULT_BUFFER, 1, 1 << 40)
        self._connection = WriteConnection(Endpoint(addresses[0], options), f"{new_series()}{secrets.token_hex(8)}")
        self._hello = self._connection.hello(())
        self._columns: tuple[ColumnSpec, ...] = ()
        #: Videos that the server's disk does not have.
        self._videos: OwnedFolder | None = None
        self._sender: EpisodeSender | None = None
        self._episodes = 0

    @property
    def episodes(self) -> int:
        """The number of finished episodes of this writer."""
        return self._episodes

    def columns(self) -> tuple[ColumnSpec, ...] | None:
        """Returns the columns of the server's episodes when it last answered; None if it had none."""
        return split_cameras(hello_columns(self._hello, None))[0] or None

    @property
    def video_folder(self) -> Path:
        """A temporary folder. A video stays in it until the server's disk has the episode."""
        if self._videos is None:
            self._videos = OwnedFolder()
        return self._videos.path

    def begin(self, columns: Sequence[ColumnSpec], cameras: Sequence[ColumnSpec] = ()) -> None:
        """Says the columns and cameras of all episodes.

        Raises:
            InvalidArgumentError: the server has episodes with other columns or cameras.
            NodeUnreachableError: the server cannot be reached for a long time.
        """
        both = (*columns, *cameras)
        self._hello = self._answer(both)
        self._columns = tuple(columns)
        self._sender = EpisodeSender(self._connection, both, self._buffer_bytes, self._seconds)

    def _answer(self, columns: Sequence[ColumnSpec]) -> ServerHello:
        """Returns the server's answer. The server may be restarting."""
        deadline = time.monotonic() + self._seconds
        while True:
            try:
                return self._connection.hello(columns)
            except NodeUnreachableError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(min(LAST_DELAY, self._seconds / 10))

    def append(self, episode: RecordedEpisode) -> None:
        """Takes an episode, to send it. Waits while too many episodes are not acknowledged.

        Raises:
            InvalidArgumentError: the episode is larger than the server allows, or a fact cannot be stored.
            NodeUnreachableError: the server acknowledged nothing for a long time.
            GearError: the server refused an earlier episode.
        """
        if self._sender is None:
            raise InvalidArgumentError("the columns are not known", hint="call begin first")
        FactTypes().check(episode.facts)
        origin = EpisodeOrigin(self._connection.client, self._episodes)
        episode_to_send = outgoing(episode, origin, self._columns, self.video_folder if episode.videos else None)
        if episode_to_send.bytes > self._hello.max_episode_bytes:
            raise episode_too_large(episode_to_send.bytes, self._hello.max_episode_bytes)
        self._sender.put(episode_to_send)
        self._episodes += 1

    def sync(self) -> None:
        """Waits until the server's disk has all episodes.

        Raises:
            NodeUnreachableError: the server acknowledged nothing for a long time.
            GearError: the server refused an episode.
        """
        if self._sender is not None:
            self._sender.flush()

    def forget(self, client: str) -> None:
        """Does nothing: no other machine sends episodes to it."""

    def flush(self) -> None:
        """Does nothing: after `sync`, the server has all episodes."""

    def seal(self) -> NoReturn:
        """Raises InvalidArgumentError: the server makes the dataset."""
        raise InvalidArgumentError(
            "the server makes the dataset",
            file=self._connection.name,
            hint="call flush; gear-data serve --publish-every makes generations",
        )

    def before_close(self) -> None:
        """Waits until the server's disk has all episodes. See `sync`."""
        self.sync()

    def close(self) -> None:
        """Waits until the server's disk has all episodes, and closes the connection.

        Raises:
            GearError: see `sync`. The episodes are kept, and `close` can be called again.
        """
        if self._sender is not None:
            self._sender.flush()
            self._sender.stop()
            self._sender = None
            with suppress(GearError):  # the server remembers this Writer then
                self._connection.goodbye()
        if self._videos is not None:
            self._videos.remove()
