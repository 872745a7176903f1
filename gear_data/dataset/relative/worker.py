"""A worker process of statistics, started by `gear_data.dataset.relative.engines`.

Command line: `python -m gear_data.dataset.relative.worker FD`, where FD is an inherited connection. The worker receives
objects, and then calls of their methods. It answers each call with the result or a GearError. It exits when the
connection closes.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from gear_data.dataset.relative.engines import called
from gear_data.errors import GearError


def serve(connection: Connection[Any, Any]) -> None:
    """Answers calls until the other end closes."""
    with suppress(EOFError, OSError):
        objects = connection.recv()
        while True:
            call = connection.recv()
            try:
                result = called(objects, call)
            except GearError as error:
                result = error
            connection.send(result)


if __name__ == "__main__":
    with Connection(int(sys.argv[1])) as inherited:
        serve(inherited)
