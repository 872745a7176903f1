"""Node processes of tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class NodeProcess:
    """`gear-data serve` on a port that stays its own when it is started again."""

    def __init__(self, dataset: Path, shards: str | None = None, options: Sequence[str] = ()) -> None:
        self._command = [sys.executable, "-m", "gear_data.cli", "serve", str(dataset), "--json", *options]
        self._command += [] if shards is None else ["--shards", shards]
        self._process: subprocess.Popen[str] | None = None
        self.address = "127.0.0.1:0"
        self.begin()

    def begin(self) -> None:
        """Starts the process, which `wait` waits for."""
        command = [*self._command, "--listen", self.address]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def wait(self) -> dict[str, Any]:
        """What it says of itself once it listens."""
        facts: dict[str, Any] = json.loads(self._running.stdout.readline())  # type: ignore[union-attr]
        self.address = facts["listen"]
        return facts

    def kill(self) -> None:
        self._running.kill()
        self._running.communicate()

    def stop(self) -> None:
        """It answers no more, but its connections stay."""
        self._running.send_signal(signal.SIGSTOP)
        # On a busy machine its threads may answer for a while yet.
        os.waitid(os.P_PID, self._running.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self._running.send_signal(signal.SIGCONT)

    @property
    def lives(self) -> bool:
        return self._running.poll() is None

    @property
    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("it was not started")
        return self._process


def url(*nodes: NodeProcess) -> str:
    return "gear://" + ",".join(node.address for node in nodes)
