"""The journals of a bucket's writers on this machine.

They are in `STATE/NAME-HASH.journal/NNN/`, a folder for each Writer that runs at the same time. STATE is
$GEAR_DATA_JOURNALS, or `gear-data/journals` in $XDG_STATE_HOME or ~/.local/state.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import xxhash

from gear_data.common.paths import absolute_path


def journal_base(url: str) -> Path:
    """Returns the path whose journals are those of a URL: its folder of journals is beside it."""
    root = os.environ.get("GEAR_DATA_JOURNALS")
    if not root:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        root = str(Path(state, "gear-data", "journals"))
    last = quote(url.rstrip("/").rpartition("/")[2], safe="")[:40]
    return Path(absolute_path(root), f"{last}-{xxhash.xxh3_64_hexdigest(url.rstrip('/').encode())}")
