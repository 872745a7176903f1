"""What a loader did so far."""

from __future__ import annotations

import time


class Meter:
    """Counts batches on the consumer's side: a few additions a batch."""

    def __init__(self) -> None:
        self._batches = 0
        self._windows = 0
        self._padded = 0
        self._valid = 0
        self._waited = 0.0
        self._seconds = 0.0
        self._resumed = 0.0

    def start(self) -> None:
        self._resumed = time.perf_counter()

    def add(self, windows: int, padded: int, valid: int, waited: float) -> None:
        now = time.perf_counter()
        self._seconds += now - self._resumed
        self._resumed = now
        self._batches += 1
        self._windows += windows
        self._padded += padded
        self._valid += valid
        self._waited += waited

    def result(self) -> dict[str, float | int]:
        """`batches`, `windows`, `seconds`, `windows_per_s`, `padded_bytes_per_s`, `valid_bytes_per_s`,
        `pad_fraction` (of the padded bytes) and `wait_fraction` (of the time, spent waiting for a batch)."""
        seconds = self._seconds or float("inf")
        return {
            "batches": self._batches,
            "windows": self._windows,
            "seconds": self._seconds,
            "windows_per_s": self._windows / seconds,
            "padded_bytes_per_s": self._padded / seconds,
            "valid_bytes_per_s": self._valid / seconds,
            "pad_fraction": 1 - self._valid / self._padded if self._padded else 0.0,
            "wait_fraction": self._waited / seconds,
        }
