"""Node processes for tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.running.warm_python import INTERPRETER


class NodeProcess:
    """A `gear-data serve` process. It keeps its port when it is restarted.

    Args:
        dataset: folder of the dataset.
        shards: value of `--shards`; None: all.
        options: further options of the command.
    """

    def __init__(self, dataset: Path, shards: str | None = None, options: Sequence[str] = ()) -> None:
        self._command = [INTERPRETER, "-m", "gear_data.cli", "serve", str(dataset), "--json", *options]
        self._command += [] if shards is None else ["--shards", shards]
        self._process: subprocess.Popen[str] | None = None
        self.address = "127.0.0.1:0"
        self.begin()

    def begin(self) -> None:
        """Starts the process. `wait` waits until it serves."""
        command = [*self._command, "--listen", self.address]
        # A node that crashes says where.
        environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    def wait(self) -> dict[str, Any]:
        """Waits until the node listens, and returns its description."""
        facts: dict[str, Any] = json.loads(self._running.stdout.readline())  # type: ignore[union-attr]
        self.address = facts["listen"]
        return facts

    def kill(self) -> None:
        with self._running as process:  # closes its output, and waits
            process.kill()

    def stop(self) -> None:
        """Stops the process: it does not answer, but its connections stay open."""
        self._running.send_signal(signal.SIGSTOP)
        # On a busy machine its threads may answer for a while.
        os.waitid(os.P_PID, self._running.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self._running.send_signal(signal.SIGCONT)

    @property
    def pid(self) -> int:
        return self._running.pid

    @property
    def is_running(self) -> bool:
        return self._running.poll() is None

    @property
    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("the node was not started")
        return self._process


def url(*nodes: NodeProcess) -> str:
    return "gear://" + ",".join(node.address for node in nodes)
