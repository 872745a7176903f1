"""A node as a client sees it: Arrow Flight, every wait limited, every error one of ours that names the node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import flight

from gear_data.cluster.addresses import SCHEME, TOKEN_VARIABLE, Address, ClientOptions
from gear_data.cluster.flight.grpc_fork import limited
from gear_data.cluster.protocol import (
    MAX_RESPONSE_BYTES,
    STREAM_SCHEMA,
    part_places,
    response_checksum,
)
from gear_data.common.error_codec import error_from_bytes
from gear_data.errors import CorruptResponseError, NodeRefusedError, NodeUnreachableError

#: glibc counts no block of 32 MiB or more, its own few bytes included.
_LARGE_BYTES = (32 << 20) - (64 << 10)
#: gRPC counts milliseconds in 32 bits: 24 days.
_LONGEST_MS = (1 << 31) - 1


@cache
def _keep_freed_memory() -> None:
    """Has glibc use the memory of answers again.

    It gives large blocks back to the system when they are freed, so that every answer faults its pages in anew, which
    costs as much as receiving it. What it takes for large grows with the largest block of up to 32 MiB that was ever
    freed: M_MMAP_THRESHOLD in mallopt(3). So of what the process frees up to 64 MiB stay with it, as in any that once
    freed so large an array.
    """
    np.empty(_LARGE_BYTES, np.uint8)


@dataclass(frozen=True)
class Endpoint:
    """A node as calls go to it.

    Attributes:
        address: where it listens.
        access: what is shown to it, and how long it may take.
    """

    address: Address
    access: ClientOptions

    @property
    def name(self) -> str:
        return f"{SCHEME}{self.address}"

    @property
    def timeout(self) -> float:
        return self.access.timeout

    def connect(self) -> Any:
        _keep_freed_memory()
        location = self.access.location(self.address)
        options = [
            # A connection of its own for each client: they share one otherwise, and its flow control.
            ("grpc.use_local_subchannel_pool", 1),
            # How long gRPC tries to connect (20 s unless told), which opening a stream cannot be called back from.
            ("grpc.min_reconnect_backoff_ms", min(int(1000 * self.timeout), _LONGEST_MS)),
        ]
        return flight.connect(
            location,
            tls_root_certs=self.access.authorities,
            override_hostname=self.access.certified,
            generic_options=options,
        )

    def options(self, *, limit: bool = True) -> Any:
        headers = [] if self.access.token is None else [(b"authorization", f"Bearer {self.access.token}".encode())]
        return flight.FlightCallOptions(timeout=self.timeout if limit else None, headers=headers)

    def nonsense(self, what: str) -> NodeRefusedError:
        return NodeRefusedError(
            f"answers with {what}", file=self.name, hint="use one version of gear-data on all nodes"
        )

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
                    "does not take the token" if self.access.token else "wants a token",
                    file=self.name,
                    hint=f"set ${TOKEN_VARIABLE} to the file that the node was given with --token-file",
                ) from error
            late = isinstance(error, flight.FlightTimedOutError) or (stream is not None and stream.was_late)
            reason = f"did not answer within {self.timeout:g} s" if late else f"cannot be reached: {_short(error)}"
            raise NodeUnreachableError(reason, file=self.name) from error


class Stream:
    """One stream of requests, answered in their order. For one thread at a time.

    Args:
        endpoint: the node.
        opening: what opens the stream; see `protocol.handshake`.

    Raises (everywhere):
        NodeUnreachableError: it broke, or an answer took longer than the limit. It is of no use then.
        NodeRefusedError, CorruptShardError: what the node says.
        CorruptAnswerError: an answer that differs from its checksum, if it was asked for.
    """

    def __init__(self, endpoint: Endpoint, handshake: bytes) -> None:
        self._endpoint = endpoint
        self._late = False
        self._client = endpoint.connect()
        #: Not used since it was given back: the node may have gone meanwhile.
        self.kept = False
        with endpoint.errors():
            descriptor = flight.FlightDescriptor.for_command(handshake)
            self._writer, self._reader = self._client.do_exchange(descriptor, endpoint.options(limit=False))
            with limited(self, endpoint.timeout):
                self._writer.begin(STREAM_SCHEMA)

    def cancel_late(self) -> None:
        self._late = True
        # It may have been closed when this was about to be called: whoever calls has others to watch.
        with suppress(AttributeError):
            self._reader.cancel()

    def post(self, request: bytes) -> None:
        """Sends a request."""
        with self._endpoint.errors(self), limited(self, self._endpoint.timeout):
            self._writer.write_metadata(request)

    def take(self) -> list[npt.NDArray[np.uint8]]:
        """The parts of the answer to the first request that has none yet."""
        with self._endpoint.errors(self), limited(self, self._endpoint.timeout):
            chunk = self._reader.read_chunk()
        if chunk.app_metadata is None or len(chunk.app_metadata) % 8:
            raise self._endpoint.nonsense("an answer without its sizes")
        sizes = np.frombuffer(chunk.app_metadata, np.int64).tolist()
        if self._endpoint.access.checksum and not sizes:
            raise self._endpoint.nonsense("an answer without its checksum")
        checksum = sizes.pop() if self._endpoint.access.checksum else None
        places, total = part_places(sizes)
        if min(sizes, default=0) < 0 or total > MAX_RESPONSE_BYTES:
            raise self._endpoint.nonsense("an answer of impossible size")
        data = self._bytes(chunk)
        if len(data) < total:
            data = self._rest(data, total)
        if len(data) != total:
            raise self._endpoint.nonsense(f"{len(data)} bytes in place of {total}")
        if checksum is not None and response_checksum(data) != checksum:
            raise CorruptResponseError(
                "sent an answer that differs from its checksum",
                file=self._endpoint.name,
                hint="test that machine's memory and network card",
            )
        self.kept = False
        return [data[place : place + size] for place, size in zip(places, sizes, strict=True)]

    def _rest(self, data: npt.NDArray[np.uint8], total: int) -> npt.NDArray[np.uint8]:
        whole = np.empty(total, np.uint8)
        done = 0
        while True:
            if done + len(data) > total or not len(data):
                raise self._endpoint.nonsense("an answer of another size than it said")
            whole[done : done + len(data)] = data
            done += len(data)
            if done == total:
                return whole
            with self._endpoint.errors(self), limited(self, self._endpoint.timeout):
                chunk = self._reader.read_chunk()
            data = self._bytes(chunk)

    def _bytes(self, chunk: Any) -> npt.NDArray[np.uint8]:
        if chunk.data is None:
            return np.empty(0, np.uint8)
        if chunk.data.schema != STREAM_SCHEMA:
            raise self._endpoint.nonsense("columns that are no bytes")
        column = chunk.data.column(0)
        # Not `to_numpy`, which imports pandas where that is installed.
        return np.frombuffer(column.buffers()[1], np.uint8, len(column), column.offset)

    @property
    def was_late(self) -> bool:
        """Whether it was ended because an answer took too long."""
        return self._late

    def close(self) -> None:
        """Ends it, whatever state it is in."""
        with suppress(pa.ArrowException, OSError, StopIteration), limited(self, self._endpoint.timeout):
            self._writer.done_writing()
            while True:
                self._reader.read_chunk()
        with suppress(pa.ArrowException, OSError):
            self._writer.close()
        with suppress(pa.ArrowException, OSError):
            self._client.close()
        del self._writer, self._reader, self._client

    def abandon(self) -> None:
        """Ends it, and does not wait for a node that may be gone."""
        self.cancel_late()
        self.close()


def _short(error: BaseException) -> str:
    """Without gRPC's own record of it."""
    return str(error).split(" gRPC client debug context:")[0].split(". Client context:")[0]
