"""A worker process lives as long as its parent, and no longer."""

from __future__ import annotations

import os
import signal
import threading
import time

_SECONDS = 1.0


def live_with_parent() -> None:
    """Ignores interrupts, and starts a thread that ends this process soon after its parent.

    A terminal interrupts all processes, and the parent may go on. An idle worker learns of the parent's end because the
    connection closes. But forked children of the parent may keep that open, and FFmpeg may hang.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_SECONDS)
    os._exit(1)
