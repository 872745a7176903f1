"""Compiles kernels for all processes of a test run, while these collect tests.

Else every process would compile the same kernels at the same time. `main` compiles those that take long.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from tests.support.feed.arguments import grouped

#: Path of the file that the compiling process holds locked.
_LOCK = "GEAR_DATA_TESTS_COMPILING"


def begin() -> None:
    """Starts the process that compiles.

    Processes that this one starts can wait for it.
    """
    descriptor, os.environ[_LOCK] = tempfile.mkstemp(prefix="gear-data-compiling-")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    # The lock ends with the process, whatever happens to the process.
    subprocess.Popen([sys.executable, "-m", __name__], pass_fds=[descriptor], start_new_session=True)
    os.close(descriptor)


def wait() -> None:
    """Waits until the process of `begin` has ended, if a parent has called it."""
    if _LOCK in os.environ:
        with open(os.environ[_LOCK]) as file:
            fcntl.flock(file, fcntl.LOCK_SH)


def end() -> None:
    """Removes what `begin` made."""
    Path(os.environ.pop(_LOCK)).unlink()


def main() -> None:
    """Reads batches with every sampler, with goals, of a mixture, and from a node."""
    import gear_data
    from gear_data.cluster.addresses import Address
    from gear_data.cluster.credentials import ServerCredentials
    from gear_data.cluster.flight.server import FlightServer
    from gear_data.cluster.server.shard_server import ShardServer
    from gear_data.storage.dataset_files import open_files
    from tests.support.feed.data import EVERY_SAMPLER, shared_out

    def read(dataset: gear_data.Dataset, **options: object) -> None:
        loader = gear_data.SequenceLoader(dataset, 4, **grouped(framework="numpy", prefetch=0, **options))
        list(itertools.islice(loader, 1))

    with tempfile.TemporaryDirectory() as folder:
        path = shared_out(Path(folder, "d"))
        dataset = gear_data.open(path)
        for sampler in EVERY_SAMPLER.values():
            read(dataset, context=5, sampler=sampler)
        read(dataset, context=1, goals=gear_data.Goals(subgoal_steps=2), dtype="bfloat16")
        loader = gear_data.SequenceLoader(gear_data.Mixture([dataset, dataset], join=True), 4, context=5, prefetch=0)
        next(iter(loader))
        server = FlightServer(ShardServer(open_files(path)), Address("127.0.0.1", 0), ServerCredentials())
        threading.Thread(target=server.serve, daemon=True).start()
        read(gear_data.open(f"gear://127.0.0.1:{server.port}"), context=5)


if __name__ == "__main__":
    main()
    # The server's shutdown would wait for its clients, and this process is one.
    os._exit(0)
