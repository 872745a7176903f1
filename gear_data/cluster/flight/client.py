"""Arrow Flight client: streams to a node, with timeouts and typed errors.

Every wait has a timeout, and every error is a GearError that names the node.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import flight

from gear_data.cluster.addresses import SCHEME, Address
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.error_codec import error_from_bytes
from gear_data.cluster.flight.grpc_fork import note_failed_attempt, note_grpc_threads, timeout
from gear_data.cluster.protocol import (
    MAX_RESPONSE_BYTES,
    MESSAGE_BYTES,
    ONE_VERSION_HINT,
    STREAM_SCHEMA,
    TOKEN_HEADER,
    handshake,
    part_offsets,
    response_checksum,
)
from gear_data.common.cancellation import call_interruptibly
from gear_data.errors import (
    ClusterError,
    CorruptResponseError,
    CorruptShardError,
    DatasetReplacedError,
    GearError,
    GenerationGoneError,
    NodeFailedError,
    NodeRefusedError,
    NodeUnreachableError,
)

#: Bytes of the largest array whose release raises glibc's mmap threshold. glibc ignores blocks of 32 MiB or more, its
#: own header included.
_LARGE_BYTES = (32 << 20) - (64 << 10)
#: Largest message that a client accepts: `MESSAGE_BYTES`, the sizes of a response, and Arrow's own bytes.
_MAX_MESSAGE_BYTES = MESSAGE_BYTES + (1 << 20)
#: Most characters of a text of gRPC in an error.
_MAX_REASON = 300
#: gRPC counts milliseconds in 32 bits: 24 days.
_MAX_MS = (1 << 31) - 1


@cache
def _keep_freed_memory() -> None:
    """Makes glibc reuse the memory of responses.

    glibc returns large blocks to the system when they are freed. Every response would then fault its pages in again,
    which costs as much as receiving it. The size that counts as large grows with the largest block of up to 32 MiB that
    was ever freed (M_MMAP_THRESHOLD in mallopt(3)). As a result, the process keeps up to 64 MiB of freed memory, like
    any process that once freed an array of this size.
    """
    np.empty(_LARGE_BYTES, np.uint8)


def note_failure(error: BaseException, seconds: float) -> None:
    """Says that a call failed. If the node answered, gRPC does not try to connect to it any more.

    Args:
        error: Arrow Flight's error, or the one that it was converted to.
        seconds: time for which gRPC tries to connect.
    """
    refused = isinstance(error, GearError | flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError)
    refused = refused or error_from_bytes(getattr(error, "extra_info", b"")) is not None
    if isinstance(error, NodeUnreachableError) or not refused:
        note_failed_attempt(seconds)


@dataclass(frozen=True)
class Endpoint:
    """Address of a node's server, the options of calls to it, and what is read from it.

    Attributes:
        address, options: see above.
        generation, shards: see `protocol.Handshake`.
    """

    address: Address
    options: ClientOptions
    generation: int | None = None
    shards: frozenset[int] | None = None

    def handshake(self, dataset: str, *, checksum: bool = False, **fields: Any) -> bytes:
        """Returns the first message of a call or stream; see `protocol.handshake`."""
        known = {"generation": self.generation, "shards": self.shards}
        return handshake(dataset, checksum=checksum, **{k: v for k, v in known.items() if v is not None}, **fields)

    @property
    def name(self) -> str:
        return f"{SCHEME}{self.address}"

    @property
    def timeout(self) -> float:
        return self.options.timeout

    def connect(self, seconds: float) -> Any:
        """Returns a Flight client. It connects at its first call.

        Args:
            seconds: time for which it tries to connect.

        Raises:
            ForkedProcessError: gRPC does not work in this process.
        """
        _keep_freed_memory()
        note_grpc_threads()
        generic_options = [
            # Each client has its own connection. Clients would share one otherwise, and its flow control.
            ("grpc.use_local_subchannel_pool", 1),
            # Opening a stream cannot be cancelled; gRPC's default is 20 s.
            ("grpc.min_reconnect_backoff_ms", min(max(int(1000 * seconds), 1), _MAX_MS)),
            # A larger message is refused before memory is allocated for it.
            ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ]
        return flight.connect(
            self.options.flight_location(self.address),
            tls_root_certs=self.options.authorities,
            override_hostname=self.options.certificate_name,
            generic_options=generic_options,
        )

    def call_options(self, seconds: float | None) -> Any:
        """Returns the options of one call.

        Args:
            seconds: timeout of the whole call; None: none.
        """
        token = self.options.token
        return flight.FlightCallOptions(
            timeout=seconds,
            headers=[] if token is None else [(TOKEN_HEADER, token.reveal())],
        )

    def act(self, action: str, body: bytes, seconds: float) -> list[flight.Result]:
        """Sends an action over a connection of its own, and returns its first results.

        Callers are in `errors`, and pass the results to `only`.

        Args:
            action, body: the action.
            seconds: timeout of the whole call.
        """
        client = self.connect(seconds)
        try:
            answer = client.do_action(flight.Action(action, body), self.call_options(seconds))
            # At most two, because a node may send results without end.
            return list(itertools.islice(answer, 2))
        except BaseException as error:
            note_failure(error, seconds)
            raise
        finally:
            client.close()

    def only(self, results: list[flight.Result]) -> bytes:
        """Returns the body of an action's only result.

        Raises:
            NodeRefusedError: there is none, or more than one.
        """
        if len(results) != 1:
            raise self.invalid_response(f"{len(results)} results instead of 1")
        return results[0].body.to_pybytes()  # type: ignore[no-any-return]

    def no_answer(self) -> NodeUnreachableError:
        """Returns the error for a node that does not answer in time."""
        return NodeUnreachableError(f"did not answer within {self.timeout:g} s", file=self.name)

    def invalid_response(self, found: str) -> NodeRefusedError:
        """Returns the error for a response that this client cannot use."""
        return NodeRefusedError(f"answers with {found}", file=self.name, hint=ONE_VERSION_HINT)

    @contextmanager
    def errors(self, stream: Stream | None = None) -> Iterator[None]:
        """Converts Arrow Flight's errors to GearErrors.

        Raises:
            NodeUnreachableError: the connection broke, or the timeout passed.
            NodeRefusedError: the node does not accept the token.
            GearError: the node's own error.
        """
        try:
            yield
        except StopIteration as error:
            raise NodeUnreachableError("closed the connection", file=self.name) from error
        except (pa.ArrowException, OSError) as error:
            # Whoever keeps the error keeps its frames. They would keep the call, and gRPC's threads: a process that is
            # forked then cannot use gRPC.
            traceback.clear_frames(error.__traceback__)
            info = getattr(error, "extra_info", b"")
            node_error = error_from_bytes(info, self.name) if info else None
            if node_error is not None:
                raise _as_peer_error(node_error) from error
            if isinstance(error, flight.FlightUnauthenticatedError | flight.FlightUnauthorizedError):
                raise NodeRefusedError(
                    "does not accept the token" if self.options.token else "needs a token",
                    file=self.name,
                    hint=self.options.token_hint,
                ) from error
            # The second is gRPC's text for a connection that a hanging node accepts and does not serve.
            if (
                isinstance(error, flight.FlightTimedOutError)
                or "timed out" in str(error)
                or (stream is not None and stream.timed_out)
            ):
                raise self.no_answer() from error
            raise NodeUnreachableError(f"cannot be reached: {_short(error)}", file=self.name) from error


class Stream:
    """A stream of requests, answered in order. Used by one thread at a time.

    Args:
        endpoint: the node.
        handshake: first message of the stream; see `protocol.handshake`.
        seconds: time that opening may take; None: the endpoint's timeout.

    Raises (also by every method):
        NodeUnreachableError: The stream broke, or a response took longer than the timeout. The stream is unusable then.
        NodeRefusedError, CorruptShardError: The node's own error.
        CorruptResponseError: A response differs from its checksum, if one was requested.
    """

    def __init__(self, endpoint: Endpoint, handshake: bytes, seconds: float | None = None) -> None:
        self._endpoint = endpoint
        seconds = endpoint.timeout if seconds is None else seconds
        #: Whether the stream was cancelled because a response took too long.
        self.timed_out = False
        #: See `client.fetch.Connection`.
        self.was_idle = False
        self._client = endpoint.connect(seconds)
        try:
            with endpoint.errors():
                descriptor = flight.FlightDescriptor.for_command(handshake)
                self._writer, self._reader = self._client.do_exchange(descriptor, endpoint.call_options(None))
                with timeout(self, seconds):
                    self._writer.begin(STREAM_SCHEMA)
        except BaseException as error:
            note_failure(error, seconds)
            self.cancel()
            self._drop()
            raise

    def cancel(self) -> None:
        """Ends the call in the waiting thread, and marks the stream as timed out."""
        self.timed_out = True
        self._end()

    def _end(self) -> None:
        """Ends the call in the waiting thread, which was interrupted or is cancelled."""
        # The stream may have been closed just before: the thread that ends the call must survive that.
        with suppress(AttributeError):
            self._reader.cancel()

    def post(self, request: bytes, seconds: float | None = None) -> None:
        """Sends a request.

        Args:
            request: the request.
            seconds: time that this may take; None: the endpoint's timeout.
        """
        with self._endpoint.errors(self), timeout(self, self._endpoint.timeout if seconds is None else seconds):
            self._writer.write_metadata(request)

    def take(self, seconds: float | None = None) -> list[npt.NDArray[np.uint8]]:
        """Waits for the next response and returns its parts.

        Args:
            seconds: time that the first message may take; None: the endpoint's timeout. Further messages have the
                endpoint's timeout each.
        """
        chunk = self._read_chunk(self._endpoint.timeout if seconds is None else seconds)
        if chunk.app_metadata is None or len(chunk.app_metadata) % 8:
            raise self._endpoint.invalid_response("a response without its sizes")
        sizes = np.frombuffer(chunk.app_metadata, np.int64).tolist()
        if self._endpoint.options.checksum and not sizes:
            raise self._endpoint.invalid_response("a response without its checksum")
        checksum = sizes.pop() if self._endpoint.options.checksum else None
        offsets, total = part_offsets(sizes)
        if min(sizes, default=0) < 0 or total > MAX_RESPONSE_BYTES:
            raise self._endpoint.invalid_response(f"a response of impossible size ({total} bytes)")
        data = self._bytes(chunk)
        if len(data) < total:
            data = self._take_rest(data, total)
        if len(data) != total:
            raise self._endpoint.invalid_response(f"{len(data)} bytes instead of {total}")
        if checksum is not None and response_checksum(data) != checksum:
            raise CorruptResponseError(
                "sent a response that differs from its checksum",
                file=self._endpoint.name,
                hint="test that machine's memory and network card",
            )
        self.was_idle = False
        return [data[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]

    def _take_rest(self, data: npt.NDArray[np.uint8], total: int) -> npt.NDArray[np.uint8]:
        """Returns a response of several messages, of which `data` is the first."""
        whole = np.empty(total, np.uint8)
        done = 0
        while True:
            # Only full messages, so that a node cannot send a byte at a time without end.
            if len(data) != min(MESSAGE_BYTES, total - done):
                raise self._endpoint.invalid_response("a response of another size than it declared")
            whole[done : done + len(data)] = data
            done += len(data)
            if done == total:
                return whole
            data = self._bytes(self._read_chunk(self._endpoint.timeout))

    def _read_chunk(self, seconds: float) -> Any:
        with self._endpoint.errors(self), timeout(self, seconds):
            # An interrupt is no timeout, after which the peer would be given up for all threads.
            return call_interruptibly(self._reader.read_chunk, self._end)

    def _bytes(self, chunk: Any) -> npt.NDArray[np.uint8]:
        if chunk.data is None:
            return np.empty(0, np.uint8)
        if chunk.data.schema != STREAM_SCHEMA:
            raise self._endpoint.invalid_response("columns that are not bytes")
        column = chunk.data.column(0)
        # Not `to_numpy`, which imports pandas where that is installed.
        return np.frombuffer(column.buffers()[1], np.uint8, len(column), column.offset)

    def close(self) -> None:
        """Closes the stream, whatever state it is in."""
        with suppress(pa.ArrowException, OSError, StopIteration), timeout(self, self._endpoint.timeout):
            self._writer.done_writing()
            while True:
                self._reader.read_chunk()
        with suppress(pa.ArrowException, OSError):
            self._writer.close()
        self._drop()

    def _drop(self) -> None:
        """Closes the connection. Whoever keeps this object does not keep gRPC's threads."""
        with suppress(pa.ArrowException, OSError):
            self._client.close()
        for name in ("_writer", "_reader", "_client"):
            vars(self).pop(name, None)

    def abandon(self) -> None:
        """Closes the stream without waiting for the node."""
        self._end()
        self.close()


def _as_peer_error(error: GearError) -> GearError:
    """Returns a node's error as one for which a replica is tried.

    An error of the node's disk or memory would pass for one of this machine.
    """
    if isinstance(error, ClusterError | CorruptShardError | DatasetReplacedError | GenerationGoneError):
        return error
    return NodeFailedError(f"failed: {error.message}", file=error.file, column=error.column, hint=error.hint)


def _short(error: BaseException) -> str:
    """Returns the first line of an error's text, without the records of gRPC and of other servers' exceptions."""
    text = str(error)
    for end in (" gRPC client debug context:", ". Client context:", " Detail: ", "\n"):
        text = text.partition(end)[0]
    return text[:_MAX_REASON]
