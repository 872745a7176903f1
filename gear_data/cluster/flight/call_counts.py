"""CallCounts: what a server has answered, for its operator."""

from __future__ import annotations

import threading


class CallCounts:
    """Counts of a server since it started. Thread-safe.

    Attributes:
        requests: calls, and requests in streams.
        errors: calls that ended with an error, refusals included.
        sent_bytes: bytes of answers, without those that clients read by RDMA.
    """

    def __init__(self) -> None:
        self.requests = self.errors = self.sent_bytes = 0
        self._lock = threading.Lock()

    def add(self, *, requests: int = 0, errors: int = 0, sent_bytes: int = 0) -> None:
        """Adds to the counts."""
        with self._lock:
            self.requests += requests
            self.errors += errors
            self.sent_bytes += sent_bytes
