"""BatchIterator: the loop that `next(loader)` runs; a loader's batches, in order."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from enum import Enum

from gear_data.loaders.builders.batch import Batch, BuilderLookup, BuiltBatch
from gear_data.loaders.frameworks.workers import get_worker_info
from gear_data.loaders.metrics import Meter
from gear_data.loaders.misuse import check_fetcher
from gear_data.loaders.pace import Pace
from gear_data.loaders.passes.layout import NO_END
from gear_data.loaders.passes.progress import Pass, Progress
from gear_data.loaders.prefetch import Prefetcher


class Group(Enum):
    """The most bytes and batches of a group of small batches, which are built in one call."""

    #: In groups, threads synchronise less often.
    CPU = 2 << 20, 4
    #: A read from other nodes costs much more. With these groups, 256 x 20 steps of Hopper took three quarters of the
    #: time, and 256 x 100 steps seven tenths.
    REMOTE = 8 << 20, 8
    #: A few launches make a group, of any size.
    DEVICE = 32 << 20, 16

    def size(self, batch_bytes: int) -> int:
        """Returns the number of batches of a group.

        batch_bytes: bytes of a batch.
        """
        most_bytes, most = self.value
        return max(1, min(most, most_bytes // max(1, batch_bytes)))


class BatchIterator(Iterator[Batch]):
    """Iterates over the batches of one pass over a loader, in order.

    The pass begins with the first batch. In a DataLoader's worker the pass begins at once.

    `close` ends the prefetch thread. Otherwise the thread ends when the iterator is garbage-collected. An exception in
    `__next__`, such as KeyboardInterrupt, closes the iterator.

    Args:
        builders: build the batches.
        progress: begins the pass, and receives the step after each batch that `__next__` returns.
        group: number of batches that are built in one call.
        prefetch: number of batches that are kept ready, built in a thread or by a device; 0: a batch is built when it
            is taken.
        meter: counts the batches.
        starting: see `Prefetcher`.
    """

    def __init__(
        self, builders: BuilderLookup, *, progress: Progress, group: int, prefetch: int, meter: Meter,
        starting: threading.Lock,
    ) -> None:  # fmt: skip
        self._builders = builders
        self._progress, self._group, self._depth = progress, group, prefetch
        self._meter, self._starting = meter, starting
        self._taken = 0
        # The pass that was begun, this process's steps of it, and their number.
        self._pass: Pass | None = None
        self._steps, self._count = range(0), 0
        # Built batches that the consumer has not taken yet, the next one last.
        self._ready: list[BuiltBatch] = []
        self._prefetcher: Prefetcher[list[BuiltBatch]] | None = None
        self._pace: Pace | None = None
        # The consumer builds the batches before this one, one by one: all without prefetching, else those of a group.
        self._own_end = 0
        self._started = self._closed = False
        # A StatefulDataLoader asks a worker for its state before the first batch, and drops iterators at their end.
        if get_worker_info() is not None:
            self._begin()

    def _begin(self) -> Pass:
        check_fetcher()
        self._pass = self._progress.begin()
        self._steps, self._count = self._pass.steps, len(self._pass.steps)
        return self._pass

    def __next__(self) -> Batch:
        if self._closed:
            raise StopIteration
        # All in one block: after an interrupt anywhere in it, the batches that are ready may be of other steps.
        try:
            own = self._pass or self._begin()
            taken, progress = self._taken, self._progress
            if taken == self._count:
                raise StopIteration
            if own.serial != progress.serial or own.shared is not None:
                progress.check_current(own)
            if not self._started:
                self._start()
            began = time.perf_counter()
            if not self._ready:
                if taken < self._own_end or self._is_left(taken):
                    steps = self._steps[taken : taken + 1]
                    self._ready = self._builders.at(steps[0]).build(steps)
                elif self._prefetcher is not None:
                    self._ready = self._prefetcher.get(taken // self._group)[::-1]
            built = self._ready.pop()
            batch = built.batch if built.deliver is None else built.deliver(built.batch)
            waited = time.perf_counter() - began
            self._meter.add(built, waited)
            if taken < self._own_end and self._pace is not None:
                self._pace.making += waited
            self._taken = taken + 1
            progress.next_step = self._steps[taken] + self._steps.step
            if progress.epoch_ordered:
                progress.keep_pass(own.number)
        except BaseException:
            self.close()
            raise
        # No attribute refers to the batch, so its memory is free as soon as the consumer drops the batch.
        return batch

    def _is_left(self, taken: int) -> bool:
        """Returns whether the consumer builds the group of batches that begins with the next one, one by one.

        Together, they would take longer: a batch alone is built where the batch before it was, in the cache.
        """
        if self._prefetcher is None:
            self._own_end = self._count
        elif self._prefetcher.leaves(taken // self._group):
            self._own_end = taken + self._group
        return taken < self._own_end

    def _start(self) -> None:
        """Starts the clock and the prefetch thread.

        The first `__next__` calls this, not `__init__`: a process may be forked between `iter` and `next`.
        """
        self._started = True
        self._meter.start()
        if self._depth:
            self._progress.current = weakref.ref(self)
            steps, group, build = self._steps, self._group, self._builders.build
            groups = None if steps.stop == NO_END else -(-self._count // group)

            # This function must not refer to the iterator: the cycle would keep memory until a garbage collection.
            def build_group(number: int) -> list[BuiltBatch]:
                return build(steps[number * group : (number + 1) * group])

            # One thread is enough, because the consumer builds, too, instead of waiting. A second thread would contend
            # with both for the interpreter lock.
            threads, depth = int(self._builders.threaded), -(-self._depth // group)
            # Work of a device is always started ahead.
            self._pace = Pace(depth + threads + 1) if threads else None
            self._prefetcher = Prefetcher(build_group, groups, depth, threads, self._starting, self._pace)

    @property
    def remaining(self) -> int | None:
        """Number of batches that are not taken yet.

        None: there is no end, or no batch was taken yet.
        """
        return None if self._pass is None or self._steps.stop == NO_END else self._count - self._taken

    @property
    def unstarted_step(self) -> int:
        """The step after the last batch that was started; 0 without a prefetch thread."""
        if self._prefetcher is None:
            return 0
        return min(self._steps.start + self._prefetcher.started * self._group * self._steps.step, self._steps.stop)

    def close(self) -> None:
        """Ends the prefetch thread, and drops batches that are ready."""
        self._closed = True
        self._ready.clear()
        if self._prefetcher is not None:
            self._prefetcher.close()
