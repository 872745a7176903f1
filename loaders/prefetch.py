"""BatchIterator: a loader's batches in order, and their prefetch threads."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from gear_data.errors import InvalidArgumentError
from gear_data.loaders.builders.batch import Batch, BatchBuilder, BuiltBatch
from gear_data.loaders.metrics import Meter

T = TypeVar("T")

#: Small batches are built in groups, so that threads meet less often: a group has at most this many bytes and batches.
_GROUP_BYTES, _GROUP_BATCHES = 2 << 20, 4
#: A read from other nodes costs much more. With these groups, 256 x 20 steps of Hopper took three quarters of the time,
#: and 256 x 100 steps seven tenths.
_REMOTE_GROUP_BYTES, _REMOTE_GROUP_BATCHES = 8 << 20, 8
#: The last step of an endless iteration.
_NO_END = 1 << 62

#: Prefetchers to close before the interpreter ends: a thread inside a kernel would read memory already unmapped.
_alive: weakref.WeakSet[Prefetcher[Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for prefetcher in list(_alive):
        prefetcher.close()


def group_size(batch_bytes: int, *, remote: bool) -> int:
    """Returns the number of batches that a prefetch thread builds in one call.

    Args:
        batch_bytes: bytes of a batch.
        remote: whether other nodes send the steps.
    """
    size, most = (_REMOTE_GROUP_BYTES, _REMOTE_GROUP_BATCHES) if remote else (_GROUP_BYTES, _GROUP_BATCHES)
    return max(1, min(most, size // max(1, batch_bytes)))


class NextStep:
    """The next step of a loader, shared by the loader and its iterators."""

    __slots__ = ("next_step",)

    def __init__(self, next_step: int = 0) -> None:
        self.next_step = next_step


class BatchIterator(Iterator[Batch]):
    """Iterates over a loader's batches, in order.

    Close it, or its prefetch thread lives as long as it does.

    Args:
        builder: builds the batches.
        first, stride: the steps are first, first + stride, ...
        count: number of batches; None: no end.
        group: number of batches that are built in one call.
        prefetch: number of batches that are kept ready, built in a thread; 0: a batch is built when it is taken.
        position: receives the next step of the iteration.
        meter: counts the batches.
    """

    def __init__(
        self, builder: BatchBuilder, *, first: int, stride: int, count: int | None, group: int, prefetch: int,
        position: NextStep, meter: Meter,
    ) -> None:  # fmt: skip
        self._builder = builder
        self._steps = range(first, _NO_END if count is None else first + count * stride, stride)
        self._count, self._group, self._depth = count, group, prefetch
        self._position, self._meter = position, meter
        self._taken = 0
        # Built batches that the consumer has not taken yet, the next one last.
        self._ready: list[BuiltBatch] = []
        self._prefetcher: Prefetcher[list[BuiltBatch]] | None = None
        self._started = self._closed = False

    def __next__(self) -> Batch:
        if not self._started:
            self._start()
        taken = self._taken
        if self._closed or taken == self._count:
            self.close()
            raise StopIteration
        asked = time.perf_counter()
        try:
            if not self._ready:
                if self._prefetcher is None:
                    self._ready = self._builder.build(self._steps[taken : taken + 1])
                else:
                    self._ready = self._prefetcher.get(taken // self._group)[::-1]
            built = self._ready.pop()
            batch = built.batch if built.deliver is None else built.deliver(built.batch)
        except BaseException:
            self.close()
            raise
        self._meter.add(built, time.perf_counter() - asked)
        self._taken = taken + 1
        self._position.next_step = self._steps[taken] + self._steps.step
        # No attribute holds the batch, so its memory is free as soon as the consumer drops it.
        return batch

    def __del__(self) -> None:
        self.close()

    def _start(self) -> None:
        """Starts the iteration at its first batch.

        It does not start earlier, because a process may be forked between `iter` and `next`.
        """
        self._started = True
        self._meter.start()
        if self._depth:
            steps, group, build = self._steps, self._group, self._builder.build
            groups = None if self._count is None else -(-self._count // group)

            # Without a reference to the iterator: a circle of references would keep memory until a garbage collection.
            def build_group(number: int) -> list[BuiltBatch]:
                return build(steps[number * group : (number + 1) * group])

            # One thread, and the consumer where it would wait: a second thread contends with both for the interpreter.
            self._prefetcher = Prefetcher(build_group, groups, -(-self._depth // group), threads=1)

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """Starts no batch in a thread inside the context.

        Gives the first step that is not started.
        """
        if self._prefetcher is None:
            yield 0
            return
        with self._prefetcher.held() as begun:
            yield self._steps.start + begun * self._group * self._steps.step

    def close(self) -> None:
        """Ends the thread; drops batches that are ready."""
        self._closed = True
        self._ready.clear()
        if self._prefetcher is not None:
            self._prefetcher.close()


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
