"""Node processes in a guest. They are forked from one that has imported everything, which takes long there."""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from gear_data.cluster.addresses import Address
from gear_data.cluster.flight.server import FlightServer, ServerCredentials
from gear_data.cluster.rdma.server import open_rdma_server
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.storage.dataset_files import open_files

LOOPBACK = "127.0.0.1"


@dataclass
class GuestNode:
    """A node's process, and where it listens."""

    process: int
    address: Address

    def signal(self, number: int) -> None:
        os.kill(self.process, number)

    def kill(self) -> None:
        """Till it is gone: its memory can be read until the kernel has taken the process apart."""
        self.signal(signal.SIGKILL)
        while os.path.exists(f"/proc/{self.process}"):
            time.sleep(0.01)


class Spawner:
    """Starts nodes of a dataset. To be made before anything uses gRPC."""

    def __init__(self, dataset: Path) -> None:
        self._dataset = dataset
        (asked, self._ask), (self._said, say) = os.pipe(), os.pipe()
        if os.fork() == 0:
            try:
                # Nodes that end leave nothing behind.
                signal.signal(signal.SIGCHLD, signal.SIG_IGN)
                with os.fdopen(asked) as requests:
                    for line in requests:
                        self._start(json.loads(line), say)
            finally:
                os._exit(0)

    def _start(self, options: dict[str, object], say: int) -> None:
        if os.fork() != 0:
            return
        try:
            served = ShardServer(open_files(self._dataset), options["shards"], "host")  # type: ignore[arg-type]
            listen = Address(LOOPBACK, int(options["port"]))  # type: ignore[call-overload]
            server = FlightServer(
                served, listen, ServerCredentials(), open_rdma_server(served, str(options["transport"]))
            )
            os.write(say, json.dumps([os.getpid(), server.port]).encode() + b"\n")
            server.serve()
        except BaseException:
            traceback.print_exc()
            os.write(say, b"null\n")
        os._exit(1)

    def node(self, shards: list[int] | None = None, port: int = 0, transport: str = "verbs") -> GuestNode:
        os.write(self._ask, json.dumps({"shards": shards, "port": port, "transport": transport}).encode() + b"\n")
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(self._said, 1)
        process, port = json.loads(line)
        return GuestNode(process, Address(LOOPBACK, port))
