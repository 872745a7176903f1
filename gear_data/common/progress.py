"""Progress bars, and numbers as text for people."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

#: Seconds between two lines of progress without a terminal.
_LINE_SECONDS = 60.0
#: Seconds between two texts at the end of a bar.
_TEXT_SECONDS = 0.5


class _Bar(tqdm):  # type: ignore[misc]
    """Progress bar that raises its total when the total was underestimated."""

    # tqdm's own lock has a semaphore of multiprocessing. With the start method spawn, it has a name in /dev/shm, which
    # stays if this process and Python's resource tracker are killed.
    _lock = threading.RLock()
    n: int
    total: int | None

    def update(self, n: int = 1) -> Any:
        if self.total is not None:
            self.total = max(self.total, self.n + n)
        return super().update(n)


class ProgressLines:
    """Progress of a long run without a terminal, as lines on standard error.

    There is at most one line a minute, so a short run prints nothing. It has the methods of tqdm that are used here.

    Args:
        total: The amount of work; None if it is unknown.
        description: The name of the work.
        unit: The unit of the work.
        initial: The amount that an earlier run did.
        seconds: The time between two lines.
    """

    def __init__(
        self, total: int | None, description: str, unit: str, initial: int = 0, *, seconds: float = _LINE_SECONDS
    ) -> None:
        self.n = initial
        self._total, self._description, self._unit, self._seconds = total, description, unit, seconds
        self._started = self._last = time.monotonic()
        self._postfix = ""

    def __enter__(self) -> ProgressLines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, n: int = 1) -> None:
        self.n += n
        now = time.monotonic()
        if now - self._last < self._seconds:
            return
        self._last = now
        total = "" if self._total is None else f" of {max(self._total, self.n):,}"
        minutes = (now - self._started) / 60
        line = f"{self._description}: {self.n:,}{total} {self._unit}, {minutes:.0f} min{self._postfix}"
        print(line, file=sys.stderr, flush=True)

    def set_postfix(self, *, refresh: bool = True, **values: Any) -> None:
        self._postfix = "".join(f", {name} {value}" for name, value in values.items())

    def set_postfix_str(self, text: str) -> None:
        self._postfix = f", {text}"


def is_main_process() -> bool:
    """Returns whether a user reads this process's output.

    The process is no worker, and the first rank of its machine.
    """
    return multiprocessing.parent_process() is None and os.environ.get("LOCAL_RANK", "0") == "0"


def progress_bar(total: int | None, description: str, unit: str, show: bool | None, initial: int = 0) -> Any:
    """Returns a tqdm bar on standard error.

    `show=None` shows the bar on a terminal. Elsewhere it prints a line a minute, for logs of batch jobs.
    """
    if show is None and not sys.stderr.isatty() and is_main_process():
        return ProgressLines(total, description, unit, initial)
    return _Bar(
        total=total, initial=initial, desc=description, unit=f" {unit}", unit_scale=True, leave=False,
        disable=None if show is None else not show,
    )  # fmt: skip


def advance_with_text(bar: Any, text: Callable[[], str], seconds: float = _TEXT_SECONDS) -> Callable[[int], None]:
    """Returns a function that advances a bar, and renews the text at its end from time to time.

    Args:
        bar: returned by `progress_bar`.
        text: returns the text. It is called at most once in `seconds`.
        seconds: time between two texts.
    """
    last = time.monotonic()

    def advance(n: int) -> None:
        nonlocal last
        bar.update(n)
        now = time.monotonic()
        if now - last >= seconds:
            last = now
            bar.set_postfix_str(text())

    return advance


def pluralize(count: int, noun: str) -> str:
    """Formats a count with its noun: 1 -> '1 shard', 1000 -> '1,000 shards'."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def format_bytes(count: float) -> str:
    """Formats a number of bytes: 1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
