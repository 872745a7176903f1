"""Nodes that start fast: forked from a process that has loaded everything, and has no threads."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

_server = multiprocessing.get_context("forkserver")
#: Modules of nodes and of DataLoader workers. The first process of this kind waits for them.
_MODULES = (
    "gear_data.cluster.flight.server",
    "gear_data.dataset.open",
    "gear_data.kernels.cpu.collect",
    "gear_data.kernels.cpu.remote_rows",
    "gear_data.loaders.sequence_loader",
    "tests.support.chaos.nodes",
)
_server.set_forkserver_preload(list(_MODULES))
#: Seconds until a node listens. The first one loads the modules.
_START_SECONDS = 120


class ForkedNode:
    """A node of a dataset. It keeps its port when it is started again.

    Args:
        dataset: folder of the dataset.
        shards: the served shards; None: all.
        token: the token that clients must send; None: none.
    """

    def __init__(self, dataset: str, shards: Sequence[int] | None = None, token: bytes | None = None) -> None:
        self._dataset, self._shards, self._token = dataset, shards, token
        self.port = 0
        self._process: ForkServerProcess | None = None
        self.begin()

    @property
    def pid(self) -> int:
        if self._process is None or self._process.pid is None:
            raise RuntimeError("the node does not run")
        return self._process.pid

    def begin(self) -> None:
        """Starts the node, and waits until it listens."""
        ours, theirs = _server.Pipe()
        self._process = _server.Process(
            target=_serve, args=(self._dataset, self._shards, self._token, self.port, theirs), daemon=True
        )
        self._process.start()
        theirs.close()
        with ours:
            if not ours.poll(_START_SECONDS):
                raise RuntimeError("the node does not start")
            self.port = ours.recv()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def stop(self) -> None:
        """Stops the process: it does not answer, but its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def url(nodes: Sequence[ForkedNode]) -> str:
    return "gear://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def _serve(dataset: str, shards: Sequence[int] | None, token: bytes | None, port: int, started: Connection) -> None:
    from gear_data.cluster.addresses import Address
    from gear_data.cluster.credentials import ServerCredentials
    from gear_data.cluster.flight.server import FlightServer
    from gear_data.cluster.server.shard_server import ShardServer
    from gear_data.common.secret import Secret
    from gear_data.storage.dataset_files import open_files

    credentials = ServerCredentials(None if token is None else Secret(token))
    server = FlightServer(ShardServer(open_files(dataset), shards), Address("127.0.0.1", port), credentials)
    started.send(server.port)
    started.close()
    server.serve()
