"""Node processes in a guest.

They are forked from a process that has imported everything: imports take long in a guest.
"""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from gear_data.cluster.addresses import Address
from gear_data.cluster.credentials import ServerCredentials
from gear_data.cluster.flight.server import FlightServer
from gear_data.cluster.rdma.server import open_rdma_server
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.storage.dataset_files import open_files

LOOPBACK = "127.0.0.1"


@dataclass
class GuestNode:
    """A node's process and address."""

    process: int
    address: Address

    def signal(self, number: int) -> None:
        os.kill(self.process, number)

    def kill(self) -> None:
        """Kills the process and waits until it is gone: until then its memory can be read."""
        self.signal(signal.SIGKILL)
        while os.path.exists(f"/proc/{self.process}"):
            time.sleep(0.01)


class Spawner:
    """Starts nodes of a dataset. Create it before anything uses gRPC: it forks."""

    def __init__(self, dataset: Path) -> None:
        self._dataset = dataset
        (requests, self._requests), (self._answers, answers) = os.pipe(), os.pipe()
        if os.fork() == 0:
            try:
                # Exited nodes leave no zombies.
                signal.signal(signal.SIGCHLD, signal.SIG_IGN)
                with os.fdopen(requests) as lines:
                    for line in lines:
                        self._start(json.loads(line), answers)
            finally:
                os._exit(0)

    def _start(self, options: dict[str, object], answers: int) -> None:
        if os.fork() != 0:
            return
        try:
            served = ShardServer(open_files(self._dataset), options["shards"], "host")  # type: ignore[arg-type]
            listen = Address(LOOPBACK, int(options["port"]))  # type: ignore[call-overload]
            server = FlightServer(
                served, listen, ServerCredentials(), open_rdma_server(served, str(options["transport"]))
            )
            os.write(answers, json.dumps([os.getpid(), server.port]).encode() + b"\n")
            server.serve()
        except BaseException:
            traceback.print_exc()
            os.write(answers, b"null\n")
        os._exit(1)

    def node(self, shards: list[int] | None = None, port: int = 0, transport: str = "verbs") -> GuestNode:
        os.write(self._requests, json.dumps({"shards": shards, "port": port, "transport": transport}).encode() + b"\n")
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(self._answers, 1)
        process, port = json.loads(line)
        return GuestNode(process, Address(LOOPBACK, port))
