"""A node as a client sees it: Arrow Flight, every wait limited, every error one of ours that names the node."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import flight

from gear_data.cluster.addresses import SCHEME, TOKEN_VARIABLE, Access, Address
from gear_data.cluster.protocol import (
    MAX_ANSWER_BYTES,
    STREAM_SCHEMA,
    check_opening,
    error_from_bytes,
    opening,
    part_places,
)
from gear_data.cluster.waiting import close_before_fork, limited, using_grpc
from gear_data.errors import ClusterError, NodeRefusedError, NodeUnreachableError

#: Streams to one node that are kept for the next batch.
_IDLE_STREAMS = 8


@dataclass(frozen=True)
class Description:
    """What a node says of itself.

    Attributes:
        dataset: its `identity`.
        shards: the places in the manifest of those that it serves.
    """

    dataset: str
    shards: frozenset[int]


class Stream:
    """One stream of requests, answered in their order. For one thread at a time.

    Raises (everywhere):
        NodeUnreachableError: it broke, or an answer took longer than the limit. It is of no use then.
        NodeRefusedError, CorruptShardError: what the node says.
    """

    def __init__(self, node: Node, dataset: str) -> None:
        self._node = node
        self._late = False
        self._client = node.connect()
        #: Not used since it was given back: the node may have gone meanwhile.
        self.kept = False
        with node.errors():
            descriptor = flight.FlightDescriptor.for_command(opening(dataset))
            self._writer, self._reader = self._client.do_exchange(descriptor, node.options(limit=False))
            with limited(self, node.timeout):
                self._writer.begin(STREAM_SCHEMA)

    def cancel_late(self) -> None:
        self._late = True
        self._reader.cancel()

    def post(self, request: bytes) -> None:
        """Sends a request."""
        with self._node.errors(self), limited(self, self._node.timeout):
            self._writer.write_metadata(request)

    def take(self) -> list[npt.NDArray[np.uint8]]:
        """The parts of the answer to the first request that has none yet."""
        with self._node.errors(self), limited(self, self._node.timeout):
            chunk = self._reader.read_chunk()
        if chunk.app_metadata is None:
            raise self._node.nonsense("an answer without its sizes")
        sizes = np.frombuffer(chunk.app_metadata, np.int64).tolist()
        places, total = part_places(sizes)
        if min(sizes, default=0) < 0 or total > MAX_ANSWER_BYTES:
            raise self._node.nonsense("an answer of impossible size")
        data = _bytes(chunk)
        if len(data) < total:
            data = self._rest(data, total)
        if len(data) != total:
            raise self._node.nonsense(f"{len(data)} bytes in place of {total}")
        self.kept = False
        return [data[place : place + size] for place, size in zip(places, sizes, strict=True)]

    def _rest(self, data: npt.NDArray[np.uint8], total: int) -> npt.NDArray[np.uint8]:
        whole = np.empty(total, np.uint8)
        done = 0
        while True:
            if done + len(data) > total or not len(data):
                raise self._node.nonsense("an answer of another size than it said")
            whole[done : done + len(data)] = data
            done += len(data)
            if done == total:
                return whole
            with self._node.errors(self), limited(self, self._node.timeout):
                data = _bytes(self._reader.read_chunk())

    @property
    def was_late(self) -> bool:
        """Whether it was ended because an answer took too long."""
        return self._late

    def close(self) -> None:
        """Ends it, whatever state it is in."""
        with suppress(pa.ArrowException, OSError, StopIteration), limited(self, self._node.timeout):
            self._writer.done_writing()
            while True:
                self._reader.read_chunk()
        with suppress(pa.ArrowException, OSError):
            self._writer.close()
        with suppress(pa.ArrowException, OSError):
            self._client.close()
        del self._writer, self._reader, self._client


def _bytes(chunk: Any) -> npt.NDArray[np.uint8]:
    if chunk.data is None:
        return np.empty(0, np.uint8)
    return chunk.data.column(0).to_numpy(zero_copy_only=True)  # type: ignore[no-any-return]


class Node:
    """A node's server. Safe to use from several threads, before and after a fork; opens what it needs when it needs it.

    Args:
        address: where it listens.
        access: what is shown to it, and how long it may take.

    Raises:
        InvalidArgumentError: it is on another machine, and there is no token.
    """

    def __init__(self, address: Address, access: Access) -> None:
        access.check(address)
        self.address = address
        self.name = f"{SCHEME}{address}"
        self.timeout = access.timeout
        self._access = access
        self._idle: list[Stream] = []
        close_before_fork(self)
        weakref.finalize(self, _close, self._idle)

    def connect(self) -> Any:
        location = self._access.location(self.address)
        # A connection of its own for each client: they share one otherwise, and its flow control.
        options = [("grpc.use_local_subchannel_pool", 1)]
        return flight.connect(location, tls_root_certs=self._access.authorities, generic_options=options)

    def options(self, *, limit: bool = True) -> Any:
        headers = [] if self._access.token is None else [(b"authorization", f"Bearer {self._access.token}".encode())]
        return flight.FlightCallOptions(timeout=self.timeout if limit else None, headers=headers)

    def describe(self) -> Description:
        """What it serves.

        Raises:
            NodeUnreachableError, NodeRefusedError: it says nothing, or not to this process.
        """
        with using_grpc():
            client = self.connect()
            try:
                return self._describe(client)
            finally:
                client.close()

    def _describe(self, client: Any) -> Description:
        body = self._act(client, "describe", b"")
        try:
            found = json.loads(body)
            description = Description(str(found["dataset"]), frozenset(map(int, found["shards"])))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self.nonsense("a description that is none") from error
        with self._naming():
            check_opening(body, description.dataset)
        return description

    def file_piece(self, dataset: str, file: str, offset: int) -> bytes:
        """A piece of the manifest or of a table, see `ServedShards.file_piece`. Raises as `describe` does."""
        body = json.dumps({**json.loads(opening(dataset)), "file": file, "offset": offset}).encode()
        with using_grpc():
            client = self.connect()
            try:
                return self._act(client, "file", body)
            finally:
                client.close()

    def _act(self, client: Any, action: str, body: bytes) -> bytes:
        with self.errors():
            results = list(client.do_action(flight.Action(action, body), self.options()))
        if len(results) != 1:
            raise self.nonsense(f"{len(results)} results in place of one")
        return results[0].body.to_pybytes()  # type: ignore[no-any-return]

    def open_stream(self, dataset: str) -> tuple[Stream, Description | None]:
        """A stream: an idle one, or a new one and what the node now says of itself. To be given back with `keep`, or
        closed."""
        with suppress(IndexError):
            return self._idle.pop(), None
        # Of a node that does not answer this finds out within the limit, which opening a stream would not.
        client = self.connect()
        try:
            description = self._describe(client)
        finally:
            client.close()
        return Stream(self, dataset), description

    def keep(self, stream: Stream) -> None:
        """Gives back a stream all of whose requests are answered."""
        stream.kept = True
        if len(self._idle) < _IDLE_STREAMS:
            self._idle.append(stream)
        else:
            stream.close()

    def close_idle(self) -> None:
        _close(self._idle)

    def nonsense(self, what: str) -> NodeRefusedError:
        return NodeRefusedError(
            f"answers with {what}", file=self.name, hint="use one version of gear-data on all nodes"
        )

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except ClusterError as error:
            error.file = self.name
            raise

    @contextmanager
    def errors(self, stream: Stream | None = None) -> Iterator[None]:
        """Turns errors of Arrow Flight into ours."""
        try:
            yield
        except StopIteration as error:
            raise NodeUnreachableError("closed the connection", file=self.name) from error
        except (pa.ArrowException, OSError) as error:
            info = getattr(error, "extra_info", b"")
            said = error_from_bytes(info, self.name) if info else None
            if said is not None:
                raise said from error
            if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
                raise NodeRefusedError(
                    "does not take the token" if self._access.token else "wants a token",
                    file=self.name,
                    hint=f"set ${TOKEN_VARIABLE} to the file that the node was given with --token-file",
                ) from error
            late = isinstance(error, flight.FlightTimedOutError) or (stream is not None and stream.was_late)
            reason = f"did not answer within {self.timeout:g} s" if late else f"cannot be reached: {_short(error)}"
            raise NodeUnreachableError(reason, file=self.name) from error


def _short(error: BaseException) -> str:
    """Without gRPC's own record of it."""
    return str(error).split(" gRPC client debug context:")[0].split(". Client context:")[0]


def _close(streams: list[Stream]) -> None:
    while streams:
        streams.pop().close()
