"""Notice that kernels are being compiled.

This takes seconds of a processor on a machine that has not compiled them yet.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from numba import config
from numba.core import event

from gear_data.common.progress import ProgressBar, TerminalBar, has_terminal, is_main_process

_log = logging.getLogger(__name__)
_PACKAGE = "gear_data.kernels."
#: Seconds of compiling before the notice: a single small kernel needs none.
_SECONDS = 1.0


class CompileNotice(event.Listener):  # type: ignore[misc]
    """Tells that kernels are compiled once this has taken a second.

    A terminal shows how many functions are compiled while a kernel is. Without a terminal, the process logs one line of
    level INFO.

    Numba calls it at the start and end of every function that it compiles, also of those inside a kernel. It is not
    called for kernels in Numba's cache.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._began = 0.0
        self._seconds = 0.0
        self._compiled = 0
        self._bar: ProgressBar | None = None
        self._done = not is_main_process()

    def on_start(self, event: Any) -> None:
        if self._done:
            return
        if self._depth:
            self._depth += 1
        elif event.data["dispatcher"].py_func.__module__.startswith(_PACKAGE):
            self._depth, self._began = 1, time.monotonic()
        if self._depth and self._seconds + time.monotonic() - self._began > _SECONDS:
            self._tell(event.data["dispatcher"].py_func.__name__)

    def on_end(self, event: Any) -> None:
        if self._done or not self._depth:
            return
        self._depth -= 1
        self._compiled += 1
        if not self._depth:
            self._seconds += time.monotonic() - self._began
            if self._bar is not None:
                self._bar.__exit__()
                self._bar = None

    def _tell(self, name: str) -> None:
        if not has_terminal():
            self._done = True
            text = "gear-data compiles its kernels for this machine, once; later runs load them from %s"
            _log.info(text, config.CACHE_DIR or "__pycache__")
            return
        if self._bar is None:
            self._bar = TerminalBar(None, "compile kernels, once for this machine", "functions", self._compiled)
            self._bar.__enter__()
        self._bar.set_text(name)
        self._bar.update(self._compiled - self._bar.n)


def listen() -> None:
    """Begins to listen for this process."""
    event.register("numba:compile", CompileNotice())
