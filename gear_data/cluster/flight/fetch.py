"""Pieces of a request that come over a stream of Arrow Flight, and how a request is cut into them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from gear_data.cluster.client.fetch import Fetch
from gear_data.cluster.client.peer import Peer
from gear_data.cluster.flight.client import Stream
from gear_data.cluster.protocol import ColumnGroup, FetchedSpans, Request
from gear_data.errors import GearError, NodeUnreachableError
from gear_data.schema import Schema
from gear_data.selection.windows import Int64Array

#: Bytes that one request asks for, about; a window that has more is asked for by itself. Messages cost so much by
#: themselves that smaller ones are slower, and an answer should be one message, which `MESSAGE_BYTES` holds.
REQUEST_BYTES = 4 << 20
_REQUEST_SPANS = 2048
#: Requests that may be under way on a stream, and bytes of them: what is sent must never wait for what comes back.
CHANNELS = 8
_POSTED_BYTES = 32 << 10


def cut(spans: Int64Array, sizes: Int64Array) -> list[Int64Array]:
    """Spans in runs of about as many bytes each, `REQUEST_BYTES` or less.

    Args:
        spans: int64 [n], numbers of spans.
        sizes: int64 [N], bytes of each span of the request.
    """
    ends = np.cumsum(sizes[spans])
    total = max(1, int(ends[-1]))
    runs = -(-total // REQUEST_BYTES)
    if runs == 1 and len(spans) <= _REQUEST_SPANS:
        return [spans]
    # All have about as many: a short last one would cost as much by itself as a long one.
    run = (ends - 1) * runs // total
    begins = np.ones(len(spans), np.bool_)
    begins[1:] = run[1:] != run[:-1]
    begins[::_REQUEST_SPANS] = True
    bounds = [*np.flatnonzero(begins).tolist(), len(spans)]
    return [spans[first:last] for first, last in itertools.pairwise(bounds)]


class FlightFetch(Fetch[Stream, int]):
    """A lane of which is noted how many bytes each request has.

    Args:
        number, node: the node.
        open_stream: a stream to it, kept or new.
        schema: of the dataset.
        request: what is wanted of all nodes.
        pieces: numbers of spans, those of each piece.
    """

    def __init__(
        self,
        number: int,
        node: Peer,
        open_stream: Callable[[], Stream],
        schema: Schema,
        request: Request,
        pieces: Sequence[Int64Array],
    ) -> None:
        super().__init__(number, node.name, pieces)
        self._node, self._schema, self._request = node, schema, request
        self._open_stream = open_stream

    def _open(self) -> Stream:
        return self._open_stream()

    def _send(self, stream: Stream) -> None:
        while self._waiting and len(self._posted) < CHANNELS:
            spans = self._waiting[0]
            groups = tuple(ColumnGroup(g.columns, g.first[spans], g.count[spans]) for g in self._request.groups)
            data = Request(self._request.shard[spans], groups).to_bytes()
            if self._posted and sum(size for _, size in self._posted) + len(data) > _POSTED_BYTES:
                return
            stream.post(data)
            self._posted.append((self._waiting.popleft(), len(data)))

    def _receive(self, stream: Stream) -> None:
        parts = stream.take()
        self._check(self._posted[0][0], parts)
        self.done.append(FetchedSpans(self._posted.popleft()[0], parts))

    def _keep(self, stream: Stream) -> None:
        self._node.keep(stream)

    def _end(self, stream: Stream) -> None:
        stream.abandon()

    def _end_kept(self) -> None:
        self._node.close_idle()

    def _is_stale(self, stream: Stream, error: GearError) -> bool:
        return stream.kept and not stream.was_late and isinstance(error, NodeUnreachableError)

    def _check(self, spans: Int64Array, parts: list[npt.NDArray[np.uint8]]) -> None:
        """That the parts have the sizes that were asked for: rows in them become addresses."""
        found = iter(parts)
        fits = True
        for group in self._request.groups:
            rows = int(group.count[spans].sum())
            for column in group.columns:
                part = next(found, None)
                spec = self._schema.columns[column]
                if spec.variable_length:
                    values = next(found, None)
                    fits = fits and part is not None and values is not None and part.nbytes == 8 * (rows + 1)
                else:
                    fits = fits and part is not None and part.nbytes == rows * spec.row_bytes
        if not fits or next(found, None) is not None:
            raise self._node.endpoint.nonsense("other parts than were asked for")
