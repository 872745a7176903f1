"""Runs tasks in the threads that decode."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, wait

from gear_data.common.cancellation import check_cancelled

Task = Callable[[], None]


def run_all(tasks: Sequence[Task], executor: Executor | None, threads: int) -> None:
    """Runs tasks in this thread and others, and returns when all have ended.

    Args:
        tasks: begun in their order.
        executor: of the other threads; None: this thread runs all.
        threads: that run tasks, with this thread.

    Raises:
        Exception: the error of the first task that failed. All others ran.
        Cancelled, KeyboardInterrupt: this thread was interrupted. No task runs any more.
    """
    todo = deque(enumerate(tasks))
    failures: dict[int, Exception] = {}
    helpers = []
    if executor is not None:
        helpers = [executor.submit(_drain, todo, failures) for _ in range(min(threads, len(tasks)) - 1)]
    try:
        _drain(todo, failures, check_cancelled)
    finally:
        # After an interrupt tasks are left. The memory that they write may be used again when this call returns.
        todo.clear()
        wait([each for each in helpers if not each.cancel()])
    if failures:
        raise failures[min(failures)]


def _drain(todo: deque[tuple[int, Task]], failures: dict[int, Exception], check: Task | None = None) -> None:
    while todo:
        if check is not None:
            check()
        try:
            number, task = todo.popleft()
        except IndexError:
            # Another thread took the last task.
            return
        try:
            task()
        except Exception as error:
            failures[number] = error
