"""A `python` that starts in milliseconds: its slow modules are imported.

Benchmarks start dozens of processes, and each would import torch. An interpreter of this module runs its program in a
fork of one server (`fork_server`).
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HERE = Path(__file__).resolve().parent


@contextmanager
def warm_python() -> Iterator[Path]:
    """Yields the path of an interpreter that runs scripts and `-m`.

    The modules of `preload` are imported already. Each program imports the project's modules itself.
    """
    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        place, executable = Path(folder, "socket"), Path(folder, "python")
        client = [sys.executable, "-IS", str(_HERE / "fork_client.py"), str(place)]
        executable.write_text(f'#!/bin/sh\nexec {shlex.join(client)} "$0" "$@"\n')
        executable.chmod(0o755)
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        server = subprocess.Popen(
            [sys.executable, str(_HERE / "fork_server.py"), str(place)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables,
        )  # fmt: skip
        with server:
            if server.stdin is None or server.stdout is None:
                raise RuntimeError("the server has no pipes")
            if not any(line == "ready\n" for line in server.stdout):
                raise RuntimeError("the server did not start")
            yield executable
            server.stdin.close()
