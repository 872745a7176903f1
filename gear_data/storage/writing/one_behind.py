"""Calls of a function in a thread, at most one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def one_behind(function: Callable[..., object]) -> Iterator[Callable[..., None]]:
    """Yields a function that runs `function` in a thread, and returns as soon as the call before has ended.

    The exit waits for the last call. An error of `function` is raised by the next call or the exit. It replaces a later
    error of the block, which a program without the thread would not have reached.
    """
    running: Future[object] | None = None

    def call(*args: object) -> None:
        nonlocal running
        if running is not None:
            running.result()
        running = thread.submit(function, *args)

    with ThreadPoolExecutor(1, "gear-append") as thread:
        try:
            yield call
        finally:
            if running is not None:
                running.result()
