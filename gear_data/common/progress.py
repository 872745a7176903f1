"""Progress bars, and numbers as text for people."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

if TYPE_CHECKING:
    from rich.progress import Progress, Task

#: Seconds between two lines of progress without a terminal.
_LINE_SECONDS = 60.0
#: Seconds between two texts at the end of a bar.
_TEXT_SECONDS = 0.5
#: Seconds between two drawings of a bar.
_DRAW_SECONDS = 0.1


class ProgressBar(Protocol):
    """Progress of work, in a `with` statement.

    Attributes:
        n: the amount of work that is done.
    """

    n: int

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def update(self, n: int = 1) -> None:
        """Adds to the amount that is done."""

    def set_text(self, text: str) -> None:
        """Sets the text at the end, which is shown from the next update on."""


class HiddenBar:
    """Counts work and shows nothing."""

    def __init__(self, initial: int = 0) -> None:
        self.n = initial

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, n: int = 1) -> None:
        self.n += n

    def set_text(self, text: str) -> None:
        pass


class ProgressLines(HiddenBar):
    """Progress of a long run without a terminal, as lines on standard error.

    There is at most one line a minute, so a short run prints nothing.

    Args:
        total: the amount of work; None if it is unknown.
        description: the name of the work.
        unit: the unit of the work.
        initial: the amount that an earlier run did.
        seconds: the time between two lines.
    """

    def __init__(
        self, total: int | None, description: str, unit: str, initial: int = 0, *, seconds: float = _LINE_SECONDS
    ) -> None:
        super().__init__(initial)
        self._total, self._description, self._unit, self._seconds = total, description, unit, seconds
        self._started = self._last = time.monotonic()
        self._text = ""

    def update(self, n: int = 1) -> None:
        super().update(n)
        now = time.monotonic()
        if now - self._last < self._seconds:
            return
        self._last = now
        total = "" if self._total is None else f" of {max(self._total, self.n):,}"
        minutes = (now - self._started) / 60
        text = self._text and f", {self._text}"
        print(
            f"{self._description}: {self.n:,}{total} {self._unit}, {minutes:.0f} min{text}",
            file=sys.stderr,
            flush=True,
        )

    def set_text(self, text: str) -> None:
        self._text = text


class TerminalBar(HiddenBar):
    """Progress bar on a terminal, drawn by rich. It disappears at the end.

    Bars that are shown at the same time are lines of one display.

    Args:
        total, description, unit, initial: as for `ProgressLines`.
    """

    #: The display of the bars that are shown; None without any.
    _shared: ClassVar[Progress | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, total: int | None, description: str, unit: str, initial: int = 0) -> None:
        super().__init__(initial)
        self._total, self._description, self._unit, self._text = total, description, unit, ""
        self._display: Progress | None = None
        self._next = 0.0

    def __enter__(self) -> Self:
        with self._lock:
            if TerminalBar._shared is None:
                TerminalBar._shared = _new_display()
                TerminalBar._shared.start()
            self._display = TerminalBar._shared
            self._task = self._display.add_task(self._description, total=self._total, completed=self.n, state="")
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            display, self._display = self._display, None
            if display is None:
                return
            display.remove_task(self._task)
            if not display.tasks:
                display.stop()
                TerminalBar._shared = None

    def update(self, n: int = 1) -> None:
        super().update(n)
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _DRAW_SECONDS
        display = self._display
        if display is None:
            return
        total = None if self._total is None else max(self._total, self.n)
        display.update(self._task, completed=self.n, total=total)
        task = next((task for task in display.tasks if task.id == self._task), None)
        if task is not None:
            display.update(self._task, state=self._state(task), refresh=True)

    def _state(self, task: Task) -> str:
        amount, unit = _amount(self.n, self._unit), "" if self._unit == "B" else f" {self._unit}"
        if task.total is None:
            parts = [amount + unit]
        else:
            parts = [f"{task.percentage:.0f} %", f"{amount} of {_amount(task.total, self._unit)}{unit}"]
        # A narrow terminal cuts the end off.
        if self._text:
            parts.append(self._text)
        if task.speed and self._unit != "s":
            parts.append(f"{_amount(task.speed, self._unit)}{unit}/s")
        if task.time_remaining is not None:
            parts.append(f"{timedelta(seconds=round(task.time_remaining))} left")
        return ": " + ", ".join(parts)

    def set_text(self, text: str) -> None:
        self._text = text


def _new_display() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    # Drawn by `TerminalBar.update`: a thread that draws could hold its lock while the process forks.
    return Progress(
        BarColumn(16),
        TextColumn("{task.description}{task.fields[state]}", markup=False),
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
    )


def _amount(count: float, unit: str) -> str:
    """Formats an amount in few characters: 1,234,567 steps -> '1.23M'."""
    if unit == "B":
        return format_bytes(count)
    for prefix in ("", "k", "M"):
        if count < 1000:
            return f"{count:.3g}{prefix}"
        count /= 1000
    return f"{count:.3g}G"


def is_main_process() -> bool:
    """Returns whether a user reads this process's output.

    The process is no worker, and the first rank of its machine.
    """
    return multiprocessing.parent_process() is None and os.environ.get("LOCAL_RANK", "0") == "0"


def has_terminal() -> bool:
    """Returns whether standard error is a terminal.

    While a bar is shown, `sys.stderr` is rich's own, which says False before rich 15.
    """
    return TerminalBar._shared is not None or sys.stderr.isatty()


def progress_bar(total: int | None, description: str, unit: str, show: bool | None, initial: int = 0) -> ProgressBar:
    """Returns a progress bar on standard error.

    Args:
        total: the amount of work; None if it is unknown. A bar raises its total when it was underestimated.
        description: the name of the work.
        unit: the unit of the work; `B` stands for bytes.
        show: whether to show it. None: in the process whose output a user reads. Without a terminal, lines are printed
            instead, at most one a minute.
        initial: the amount that an earlier run did.
    """
    if show is None:
        show = is_main_process()
    if not show:
        return HiddenBar(initial)
    if not has_terminal():
        return ProgressLines(total, description, unit, initial)
    return TerminalBar(total, description, unit, initial)


def advance_with_text(
    bar: ProgressBar, text: Callable[[], str], seconds: float = _TEXT_SECONDS
) -> Callable[[int], None]:
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
            bar.set_text(text())

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
