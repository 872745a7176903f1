"""Prefetcher: makes items in threads, ahead of their consumer and in order.

An interrupt (KeyboardInterrupt) may arrive between any two instructions of the consumer. It must not be lost, and must
not leave a lock locked. So the consumer waits only in compiled code, and holds locks only by `with`. `Condition` is
written in Python: an interrupt inside it leaves its lock locked. Nothing written in Python runs when a prefetcher dies.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from gear_data.common.cancellation import Cancellation, start_thread, take
from gear_data.errors import InvalidArgumentError
from gear_data.loaders.pace import Pace

T = TypeVar("T")

#: Seconds for which `close` waits for threads, and the end of the process for those inside a function of the user.
#: Longer work ends by itself, and its result is dropped: a compiled call or a function of the user cannot be stopped.
END_SECONDS = 1.0
#: Seconds for which the end of the process waits for threads inside compiled code of ours. A batch takes far less.
EXIT_SECONDS = 60.0
#: Seconds between two looks at what a thread does.
_LOOK_SECONDS = 0.05


class _Work(Generic[T]):
    """The state that a prefetcher shares with its threads.

    The threads do not refer to the prefetcher, so it dies with its last reference elsewhere. That ends the threads.

    Attributes:
        make: see `Prefetcher`.
        turns: numbers of the items that may be started. Anything else ends the threads.
        made: numbers of items and their results.
        starting: held while an item is started; see `Prefetcher`.
        started: the number after the last item that was started.
        closed: no item is started any more.
        failed: the first item that failed; infinite: none. The consumer ends there, so no later item is started.
        deadline: time of `time.monotonic` until which anything waits for the threads; infinite until they are to end.
        threads: for each thread that began a lock that it holds until it ends, and its cancellation.
    """

    def __init__(self, make: Callable[[int], T], starting: threading.Lock) -> None:
        self.make = make
        self.turns: SimpleQueue[Any] = SimpleQueue()
        self.made: SimpleQueue[tuple[int, T | BaseException]] = SimpleQueue()
        self.starting = starting
        self.started = 0
        self.closed = False
        self.failed = math.inf
        self.deadline = math.inf
        self.threads: list[tuple[threading.Lock, Cancellation]] = []

    def begin(self, item: int) -> bool:
        """Returns whether the item may be started, and notes that it is."""
        with self.starting:
            if item > self.failed:
                return False
            self.started = max(self.started, item + 1)
            return True

    def fail(self, item: int) -> None:
        with self.starting:
            self.failed = min(self.failed, item)

    def close(self) -> None:
        """Makes the threads end soon. Does not wait."""
        self.closed = True
        self.deadline = min(self.deadline, time.monotonic() + END_SECONDS)
        self.turns.put(None)
        for _, cancellation in list(self.threads):
            cancellation.cancel()

    def wait(self) -> None:
        """Waits until the threads have ended, or until the deadline."""
        for running, _ in list(self.threads):
            if running.acquire(timeout=max(0.0, self.deadline - time.monotonic())):
                running.release()

    def wait_at_exit(self) -> None:
        """Waits until the threads have ended, but not long for functions of the user, which may never return."""
        limit = time.monotonic() + EXIT_SECONDS
        for running, cancellation in list(self.threads):
            while not running.acquire(timeout=_LOOK_SECONDS):
                now = time.monotonic()
                if now > limit or (now > self.deadline and cancellation.in_user_code):
                    break
            else:
                running.release()


#: The work of each running thread, by the lock that the thread holds; None: the thread ends, and frees its work. Only
#: the thread itself changes its entry.
_running: dict[threading.Lock, _Work[Any] | None] = {}
os.register_at_fork(after_in_child=_running.clear)
#: Whether the process ends: threads that have not begun yet begin no item.
_ending = False


@atexit.register
def _close_all() -> None:
    """Ends all threads before the interpreter ends.

    A thread that comes back from a compiled call after that is unwound through C++, which aborts the process. Or it
    reads memory that is already unmapped.
    """
    global _ending
    try:
        _ending = True
        running = dict(_running)
        for ending in filter(None, running.values()):
            ending.close()
        for lock, work in running.items():
            if work is not None:
                work.wait_at_exit()
            elif lock.acquire(timeout=EXIT_SECONDS):
                lock.release()
    except KeyboardInterrupt:
        return  # the process ends, as the user wants it to


def _run(arguments: list[tuple[_Work[T], weakref.ref[Prefetcher[T]]]]) -> None:
    """Makes items in a thread, until the prefetcher is closed or dead.

    When the lock is free, the thread refers to nothing: memory of the builder is free as soon as its owner drops it.
    """
    running = threading.Lock()
    with running:
        _make_items(*arguments.pop(), running)
        # The work may have items, and a tensor that dies takes the interpreter lock. Meanwhile, the entry must exist.
        _running[running] = None
        del _running[running]


def _make_items(work: _Work[T], owner: weakref.ref[Prefetcher[T]], running: threading.Lock) -> None:
    cancellation = Cancellation()
    with cancellation.active():
        _running[running] = work
        work.threads.append((running, cancellation))
        while not _ending and isinstance(item := work.turns.get(), int) and not work.closed and owner() is not None:
            if not work.begin(item):
                continue
            try:
                result: T | BaseException = work.make(item)
            except BaseException as error:  # the consumer raises it
                result = error
                work.fail(item)
            if not work.closed:
                work.made.put((item, result))
            del result  # a thread that waits must not keep a batch's memory
        work.turns.put(None)  # ends the next thread


class Prefetcher(Generic[T]):
    """Makes items 0, 1, 2, ... ahead of their consumer.

    The next item is made by whichever is free: a thread, or the consumer inside `get`. So the consumer never sleeps
    while an item can be started. Sleeping and waking up costs about as much as a small batch: a consumer that only
    waited would be slower than a consumer without threads. If `make` raises an exception, `get` raises it at the turn
    of that item. No later item is started then.

    Without threads, the consumer makes all items, the later ones ahead: for a `make` that only starts work.

    The threads end after `close`, and after the death of the prefetcher.

    Args:
        make: item number -> item; called from the threads and from `get`. It must not refer to the prefetcher.
        count: number of items; None: no end.
        depth: the most items that are ready; items in progress do not count.
        threads: number of threads; the consumer makes items too.
        starting: a lock. While another holds it, no item is started.
        pace: says whether items are made ahead. Otherwise, each is made by the consumer when it takes the item, and the
            threads wait. None: always ahead.
    """

    def __init__(
        self, make: Callable[[int], T], count: int | None, depth: int, threads: int, starting: threading.Lock,
        pace: Pace | None = None,
    ) -> None:  # fmt: skip
        self._count = count
        # Each thread may have one item in progress, and beside threads the consumer, too.
        self._limit = depth + threads + 1 if threads else depth
        self._threads = threads
        self._process = os.getpid()
        self._pace = pace
        self._work = _Work(make, starting)
        self._ready: dict[int, T | BaseException] = {}
        # The number after the last item that may be started.
        self._allowed = 0
        self._allow(self._limit)
        # `SimpleQueue.put` is compiled code: nothing can interrupt it.
        owner = self._owner = weakref.ref(self, self._work.turns.put)
        for number in range(threads):
            start_thread(_run, ([(self._work, owner)],), f"gear-prefetch-{number}")

    def get(self, item: int) -> T:
        """Returns item number `item`. The consumer must take items in order.

        Raises:
            Exception: any error that `make` raised for this item. After any other exception, such as KeyboardInterrupt,
                the prefetcher can only be closed.
            InvalidArgumentError: this process is a forked child of the process that made the prefetcher. The child has
                none of its threads.
        """
        if os.getpid() != self._process:
            raise InvalidArgumentError(
                f"this iterator belongs to process {self._process}: its threads do not exist in a forked child",
                hint="make a new iterator in the child",
            )
        work, ready, pace = self._work, self._ready, self._pace
        if pace is not None:
            pace.enter()
        if item == self._allowed:
            self._allowed += 1
            self._make(item)
        while item not in ready:
            # If no item has been made, the consumer makes the next item, if there is one, instead of waiting.
            number = self._next_turn() if work.made.empty() else None
            if number is None:
                if item > work.failed:
                    raise InvalidArgumentError(
                        f"batch group {item} follows one that failed", hint="make a new iterator"
                    )
                number, outcome = take(work.made)
                ready[number] = outcome
                continue
            self._make(number)
        result = ready.pop(item)
        if pace is not None:
            pace.leave()
        if pace is None or pace.ahead:
            self._allow(item + 1 + self._limit)
        if isinstance(result, BaseException):
            try:
                raise result
            finally:
                del result  # the traceback holds this frame: the cycle would keep memory until a garbage collection
        while not self._threads and (number := self._next_turn()) is not None:
            self._make(number)
        return result

    def leaves(self, item: int) -> bool:
        """Returns whether item number `item` is left to the consumer, which makes it itself, and does not `get` it.

        So it is if the pace says that items are not made ahead.
        """
        pace = self._pace
        if pace is None or item != self._allowed or os.getpid() != self._process or not self._work.begin(item):
            return False
        pace.enter()
        self._allowed += 1
        pace.leave()
        if pace.ahead:
            self._allow(item + 1 + self._limit)
        return True

    def _allow(self, end: int) -> None:
        """Lets the items before `end` be started."""
        if self._count is not None:
            end = min(end, self._count)
        while self._allowed < end:
            self._work.turns.put(self._allowed)
            self._allowed += 1

    def _make(self, number: int) -> None:
        if not self._work.begin(number):
            return
        try:
            self._ready[number] = self._work.make(number)
        except Exception as error:  # raised when the consumer takes item `number`
            self._ready[number] = error
            self._work.fail(number)

    def _next_turn(self) -> int | None:
        """Returns the number of the next item to make, or None if no item may be started."""
        try:
            number: int | None = self._work.turns.get_nowait()
        except Empty:
            return None
        return number

    @property
    def started(self) -> int:
        """The number after the last item that was started."""
        return self._work.started

    def close(self) -> None:
        """Ends the threads, and drops items that are ready.

        Waits at most `END_SECONDS`, if an item is in progress.
        """
        # A forked child has none of the threads.
        if self._work.closed or os.getpid() != self._process:
            return
        self._work.close()
        self._work.wait()
        self._ready.clear()
        while not self._work.made.empty():
            self._work.made.get()
