"""A worker process that reads video files, started by `WorkerProcess`.

Command line: `python -m gear_data.video.indexing.worker FD`, where FD is an inherited connection. The worker receives
(function, path, arguments, file) and sends the result or a GearError. It exits when the connection closes, so it ends
with its parent.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from gear_data.errors import CorruptSourceError, GearError
from gear_data.video.memory_limit import limit_memory

#: Most bytes of memory that a worker may allocate. A damaged file may declare tables of any size.
MEMORY_BYTES = 2 << 30


def serve(connection: Connection[Any, Any]) -> None:
    """Calls the functions that arrive until the parent closes the connection."""
    with suppress(EOFError, OSError):
        while True:
            function, path, arguments, file = connection.recv()
            try:
                result = function(path, *arguments)
            except GearError as error:
                result = error
            except MemoryError:
                result = CorruptSourceError(
                    f"FFmpeg needs more than {MEMORY_BYTES >> 30} GiB to read it",
                    file=file,
                    hint="copy or download the file again",
                )
            connection.send(result)


if __name__ == "__main__":
    limit_memory(MEMORY_BYTES)
    with Connection(int(sys.argv[1])) as inherited:
        serve(inherited)
