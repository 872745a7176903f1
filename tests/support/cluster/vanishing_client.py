"""Programs for a test of a vanishing client: a node, and its client.

The node has short keepalive times.

python vanishing_client.py node DATASET HOST    prints a line when a stream begins, and when it ends
python vanishing_client.py client HOST:PORT     reads a row, and another row for each line of input

The first line of the input of both is the run's credentials.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from gear_data.cluster.addresses import Address
from gear_data.cluster.client.peer import Peer
from gear_data.cluster.flight import keepalive
from gear_data.cluster.flight.client import Endpoint, Stream
from gear_data.cluster.flight.server import FlightServer
from gear_data.cluster.protocol import ColumnGroup, Request, handshake
from gear_data.cluster.run_credentials import RunCredentials, run_options
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.common.secret import Secret, decode_json
from gear_data.storage.dataset_files import open_files


class _VerboseServer(FlightServer):
    def do_exchange(self, *arguments: Any) -> None:
        print("begun", flush=True)
        try:
            super().do_exchange(*arguments)
        finally:
            print("ended", flush=True)


def node(credentials: RunCredentials, dataset: str, host: str) -> None:
    keepalive.IDLE_SECONDS, keepalive.INTERVAL_SECONDS, keepalive.PROBES = 2, 1, 2
    server = _VerboseServer(ShardServer(open_files(Path(dataset))), Address(host, 0), credentials.server())
    print(f"{server.port} {keepalive.vanished_seconds()}", flush=True)
    server.serve()


def client(credentials: RunCredentials, location: str) -> None:
    credentials.export()
    address, options = Address.parse(location), run_options(credentials.run)
    stream = Stream(Endpoint(address, options), handshake(Peer(address, options).describe().dataset))
    row = Request(np.array([0]), (ColumnGroup((0,), np.array([0]), np.array([1])),)).to_bytes()
    while True:
        stream.post(row)
        print(len(stream.take()[0]), "bytes", flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    first = decode_json(Secret(sys.stdin.buffer.readline()), RunCredentials)
    {"node": node, "client": client}[sys.argv[1]](first, *sys.argv[2:])
