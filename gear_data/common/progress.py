"""What is shown to people: progress bars, on a terminal and nowhere else; numbers of things."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm


class _Bar(tqdm):  # type: ignore[misc]
    """One whose total may be an estimate: it grows where that was too low."""

    n: int
    total: int | None

    def update(self, n: int = 1) -> Any:
        if self.total is not None:
            self.total = max(self.total, self.n + n)
        return super().update(n)


def progress_bar(total: int | None, description: str, unit: str, show: bool | None) -> Any:
    """A tqdm bar on standard error. `show=None` shows it on a terminal alone."""
    disable = None if show is None else not show
    return _Bar(total=total, desc=description, unit=f" {unit}", unit_scale=True, disable=disable, leave=False)


def pluralize(count: int, what: str) -> str:
    """1 -> '1 shard', 1000 -> '1,000 shards'."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def format_bytes(count: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
