"""Fetch: the part of a request that is read from one peer, over any transport."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from gear_data.cluster.protocol import FetchedSpans
from gear_data.errors import (
    ClusterError,
    CorruptShardError,
    DatasetReplacedError,
    DeviceError,
    GearError,
    GenerationGoneError,
)
from gear_data.selection.windows import Int64Array


class Connection(Protocol):
    """A connection to a peer, from a pool of idle connections.

    Attributes:
        was_idle: the connection was idle in the pool, and no response has arrived since. The peer may have restarted
            meanwhile.
    """

    was_idle: bool


C = TypeVar("C", bound=Connection)
S = TypeVar("S")


@dataclass(frozen=True)
class WaitLimits:
    """How long a peer may take to answer.

    The time counts from the first request, over reconnects, until the first response; then from response to response.

    Attributes:
        timeout: seconds that one response may take.
        latest: latest time of the first response, by `time.monotonic`; it also ends an earlier attempt.
    """

    timeout: float
    latest: float = math.inf


class Fetch(ABC, Generic[C, S]):
    """Reads batches of spans from one peer.

    It posts requests, and takes the responses into `done`.

    After the last `take`, the batches that did not arrive are in `unread`, and `error` is the reason. If a connection
    turns out to have broken while it was idle, as when the peer was restarted, everything is posted again over a new
    connection.

    Args:
        peer, name: number and name of the peer.
        batches: int64 arrays of positions of spans, one array for each request to the peer.
        waits: how long the peer may take.

    Attributes:
        done: the responses that `take` has received and the caller has not taken.
        error: the reason for which batches did not arrive.
    """

    def __init__(self, peer: int, name: str, batches: Sequence[Int64Array], waits: WaitLimits) -> None:
        self.peer, self._name = peer, name
        self._waits = waits
        #: Time of the last response; before it, the time of the first request.
        self.waiting_since = 0.0
        #: Time at which the peer is given up, unless it answers before.
        self.deadline = 0.0
        self.done: deque[FetchedSpans] = deque()
        self.error: GearError | None = None
        self._pending = deque(batches)
        #: Posted batches, each with the transport's state of it.
        self._in_flight: deque[tuple[Int64Array, S]] = deque()
        self._connection: C | None = None

    @abstractmethod
    def _acquire(self) -> C:
        """Returns an idle connection to the peer, or a new one."""

    @abstractmethod
    def _send(self, connection: C) -> None:
        """Moves batches from `_pending` to `_in_flight`, as many as may be in flight."""

    @abstractmethod
    def _receive(self, connection: C) -> None:
        """Moves arrived batches from `_in_flight` to `done`."""

    @abstractmethod
    def _release(self, connection: C) -> None:
        """Returns a connection with nothing in flight to the pool."""

    @abstractmethod
    def _abort(self, connection: C) -> None:
        """Closes a broken connection. Does not wait for the peer."""

    @abstractmethod
    def _close_idle(self) -> None:
        """Closes the idle connections to the peer."""

    def _broke_while_idle(self, connection: C, error: GearError) -> bool:
        """Returns whether a connection broke while it was idle."""
        return connection.was_idle

    def post(self) -> None:
        """Sends as many requests as may be in flight."""
        self._answered()
        self.deadline = min(self.deadline, self._waits.latest)
        self._run(self._send)

    def _answered(self) -> None:
        """Gives the peer the whole timeout for its next response."""
        self.waiting_since = time.monotonic()
        self.deadline = self.waiting_since + self._waits.timeout

    def _seconds_left(self, least: float = 1e-3) -> float:
        """Returns the seconds until the peer is given up, or `least` if there are fewer."""
        return max(self.deadline - time.monotonic(), least)

    def take(self) -> bool:
        """Sends the next requests, and takes arrived responses or waits for one.

        Returns:
            False if nothing is left to take.
        """
        if self.error is None and (self._in_flight or self._pending):
            self._run(self._exchange)
            return True
        # Dropped first: an interrupt must not make `abandon` close a connection that is in the pool.
        connection, self._connection = self._connection, None
        if connection is not None:
            self._release(connection)
        return False

    def abandon(self) -> None:
        """Drops all requests. Nothing is written to their targets after this call."""
        if self._connection is not None:
            self._abort(self._connection)
            self._connection = None

    @property
    def unread(self) -> list[Int64Array]:
        """The batches that did not arrive."""
        return [*(spans for spans, _ in self._in_flight), *self._pending]

    def _exchange(self, connection: C) -> None:
        self._send(connection)
        self._receive(connection)

    def _run(self, step: Callable[[C], None]) -> None:
        """Runs a step over the connection, after opening a connection if necessary.

        If the step fails, closes the connection. If the connection had broken while it was idle, the next step posts
        everything again; otherwise sets `error`.
        """
        try:
            if self._connection is None:
                self._connection = self._acquire()
            step(self._connection)
        except (ClusterError, CorruptShardError, DatasetReplacedError, GenerationGoneError, DeviceError) as error:
            is_stale = self._connection is not None and self._broke_while_idle(self._connection, error)
            self.abandon()
            if is_stale:
                # The other idle connections broke with it.
                self._close_idle()
                self._pending.extendleft(spans for spans, _ in reversed(self._in_flight))
                self._in_flight.clear()
            else:
                error.file = error.file or self._name
                self.error = error


F = TypeVar("F", bound=Fetch[Any, Any])


def take_all(fetches: Iterable[F]) -> Iterator[tuple[F, FetchedSpans]]:
    """Takes responses from fetches in turns, until each fetch is complete or has failed."""
    active = deque(fetches)
    while active:
        fetch = active.popleft()
        if fetch.take():
            active.append(fetch)
        while fetch.done:
            yield fetch, fetch.done.popleft()
