"""Processes that stop at a chosen call of a function, until the test lets them continue."""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from gear_data.errors import GearError
from gear_data.ingest.sources import registry

#: Seconds after which a process is taken to hang.
TIMEOUT = 60


@dataclass(frozen=True)
class Stop:
    """A call at which a process stops.

    Attributes:
        function: `module:function` or `module:Class.method`, where the caller looks the function up.
        after: stop when the call has returned, not before it.
        argument: stop only at calls that have this argument; None stops at the first call.
    """

    function: str
    after: bool = False
    argument: Any = None


class StoppableProcess:
    """A process that calls a function and reports its result.

    Args:
        call: a function of a module.
        arguments: its positional and keyword arguments.
        stop: where the process stops; None never stops.
    """

    def __init__(self, call: Callable[..., Any], *arguments: Any, stop: Stop | None = None, **options: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        # Imports take seconds. The fork server does them once.
        readers = [f"gear_data.ingest.sources.{name}" for name in registry._MODULES]
        modules = [
            "pandas",
            "pytest",
            "gear_data.ingest.convert",
            "gear_data.ingest.repair",
            "gear_data.exports.parquet",
        ]
        context.set_forkserver_preload([*modules, *readers, __name__])
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_run, args=(theirs, call, arguments, options, stop), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def expect(self, kind: str) -> Any:
        """Returns the process's next message, which must be of a kind: `stopped`, `log`, `done` or `error`."""
        found, value = self.next()
        assert found == kind, (found, value)
        return value

    def next(self) -> tuple[str, Any]:
        """Returns the process's next message."""
        assert self._connection.poll(TIMEOUT), "the process hangs"
        message: tuple[str, Any] = self._connection.recv()
        return message

    def end(self) -> tuple[str, Any]:
        """Lets the process continue, and returns its last message: `done` or `error`."""
        self._connection.send("continue")
        message = self.next()
        while message[0] not in ("done", "error"):
            message = self.next()
        self.process.join(TIMEOUT)
        return message

    def kill(self) -> None:
        self.process.kill()
        self.process.join(TIMEOUT)
        self._connection.close()


@contextmanager
def stoppable(*arguments: Any, **options: Any) -> Iterator[StoppableProcess]:
    """Provides a process, and kills it at the end. See `StoppableProcess`."""
    process = StoppableProcess(*arguments, **options)
    try:
        yield process
    finally:
        process.kill()


class _Sender(logging.Handler):
    def __init__(self, connection: Connection[Any, Any]) -> None:
        super().__init__(logging.WARNING)
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        self._connection.send(("log", record.getMessage()))


def _run(connection: Connection[Any, Any], call: Callable[..., Any], arguments: Any, options: Any, stop: Any) -> None:
    logging.getLogger("gear_data").addHandler(_Sender(connection))
    os.fsync = lambda descriptor: None
    if stop is not None:
        _install(stop, connection)
    try:
        connection.send(("done", call(*arguments, **options)))
    except GearError as error:
        connection.send(("error", error))


def _install(stop: Stop, connection: Connection[Any, Any]) -> None:
    module, _, path = stop.function.partition(":")
    *owners, name = path.split(".")
    owner = importlib.import_module(module)
    for each in owners:
        owner = getattr(owner, each)
    original = getattr(owner, name)
    pending = True

    def stopping(*arguments: Any, **options: Any) -> Any:
        nonlocal pending
        here = pending and (stop.argument is None or stop.argument in arguments)
        pending = pending and not here
        if here and not stop.after:
            _wait(connection)
        result = original(*arguments, **options)
        if here and stop.after:
            _wait(connection)
        return result

    setattr(owner, name, stopping)


def _wait(connection: Connection[Any, Any]) -> None:
    connection.send(("stopped", None))
    connection.recv()
