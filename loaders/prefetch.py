"""Prefetcher: makes items in threads, ahead of their consumer and in order."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from gear_data.errors import InvalidArgumentError

T = TypeVar("T")

#: Prefetchers to close before the interpreter ends: a thread inside a kernel would read memory already unmapped.
_alive: weakref.WeakSet[Prefetcher[Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for prefetcher in list(_alive):
        prefetcher.close()


class Prefetcher(Generic[T]):
    """Makes items 0, 1, 2, ... ahead of their consumer.

    The next item is made by whichever is free: a thread, or the consumer inside `get`. So the consumer never sleeps
    while an item can be started. Sleeping and waking up costs about as much as a small batch: a consumer that only
    waited would be slower than a consumer without threads. If `make` raises an exception, `get` raises it at the turn
    of that item. No later item is started then.

    Args:
        make: item number -> item; called from the threads and from `get`.
        count: number of items; None: no end.
        depth: the most items that are ready; items in progress do not count.
        threads: number of threads; the consumer makes items too.
    """

    def __init__(self, make: Callable[[int], T], count: int | None, depth: int, threads: int) -> None:
        self._make = make
        self._count = count
        self._limit = depth + threads + 1  # each thread and the consumer may have one item in progress
        self._process = os.getpid()
        self._closed = False
        # Whether an item has failed. No item is started after that, because the consumer ends at the failed item: it
        # would wait for an item that, too, takes a node's timeout.
        self._failed = False
        # A re-entrant lock: a garbage collection may call `close` in a thread that holds the lock.
        self._changed = threading.Condition()
        self._pauses = 0  # contexts of `paused` that are open
        self._ready: dict[int, T | BaseException] = {}
        self._started = 0  # items that are made or in progress; the number of the next item
        self._taken = 0  # items that the consumer has taken
        self._threads = [
            threading.Thread(target=self._run, name=f"gear-prefetch-{k}", daemon=True) for k in range(threads)
        ]
        _alive.add(self)
        for thread in self._threads:
            thread.start()

    def _start_next(self) -> int | None:
        """Returns the number of the next item to make, or None if no item may be started.

        The caller holds the lock.
        """
        item = self._started
        if (
            self._failed
            or self._pauses
            or item >= self._taken + self._limit
            or (self._count is not None and item >= self._count)
        ):
            return None
        self._started = item + 1
        return item

    def _finish(self, item: int, result: T | BaseException) -> None:
        with self._changed:
            self._ready[item] = result
            self._failed = self._failed or isinstance(result, BaseException)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while (item := self._start_next()) is None and not self._closed:
                    self._changed.wait()
                if self._closed or item is None:
                    return
            try:
                result: T | BaseException = self._make(item)
            except BaseException as error:  # the consumer raises it
                result = error
            self._finish(item, result)
            del result  # a thread that waits must not keep a batch's memory

    def get(self, item: int) -> T:
        """Returns item number `item`. The consumer must take items in order.

        Raises:
            Exception: any error that `make` raised for this item.
            InvalidArgumentError: this process is a forked child of the process that made the prefetcher. The child has
                none of its threads.
        """
        if os.getpid() != self._process:
            raise InvalidArgumentError(
                f"this iterator belongs to process {self._process}: its threads do not exist in a forked child",
                hint="make a new iterator in the child",
            )
        while True:
            with self._changed:
                if item in self._ready:
                    result = self._ready.pop(item)
                    self._taken = item + 1
                    self._changed.notify_all()
                    break
                # The item is not ready. The consumer makes the next item, if there is one, instead of waiting.
                number = self._start_next()
                if number is None:
                    if self._failed and item >= self._started:
                        raise InvalidArgumentError(
                            f"batch group {item} follows one that failed", hint="make a new iterator"
                        )
                    self._changed.wait()
                    continue
            try:
                outcome: T | BaseException = self._make(number)
            except Exception as error:  # raised when the consumer takes item `number`
                outcome = error
            self._finish(number, outcome)
        if isinstance(result, BaseException):
            raise result
        return result

    @contextlib.contextmanager
    def paused(self) -> Iterator[int]:
        """Returns a context in which no item is started.

        The context's value is the number of the next item.
        """
        # A counter, not the lock: inside the context, a garbage collection may call `close`, which joins the threads.
        with self._changed:
            self._pauses += 1
            next_item = self._started
        try:
            yield next_item
        finally:
            with self._changed:
                self._pauses -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Ends the threads, and drops items that are ready."""
        # An iterator that lives at interpreter exit calls `close` again, when this module's names are gone.
        if self._closed:
            return
        # A forked child has none of the threads, and its copy of the lock may stay locked for ever.
        if os.getpid() != self._process:
            self._closed = True
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            # A garbage collection may call this in one of the threads, which ends after this call.
            if thread is not threading.current_thread():
                thread.join()
        self._ready.clear()
