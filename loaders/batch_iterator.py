"""A pass over a loader's steps: its batches in order, made ahead of their consumer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from gear_data.loaders.batch_builder import BuiltBatch
from gear_data.loaders.prefetch import Prefetcher

#: Small batches are made several at a time, so that threads meet less often: as many as fit here, and at most so many.
_BYTES_AT_ONCE, _MOST_AT_ONCE = 2 << 20, 4
#: Where nodes are asked for them a question costs much more: with these, 256 x 20 steps of Hopper took three quarters
#: of the time, and 256 x 100 seven tenths.
_REMOTE_BYTES_AT_ONCE, _REMOTE_MOST_AT_ONCE = 8 << 20, 8


def batches_at_once(batch_bytes: int, *, remote: bool) -> int:
    """How many batches of that size are made in one go, where they are made ahead.

    Args:
        remote: whether other nodes are asked for their steps.
    """
    size, most = (_REMOTE_BYTES_AT_ONCE, _REMOTE_MOST_AT_ONCE) if remote else (_BYTES_AT_ONCE, _MOST_AT_ONCE)
    return max(1, min(most, size // max(1, batch_bytes)))


class BatchIterator:
    """The batches of the steps first, first + stride, ... Close it, or its thread goes on.

    Args:
        make: steps -> the batch of each.
        first, stride: of the steps.
        count: how many batches; None for no end.
        at_once: how many `make` is asked for at once.
        prefetch: batches kept ready, made in a thread; 0: batches are made when they are taken.

    Attributes:
        next_step: the step of the batch to be taken next.
    """

    def __init__(
        self,
        make: Callable[[Sequence[int]], list[BuiltBatch]],
        first: int,
        stride: int,
        count: int | None,
        at_once: int,
        prefetch: int,
    ) -> None:
        self.next_step = first
        self._first, self._stride, self._count, self._at_once = first, stride, count, at_once
        self._taken = 0
        # BuiltBatch and not yet taken, the next one last.
        self._waiting: list[BuiltBatch] = []

        # A closure that does not know this pass: with a circle of references its memory would wait for the collector.
        def make_item(item: int) -> list[BuiltBatch]:
            last = (item + 1) * at_once if count is None else min((item + 1) * at_once, count)
            return make([first + n * stride for n in range(item * at_once, last)])

        self._get = make_item
        self._prefetcher: Prefetcher[list[BuiltBatch]] | None = None
        if prefetch:
            items = None if count is None else -(-count // at_once)
            # One thread, and the consumer where it would wait: a second thread contends with both for the interpreter.
            self._prefetcher = Prefetcher(make_item, items, -(-prefetch // at_once), threads=1)
            self._get = self._prefetcher.get

    @property
    def ended(self) -> bool:
        """Whether the last batch is taken."""
        return self._count is not None and self._taken >= self._count

    def take(self) -> BuiltBatch:
        """The next batch; none of its memory is held here. Raises what `make` raised."""
        if not self._waiting:
            self._waiting = self._get(self._taken // self._at_once)[::-1]
        self._taken += 1
        self.next_step += self._stride
        return self._waiting.pop()

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """No batch is begun in a thread inside the context; gives the first step that is not begun."""
        if self._prefetcher is None:
            yield self.next_step
            return
        with self._prefetcher.held() as begun:
            yield self._first + begun * self._stride * self._at_once

    def close(self) -> None:
        """Ends the thread; batches that are ready are dropped."""
        if self._prefetcher is not None:
            self._prefetcher.close()
