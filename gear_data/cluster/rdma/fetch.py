"""RdmaFetch: reads spans from one peer's memory by RDMA READ."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gear_data.cluster.client.fetch import Fetch, WaitLimits
from gear_data.cluster.flight.client import Endpoint
from gear_data.cluster.protocol import FetchedSpans, Request
from gear_data.cluster.rdma.client import RdmaClient
from gear_data.cluster.rdma.connection import RdmaConnection
from gear_data.cluster.rdma.span_read import SpanRead, WriteTargets
from gear_data.common.cancellation import check_cancelled
from gear_data.errors import NodeUnreachableError
from gear_data.selection.windows import Int64Array

#: Seconds for which a completion is polled without a pause, and the length of a pause after that.
_BUSY_SECONDS, _PAUSE_SECONDS = 100e-6, 50e-6
#: Share of the timeout in which queue pairs must connect, and in which a READ must complete. The rest is left for
#: Arrow Flight.
_RDMA_SHARE = 0.5


class RdmaFetch(Fetch[RdmaConnection, SpanRead]):
    """A `Fetch` by RDMA READ.

    Posts all READs at once: queue pairs hold back READs that the device cannot take yet.

    Args:
        client: The RDMA client.
        number, endpoint: The peer.
        request: The whole request, for all peers.
        batches: Positions of the spans of each read from this peer.
        targets: See `WriteTargets`.
        waits: See `Fetch`.
    """

    def __init__(
        self,
        client: RdmaClient,
        number: int,
        endpoint: Endpoint,
        request: Request,
        batches: Sequence[Int64Array],
        targets: WriteTargets | None,
        waits: WaitLimits,
    ) -> None:
        super().__init__(number, endpoint.name, batches, waits)
        self._client, self._endpoint, self._request = client, endpoint, request
        self._targets = targets
        self._limit = _RDMA_SHARE * waits.timeout
        #: Time of the last completion; before it, the time when the first READs were posted.
        self._last_progress = 0.0

    def _acquire(self) -> RdmaConnection:
        return self._client.acquire(self.peer, self._endpoint, min(self._seconds_left(), self._limit))

    def _send(self, connection: RdmaConnection) -> None:
        if self._pending:
            self._last_progress = time.monotonic()
        while self._pending:
            read = self._client.span_read(connection, self._request, self._pending[0], self._targets)
            # Recorded before it is posted: the memory that it writes to must outlive the connection.
            self._in_flight.append((self._pending.popleft(), read))
            read.post()

    def _receive(self, connection: RdmaConnection) -> None:
        some = connection.poll()
        for _ in range(len(self._in_flight) if some else 0):
            spans, read = self._in_flight[0]
            if read.advance():
                self.done.append(FetchedSpans(spans, read.parts, self._targets is not None))
                self._in_flight.popleft()
            else:
                self._in_flight.rotate(-1)
        if some:
            connection.was_idle = False
            self._answered()
            self._last_progress = self.waiting_since
            return
        waited = time.monotonic() - self._last_progress
        if waited > self._limit:
            # Not retried over a new queue pair: that would wait as long once more.
            connection.was_idle = False
            raise NodeUnreachableError(f"RDMA READ did not complete within {self._limit:g} s")
        if waited > _BUSY_SECONDS:
            check_cancelled()
            time.sleep(_PAUSE_SECONDS)

    def _release(self, connection: RdmaConnection) -> None:
        self._client.release(self.peer, connection)

    def _abort(self, connection: RdmaConnection) -> None:
        connection.abandon()

    def _close_idle(self) -> None:
        self._client.close_idle_to(self.peer)
