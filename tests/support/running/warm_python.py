"""A `python` that starts in milliseconds: its slow modules are imported.

Tests start hundreds of processes, and each would import torch, which takes two seconds of CPU time. An interpreter of
this module runs its program in a fork of one server (`fork_server`).
"""

from __future__ import annotations

import functools
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_HERE = Path(__file__).resolve().parent
#: Name of the server's socket, which is beside the interpreter.
_SOCKET = "socket"
#: The interpreter itself, whose processes take signals. Tests may replace `sys.executable`, also of programs.
INTERPRETER = os.environ.setdefault("GEAR_DATA_TESTS_INTERPRETER", sys.executable)
#: Modules that most programs of the tests import.
MODULES = (
    "av", "numba", "polars", "pyarrow.flight", "pyarrow.parquet", "torch.distributed.launcher.api", "torch.utils.data",
)  # fmt: skip
#: Modules of the project that import most others. A benchmark may run another checkout, whose modules are others.
_OURS = (
    "gear_data.cluster.flight.server", "gear_data.dataset.stores.remote", "gear_data.loaders.sequence_loader",
    "gear_data.recording.writer",
)  # fmt: skip


@functools.cache
def python() -> str:
    """Returns the path of an interpreter with `MODULES` and the project's, which lives as long as this process.

    A program of such an interpreter uses the same one.
    """
    if Path(sys.executable).with_name(_SOCKET).exists():
        return sys.executable
    return str(_start([*MODULES, *_OURS])[0])


@contextmanager
def warm_python(modules: Sequence[str]) -> Iterator[Path]:
    """Yields the path of an interpreter that has imported some modules.

    It runs scripts, `-m` and `-c`. Each program imports the project's modules itself, unless they are named.
    """
    executable, server = _start(modules)
    with server:
        yield executable
        if server.stdin is not None:
            server.stdin.close()


def _start(modules: Sequence[str]) -> tuple[Path, subprocess.Popen[str]]:
    """Starts a server, which ends with its standard input, and removes its folder."""
    folder = tempfile.mkdtemp(prefix="warm-")
    place, executable = Path(folder, _SOCKET), Path(folder, "python")
    client = [INTERPRETER, "-IS", str(_HERE / "fork_client.py"), str(place)]
    executable.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$0" "$@"\n')
    torchrun = Path(folder, "torchrun")
    torchrun.write_text(f'#!/bin/sh\nexec {executable} -m torch.distributed.run "$@"\n')
    for program in (executable, torchrun):
        program.chmod(0o755)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    server = subprocess.Popen(
        [INTERPRETER, str(_HERE / "fork_server.py"), str(place), *modules],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**variables, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if server.stdout is None or not any(line == "ready\n" for line in server.stdout):
        raise RuntimeError("the server did not start")
    return executable, server
