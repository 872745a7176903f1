"""Server process of one node of a training run.

It runs as long as any of the node's ranks lives.

    python -m gear_data.cluster.server.node_server DESCRIPTOR

The process reads a `ServerConfig` as one line of JSON from its standard input. It answers with one line: a
`ServerInfo`, or an error. DESCRIPTOR is the read end of a pipe whose write end the ranks hold; see `supervisor`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from dataclasses import dataclass

import msgspec

from gear_data.cluster.addresses import Address
from gear_data.cluster.error_codec import error_to_bytes
from gear_data.cluster.flight.server import FlightServer
from gear_data.cluster.rdma.server import offers_rdma
from gear_data.cluster.run_credentials import RunCredentials
from gear_data.cluster.server.served_generations import GenerationOpener, ServedGeneration, ServedGenerations
from gear_data.common.secret import Secret, decode_json
from gear_data.common.typed_json import resolved
from gear_data.errors import GearError, GenerationGoneError
from gear_data.storage.dataset_files import open_files

#: Seconds without a request after which a server exits once its ranks have exited. Ranks of other nodes may be a few
#: batches behind.
LINGER_SECONDS = 3.0
#: Longest time that a server stays for clients that hold queue pairs: it does not see their READs. A client that hangs
#: holds its queue pairs as well.
LINGER_RDMA_SECONDS = 3600.0
#: Seconds for which a server keeps an earlier generation after its last client. Then its clients, which keep the files,
#: can have it opened again.
KEEP_SECONDS = 5.0
_CHECK_SECONDS = 0.25

_log = logging.getLogger(__name__)


@resolved
@dataclass(frozen=True)
class ServerConfig:
    """Configuration of a node's server.

    Attributes:
        dataset: folder or URL of the dataset.
        cache_dir, cache_bytes: see `gear_data.open`.
        residency: `mmap`, `host` or `pinned`, see `open_shards`.
        transport: see `open_rdma_server`.
        shards: the node's shards.
        host, port: address to listen at; port 0 takes a free port.
        credentials: the run's credentials.
        generation: the generation that the shards are of.
    """

    dataset: str
    cache_dir: str | None
    cache_bytes: int | None
    residency: str
    transport: str
    shards: tuple[int, ...]
    host: str
    port: int
    credentials: RunCredentials
    generation: int = 0


@resolved
@dataclass(frozen=True)
class ServerInfo:
    """A running server.

    Attributes:
        address: where it listens.
        verbs: whether its shards can be read by RDMA. A node without shards may get some of a later generation.
    """

    address: Address
    verbs: bool


def main() -> None:
    config = decode_json(Secret(sys.stdin.buffer.readline()), ServerConfig)
    serving, ranks_exited = threading.Event(), threading.Event()
    threading.Thread(target=_wait_for_ranks, args=(int(sys.argv[1]), serving, ranks_exited), daemon=True).start()
    try:
        server, info = _open_server(config)
    except GearError as error:
        _send_line(error_to_bytes(error))
        sys.exit(1)
    serving.set()
    _send_line(msgspec.json.encode(info))
    ranks_exited.wait()
    limit = time.monotonic() + LINGER_RDMA_SECONDS
    while time.monotonic() < server.last_used + LINGER_SECONDS or (server.holding and time.monotonic() < limit):
        time.sleep(_CHECK_SECONDS)
    # `server.shutdown` would wait for the streams that other nodes keep open.
    os._exit(0)


def _open_server(config: ServerConfig) -> tuple[FlightServer, ServerInfo]:
    files = open_files(config.dataset, config.cache_dir, config.cache_bytes)
    opener = GenerationOpener(files, config.residency, config.transport, by_clients=True)
    first: ServedGeneration | None = None
    # A node without shards may get some of a later generation.
    if config.shards:
        try:
            first = opener.open(config.generation, config.shards)
        except GenerationGoneError:
            # A restarted server: its clients have gone on, and name the generation that they read.
            _log.warning("generation %d is gone; clients say which one they read", config.generation)
    in_memory = config.residency != "mmap"
    verbs = offers_rdma(config.transport, in_memory=in_memory) if first is None else first.rdma is not None
    generations = ServedGenerations(first, opener, KEEP_SECONDS)
    server = FlightServer(generations, Address(config.host, config.port), config.credentials.server())
    return server, ServerInfo(Address(config.host, server.port), verbs)


def _send_line(line: bytes) -> None:
    print(line.decode(), flush=True)


def _wait_for_ranks(descriptor: int, serving: threading.Event, ranks_exited: threading.Event) -> None:
    """Sets an event when the last rank has exited.

    If that happens before the server serves, ends the process.
    """
    while os.read(descriptor, 1 << 10):
        pass
    ranks_exited.set()
    if not serving.is_set():
        os._exit(1)


if __name__ == "__main__":
    main()
