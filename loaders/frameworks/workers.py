"""torch's DataLoader workers, for a process that may not have torch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.data._utils.worker import WorkerInfo


def get_worker_info() -> WorkerInfo | None:
    """Returns torch's facts about the DataLoader worker that this process is, or None."""
    # A worker has imported torch before it gets the loader.
    module = sys.modules.get("torch.utils.data")
    return None if module is None else module.get_worker_info()
