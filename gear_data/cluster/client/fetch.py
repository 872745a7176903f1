"""The pieces of a request that one node is asked for, whatever they are read by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from gear_data.cluster.protocol import FetchedSpans
from gear_data.errors import ClusterError, CorruptShardError, DeviceError, GearError
from gear_data.selection.windows import Int64Array


class Connection(Protocol):
    """What pieces come through.

    Attributes:
        kept: not used since it was given back: the node may have gone meanwhile.
    """

    kept: bool


C = TypeVar("C", bound=Connection)
S = TypeVar("S")


class Fetch(ABC, Generic[C, S]):
    """Asks a node for pieces, and takes them: what comes is put into `done`. After the last `take`, what did not come
    is in `unread`, and `error` says why.

    Of a connection that was kept and broke meanwhile, as when a node was restarted, all is asked again on a new one.

    Args:
        number, name: of the node.
        pieces: numbers of spans, those of each piece.
    """

    def __init__(self, number: int, name: str, pieces: Sequence[Int64Array]) -> None:
        self.number, self._name = number, name
        self.done: deque[FetchedSpans] = deque()
        self.error: GearError | None = None
        self._waiting = deque(pieces)
        #: Under way: the spans of a piece, and what was noted of it.
        self._posted: deque[tuple[Int64Array, S]] = deque()
        self._connection: C | None = None

    @abstractmethod
    def _open(self) -> C:
        """A connection to the node, kept or new."""

    @abstractmethod
    def _send(self, connection: C) -> None:
        """Moves from `_waiting` to `_posted` as much as may be under way."""

    @abstractmethod
    def _receive(self, connection: C) -> None:
        """Moves from `_posted` to `done` what has come."""

    @abstractmethod
    def _keep(self, connection: C) -> None:
        """Gives back a connection that nothing is under way on."""

    @abstractmethod
    def _end(self, connection: C) -> None:
        """Ends one that is of no use, and does not wait for a node that may be gone."""

    @abstractmethod
    def _end_kept(self) -> None:
        """Ends those that are kept."""

    def _is_stale(self, connection: C, error: GearError) -> bool:
        """Whether it broke while it was kept."""
        return connection.kept

    def post(self) -> None:
        """Sends as many requests as may be under way."""
        self._guarded(self._send)

    def take(self) -> bool:
        """Takes what has come, or waits for some of it, and sends the next requests; False where there is nothing more
        to take."""
        if self.error is None and (self._posted or self._waiting):
            self._guarded(self._exchange)
            return True
        if self._connection is not None:
            self._keep(self._connection)
            self._connection = None
        return False

    def abandon(self) -> None:
        """Ends all requests: nothing is written any more to where they went."""
        if self._connection is not None:
            self._end(self._connection)
            self._connection = None

    @property
    def unread(self) -> list[Int64Array]:
        """The spans of each piece that did not come."""
        return [*(spans for spans, _ in self._posted), *self._waiting]

    def _exchange(self, connection: C) -> None:
        self._send(connection)
        self._receive(connection)

    def _guarded(self, work: Callable[[C], None]) -> None:
        try:
            if self._connection is None:
                self._connection = self._open()
            work(self._connection)
        except (ClusterError, CorruptShardError, DeviceError) as error:
            stale = self._connection is not None and self._is_stale(self._connection, error)
            self.abandon()
            if stale:
                # They broke with it.
                self._end_kept()
                self._waiting.extendleft(spans for spans, _ in reversed(self._posted))
                self._posted.clear()
            else:
                error.file = error.file or self._name
                self.error = error
