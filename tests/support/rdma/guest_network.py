"""Runs in a guest, beside `guest_checks`: Arrow Flight between hosts in network namespaces, over a wire that `tc netem`
makes slow and lossy, and that is cut.

`tests/cluster/test_network.py` has whole runs over a wire of its own, on machines whose kernel has no netem too.
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

from gear_data.cluster.addresses import Address, ClientOptions, read_token
from gear_data.cluster.client.shard_client import ShardClient
from gear_data.cluster.flight.server import FlightServer, ServerCredentials
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
#: Seconds that an answer may take. What is emulated is slow.
TIMEOUT = 8.0
DELAY = 0.01
#: Seconds that all of this may take.
LIMIT = 240


class Network:
    """A node on one host, and this process on the other.

    Args:
        rows: of the dataset.
        equal: that batches read from nodes are the expected ones.
        protection: the folder of the node's certificate, its key, and a token.
    """

    def __init__(self, rows: Rows, equal: Callable[[ShardClient], None], protection: Path) -> None:
        self.rows, self.equal = rows, equal
        _shell(*_wire())
        certificate, key = protection / "node.pem", protection / "node.key"
        token = read_token(protection / "token")
        self.node = Address(HOSTS[NODE], _serve(rows.dataset, ServerCredentials.from_files(token, certificate, key)))
        enter(CLIENT)
        self.nodes = ShardClient(
            [self.node], ClientOptions(token, certificate.read_bytes(), TIMEOUT), transport="flight"
        )

    def spoil(self) -> None:
        """Both ways."""
        _shell(*(f"tc -n {host} qdisc add dev {DEVICE} root netem delay {DELAY}s loss 1%" for host in HOSTS))

    def lost(self) -> list[int]:
        """Packets, on either way."""
        shown = _shell(*(f"tc -n {host} -s qdisc show dev {DEVICE}" for host in HOSTS))
        return [int(count) for count in re.findall(r"netem.*?dropped (\d+)", shown, re.DOTALL)]

    def become(self, state: str) -> None:
        _shell(f"ip -n {NODE} link set {DEVICE} {state}")

    def wait(self) -> None:
        """Till packets come through: an address that nothing could be sent to is not tried again at once."""
        limit = time.monotonic() + TIMEOUT
        while True:
            try:
                socket.create_connection((self.node.host, self.node.port), TIMEOUT).close()
                return
            except OSError:
                if time.monotonic() > limit:
                    raise
                time.sleep(0.1)


def _wire() -> Iterator[str]:
    """What makes the namespaces, and a wire between them."""
    yield from (f"ip netns add {host}" for host in HOSTS)
    yield f"ip link add {DEVICE} netns {NODE} type veth peer name {DEVICE} netns {CLIENT}"
    for host, place in HOSTS.items():
        yield f"ip -n {host} address add {place}/24 dev {DEVICE}"
        # As on a wire between machines: the device does not send 64 KiB as one packet.
        yield f"ip -n {host} link set {DEVICE} up gso_max_size 1500 gso_max_segs 1"
        yield f"ip -n {host} link set lo up"


def _shell(*lines: str) -> str:
    return subprocess.run(["sh", "-ec", "\n".join(lines)], check=True, stdout=subprocess.PIPE, text=True).stdout


def _serve(dataset: Path, guard: ServerCredentials) -> int:
    """Starts the node, which ends with the guest, and gives its port."""
    said, say = os.pipe()
    if os.fork() == 0:
        try:
            enter(NODE)
            server = FlightServer(ShardServer(open_files(dataset), None, "host"), Address(HOSTS[NODE], 0), guard)
            os.write(say, f"{server.port}\n".encode())
            server.serve()
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(say)
    with os.fdopen(said) as lines:
        return int(lines.readline())


def check_a_slow_and_lossy_wire(network: Network) -> None:
    network.spoil()
    begun = time.monotonic()
    with socket.create_connection((network.node.host, network.node.port), TIMEOUT):
        # There and back.
        assert time.monotonic() - begun > 2 * DELAY
    network.equal(network.nodes)
    limit, seed = time.monotonic() + 60, 0
    while not all(network.lost()):
        assert time.monotonic() < limit, f"of packets were lost: {network.lost()}"
        seed += 1
        network.rows.check(network.nodes, network.rows.request(500, seed))


def check_a_cut_wire(network: Network) -> None:
    request = network.rows.request(50, 1)
    network.rows.check(network.nodes, request)
    network.become("down")
    begun = time.monotonic()
    try:
        network.rows.check(network.nodes, request)
    except NodeUnreachableError as error:
        assert f"gear://{network.node}" in str(error), error
    else:
        raise AssertionError("it answered over a wire that is cut")
    assert time.monotonic() - begun < 2 * TIMEOUT + 2
    network.become("up")
    network.wait()
    network.rows.check(network.nodes, request)


class Beside:
    """The checks of this module in a process of their own; forked, so to be made before anything uses gRPC."""

    def __init__(self, rows: Rows, equal: Callable[[ShardClient], None], protection: Path) -> None:
        self._said, say = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            try:
                signal.alarm(LIMIT)
                for row in run(globals(), Network(rows, equal, protection)):
                    os.write(say, json.dumps(row).encode() + b"\n")
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        os.close(say)

    def rows(self) -> list[dict[str, Any]]:
        """What `run` gave there. Raises RuntimeError if the process failed."""
        if os.waitpid(self._process, 0)[1] != 0:
            raise RuntimeError("the checks of the network failed")
        # The node has the other end too, which is why this does not wait for that to be closed.
        return [json.loads(line) for line in os.read(self._said, 1 << 16).splitlines()]
