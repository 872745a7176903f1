"""FlightFetch: reads spans from one peer over an Arrow Flight stream."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from gear_data.cluster.client.fetch import Fetch, WaitLimits
from gear_data.cluster.client.peer import Peer
from gear_data.cluster.flight.client import Stream
from gear_data.cluster.protocol import ColumnGroup, FetchedSpans, Request
from gear_data.errors import GearError, NodeUnreachableError
from gear_data.schema import Schema
from gear_data.selection.windows import Int64Array

#: Target size of one response, in bytes; a larger window is requested by itself. Each message has a fixed cost, so
#: smaller responses are slower. A response should be one message, of at most `MESSAGE_BYTES`.
REQUEST_BYTES = 4 << 20
_MAX_REQUEST_SPANS = 2048
#: Most requests in flight on a stream, and their bytes: sending must never wait for responses.
MAX_IN_FLIGHT = 8
_MAX_IN_FLIGHT_BYTES = 32 << 10
#: Share of the timeout in which a response is received that may have arrived.
_ARRIVED_SHARE = 0.25


def split_into_batches(spans: Int64Array, sizes: Int64Array) -> list[Int64Array]:
    """Splits spans into batches of about equal bytes, `REQUEST_BYTES` or less.

    Args:
        spans: int64 [n], positions of spans in the request.
        sizes: int64 [N], bytes of each span of the request.
    """
    ends = np.cumsum(sizes[spans])
    total = max(1, int(ends[-1]))
    batches = -(-total // REQUEST_BYTES)
    if batches == 1 and len(spans) <= _MAX_REQUEST_SPANS:
        return [spans]
    # About equal: a short last batch would cost as much by itself as a full one.
    batch = (ends - 1) * batches // total
    starts = np.ones(len(spans), np.bool_)
    starts[1:] = batch[1:] != batch[:-1]
    starts[::_MAX_REQUEST_SPANS] = True
    bounds = [*np.flatnonzero(starts).tolist(), len(spans)]
    return [spans[first:last] for first, last in itertools.pairwise(bounds)]


class FlightFetch(Fetch[Stream, int]):
    """A `Fetch` over a stream.

    The state of a posted batch is the bytes of its request.

    Args:
        number, peer: the peer.
        acquire_stream: returns a stream to the peer, idle or new, within this number of seconds.
        schema: the dataset's schema.
        request: the whole request, for all peers.
        batches: positions of the spans of each request to this peer.
        waits: see `Fetch`.
    """

    def __init__(
        self,
        number: int,
        peer: Peer,
        acquire_stream: Callable[[float], Stream],
        schema: Schema,
        request: Request,
        batches: Sequence[Int64Array],
        waits: WaitLimits,
    ) -> None:
        super().__init__(number, peer.name, batches, waits)
        self._remote, self._schema, self._request = peer, schema, request
        self._acquire_stream = acquire_stream

    def _acquire(self) -> Stream:
        return self._acquire_stream(self._seconds_left())

    def _send(self, stream: Stream) -> None:
        while self._pending and len(self._in_flight) < MAX_IN_FLIGHT:
            spans = self._pending[0]
            groups = tuple(ColumnGroup(g.columns, g.first[spans], g.count[spans]) for g in self._request.groups)
            data = Request(self._request.shard[spans], groups).to_bytes()
            if self._in_flight and sum(size for _, size in self._in_flight) + len(data) > _MAX_IN_FLIGHT_BYTES:
                return
            stream.post(data, self._seconds_left())
            self._in_flight.append((self._pending.popleft(), len(data)))

    def _receive(self, stream: Stream) -> None:
        # While another peer was waited for, the response may have arrived.
        parts = stream.take(self._seconds_left(_ARRIVED_SHARE * self._waits.timeout))
        self._check(self._in_flight[0][0], parts)
        self._answered()
        self._remote.last_response = self.waiting_since
        self.done.append(FetchedSpans(self._in_flight.popleft()[0], parts))

    def _release(self, stream: Stream) -> None:
        self._remote.release_stream(stream)

    def _abort(self, stream: Stream) -> None:
        if stream.timed_out and self._remote.last_response < self.waiting_since:
            self._remote.give_up()
        self._remote.abandon_stream(stream)

    def _close_idle(self) -> None:
        self._remote.close_idle()

    def _broke_while_idle(self, stream: Stream, error: GearError) -> bool:
        return stream.was_idle and not stream.timed_out and isinstance(error, NodeUnreachableError)

    def _check(self, spans: Int64Array, parts: list[npt.NDArray[np.uint8]]) -> None:
        """Checks that the parts have the requested sizes.

        Kernels read the parts by address, so a short part would make them read other memory.

        Raises:
            NodeRefusedError: the number of parts or a size differs.
        """
        remaining = iter(parts)
        fits = True
        for group in self._request.groups:
            rows = int(group.count[spans].sum())
            for column in group.columns:
                part = next(remaining, None)
                spec = self._schema.columns[column]
                if spec.variable_length:
                    values = next(remaining, None)
                    fits = fits and part is not None and values is not None and part.nbytes == 8 * (rows + 1)
                else:
                    fits = fits and part is not None and part.nbytes == rows * spec.row_bytes
        if not fits or next(remaining, None) is not None:
            raise self._remote.endpoint.invalid_response("parts of other sizes than were requested")
