"""Which nodes failed lately, and are to be left alone for a while."""

from __future__ import annotations

import time
from dataclasses import dataclass

#: Seconds for which a node that failed is asked only where no other can be; doubled each time it fails again.
AVOID_SECONDS, MOST_AVOID_SECONDS = 1.0, 60.0


@dataclass(frozen=True)
class _Failing:
    """A node that failed, and gave nothing since.

    Attributes:
        since: when it did so first.
        seconds: for how long it is avoided since it did so last.
        until: till when.
    """

    since: float
    seconds: float
    until: float


class PeerBackoff:
    """Nodes by their numbers. For any threads."""

    def __init__(self) -> None:
        self._failing: dict[int, _Failing] = {}

    def avoided(self) -> frozenset[int]:
        now = time.monotonic()
        return frozenset(number for number, failing in list(self._failing.items()) if failing.until > now)

    def since(self, number: int) -> float | None:
        """When a node failed that gave nothing since, by `time.monotonic`; None for one that did."""
        failing = self._failing.get(number)
        return None if failing is None else failing.since

    def note(self, number: int) -> None:
        """It failed."""
        now, before = time.monotonic(), self._failing.get(number)
        seconds = AVOID_SECONDS if before is None else min(2 * before.seconds, MOST_AVOID_SECONDS)
        self._failing[number] = _Failing(now if before is None else before.since, seconds, now + seconds)

    def end(self, number: int) -> None:
        """It gave what it was asked for."""
        self._failing.pop(number, None)
