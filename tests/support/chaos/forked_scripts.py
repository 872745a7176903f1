"""A process that forks scripts, one at a time, because imports take seconds. `tests.chaos.stops.scripts` talks to it.

Each line of standard input describes a script, which runs in a forked child. The child ends as every script does.
Lines of standard output say what happened.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any


def say(what: str) -> None:
    os.write(1, f"{what}\n".encode())


def fork_scripts(run: Callable[[dict[str, Any]], None]) -> None:
    """Forks a script for each line. Returns in each child, whose script has returned, and at the end of the lines."""
    say("ready")
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if not child:
            case = json.loads(line)
            os.dup2(os.open(case["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            faulthandler.register(signal.SIGUSR1, all_threads=True)
            run(case)
            return
        say(f"pid {child}")
        with contextlib.suppress(ChildProcessError):
            say(f"ended {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")
