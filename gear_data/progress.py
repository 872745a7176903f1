"""Progress bars: on a terminal, and nowhere else."""

from __future__ import annotations

from typing import Any

from tqdm import tqdm


def progress_bar(total: int | None, description: str, unit: str, show: bool | None) -> Any:
    """A tqdm bar on standard error. `show=None` shows it on a terminal alone."""
    disable = None if show is None else not show
    return tqdm(total=total, desc=description, unit=f" {unit}", unit_scale=True, disable=disable, leave=False)
