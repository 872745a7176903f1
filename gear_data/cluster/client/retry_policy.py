"""Retries of shards whose peers all fail."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

from gear_data.cluster.client.backoff import PeerBackoff
from gear_data.common.cancellation import check_cancelled
from gear_data.errors import GearError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RetryPolicy:
    """Time limit for retries of shards whose peers all fail.

    The limit counts from the first request that a peer failed to answer, not from the start of each request. So several
    threads, or several batches, do not wait one after another. The time until a hanging peer is given up counts, too.

    Attributes:
        seconds: seconds after the request that failed first until the error is raised; 0: at once, without a retry.
        pause: seconds before each attempt.
    """

    seconds: float = 0.0
    pause: float = 0.5


#: Raises the error at once. For peers that nobody restarts, such as `gear-data serve` processes.
NO_RETRY = RetryPolicy()


class Retries:
    """The retries of one client. Thread-safe.

    Args:
        policy: how long to retry.
        backoff: knows when each peer failed first.
    """

    def __init__(self, policy: RetryPolicy, backoff: PeerBackoff) -> None:
        self.policy = policy
        self._backoff = backoff
        #: Time of the failure that was logged last: each failure is logged once.
        self._logged_failure = 0.0

    def wait(self, peers: Iterable[int], error: GearError) -> float | None:
        """Waits before the next attempt.

        Args:
            peers: numbers of the peers that failed. If they failed at different times, the latest first failure counts.
            error: the error that is raised without a retry, for the log.

        Returns:
            The end of the retries, by `time.monotonic`. None, without waiting, if the policy allows no further attempt.
        """
        check_cancelled()
        now = time.monotonic()
        failures = [self._backoff.first_failure(peer) for peer in peers]
        first = max((failure for failure in failures if failure is not None), default=now)
        left = first + self.policy.seconds - now
        # The attempt gets at least as long as the pause before it.
        if left < 2 * self.policy.pause:
            return None
        if first != self._logged_failure:
            self._logged_failure = first
            _log.warning("%s; retrying for %.0f s", error, left)
        time.sleep(self.policy.pause)
        return first + self.policy.seconds
