"""Processes whose address space may grow by a few bytes only."""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.chaos.system_calls import Ended

#: Signals with which libraries end a process that has no memory.
_SIGNALS = {-each for each in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGTRAP, signal.SIGILL)}
#: How Python, Arrow, Polars and the loader of shared libraries say that memory is missing.
_WORDS = ("can't start new thread", "can't allocate", "Failed to launch worker thread", "Cannot allocate memory",
          "Could not find/load shared object", "failed to map segment", "Polars binary is missing",
          "SystemError: error return without exception set")  # fmt: skip
_NO_THREAD = "cannot allocate memory for thread-local data: ABORT"


def measured(job: Callable[[Path], object]) -> Callable[[Path], None]:
    """Returns a job that prints the bytes of address space that it adds; see `need_of`."""

    def run(folder: Path) -> None:
        before = _address_space("VmSize")
        job(folder)
        print(_address_space("VmPeak") - before)

    return run


def need_of(ended: Ended) -> int:
    """Returns what a measured job has printed."""
    return int(ended.output.split()[-1])


@contextmanager
def small_memory(extra: int) -> Iterator[None]:
    """Lets this process add some bytes of address space, apart from what threads reserve when they start.

    `Thread.start` of Python waits for ever if the new thread has no memory for its first steps.
    """
    start, before = threading.Thread.start, resource.getrlimit(resource.RLIMIT_AS)
    limit = _address_space("VmSize") + extra

    def start_freely(thread: threading.Thread) -> None:
        nonlocal limit
        resource.setrlimit(resource.RLIMIT_AS, before)
        size = _address_space("VmSize")
        try:
            start(thread)
        finally:
            limit += max(0, _address_space("VmSize") - size)
            resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))

    threading.Thread.start = start_freely  # type: ignore[method-assign]
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        threading.Thread.start = start  # type: ignore[method-assign]


def ended_by_library(ended: Ended) -> bool:
    """Returns whether a library has ended the process. The C library does so where a new thread has no memory."""
    return ended.status in _SIGNALS or (ended.status == 127 and _NO_THREAD in ended.output)


def has_error_of_library(ended: Ended) -> bool:
    """Returns whether a process ended with an error of a library that says in its own words that memory is missing."""
    return ended.status == 1 and any(words in ended.output for words in _WORDS)


def _address_space(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition(f"{name}:")[2].split()[0])
