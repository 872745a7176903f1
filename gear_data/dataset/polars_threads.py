"""Polars in forked children.

Polars computes in threads, which it starts at its first use. A forked child has none of them, and cannot start others:
the child would wait for them for ever.
"""

from __future__ import annotations

import glob
import os
import re
import sys
from contextlib import suppress

from gear_data.errors import ForkedProcessError

#: Names of Polars' threads for computing. Another thread starts when Polars is imported; Polars does without it.
_NAMES = re.compile(r"polars-\d|async-executor-")
#: Whether this process lost Polars' threads in a fork.
_lost = False
#: Whether Polars had threads before the present fork.
_had_threads = False


def check_polars_threads() -> None:
    """Checks that Polars has its threads. To be called before Polars computes anything.

    Raises:
        ForkedProcessError: this process is a forked child, and Polars was in use before the fork.
    """
    if _lost:
        raise ForkedProcessError(
            "Polars cannot evaluate expressions, or make tables of episodes, in this process: process "
            f"{os.getppid()} used Polars, and then forked it without Polars' threads",
            hint="make views and loaders before the fork; they work in the child. Or start the process by 'spawn': "
            "DataLoader(..., multiprocessing_context='spawn')",
        )


def _polars_threads_running() -> bool:
    if "polars" not in sys.modules:
        return False
    if not os.path.isdir("/proc/self/task"):
        return True  # not Linux: a program that imports Polars has probably used it
    for path in glob.iglob("/proc/self/task/*/comm"):
        with suppress(OSError), open(path) as file:
            if _NAMES.match(file.read()):
                return True
    return False


def _before_fork() -> None:
    global _had_threads
    _had_threads = _polars_threads_running()


def _after_fork_in_child() -> None:
    global _lost
    _lost = _lost or _had_threads


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
