"""A worker process of a conversion, started by `WorkerPool`.

Command line: `python -m gear_data.ingest.engine.worker FD`, where FD is an inherited connection. The worker receives
(ConversionSpec, destination, threads) and opens the source. It sends READY or a GearError, and then receives tasks.
During a task it sends the number of source rows that it read (int). It ends a task with a TaskResult or a GearError. It
exits when the connection closes.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from gear_data.common.extras import leave_out_pandas
from gear_data.errors import GearError
from gear_data.ingest.engine.tasks import READY, run_task
from gear_data.storage.remote.object_store import open_file_store


class _ParentEndedError(Exception):
    """Raised when the connection to the parent process broke."""


class _Parent:
    """The connection to the parent process.

    However the parent ended, both methods raise _ParentEndedError. A killed parent may close the connection after half
    of a message, or with messages that it did not read.
    """

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection

    def receive(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise _ParentEndedError from error

    def send(self, message: object) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise _ParentEndedError from error


def serve(connection: Connection[Any, Any]) -> None:
    """Runs the tasks that arrive, until one fails or the parent process ends."""
    with suppress(_ParentEndedError):
        _serve(_Parent(connection))


def _serve(parent: _Parent) -> None:
    spec, destination, threads = parent.receive()
    pa.set_cpu_count(threads)
    store = open_file_store(destination)
    try:
        source, _, _ = spec.open(threads=threads)
    except GearError as error:
        parent.send(error)
        return
    parent.send(READY)
    task = parent.receive()
    try:
        # The parent indexed the videos before it sent a task. All tasks share their index.
        source = spec.with_stored_cameras(source, store, threads)
    except GearError as error:
        parent.send(error)
        return
    while True:
        try:
            parent.send(run_task(task, spec, source, store, parent.send))
        except GearError as error:
            parent.send(error)
            return
        task = parent.receive()


if __name__ == "__main__":
    leave_out_pandas()
    with Connection(int(sys.argv[1])) as inherited:
        serve(inherited)
