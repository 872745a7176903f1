"""Exponential backoff from peers that failed recently."""

from __future__ import annotations

import time
from dataclasses import dataclass

#: Seconds for which a failed peer is used only if no replica is left. Every further failure doubles them, up to a
#: limit.
MIN_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 1.0, 60.0


@dataclass(frozen=True)
class _FailureState:
    """A peer that failed and has returned nothing since.

    Attributes:
        first: time since which it has answered nothing.
        seconds: length of the present backoff.
        until: end of the present backoff.
    """

    first: float
    seconds: float
    until: float


class PeerBackoff:
    """Peers that failed recently, by their numbers.

    Thread-safe. Times are seconds of `time.monotonic`.
    """

    def __init__(self) -> None:
        self._failing: dict[int, _FailureState] = {}

    def active(self) -> frozenset[int]:
        """Returns the peers that are in backoff now."""
        now = time.monotonic()
        return frozenset(peer for peer, state in list(self._failing.items()) if state.until > now)

    def first_failure(self, peer: int) -> float | None:
        """Returns since when a peer has answered nothing.

        Returns None if it has not failed since its last success.
        """
        state = self._failing.get(peer)
        return None if state is None else state.first

    def record_failure(self, peer: int, since: float | None = None) -> None:
        """Starts the peer's next backoff.

        The first backoff after a success is `MIN_BACKOFF_SECONDS` long. Each further one is twice as long, at most
        `MAX_BACKOFF_SECONDS`.

        Args:
            peer: its number.
            since: time of the request that failed; None: now.
        """
        now, before = time.monotonic(), self._failing.get(peer)
        seconds = MIN_BACKOFF_SECONDS if before is None else min(2 * before.seconds, MAX_BACKOFF_SECONDS)
        first = before.first if before is not None else now if since is None else since
        self._failing[peer] = _FailureState(first, seconds, now + seconds)

    def record_success(self, peer: int) -> None:
        """Ends the peer's backoff."""
        self._failing.pop(peer, None)
