"""WorkerProcess: runs FFmpeg over untrusted files in a process of its own.

A crash, a hang, or too much memory is an error of one file, and the process is replaced.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from gear_data.errors import CorruptSourceError, GearError

#: Seconds that a process may take to end when its connection is closed.
_SECONDS_TO_END = 30.0

Result = TypeVar("Result")


class WorkerEndedError(Exception):
    """Raised if a worker process crashed or hung. The text says which."""


class WorkerProcess:
    """A worker process, started at its first file and again after it died.

    One thread uses it at a time. As a context manager, it is closed at the end.

    Args:
        module: the module that runs in the process, with the number of an inherited connection as its argument.
    """

    def __init__(self, module: str = "gear_data.video.indexing.worker") -> None:
        self._module = module
        self._running: tuple[subprocess.Popen[bytes], Connection[Any, Any]] | None = None

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, message: object, seconds: float) -> Any:
        """Sends a message to the process, and returns the answer that arrives within `seconds`.

        Raises WorkerEndedError without an answer.
        """
        process, connection = self._started()
        try:
            connection.send(message)
            if connection.poll(seconds):
                return connection.recv()
            problem = f"FFmpeg did not finish reading it within {seconds:.0f} s"
        except (EOFError, OSError):
            with suppress(subprocess.TimeoutExpired):
                process.wait(_SECONDS_TO_END)
            problem = f"FFmpeg ended its process with status {process.returncode} while reading it"
        except BaseException:
            # The answer would be taken for that of the next message.
            self.close()
            raise
        self.close()
        raise WorkerEndedError(problem)

    def run(
        self, function: Callable[..., Result], path: Path, *arguments: Any, file: str, seconds: float
    ) -> Result | GearError:
        """Calls `function(path, *arguments)` in the process.

        Args:
            function: a function of a module, which pickle finds by its name.
            path: the file.
            arguments: further arguments; picklable.
            file: name of the file, for errors.
            seconds: the timeout.

        Returns:
            The result, or the GearError that the function raised. If the process crashed, hung, or needed too much
            memory, it is CorruptSourceError.
        """
        try:
            result: Result | GearError = self.ask((function, path, arguments, file), seconds)
            return result
        except WorkerEndedError as error:
            hint = "the file may be damaged: copy or download it again, or encode it again"
            return CorruptSourceError(str(error), file=file, hint=hint)

    def kill(self) -> None:
        """Ends the process. If it is reading a file, the file has an error."""
        if self._running is not None:
            self._running[0].kill()

    def close(self) -> None:
        """Waits for the end of the process. Call it when no thread uses the worker."""
        if self._running is not None:
            process, connection = self._running
            self._running = None
            process.kill()
            process.wait()
            connection.close()

    def _started(self) -> tuple[subprocess.Popen[bytes], Connection[Any, Any]]:
        if self._running is None:
            ours, theirs = Pipe()
            with theirs:
                command = [sys.executable, "-m", self._module, str(theirs.fileno())]
                # A terminal interrupts all processes of a session. The parent ends this one.
                process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
                )
            self._running = process, ours
        return self._running
