"""Peer: a node as its clients see it, with a pool of idle streams to it."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated

import msgspec

from gear_data.cluster.addresses import Address
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.flight.client import Endpoint, Stream
from gear_data.cluster.flight.grpc_fork import close_before_fork, using_grpc
from gear_data.cluster.protocol import check_handshake
from gear_data.common.cancellation import call_interruptibly
from gear_data.common.typed_json import resolved
from gear_data.errors import ClusterError
from gear_data.video.packet_bytes import ByteRange

#: Idle streams to one peer that are kept for the next batch.
_MAX_IDLE_STREAMS = 8


@resolved
class PeerDescription(msgspec.Struct, frozen=True):
    """Response to the action `describe`, which is also a handshake.

    Attributes:
        dataset: the dataset's `dataset_identity`.
        shards: positions in the manifest of the shards that the peer serves.
        verbs: whether they can be read by RDMA.
        generation: the number of the generation that these are of.
        growth, base: see `Growth`; None for a dataset that does not grow.
    """

    dataset: str
    shards: Annotated[frozenset[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1)]
    verbs: bool
    generation: Annotated[int, msgspec.Meta(ge=0)] = 0
    growth: str | None = None
    base: str | None = None


class Peer:
    """Connections to one node's server.

    Thread-safe, and usable before and after a fork; connects on first use.

    Args:
        address: where the server listens.
        options: token, authorities and timeout.

    Raises:
        InvalidArgumentError: the server is on another machine, and there is no token.
    """

    def __init__(self, address: Address, options: ClientOptions) -> None:
        options.check(address)
        self.endpoint = Endpoint(address, options)
        # Streams hold no reference to the peer: a finalizer of the peer closes them.
        self._idle: list[Stream] = []
        #: Streams that callers use now. A stream that an interrupted caller lost dies, which ends its call.
        self._busy: set[weakref.ref[Stream]] = set()
        #: Time of the last response, by `time.monotonic`.
        self.last_response = 0.0
        close_before_fork(self)
        weakref.finalize(self, _abandon, self._idle)

    @property
    def name(self) -> str:
        return self.endpoint.name

    def read_generation(self, generation: int, shards: frozenset[int] | None = None) -> None:
        """Makes all later calls name the generation and the shards that are read from the peer.

        The peer opens them if it does not hold them.
        """
        self.endpoint = replace(self.endpoint, generation=generation, shards=shards)

    def describe(
        self, dataset: str = "", generation: int | None = None, seconds: float | None = None
    ) -> PeerDescription:
        """Asks the peer which shards of a generation it serves.

        Args:
            dataset: the dataset's `dataset_identity`; empty: any.
            generation: the number; None: the one that is read, or the newest one. The peer describes its newest
                generation if it is an earlier one.
            seconds: time that the answer may take; None: the timeout.

        Raises:
            NodeUnreachableError: the peer does not answer in time.
            NodeRefusedError: the peer refuses this client, or its response is malformed.
            GenerationGoneError: the peer does not have the generation any more.
        """
        limit = self.endpoint.timeout if seconds is None else seconds
        with using_grpc():
            return call_interruptibly(lambda: self._describe(limit, dataset, generation))

    def _describe(self, seconds: float, dataset: str, generation: int | None = None) -> PeerDescription:
        endpoint = self.endpoint if generation is None else replace(self.endpoint, generation=generation)
        body = self._act("describe", endpoint.handshake(dataset), seconds)
        try:
            description = msgspec.json.decode(body, type=PeerDescription)
        except (ValueError, RecursionError) as error:
            raise self.endpoint.invalid_response("a malformed description") from error
        with self._named_errors():
            check_handshake(body)
        return description

    def file_chunk(self, dataset: str, file: str, offset: int) -> bytes:
        """Reads a chunk of the manifest or of a table; see `ShardServer.file_chunk`.

        Args:
            dataset: the dataset's `dataset_identity`.
            file, offset: the file, and the first byte of the chunk.

        Raises:
            NodeUnreachableError, NodeRefusedError: as `describe`.
        """
        with using_grpc():
            first = self.endpoint.handshake(dataset, file=file, offset=offset)
            return call_interruptibly(lambda: self._act("file", first, self.endpoint.timeout))

    def video_bytes(self, dataset: str, ranges: Sequence[ByteRange]) -> bytes:
        """Reads ranges of bytes of video files; see `ShardServer.video_bytes`.

        Args:
            dataset: the dataset's `dataset_identity`.
            ranges: the ranges, together at most `protocol.MESSAGE_BYTES` bytes.

        Returns:
            All ranges, one after another.

        Raises:
            NodeUnreachableError, NodeRefusedError: as `describe`.
        """
        with using_grpc():
            message = self.endpoint.handshake(dataset, ranges=[list(each) for each in ranges])
            data = call_interruptibly(lambda: self._act("video", message, self.endpoint.timeout))
        if len(data) != sum(last - first for _, first, last in ranges):
            raise self.endpoint.invalid_response(f"{len(data)} bytes of videos")
        return data

    def _act(self, action: str, body: bytes, seconds: float) -> bytes:
        with self.endpoint.errors():
            results = self.endpoint.act(action, body, seconds)
        return self.endpoint.only(results)

    def acquire_stream(self, dataset: str, seconds: float | None = None) -> tuple[Stream, PeerDescription | None]:
        """Returns an idle stream, or a new stream and the peer's present description.

        The caller returns the stream with `release_stream`, or closes it with `abandon_stream`.

        Args:
            dataset: the dataset's `dataset_identity`.
            seconds: time that connecting may take; None: the timeout.

        Returns:
            The stream, and None for the description of an idle stream.

        Raises:
            NodeUnreachableError, NodeRefusedError: as `describe`.
        """
        description: PeerDescription | None = None
        try:
            while (stream := self._idle.pop()).timed_out:  # just when it was released
                stream.abandon()
        except IndexError:
            stream, description = call_interruptibly(lambda: self._open_stream(dataset, seconds))
        self._busy.add(weakref.ref(stream, self._busy.discard))
        return stream, description

    def _open_stream(self, dataset: str, seconds: float | None) -> tuple[Stream, PeerDescription]:
        deadline = time.monotonic() + (self.endpoint.timeout if seconds is None else seconds)
        # `describe` has a timeout; opening a stream to a peer that hangs does not.
        description = self._describe(_seconds_until(deadline), dataset)
        first = self.endpoint.handshake(dataset, checksum=self.endpoint.options.checksum)
        return Stream(self.endpoint, first, _seconds_until(deadline)), description

    def release_stream(self, stream: Stream) -> None:
        """Returns a stream to the pool. All its requests must have been answered."""
        self._busy.discard(weakref.ref(stream))
        stream.was_idle = True
        if len(self._idle) < _MAX_IDLE_STREAMS:
            self._idle.append(stream)
        else:
            stream.close()

    def abandon_stream(self, stream: Stream) -> None:
        """Closes a stream that is in use, without waiting for the peer."""
        self._busy.discard(weakref.ref(stream))
        stream.abandon()

    def give_up(self) -> None:
        """Ends the waits of all streams in use.

        Called when one of them has timed out, and the peer has sent nothing on any other meanwhile. Otherwise requests
        that other threads sent later would time out one after another.
        """
        for each in list(self._busy):
            stream = each()
            if stream is not None:
                stream.cancel()

    def close_idle(self) -> None:
        _abandon(self._idle)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Adds this peer's name to errors."""
        try:
            yield
        except ClusterError as error:
            error.file = self.name
            raise


def _seconds_until(deadline: float) -> float:
    """Returns the seconds until a time, at least a millisecond."""
    return max(deadline - time.monotonic(), 1e-3)


def _abandon(streams: list[Stream]) -> None:
    while streams:
        # Neither a fork nor the end of the process waits for a peer that hangs.
        streams.pop().abandon()
