"""A worker process that indexes video files, started by `index_files`.

Command line: `python -m gear_data.video.indexing.worker FD`, where FD is an inherited connection. The worker receives
(path, file) and sends a VideoFile or a GearError. It exits when the connection closes, so it ends with its parent.
"""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from gear_data.errors import CorruptSourceError, GearError
from gear_data.video.indexing.demux import index_file

#: Most bytes of memory that a worker may allocate. A damaged file may declare tables of any size.
MEMORY_BYTES = 2 << 30


def serve(connection: Connection[Any, Any]) -> None:
    """Indexes the files that arrive until the parent closes the connection."""
    with suppress(EOFError, OSError):
        while True:
            path, file = connection.recv()
            try:
                connection.send(index_file(path, file))
            except GearError as error:
                connection.send(error)
            except MemoryError:
                connection.send(
                    CorruptSourceError(
                        f"FFmpeg needs more than {MEMORY_BYTES >> 30} GiB to read it",
                        file=file,
                        hint="copy or download the file again",
                    )
                )


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with Connection(int(sys.argv[1])) as inherited:
        serve(inherited)
