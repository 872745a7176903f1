"""A test that starts a process fails, unless its marker or its folder says that it does."""

from __future__ import annotations

import contextlib
import ctypes.util
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import subprocess
import threading
from collections.abc import Callable

import pytest

WAYS: dict[str, Callable[[], object]] = {
    "Popen": lambda: subprocess.run(["true"]),
    "shell": lambda: subprocess.run("true", shell=True),
    "system": lambda: os.system("true"),
    "popen": lambda: os.popen("true"),
    "fork": lambda: os.fork() or os._exit(0),
    "posix_spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "spawnvp": lambda: os.spawnvp(os.P_WAIT, "true", ["true"]),
    **{
        method: lambda method=method: multiprocessing.get_context(method).Process().start()
        for method in ("fork", "spawn")
    },
    # The module's own server may run since a test of the other tier.
    "forkserver": lambda: multiprocessing.forkserver.ForkServer().ensure_running(),
    "tracker": lambda: multiprocessing.resource_tracker.ResourceTracker().ensure_running(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_process_is_refused(way: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="starts no process, and this one starts"):
        WAYS[way]()


def test_code_that_handles_errors_does_not_handle_the_refusal() -> None:
    with pytest.raises(pytest.fail.Exception), contextlib.suppress(Exception):
        subprocess.run(["true"])


def test_threads_and_questions_to_the_system_are_no_processes() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert ctypes.util.find_library("c")


@pytest.mark.processes
def test_a_marked_test_starts_processes() -> None:
    assert subprocess.run(["true"]).returncode == 0
