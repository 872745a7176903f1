"""Imports modules once, and forks for every program of a client.

    python fork_server.py SOCKET MODULES...

A fork runs a script, `-m` or `-c` as `python` would: with the client's files, folder, variables and cores. The server
ends when its standard input does, with all its forks. It removes the folder of its socket.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import itertools
import json
import multiprocessing
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

Request = dict[str, Any]
_ROOT = str(Path(__file__).resolve().parents[3])
#: The largest number of files that a socket sends at once.
_MOST_FILES = 253
#: Descriptors from here on are free.
_FREE = 300


def preload(modules: Sequence[str]) -> None:
    # The project's modules, and not those beside this script.
    sys.path[0] = _ROOT
    for module in modules:
        importlib.import_module(module)
    if "numba" in sys.modules:
        # The first compilation imports a second of modules.
        sys.modules["numba"].njit(lambda: 0)()


def serve(place: str) -> Request | None:
    """Serves requests until standard input ends.

    Returns None at the end. In a fork, returns the request that the fork must run.
    """
    # Forks share the pages of these objects for as long as no one counts their references.
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen()
    # It has no descriptor that forks would share.
    selector = selectors.PollSelector()
    selector.register(sys.stdin.fileno(), selectors.EVENT_READ, "end")
    selector.register(listener, selectors.EVENT_READ, "new")
    forks: dict[int, tuple[int, socket.socket]] = {}  # by descriptor of the fork
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            if key.data == "end":
                for fork, _ in forks.values():
                    os.kill(fork, signal.SIGKILL)
                return None
            if key.data == "new":
                client, _ = listener.accept()
                if (received := _receive(client)) is None:
                    client.close()
                    continue
                request, files = received
                fork = os.fork()
                if fork == 0:
                    for connection in (listener, client, *(other for _, other in forks.values())):
                        connection.close()
                    for other in forks:
                        os.close(other)
                    _take_files(request, files)
                    return request
                for file in files:
                    os.close(file)
                watched = os.pidfd_open(fork)
                forks[watched] = fork, client
                selector.register(watched, selectors.EVENT_READ, "ended")
                selector.register(client, selectors.EVENT_READ, "gone")
            elif key.data == "ended" and key.fd in forks:
                fork, client = forks.pop(key.fd)
                status = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
                selector.unregister(key.fd)
                os.close(key.fd)
                if client.fileno() in selector.get_map():
                    selector.unregister(client)
                    with contextlib.suppress(BrokenPipeError):  # the client may be killed at the same moment
                        client.sendall(status.to_bytes(4, "big", signed=True))
                    client.close()
            elif key.data == "gone" and selector.get_map().get(key.fd) == key:  # a later client may have its number
                # The fork's end is noticed like any other.
                for fork, client in forks.values():
                    if client is key.fileobj:
                        os.kill(fork, signal.SIGKILL)
                selector.unregister(key.fileobj)


def _receive(client: socket.socket) -> tuple[Request, list[int]] | None:
    """Returns the request and the files of a client; None if the client was killed before it sent them."""
    sent, files, _, _ = socket.recv_fds(client, 8, _MOST_FILES)
    size = int.from_bytes(sent, "big")
    with client.makefile("rb") as stream:
        text = stream.read(size)
    if sent and len(text) == size:
        return json.loads(text), files
    for file in files:
        os.close(file)
    return None


def _take_files(request: Request, files: list[int]) -> None:
    """Gives the files the numbers that they have in the client."""
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, _FREE) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, request["files"], strict=True):
        os.dup2(file, number)
        os.close(file)


def run(request: Request) -> None:
    """Runs a program in this process, as `python` would."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    os.sched_setaffinity(0, request["cores"])
    # The streams of the server belong to other files.
    sys.stdout, sys.stderr = (open(file, "w", closefd=False, buffering=1) for file in (1, 2))  # noqa: SIM115
    tempfile.tempdir = None
    if sys.dont_write_bytecode:
        # The first program compiles the project's modules, and the others load them.
        sys.dont_write_bytecode, sys.pycache_prefix = False, os.path.dirname(request["executable"])
    sys.executable = request["executable"]
    multiprocessing.set_executable(sys.executable)
    # Lines of output are written at once either way.
    kind, *arguments = itertools.dropwhile(lambda each: each in ("-B", "-u"), request["arguments"])
    paths = [os.path.dirname(os.path.abspath(kind)) if os.path.exists(kind) else request["folder"]]
    paths += filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[0:1] = paths
    # `python` imports it from the folders of PYTHONPATH.
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    if kind == "-m":
        sys.argv = arguments
        # Else a warning says that the server has imported it.
        sys.modules.pop(arguments[0], None)
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *arguments[1:]]
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(arguments[0], "<string>", "exec"), vars(main))
    else:
        sys.argv = [kind, *arguments]
        runpy.run_path(kind, run_name="__main__")


def end(request: Request) -> NoReturn:
    """Runs a program and ends the process with its status.

    The interpreter is not taken apart: that takes a third of a second.
    """
    status = 0
    try:
        run(request)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:  # a function of `atexit` may have closed it
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    preload(sys.argv[2:])
    found = serve(sys.argv[1])
    if found is not None:
        end(found)
    shutil.rmtree(os.path.dirname(sys.argv[1]))
