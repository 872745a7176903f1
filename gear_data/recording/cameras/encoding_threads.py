"""EncodingThreads: threads that encode frames, which wait in bounded memory."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from gear_data.common.environment import usable_cores

#: Bytes of frames that may wait. A step with more waits alone.
MOST_BYTES = 64 << 20

_Task = Callable[[], None]

_log = logging.getLogger(__name__)


class EncodingThreads:
    """Threads that run tasks: each one its own, in order.

    Threads begin when they are needed, one for each CPU at most. A task's exception is only logged.
    """

    def __init__(self) -> None:
        self._most = usable_cores()
        #: The tasks of each thread, and the thread.
        self._threads: list[tuple[queue.SimpleQueue[_Task | None], threading.Thread]] = []
        self._chosen = 0
        self._bytes = 0
        self._changed = threading.Condition()

    def choose(self) -> int:
        """Returns a thread: each one in turn.

        Raises:
            RuntimeError, MemoryError: the process can have no further thread.
        """
        number = self._chosen % self._most
        if number == len(self._threads):
            tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
            thread = threading.Thread(target=_run, args=(tasks,), name=f"gear-data-encoder-{number}", daemon=True)
            self._threads.append((tasks, thread))
            try:
                thread.start()
            except BaseException:
                del self._threads[number]
                tasks.put(None)  # after an interrupt it may run
                raise
        self._chosen += 1
        return number

    def submit(self, thread: int, task: _Task) -> None:
        """Gives a thread a task."""
        self._threads[thread][0].put(task)

    def reserve(self, size: int) -> None:
        """Waits until frames of so many bytes may wait."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes or self._bytes + size <= MOST_BYTES)
            self._bytes += size

    def release(self, size: int) -> None:
        """Says that frames of so many bytes were encoded."""
        with self._changed:
            self._bytes -= size
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the threads, after their tasks."""
        for tasks, _ in self._threads:
            tasks.put(None)
        for _, thread in self._threads:
            thread.join()
        self._threads, self._chosen = [], 0


def _run(tasks: queue.SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        try:
            task()
        except Exception:  # a thread that ended would leave its later tasks, for which a Writer waits
            _log.exception("a video could not be encoded or removed")
