"""Progress bars, and numbers as text for people."""

from __future__ import annotations

import threading
from typing import Any

from tqdm import tqdm


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


def progress_bar(total: int | None, description: str, unit: str, show: bool | None) -> Any:
    """Returns a tqdm bar on standard error. `show=None` shows it only on a terminal."""
    disable = None if show is None else not show
    return _Bar(total=total, desc=description, unit=f" {unit}", unit_scale=True, disable=disable, leave=False)


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
