"""Program for a guest: reads a node on another guest by RDMA, once there is one.

When that guest is gone, the program notices it in time.

guest_peer.py DATASET HOST:PORT
"""

from __future__ import annotations

import faulthandler
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

from gear_data.cluster.addresses import Address
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.client.shard_client import ShardClient
from gear_data.common.secret import Secret
from gear_data.errors import NodeRefusedError, NodeUnreachableError
from tests.support.rdma.guest_rows import Rows


def wait_for(address: Address) -> None:
    """Waits until something listens at an address."""
    while True:
        try:
            return socket.create_connection((address.host, address.port), 5).close()
        except OSError:
            time.sleep(0.5)


def main(dataset: str, place: str) -> None:
    faulthandler.dump_traceback_later(2400, exit=True)
    rows, address, options = Rows(Path(dataset)), Address.parse(place), ClientOptions.from_environment()
    wait_for(address)
    client = ShardClient([address], options, transport="verbs")
    try:
        ShardClient([address], replace(options, token=Secret(b"not-the-token-of-the-RDMA-tests")), transport="verbs")
    except NodeRefusedError as error:
        print("without the token:", error, flush=True)
    for spans in (1, 100, 2000):
        rows.check(client, rows.request(spans, spans))
    print("equal", flush=True)
    begun, request = time.monotonic(), rows.request(100, 1)
    try:
        while True:
            client.fetch(request)
            begun = time.monotonic()
    except NodeUnreachableError as error:
        print(f"gone after {time.monotonic() - begun:.1f} s: {error}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
