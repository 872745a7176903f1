"""Files of generations that readers of any process hold."""

from __future__ import annotations

import fcntl
from pathlib import Path


def is_read(dataset: Path, generation: int) -> bool:
    """Returns whether any process holds an earlier generation."""
    with open(dataset / "generations" / f"{generation:06}.json", "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
