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

    A thread or the consumer makes the next item, whichever is free: the consumer does not sleep while an item waits to
    be made. To sleep and be woken costs about as much as a small batch, so a consumer that only waits is slower than a
    consumer without threads. An exception is handed over like an item.

    Args:
        make: item number -> item; called from the threads and from `get`.
        count: number of items; None: no end.
        depth: the most items that are ready; items in progress do not count.
        threads: number of threads; the consumer makes items too.
    """

    def __init__(self, make: Callable[[int], T], count: int | None, depth: int, threads: int) -> None:
        self._make = make
        self._count = count
        self._limit = depth + threads + 1  # every maker may have one item in progress
        self._process = os.getpid()
        self._closed = False
        # Re-entrant: a garbage collection may close this while its own thread holds the lock.
        self._changed = threading.Condition()
        self._holders = 0
        self._ready: dict[int, T | BaseException] = {}
        self._begun = 0  # items that are made or in progress
        self._taken = 0
        self._threads = [
            threading.Thread(target=self._run, name=f"gear-prefetch-{k}", daemon=True) for k in range(threads)
        ]
        _alive.add(self)
        for thread in self._threads:
            thread.start()

    def _begin(self) -> int | None:
        """Returns the next item to make, or None if no item may be started.

        The caller holds the lock.
        """
        item = self._begun
        if self._holders or item >= self._taken + self._limit or (self._count is not None and item >= self._count):
            return None
        self._begun = item + 1
        return item

    def _finish(self, item: int, result: T | BaseException) -> None:
        with self._changed:
            self._ready[item] = result
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while (item := self._begin()) is None and not self._closed:
                    self._changed.wait()
                if self._closed or item is None:
                    return
            try:
                result: T | BaseException = self._make(item)
            except BaseException as error:  # the consumer raises it
                result = error
            self._finish(item, result)
            del result  # a waiting thread must not keep a batch's memory

    def get(self, item: int) -> T:
        """Returns item number `item`. The consumer asks for items in order.

        Raises:
            Exception: `make` raised it.
            InvalidArgumentError: the process was forked after this was made, so no thread makes items.
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
                own = self._begin()
                if own is None:
                    self._changed.wait()
                    continue
            try:
                made: T | BaseException = self._make(own)
            except Exception as error:  # raised when its turn comes
                made = error
            self._finish(own, made)
        if isinstance(result, BaseException):
            raise result
        return result

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """Starts no item inside the context; gives the number of the next item."""
        # Not the lock itself: inside the context, a garbage collection may close this.
        with self._changed:
            self._holders += 1
            begun = self._begun
        try:
            yield begun
        finally:
            with self._changed:
                self._holders -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Ends the threads; drops items that are ready."""
        # An iterator that lives at interpreter exit closes again, when this module's names are gone.
        if self._closed:
            return
        # A forked child has none of the threads, and its copy of the lock may be held for ever.
        if os.getpid() != self._process:
            self._closed = True
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            # A garbage collection may close this in its own thread, which ends when it returns.
            if thread is not threading.current_thread():
                thread.join()
        self._ready.clear()
