"""Checks in a guest: Arrow Flight over a link that is slow, lossy and cut.

The hosts are network namespaces, and `tc netem` delays and drops packets. `tests/cluster/test_network.py` has whole
runs over a link that needs no netem.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gear_data.cluster.addresses import Address
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.client.shard_client import ShardClient
from gear_data.cluster.credentials import ServerCredentials, read_token
from gear_data.cluster.flight.server import FlightServer
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.errors import NodeUnreachableError
from gear_data.storage.dataset_files import open_files
from tests.support.cluster.network_link import enter
from tests.support.rdma.guest import address
from tests.support.rdma.guest_results import run
from tests.support.rdma.guest_rows import Rows

HOSTS = {"gear-node": address(1), "gear-client": address(2)}
NODE, CLIENT = HOSTS
DEVICE = "gear0"
#: Seconds that a response may take. Emulation is slow.
TIMEOUT = 8.0
DELAY = 0.01
#: Seconds that all checks may take.
LIMIT = 240


class Network:
    """A node on one host, and a client in this process on the other.

    Args:
        rows: rows of the dataset.
        compare: checks that batches read by a client are the expected ones.
        protection: folder with the node's certificate, its key, and a token.
    """

    def __init__(self, rows: Rows, compare: Callable[[ShardClient], None], protection: Path) -> None:
        self.rows, self.compare = rows, compare
        _shell(*_link_commands())
        certificate, key = protection / "node.pem", protection / "node.key"
        token = read_token(protection / "token")
        self.node = Address(HOSTS[NODE], _serve(rows.dataset, ServerCredentials.from_files(token, certificate, key)))
        enter(CLIENT)
        self.client = ShardClient(
            [self.node], ClientOptions(token, certificate.read_bytes(), TIMEOUT), transport="flight"
        )

    def impair(self) -> None:
        """Delays and drops packets in both directions."""
        _shell(*(f"tc -n {host} qdisc add dev {DEVICE} root netem delay {DELAY}s loss 1%" for host in HOSTS))

    def lost(self) -> list[int]:
        """Returns the number of dropped packets in each direction."""
        shown = _shell(*(f"tc -n {host} -s qdisc show dev {DEVICE}" for host in HOSTS))
        return [int(count) for count in re.findall(r"netem.*?dropped (\d+)", shown, re.DOTALL)]

    def set_link(self, state: str) -> None:
        _shell(f"ip -n {NODE} link set {DEVICE} {state}")

    def wait(self) -> None:
        """Waits until packets arrive.

        The kernel does not retry an unreachable address at once.
        """
        limit = time.monotonic() + TIMEOUT
        while True:
            try:
                socket.create_connection((self.node.host, self.node.port), TIMEOUT).close()
                return
            except OSError:
                if time.monotonic() > limit:
                    raise
                time.sleep(0.1)


def _link_commands() -> Iterator[str]:
    """Returns the commands that create the namespaces and a link between them."""
    yield from (f"ip netns add {host}" for host in HOSTS)
    yield f"ip link add {DEVICE} netns {NODE} type veth peer name {DEVICE} netns {CLIENT}"
    for host, place in HOSTS.items():
        yield f"ip -n {host} address add {place}/24 dev {DEVICE}"
        # As between machines: the device does not send 64 KiB as one packet.
        yield f"ip -n {host} link set {DEVICE} up gso_max_size 1500 gso_max_segs 1"
        yield f"ip -n {host} link set lo up"


def _shell(*lines: str) -> str:
    return subprocess.run(["sh", "-ec", "\n".join(lines)], check=True, stdout=subprocess.PIPE, text=True).stdout


def _serve(dataset: Path, credentials: ServerCredentials) -> int:
    """Starts the node, which ends with the guest, and returns its port."""
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        try:
            enter(NODE)
            server = FlightServer(ShardServer(open_files(dataset), None, "host"), Address(HOSTS[NODE], 0), credentials)
            os.write(write_end, f"{server.port}\n".encode())
            server.serve()
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(write_end)
    with os.fdopen(read_end) as lines:
        return int(lines.readline())


def check_a_slow_and_lossy_link(network: Network) -> None:
    network.impair()
    begun = time.monotonic()
    with socket.create_connection((network.node.host, network.node.port), TIMEOUT):
        # Two directions.
        assert time.monotonic() - begun > 2 * DELAY
    network.compare(network.client)
    limit, seed = time.monotonic() + 60, 0
    while not all(network.lost()):
        assert time.monotonic() < limit, f"dropped packets: {network.lost()}"
        seed += 1
        network.rows.check(network.client, network.rows.request(500, seed))


def check_a_cut_link(network: Network) -> None:
    request = network.rows.request(50, 1)
    network.rows.check(network.client, request)
    network.set_link("down")
    begun = time.monotonic()
    try:
        network.rows.check(network.client, request)
    except NodeUnreachableError as error:
        assert f"gear://{network.node}" in str(error), error
    else:
        raise AssertionError("the node answered over a link that is cut")
    assert time.monotonic() - begun < 2 * TIMEOUT + 2
    network.set_link("up")
    network.wait()
    network.rows.check(network.client, request)


class NetworkChecks:
    """The checks of this module in another process.

    Create it before anything uses gRPC: it forks.
    """

    def __init__(self, rows: Rows, compare: Callable[[ShardClient], None], protection: Path) -> None:
        self._read_end, write_end = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            try:
                signal.alarm(LIMIT)
                for row in run(globals(), Network(rows, compare, protection)):
                    os.write(write_end, json.dumps(row).encode() + b"\n")
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        os.close(write_end)

    def rows(self) -> list[dict[str, Any]]:
        """Waits for the process and returns the rows of `run`.

        Raises RuntimeError if it failed.
        """
        if os.waitpid(self._process, 0)[1] != 0:
            raise RuntimeError("the checks of the network failed")
        # One read returns all rows. Reading until end-of-file would not end: the node holds the write end too.
        return [json.loads(line) for line in os.read(self._read_end, 1 << 16).splitlines()]
