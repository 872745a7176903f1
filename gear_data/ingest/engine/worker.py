"""A worker process of a conversion, started by `WorkerPool`.

Command line: `python -m gear_data.ingest.engine.worker FD`, where FD is an inherited connection. The worker receives
(ConversionSpec, destination, threads), opens the source, and then receives tasks. During a task it sends the number of
source rows that it read (int). It ends a task with a TaskResult or a GearError. It exits when the connection closes.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from gear_data.errors import GearError
from gear_data.ingest.engine.tasks import run_task
from gear_data.storage.remote.object_store import open_file_store


def serve(connection: Connection[Any, Any]) -> None:
    """Runs the tasks that arrive, until one fails or the connection closes.

    Raises:
        EOFError, BrokenPipeError: The parent process ended.
    """
    spec, destination, threads = connection.recv()
    pa.set_cpu_count(threads)
    store = open_file_store(destination)
    try:
        source, _, _ = spec.open(threads=threads)
    except GearError as error:
        connection.recv()  # the parent reads a reply only after it sent a task
        connection.send(error)
        return
    while True:
        task = connection.recv()
        try:
            connection.send(run_task(task, spec, source, store, connection.send))
        except GearError as error:
            connection.send(error)
            return


if __name__ == "__main__":
    with suppress(EOFError, BrokenPipeError), Connection(int(sys.argv[1])) as parent:
        serve(parent)
