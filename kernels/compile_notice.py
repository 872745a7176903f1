"""Notice that kernels are being compiled.

This takes up to a minute on a machine that has not compiled them yet.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from numba import config
from numba.core import event

from gear_data.common.progress import is_main_process

_log = logging.getLogger(__name__)
_PACKAGE = "gear_data.kernels."
#: Seconds of compiling before the notice: a single small kernel needs none.
_SECONDS = 1.0


class CompileNotice(event.Listener):  # type: ignore[misc]
    """Logs one warning per process once compiling its kernels has taken a second.

    Numba calls it at the start and end of every function that it compiles, also of those inside a kernel. It is not
    called for kernels in Numba's cache.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._began = 0.0
        self._seconds = 0.0
        self._done = not is_main_process()

    def on_start(self, event: Any) -> None:
        if self._done:
            return
        if self._depth:
            self._depth += 1
            if self._seconds + time.monotonic() - self._began > _SECONDS:
                self._tell()
        elif event.data["dispatcher"].py_func.__module__.startswith(_PACKAGE):
            self._depth, self._began = 1, time.monotonic()
            if self._seconds > _SECONDS:
                self._tell()

    def on_end(self, event: Any) -> None:
        if self._done or not self._depth:
            return
        self._depth -= 1
        if not self._depth:
            self._seconds += time.monotonic() - self._began

    def _tell(self) -> None:
        self._done = True
        _log.warning(
            "gear-data compiles its kernels for this machine, once: up to a minute; later runs load them from %s",
            config.CACHE_DIR or "__pycache__",
        )


def listen() -> None:
    """Begins to listen for this process."""
    event.register("numba:compile", CompileNotice())
