"""WriteConnection: a writer's calls to the server that takes its episodes."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import flight

from gear_data.cluster.error_codec import error_from_bytes
from gear_data.cluster.flight.client import Endpoint, note_failure
from gear_data.cluster.flight.grpc_fork import close_before_fork, using_grpc
from gear_data.cluster.protocol import MESSAGE_BYTES
from gear_data.cluster.writing.messages import ACTION, Acknowledgement, EpisodeHeader, ServerHello, writer_hello
from gear_data.cluster.writing.videos import video_chunks
from gear_data.common.cancellation import call_interruptibly
from gear_data.schema import ColumnSpec, split_cameras
from gear_data.storage.journal.record import (
    EpisodeOrigin,
    RecordedEpisode,
    arrow_schema,
    to_batch,
)

#: The slowest network and disk, in bytes/s: a call may take longer by the time for its bytes.
_MIN_RATE = 1 << 20

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class OutgoingEpisode:
    """A finished episode as it is sent.

    Attributes:
        sequence: its number among the writer's episodes.
        batch: its steps.
        facts: everything but its steps, see `to_batch`.
        videos: the files of its videos, in the order of the facts.
        video_bytes: size of these files.
    """

    sequence: int
    batch: pa.RecordBatch
    facts: bytes
    videos: tuple[Path, ...] = ()
    video_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Size with the videos."""
        return int(self.batch.nbytes) + self.video_bytes

    def remove_videos(self) -> None:
        """Removes the files of its videos."""
        for path in self.videos:
            with suppress(OSError):  # the whole folder is removed at the end
                path.unlink()


def outgoing(
    episode: RecordedEpisode, origin: EpisodeOrigin, columns: Sequence[ColumnSpec], folder: Path | None = None
) -> OutgoingEpisode:
    """Returns an episode as it is sent, with a copy of its values.

    Args:
        episode: the episode.
        origin: the writer.
        columns: the columns of the episode, without cameras.
        folder: to which its videos are relative.
    """
    # With a final observation, `to_batch` makes new arrays.
    values = episode.columns if episode.finals else {name: _copy(each) for name, each in episode.columns.items()}
    recorded = replace(episode, columns=values, origin=origin)
    batch, facts = to_batch(recorded, columns)
    videos = () if folder is None else tuple(folder / video.file for video in episode.videos.values())
    size = sum(video.bytes for video in episode.videos.values())
    return OutgoingEpisode(origin.sequence, batch, facts, videos, size)


class WriteConnection:
    """Calls to the server of one writer. Every call has a time limit.

    Args:
        endpoint: the server.
        client: id of the writer.

    Raises (by every method):
        NodeUnreachableError: The server cannot be reached, or did not answer in time, or is busy.
        NodeRefusedError: It does not accept the token or the version.
        GearError: The server's own error.
    """

    def __init__(self, endpoint: Endpoint, client: str) -> None:
        self._endpoint = endpoint
        self._client_id = client
        #: The Flight client of `put`; None: not connected.
        self._flight: Any = None
        self._is_busy = False
        close_before_fork(self)

    @property
    def name(self) -> str:
        return self._endpoint.name

    @property
    def client(self) -> str:
        """Id of the writer."""
        return self._client_id

    def hello(self, columns: Sequence[ColumnSpec]) -> ServerHello:
        """Asks for the writer's last episode that the server has.

        Args:
            columns: the columns and cameras of the writer's episodes, which the server checks; empty: not known yet.

        Raises:
            InvalidArgumentError: the server has episodes with other columns.
        """
        message = writer_hello(self._client_id, columns)
        with using_grpc():
            return call_interruptibly(lambda: self._act(message))

    def goodbye(self) -> None:
        """Says that the writer sends no episode any more. The server has acknowledged all of its episodes."""
        message = writer_hello(self._client_id, (), leaves=True)
        with using_grpc():
            call_interruptibly(lambda: self._act(message))

    def _act(self, message: bytes) -> ServerHello:
        with self._errors():
            results = self._endpoint.act(ACTION, message, self._endpoint.timeout)
        return self._decode(self._endpoint.only(results), ServerHello)

    def put(self, columns: Sequence[ColumnSpec], episodes: Sequence[OutgoingEpisode]) -> int:
        """Sends episodes, and waits until the server's disk has them.

        Called from one thread.

        Args:
            columns: the columns and cameras of the writer's episodes.
            episodes: the episodes.

        Returns:
            The sequence number of the last episode that the server has.
        """
        with using_grpc():
            self._is_busy = True
            try:
                return self._put(columns, episodes)
            except BaseException as error:
                note_failure(error, self._endpoint.timeout)
                self._close()
                raise
            finally:
                self._is_busy = False

    def _put(self, columns: Sequence[ColumnSpec], episodes: Sequence[OutgoingEpisode]) -> int:
        with self._errors():
            answer = self._send(columns, episodes)
        if answer is None:
            raise self._endpoint.invalid_response("no acknowledgement")
        return self._decode(answer.to_pybytes(), Acknowledgement).last

    def _send(self, columns: Sequence[ColumnSpec], episodes: Sequence[OutgoingEpisode]) -> pa.Buffer | None:
        """Returns the server's answer to some episodes; None if it sent none. Callers are in `_errors`."""
        if self._flight is None:
            self._flight = self._endpoint.connect(self._endpoint.timeout)
        message = writer_hello(self._client_id, columns)
        descriptor = flight.FlightDescriptor.for_command(message)
        seconds = self._endpoint.timeout + sum(each.bytes for each in episodes) / _MIN_RATE
        options = self._endpoint.call_options(seconds)
        writer, reader = self._flight.do_put(descriptor, arrow_schema(split_cameras(columns)[0]), options)
        answer = None
        # If the server refused the call, only `close` has its error.
        with suppress(pa.ArrowException, OSError):
            for episode in episodes:
                _write(writer, episode)
            writer.done_writing()
            answer = reader.read()
        writer.close()
        return answer

    def close_idle(self) -> None:
        """Closes the connection if no call uses it. The next call opens it again."""
        if not self._is_busy:
            self._close()

    def _close(self) -> None:
        if self._flight is not None:
            with suppress(pa.ArrowException, OSError):
                self._flight.close()
            self._flight = None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Converts Arrow Flight's errors to GearErrors.

        The server's own errors keep their class: they are about this writer's episodes, or about the server's disk.
        """
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            traceback.clear_frames(error.__traceback__)  # see `Endpoint.errors`
            known = error_from_bytes(getattr(error, "extra_info", b"") or b"", self.name)
            if known is not None:
                raise known from error
            with self._endpoint.errors():
                raise

    def _decode(self, data: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind)
        except (ValueError, RecursionError) as error:
            raise self._endpoint.invalid_response(f"a malformed {kind.__name__}") from error


def _copy(values: Any) -> Any:
    return values.copy() if isinstance(values, np.ndarray) else values


def _write(writer: Any, episode: OutgoingEpisode) -> None:
    """Sends an episode in record batches of at most `MESSAGE_BYTES`, if its rows are not larger."""
    batch = episode.batch
    rows = max(1, math.floor(batch.num_rows * MESSAGE_BYTES / max(1, batch.nbytes)))
    header = msgspec.json.encode(EpisodeHeader(batch.num_rows, batch.nbytes, msgspec.Raw(episode.facts)))
    writer.write_with_metadata(batch.slice(0, rows), header)
    for first in range(rows, batch.num_rows, rows):
        writer.write_batch(batch.slice(first, rows))
    for path in episode.videos:
        for chunk in video_chunks(path):
            writer.write_metadata(pa.py_buffer(chunk))
