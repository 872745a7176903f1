"""The server of a training run's node: a process that serves the node's shards as long as any of its ranks lives.

    python -m gear_data.cluster.server.node_server DESCRIPTOR

What it serves stands as a line of JSON on its standard input. It answers with one line: where it listens, or what is
wrong. DESCRIPTOR is the read end of a pipe whose write end its ranks hold, see `hosting`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from gear_data.cluster.addresses import Address
from gear_data.cluster.credentials import RunCredentials
from gear_data.cluster.flight.server import FlightServer, ServerCredentials
from gear_data.cluster.rdma.server import open_rdma_server
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.common.error_codec import error_to_bytes
from gear_data.errors import GearError
from gear_data.storage.dataset_files import open_files

#: Seconds without a request after which a server whose ranks have ended ends too: those of other nodes may be a few
#: batches behind.
LINGER_SECONDS = 3.0
#: The same where others hold queue pairs, whose use a server does not see. Of a rank that hangs it hears nothing.
_LINGER_HELD_SECONDS = 3600.0
_LOOK = 0.25


@dataclass(frozen=True)
class ServerConfig:
    """What a server is for.

    Attributes:
        dataset: its folder or URL.
        cache_dir, cache_bytes: see `gear_data.open`.
        residency: `host` or `mmap`.
        transport: see `open_rdma_server`.
        shards: those of the node.
        host, port: where it listens; port 0 takes a free one.
        secret: of the run.
    """

    dataset: str
    cache_dir: str | None
    cache_bytes: int | None
    residency: str
    transport: str
    shards: tuple[int, ...]
    host: str
    port: int
    secret: RunCredentials

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "secret": self.secret.to_json()}

    @staticmethod
    def from_json(data: dict[str, Any]) -> ServerConfig:
        return ServerConfig(
            **{**data, "shards": tuple(data["shards"]), "secret": RunCredentials.from_json(data["secret"])}
        )


@dataclass(frozen=True)
class ServerInfo:
    """What a server says when it serves.

    Attributes:
        address: where it listens.
        verbs: whether its shards can be read by RDMA.
    """

    address: Address
    verbs: bool

    def to_json(self) -> dict[str, Any]:
        return {"listen": str(self.address), "verbs": self.verbs}

    @staticmethod
    def from_json(data: dict[str, Any]) -> ServerInfo:
        return ServerInfo(Address.parse(data["listen"]), data["verbs"])


def main() -> None:
    job = ServerConfig.from_json(json.loads(sys.stdin.buffer.readline()))
    serving, ended = threading.Event(), threading.Event()
    threading.Thread(target=_watch, args=(int(sys.argv[1]), serving, ended), daemon=True).start()
    try:
        server, said = _open_server(job)
    except GearError as error:
        _say(error_to_bytes(error).decode())
        sys.exit(1)
    serving.set()
    _say(json.dumps(said.to_json()))
    ended.wait()
    limit = time.monotonic() + _LINGER_HELD_SECONDS
    while time.monotonic() < server.last_used + LINGER_SECONDS or (server.holding and time.monotonic() < limit):
        time.sleep(_LOOK)
    # Shutting down would wait for streams that other nodes have open.
    os._exit(0)


def _open_server(job: ServerConfig) -> tuple[FlightServer, ServerInfo]:
    served = ShardServer(open_files(job.dataset, job.cache_dir, job.cache_bytes), job.shards, job.residency)
    memory = open_rdma_server(served, job.transport)
    secret = job.secret
    guard = ServerCredentials(secret.token, secret.certificate.encode() or None, secret.key.encode() or None)
    listen = Address(job.host, job.port)
    server = FlightServer(served, listen, guard, memory)
    return server, ServerInfo(Address(job.host, server.port), memory is not None)


def _say(line: str) -> None:
    print(line, flush=True)


def _watch(held: int, serving: threading.Event, ended: threading.Event) -> None:
    """Notes when the last rank has ended; before anything is served the process ends with it."""
    while os.read(held, 1 << 10):
        pass
    ended.set()
    if not serving.is_set():
        os._exit(1)


if __name__ == "__main__":
    main()
