"""Fails a test that starts a process. Threads are no processes."""

from __future__ import annotations

import _posixsubprocess
import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

#: Events that the interpreter reports before it starts a process.
_EVENTS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
#: Programs by which the standard library asks the system for its name and its libraries, Matplotlib for its fonts, and
#: `numpy.testing` before NumPy 2.0 for the processor.
_QUESTIONS = {"fc-list", "ldconfig", "lscpu", "uname"}
_refusing = False


@contextmanager
def no_processes() -> Iterator[None]:
    """Refuses processes in the block, in all threads.

    The refusal is no `Exception`, so that the code that is tested does not handle it.
    """
    global _refusing
    _install()
    _refusing = True
    try:
        yield
    finally:
        _refusing = False


@functools.cache
def _install() -> None:
    sys.addaudithook(_audit)
    # The start methods "spawn" and "forkserver", and the tracker of resources, call it without an event.
    start = _posixsubprocess.fork_exec

    def fork_exec(*arguments: Any) -> int:
        _refuse(arguments[0])
        return start(*arguments)

    _posixsubprocess.fork_exec = fork_exec


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _EVENTS:
        # Since Python 3.13, `subprocess` itself calls `os.posix_spawn`.
        _refuse(arguments[1] if event in ("subprocess.Popen", "os.posix_spawn") else [event])


def _refuse(command: list[Any]) -> None:
    if _refusing and os.path.basename(os.fsdecode(command[0])) not in _QUESTIONS:
        pytest.fail(
            f"a test of the first tier starts no process, and this one starts {command}: "
            "mark the test with pytest.mark.processes"
        )
