"""A node with little patience, and a client of it, for a test in which the client vanishes.

python vanishing_client.py node DATASET HOST    tells of each stream when it begins and ends
python vanishing_client.py client HOST:PORT     reads a row, and another at every line of its input

The first line of either's input is the secret of their run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from gear_data.cluster.addresses import Address
from gear_data.cluster.client.peer import Peer
from gear_data.cluster.credentials import RunCredentials, access
from gear_data.cluster.flight import keepalive
from gear_data.cluster.flight.client import Endpoint, Stream
from gear_data.cluster.flight.server import FlightServer, ServerCredentials
from gear_data.cluster.protocol import ColumnGroup, Request, handshake
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.storage.dataset_files import open_files


class _Telling(FlightServer):
    def do_exchange(self, *arguments: Any) -> None:
        print("begun", flush=True)
        try:
            super().do_exchange(*arguments)
        finally:
            print("ended", flush=True)


def node(secret: RunCredentials, dataset: str, host: str) -> None:
    keepalive.IDLE_SECONDS, keepalive.INTERVAL_SECONDS, keepalive.PROBES = 2, 1, 2
    guard = ServerCredentials(secret.token, secret.certificate.encode(), secret.key.encode())
    server = _Telling(ShardServer(open_files(Path(dataset))), Address(host, 0), guard)
    print(f"{server.port} {keepalive.gone_after()}", flush=True)
    server.serve()


def client(secret: RunCredentials, place: str) -> None:
    secret.keep()
    address, shown = Address.parse(place), access(secret.run)
    stream = Stream(Endpoint(address, shown), handshake(Peer(address, shown).describe().dataset))
    row = Request(np.array([0]), (ColumnGroup((0,), np.array([0]), np.array([1])),)).to_bytes()
    while True:
        stream.post(row)
        print(len(stream.take()[0]), "bytes", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    first = RunCredentials.from_json(json.loads(sys.stdin.readline()))
    {"node": node, "client": client}[sys.argv[1]](first, *sys.argv[2:])
