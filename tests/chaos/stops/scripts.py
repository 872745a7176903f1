"""Scripts that a process forks, and that a harness stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any

from tests.support.running.warm_python import INTERPRETER


class Scripts:
    """A process that runs `fork_scripts` of a module.

    Args:
        arguments: arguments of the module.
        errors: file of what a script writes to standard error.
        patience: seconds after which a script that says nothing hangs.
    """

    def __init__(self, module: ModuleType, arguments: list[str], errors: Path, patience: float) -> None:
        self._errors = errors
        self._patience = patience
        self._process = subprocess.Popen(
            [INTERPRETER, "-m", module.__name__, *arguments], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,  # not interrupted with this process
        )  # fmt: skip
        self._lines: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self._pid = 0

    def __enter__(self) -> Scripts:
        self.expect("ready")
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line.strip())

    def fork(self, **case: Any) -> None:
        """Starts a script."""
        print(json.dumps({**case, "errors": str(self._errors)}), file=self._process.stdin, flush=True)
        self._pid = int(self.expect("pid ").removeprefix("pid "))

    def said(self) -> str | None:
        """Returns the next line, or None if the script hangs."""
        with suppress(Empty):
            return self._lines.get(timeout=self._patience)
        return None

    def expect(self, prefix: str) -> str:
        """Returns the next line, which begins with `prefix`, on a machine of any speed."""
        line = self._lines.get(timeout=20 * self._patience)
        if not line.startswith(prefix):
            raise RuntimeError(f"the script said {line!r} instead of {prefix!r}: {self.errors()[-2000:]}")
        return line

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        while not self._lines.get(timeout=20 * self._patience).startswith("ended"):
            pass

    def errors(self) -> str:
        return self._errors.read_text(errors="replace") if self._errors.exists() else ""

    def stacks(self) -> str:
        """Returns the stacks of all threads, in one line."""
        self.signal(signal.SIGUSR1)
        time.sleep(0.5)
        return " / ".join(line.strip() for line in self.errors().splitlines()[-40:])
