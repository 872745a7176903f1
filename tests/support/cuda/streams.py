"""Streams of a stand-in for a GPU, and the memory on which they work."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np

#: torch's current stream.
CONSUMER = 7
_ALIGNMENT = 256
#: CUDA's error code of waiting for a stream that is captured.
STREAM_CAPTURE_UNSUPPORTED = 900
#: Streams that run ahead: their operations run as early as possible, and the operations of others as late as possible.
ORDERS: dict[str, Callable[[int], bool]] = {
    "consumer first": lambda stream: stream == CONSUMER,
    "device first": lambda stream: stream != CONSUMER,
    "all late": lambda stream: False,
}


class CudaError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"cudaError {status}: in words\nand more")
        self.status = status


class Record:
    """A point of a stream, as an event records it."""

    def __init__(self, stream: int) -> None:
        self.stream, self.done, self.at = stream, False, 0.0

    def happen(self) -> None:
        self.done, self.at = True, time.perf_counter()


class Streams:
    """Queues of operations.

    eager(stream): whether the stream's operations run as early as possible.
    """

    def __init__(self, eager: Callable[[int], bool]) -> None:
        self._eager = eager
        self._queues: dict[int, deque[Callable[[], None]]] = {}
        self._lock = threading.RLock()
        self._captured: dict[int, list[Callable[[], None]]] = {}
        self._closed = False

    def capture(self, stream: int) -> None:
        """Collects the stream's operations from here on; they do not run."""
        self._captured[stream] = []

    def end_capture(self, stream: int) -> list[Callable[[], None]]:
        return self._captured.pop(stream)

    def close(self) -> None:
        """Drops all operations, now and later.

        A thread may outlive its test, and its memory may be another test's by then.
        """
        with self._lock:
            self._closed = True
            self._queues.clear()

    def add(self, stream: int, operation: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                return
            if stream in self._captured:
                self._captured[stream].append(operation)
                return
            self._queues.setdefault(stream, deque()).append(operation)
            if self._eager(stream):
                self.finish(stream)

    def finish(self, stream: int, until: Callable[[], bool] = lambda: False) -> None:
        with self._lock:
            if stream in self._captured:
                raise CudaError(STREAM_CAPTURE_UNSUPPORTED)
            queue = self._queues.get(stream, ())
            while queue and not until():
                queue.popleft()()

    def finish_all(self) -> None:
        with self._lock:
            for stream in list(self._queues):
                self.finish(stream)

    def record(self, stream: int) -> Record:
        """Returns the point at which a stream is now."""
        record = Record(stream)
        self.add(stream, record.happen)
        return record

    def complete(self, record: Record | None) -> None:
        """Runs a stream up to a point. An event that was never recorded is complete."""
        if record is not None and not record.done:
            self.finish(record.stream, lambda: record.done)

    def wait(self, stream: int, record: Record | None) -> None:
        """Makes a stream wait for a point of another."""
        self.add(stream, lambda: self.complete(record))


class Raw:
    """Aligned bytes in this process."""

    def __init__(self, size: int, pattern: int) -> None:
        self._raw = np.full(size + _ALIGNMENT, pattern, np.uint8)
        self.ptr = -(-self._raw.ctypes.data // _ALIGNMENT) * _ALIGNMENT

    def fill(self, pattern: int) -> None:
        self._raw[:] = pattern
