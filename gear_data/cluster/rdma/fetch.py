"""RdmaFetch: reads rows or bytes of videos from one peer's memory by RDMA READ."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gear_data.cluster.client.fetch import Fetch, WaitLimits
from gear_data.cluster.flight.client import Endpoint
from gear_data.cluster.protocol import FetchedSpans
from gear_data.cluster.rdma.client import RdmaClient
from gear_data.cluster.rdma.connection import RdmaConnection
from gear_data.common.cancellation import check_cancelled
from gear_data.errors import NodeUnreachableError
from gear_data.selection.windows import Int64Array

#: Seconds for which a completion is polled without a pause, and the length of a pause after that.
_BUSY_SECONDS, _PAUSE_SECONDS = 100e-6, 50e-6
#: Share of the timeout in which queue pairs must connect, and in which a READ must complete. The rest is left for
#: Arrow Flight.
_RDMA_SHARE = 0.5


class Read(Protocol):
    """A read of some spans that is in progress.

    Attributes:
        parts: the parts of the response, once `advance` has returned True.
    """

    parts: list[npt.NDArray[np.uint8]]

    def post(self) -> None:
        """Posts the READs that are known by now."""

    def advance(self) -> bool:
        """Returns whether everything has arrived. Never waits."""


class RdmaFetch(Fetch[RdmaConnection, Read]):
    """A `Fetch` by RDMA READ.

    Posts all READs at once: queue pairs hold back READs that the device cannot take yet.

    Args:
        client: the RDMA client.
        number, endpoint: the peer.
        plan: returns the read of some spans over a connection. Posts nothing.
        batches: positions of the spans of each read from this peer.
        waits: see `Fetch`.
        is_direct: see `FetchedSpans`.
    """

    def __init__(
        self,
        client: RdmaClient,
        number: int,
        endpoint: Endpoint,
        plan: Callable[[RdmaConnection, Int64Array], Read],
        batches: Sequence[Int64Array],
        waits: WaitLimits,
        *,
        is_direct: bool = False,
    ) -> None:
        super().__init__(number, endpoint.name, batches, waits)
        self._client, self._endpoint, self._plan, self._is_direct = client, endpoint, plan, is_direct
        self._limit = _RDMA_SHARE * waits.timeout
        #: Time of the last completion; before it, the time when the first READs were posted.
        self._last_progress = 0.0

    @property
    def videos(self) -> Int64Array | None:
        """The video files in the peer's memory; see `messages`. None without a connection."""
        return None if self._connection is None else self._connection.videos

    def _acquire(self) -> RdmaConnection:
        return self._client.acquire(self.peer, self._endpoint, min(self._seconds_left(), self._limit))

    def _send(self, connection: RdmaConnection) -> None:
        if self._pending:
            self._last_progress = time.monotonic()
        while self._pending:
            read = self._plan(connection, self._pending[0])
            # Recorded before it is posted: the memory that it writes to must outlive the connection.
            self._in_flight.append((self._pending.popleft(), read))
            read.post()

    def _receive(self, connection: RdmaConnection) -> None:
        some = connection.poll()
        for _ in range(len(self._in_flight) if some else 0):
            spans, read = self._in_flight[0]
            if read.advance():
                self.done.append(FetchedSpans(spans, read.parts, self._is_direct))
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
