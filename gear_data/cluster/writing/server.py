"""WriteServer: an Arrow Flight server that takes episodes of writers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

from gear_data.cluster.addresses import Address
from gear_data.cluster.credentials import ServerCredentials
from gear_data.cluster.flight.protected_server import ProtectedServer, next_chunk
from gear_data.cluster.flight.server_errors import as_flight_errors, to_client
from gear_data.cluster.protocol import MESSAGE_BYTES
from gear_data.cluster.writing.intake import WAIT_SECONDS, EpisodeIntake, episode_too_large
from gear_data.cluster.writing.messages import (
    ACTION,
    Acknowledgement,
    EpisodeHeader,
    check_hello,
    decode,
    hello_columns,
    server_hello,
)
from gear_data.errors import CorruptSourceError, NodeRefusedError
from gear_data.schema import ColumnSpec, split_cameras
from gear_data.storage.journal.record import RecordedEpisode, from_batch


class WriteServer(ProtectedServer):
    """Takes the episodes of writers until it is shut down; see `messages`.

    It reads an episode only while there is memory for it. So slow disks make writers wait.

    Args:
        intake: gets the episodes.
        listen: address to listen at. With port 0 the system chooses a free port; `port` is the chosen one.
        credentials: the token that writers must send, and the TLS certificate.

    Raises:
        InvalidArgumentError: other machines can reach the address, and there is no token or no TLS.
        ClusterError: the server cannot listen there, or the certificate or key is invalid.
    """

    answers = f"the action {ACTION}, and puts of episodes: it serves no dataset"

    def __init__(self, intake: EpisodeIntake, listen: Address, credentials: ServerCredentials) -> None:
        # Set before it listens: requests may arrive at once.
        self._intake = intake
        super().__init__(listen, credentials)

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        """Answers the action `writer`: checks a writer's columns, and returns its last episode.

        Forgets a writer that leaves.
        """
        self.counts.add(requests=1)
        with as_flight_errors(self.counts):
            if action.type != ACTION:
                raise NodeRefusedError(f"answers only {self.answers}")
            hello = check_hello(action.body.to_pybytes())
            columns = hello_columns(hello, None)
            if columns:
                self._intake.check_columns(columns)
            last, forgot = self._intake.synced(hello.client), self._intake.has_forgotten(hello.client)
            if hello.leaves:
                self._intake.forget(hello.client)
            answer = server_hello(last, forgot, self._intake.limits.episode_bytes, self._intake.columns)
            self.counts.add(sent_bytes=len(answer))
            yield answer

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Takes the episodes of one call. Acknowledges them once the disk has them all."""
        self.counts.add(requests=1)
        with as_flight_errors(self.counts), self._intake.call():
            hello = check_hello(descriptor.command or b"")
            columns = hello_columns(hello, reader.schema)
            self._intake.check_columns(columns)
            deadline = time.monotonic() + WAIT_SECONDS
            for episode, content in self._episodes(reader, columns):
                origin = episode.origin
                if origin is None or origin.client != hello.client:
                    raise NodeRefusedError("received an episode of another writer")
                if not episode.videos:
                    self._intake.add(episode, origin, content, columns, deadline)
                    continue
                with self._intake.new_videos() as videos:
                    received = replace(episode, videos=videos.receive(reader, episode.videos))
                    if self._intake.add(received, origin, content, columns, deadline):
                        videos.keep()
            answer = msgspec.json.encode(Acknowledgement(self._intake.synced(hello.client)))
            self.counts.add(sent_bytes=len(answer))
            with to_client():
                writer.write(answer)

    do_exchange = ProtectedServer._refuse

    def _episodes(self, reader: Any, columns: Sequence[ColumnSpec]) -> Iterator[tuple[RecordedEpisode, int]]:
        """Yields the episodes of a call, with a hash of each. The bytes of an episode's videos follow in the reader."""
        steps, cameras = split_cameras(columns)
        names, limit = {camera.name for camera in cameras}, self._intake.limits.episode_bytes
        while (chunk := next_chunk(reader)) is not None:
            header = decode((chunk.app_metadata or pa.py_buffer(b"")).to_pybytes(), EpisodeHeader)
            if chunk.data is None:
                raise NodeRefusedError("received an episode without steps")
            with self._intake.memory(header.bytes):
                batch = _rest_of_episode(reader, chunk.data, header)
                del chunk
                try:
                    episode = from_batch(batch, bytes(header.facts), steps, "")
                except CorruptSourceError as error:
                    raise NodeRefusedError(f"received a damaged episode: {error.message}") from error
                if set(episode.videos) != names:
                    raise NodeRefusedError("received an episode whose videos are not those of the cameras")
                if (size := batch.nbytes + sum(video.bytes for video in episode.videos.values())) > limit:
                    raise episode_too_large(size, limit)
                yield episode, xxhash.xxh3_64_intdigest(header.facts)  # they have checksums of its steps and videos


def _rest_of_episode(reader: Any, first: pa.RecordBatch, header: EpisodeHeader) -> pa.RecordBatch:
    """Returns an episode of several record batches, of which `first` is the first."""
    batches, rows, size = [first], first.num_rows, first.nbytes
    # Slices of text have offsets of their own, so they are slightly larger together.
    while rows < header.rows and size <= 2 * header.bytes + MESSAGE_BYTES:
        chunk = next_chunk(reader)
        if chunk is None or chunk.data is None or chunk.app_metadata is not None:
            break
        batches.append(chunk.data)
        rows, size = rows + chunk.data.num_rows, size + chunk.data.nbytes
    if rows != header.rows or size > 2 * header.bytes + MESSAGE_BYTES:
        raise NodeRefusedError(f"received an episode of another size than the declared {header.rows} rows")
    return first if len(batches) == 1 else pa.concat_batches(batches)
