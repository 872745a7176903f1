"""Program for a guest: reads a dataset by RDMA, and causes faults.

Writes one line of JSON for each check. After the checks it serves the dataset, until the guest is killed.

guest_checks.py DATASET EXPECTED.npz PROTECTION HOST:PORT
"""

from __future__ import annotations

import faulthandler
import gc
import itertools
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import gear_data.cli

# Imported before nodes are forked from this process: they would import Numba at their first request by Arrow Flight.
import gear_data.kernels.cpu.collect
import gear_data.kernels.cpu.gather
from gear_data.cluster.client import backoff
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.client.reader import ClusterReader
from gear_data.cluster.client.retry_policy import RetryPolicy
from gear_data.cluster.client.shard_client import ShardClient
from gear_data.cluster.client.shard_directory import ClusterManifest
from gear_data.cluster.client.shards import RemoteShards
from gear_data.cluster.client.video_packets import NodePackets
from gear_data.cluster.flight.client import Endpoint, Stream
from gear_data.cluster.protocol import Request, handshake
from gear_data.cluster.rdma.connection import RdmaConnection
from gear_data.cluster.rdma.device import Device, open_device
from gear_data.cluster.rdma.queue_pair import QueuePair
from gear_data.cluster.rdma.work_requests import Reads, WorkRequestList
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.errors import DeviceError, NodeRefusedError, NodeUnreachableError
from gear_data.residency import ShardReader
from gear_data.storage.dataset_files import open_files
from gear_data.storage.videos.stored_packets import read_video_index, stored_packets
from tests.support.rdma import remote_batches
from tests.support.rdma.guest_network import NetworkChecks
from tests.support.rdma.guest_nodes import GuestNode, Spawner
from tests.support.rdma.guest_results import run
from tests.support.rdma.guest_rows import Rows

#: Seconds within which a dead node must be noticed: a quarter of $GEAR_DATA_NODE_TIMEOUT, and a margin.
MAX_DETECTION = 15


class World(Rows):
    """Shared state of the checks: the dataset, expected batches, and two nodes.

    Each node has half of the shards.
    """

    def __init__(self, dataset: Path, expected: Path, protection: Path, place: str) -> None:
        super().__init__(dataset)
        arrays = dict(np.load(expected))
        self.placement = {name: arrays.pop(name) for name in ("shard", "start", "length")}
        self.expected = arrays
        self._load_kernels()
        self.serve = fork_server(dataset, protection, place)
        self.spawner = Spawner(dataset)
        self.network = NetworkChecks(self, lambda client: compare(self, client), protection)
        self.objects = rdma_objects()
        count = len(self.manifest.shards)
        self.halves = list(range(count // 2)), list(range(count // 2, count))
        self.nodes = [self.spawner.node(half) for half in self.halves]

    def _load_kernels(self) -> None:
        """Loads the kernels once, for all forked processes: each would need ten seconds."""
        ShardServer(open_files(self.dataset))
        lengths = self.placement["length"]
        here = ShardReader(self.shards, *self.placement.values(), lambda: (np.empty(0, np.int64), {}))
        remote_batches.batches(here, self.manifest.schema, lengths)


def rdma_objects() -> dict[str, int]:
    """Returns kind -> number of this machine's RDMA objects."""
    text = subprocess.run(["rdma", "resource"], capture_output=True, text=True, check=True).stdout
    return {kind: int(count) for kind, count in re.findall(r"(\w+) (\d+)", text.partition("rxe0:")[2])}


def connect(*nodes: GuestNode, transport: str = "verbs", queue_pairs: int = 1) -> ShardClient:
    options = replace(ClientOptions.from_environment(), queue_pairs=queue_pairs)
    return ShardClient([node.address for node in nodes], options, transport=transport)


def compare(world: World, client: ShardClient, names: Sequence[str] = tuple(remote_batches.OUTPUTS)) -> None:
    """Checks that batches read through the client equal the expected batches."""
    place = [world.placement[name] for name in ("shard", "start", "length")]
    # Not through `gear_data.open`, which imports Polars for the episode table: 30 seconds in a guest.
    here = np.zeros(len(world.manifest.shards), np.bool_)
    reader = ClusterReader(client, RemoteShards(client), here, *place, lambda: (np.empty(0, np.int64), {}))
    found = remote_batches.batches(reader, client.manifest.schema, place[2], names)
    assert found.keys() == {name for name in world.expected if name.split()[0] in names}
    for name, data in found.items():
        assert np.array_equal(data, world.expected[name]), name


@contextmanager
def raises(kind: type[Exception], text: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        assert re.search(text, str(error)), f"{error} does not match {text!r}"
    else:
        raise AssertionError(f"no {kind.__name__}")


@contextmanager
def logged() -> Iterator[list[str]]:
    """Yields the warnings that the body logs."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("gear_data")
    log.addHandler(handler)
    try:
        yield lines
    finally:
        log.removeHandler(handler)


@contextmanager
def pairs() -> Iterator[tuple[Device, QueuePair, Any, Any, Any]]:
    """Connects two queue pairs of this process.

    Yields:
        The device, the reading queue pair, and (address, region) of three regions of 64 KiB: one that may be read, one
        that may not, and one to write to.
    """
    device = open_device()
    enums = device.library.enums
    memory = np.arange(3 << 16, dtype=np.int64).view(np.uint8)[: 3 << 16]
    regions = [
        device.register(memory.ctypes.data + (number << 16), 1 << 16, access)
        for number, access in enumerate((enums.IBV_ACCESS_REMOTE_READ, 0, enums.IBV_ACCESS_LOCAL_WRITE))
    ]
    server_end, client_end = QueuePair(device, can_be_read=True), QueuePair(device, can_be_read=False)
    try:
        server_end.connect(client_end.end, 20)
        client_end.connect(server_end.end, 20)
        yield device, client_end, *((memory.ctypes.data + (n << 16), region) for n, region in enumerate(regions))
    finally:
        for each in (server_end, client_end, *regions, device):
            each.close()
        del memory


def finish(reader: QueuePair | RdmaConnection, is_done: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not is_done():
        reader.poll()
        assert time.monotonic() < limit


def finish_pair(pair: QueuePair) -> None:
    finish(pair, lambda: pair.done == pair.posted)


def reads(remote: int, key: int, local: int, local_key: int, size: int = 4096) -> Reads:
    return Reads(*(np.full(1, value, np.int64) for value in (remote, key, local, local_key, size)))


def work_requests(*values: int) -> WorkRequestList:
    return WorkRequestList(reads(*values))


def check_batches_are_those_of_the_local_collector(world: World) -> None:
    direct = []

    def read(names: Sequence[str], queue_pairs: int) -> ShardClient:
        client = connect(*world.nodes, queue_pairs=queue_pairs)
        fetching = client.fetching

        @contextmanager
        def recording(request: Request, targets: Any = None) -> Iterator[Any]:
            with fetching(request, targets) as results:
                pieces = list(results)
                has_target = [address is not None for address in targets.addresses]
                direct.append(has_target if all(p.is_direct for p in pieces) else None)
                yield iter(pieces)

        client.fetching = recording  # type: ignore[method-assign, assignment]
        compare(world, client, names)
        return client

    read(["converted", "mixed"], 1)
    over_three = read(["copied"], 3)
    # Three queue pairs to each of two nodes, at both ends.
    assert rdma_objects()["qp"] >= 3 * 2 * 2
    del over_three
    # Only plain copies are written directly. Three batches of each kind.
    assert [sorted(each) for each in direct[::3]] == [[False] * 3, [False, False, True], [True] * 3], direct


def check_any_number_of_windows(world: World) -> None:
    client = connect(*world.nodes)
    for spans in (1, 64, 65, 2100):
        world.check(client, world.request(spans, spans))


def check_several_threads_read_at_once(world: World) -> None:
    client, errors = connect(*world.nodes, queue_pairs=3), []

    def read(seed: int) -> None:
        try:
            for turn in range(3):
                world.check(client, world.request(200, 10 * seed + turn))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors, errors


def check_a_fork_reads_and_so_does_its_parent(world: World) -> None:
    client, request = connect(*world.nodes), world.request(100, 7)
    world.check(client, request)
    child = os.fork()
    if child == 0:
        try:
            world.check(client, request)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    world.check(client, request)
    assert os.waitpid(child, 0)[1] == 0


def check_a_stopped_process_is_read_from(world: World) -> None:
    client, request = connect(*world.nodes), world.request(100, 8)
    world.check(client, request)
    for node in world.nodes:
        node.signal(signal.SIGSTOP)
    try:
        # READs are one-sided: the node's process takes no part.
        world.check(client, request)
    finally:
        for node in world.nodes:
            node.signal(signal.SIGCONT)


def check_whole_columns(world: World) -> None:
    shards = RemoteShards(connect(*world.nodes))
    for shard in (0, len(world.manifest.shards) - 1):
        for column in range(len(world.manifest.schema)):
            assert np.array_equal(shards.column(shard, column), world.shards.column(shard, column))


def check_videos_equal_the_files(world: World) -> None:
    files, rng = open_files(world.dataset), np.random.default_rng(3)
    index = read_video_index(files, world.manifest)
    ranges = []
    for number in rng.integers(0, len(index), 300).tolist():
        first, last = sorted(rng.integers(0, index.file(number).size + 1, 2).tolist())
        ranges.append((number, first, last))
    expected = stored_packets(files, index).read(ranges)
    for queue_pairs in (1, 3):
        # Transport `verbs`: Arrow Flight sends none of them.
        found = NodePackets(connect(*world.nodes, queue_pairs=queue_pairs)).read(ranges)
        assert [bytes(data) for data in found] == [bytes(data) for data in expected]


def check_reads_that_are_refused(world: World) -> None:
    """Every refusal has its own error, and breaks only that queue pair."""
    cases = {
        "an unknown key": (lambda a, b, c: (a[0], a[1].rkey ^ 0x5A00, c[0], c[1].lkey), NodeRefusedError),
        "past the end": (lambda a, b, c: (a[0] + (1 << 16) - 100, a[1].rkey, c[0], c[1].lkey), NodeRefusedError),
        "before the start": (lambda a, b, c: (a[0] - 1, a[1].rkey, c[0], c[1].lkey), NodeRefusedError),
        "not for peers": (lambda a, b, c: (b[0], b[1].rkey, c[0], c[1].lkey), NodeRefusedError),
        "to memory that is not to be written": (lambda a, b, c: (a[0], a[1].rkey, b[0], b[1].lkey), DeviceError),
    }
    for name, (make, kind) in cases.items():
        with pairs() as (_, pair, readable, private, writable):
            pair.post(work_requests(readable[0], readable[1].rkey, writable[0], writable[1].lkey))
            finish_pair(pair)
            with raises(kind, "RDMA READ failed"):
                pair.post(work_requests(*make(readable, private, writable)))
                finish_pair(pair)
            # The queue pair is unusable after that, and reports it.
            with raises(DeviceError, "earlier error|does not accept READs"):
                pair.post(work_requests(readable[0], readable[1].rkey, writable[0], writable[1].lkey))
                finish_pair(pair)
            print(f"  {name}: {kind.__name__}", flush=True)


def check_a_withdrawn_region_is_refused(world: World) -> None:
    with pairs() as (_, pair, readable, _, writable):
        pair.post(work_requests(readable[0], readable[1].rkey, writable[0], writable[1].lkey))
        finish_pair(pair)
        key = readable[1].rkey
        readable[1].close()
        with raises(NodeRefusedError, "RDMA READ failed"):
            pair.post(work_requests(readable[0], key, writable[0], writable[1].lkey))
            finish_pair(pair)


def check_nothing_can_be_written(world: World) -> None:
    with pairs() as (_, pair, readable, _, writable):
        request = work_requests(readable[0], readable[1].rkey, writable[0], writable[1].lkey)
        request.requests["opcode"] = 0  # IBV_WR_RDMA_WRITE
        with raises(NodeRefusedError, "RDMA READ failed"):
            pair.post(request)
            finish_pair(pair)


def check_a_nodes_columns_end_where_they_end(world: World) -> None:
    """The node's device refuses reads past a column.

    The client ignores the shards' bounds.
    """
    device, endpoint = open_device(), Endpoint(world.nodes[0].address, ClientOptions.from_environment())
    dataset = connect(*world.nodes).dataset
    shard, target = world.halves[0][0], np.zeros(1 << 16, np.uint8)
    region = device.register(target.ctypes.data, target.nbytes, device.library.enums.IBV_ACCESS_LOCAL_WRITE)
    spec = world.manifest.schema.columns[0]
    size = world.manifest.shards[shard].steps * spec.row_bytes
    try:
        for first, fits in ((size - 4096, True), (size - 4095, False), (-1, False)):
            connection = RdmaConnection(
                device, endpoint, dataset, len(world.manifest.shards), len(world.manifest.schema), endpoint.timeout
            )
            try:
                address, key = connection.table[shard, 0, 0].tolist()
                ticket = connection.post(reads(address + first, key, target.ctypes.data, region.lkey))
                if fits:
                    finish(connection, partial(connection.is_done, ticket))
                    assert target[:4096].tobytes() == world.shards.column(shard, 0).tobytes()[-4096:]
                else:
                    with raises(NodeRefusedError, "may not be read"):
                        finish(connection, partial(connection.is_done, ticket))
                # The node gives no keys for shards that it does not serve.
                assert not connection.table[world.halves[1]].any()
            finally:
                connection.close()
    finally:
        region.close()
        device.close()


def check_hostile_handshakes_are_refused(world: World) -> None:
    endpoint, client = Endpoint(world.nodes[0].address, ClientOptions.from_environment()), connect(*world.nodes)
    with pairs() as (_, pair, *_):
        good = json.loads(handshake(client.dataset, queue_pairs=[pair.end]))
    (end,) = good["queue_pairs"]
    hostile: list[Any] = [None, 5, "x", [], {}, end, [end] * 65, [end, {}], [{**end, "more": 1}]]
    hostile += [[{**end, name: value}] for name in end for value in (-1, 1 << 70, "no such")]
    hostile += [[{**end, "link": "InfiniBand"}]]
    for each in hostile:
        stream = None
        try:
            with raises(NodeRefusedError, "malformed|InfiniBand|token"):
                stream = Stream(endpoint, json.dumps({**good, "queue_pairs": each}).encode())
                stream.take()
        finally:
            if stream is not None:
                stream.close()
    for body in (handshake("another"), b"", b"{}", b"[" * 100_000):
        with raises(NodeRefusedError, "another dataset|malformed"):
            stream = Stream(endpoint, body)
            stream.take()
    # The node grants a queue pair, and then receives an unexpected message.
    world.check(client, world.request(10, 3))


def check_a_killed_node_is_named_in_time_and_used_again(world: World) -> None:
    third = world.spawner.node(world.halves[1])
    alone, replicated = connect(world.nodes[0], third, queue_pairs=3), connect(*world.nodes, third)
    # A client of a training run knows the shards of its peers, and sends no request before the first read.
    known = ClusterManifest(world.manifest, tuple(map(frozenset, world.halves)), (True, True))
    # A node takes long to start here.
    retry, addresses = RetryPolicy(60.0), [world.nodes[0].address, third.address]
    in_run = ShardClient(addresses, ClientOptions.from_environment(), known, "verbs", retry)
    request = world.request(100, 11)
    for client in (alone, in_run, replicated, replicated):  # replicas take turns
        world.check(client, request)
    third.kill()
    begun = time.monotonic()
    with raises(NodeUnreachableError, rf"{third.address}.*no other node gives shards"):
        alone.fetch(request)
    assert time.monotonic() - begun < MAX_DETECTION
    for _ in range(2):
        # A replica takes over.
        world.check(replicated, request)
    again: list[GuestNode] = []
    restart = threading.Timer(0.5, lambda: again.append(world.spawner.node(world.halves[1], third.address.port)))
    restart.start()
    try:
        # A client of a training run waits for the node.
        world.check(in_run, request)
        world.check(alone, request)
    finally:
        restart.join()
        again[0].kill()


def check_auto_reads_by_flight_where_rdma_fails(world: World) -> None:
    client, request = connect(*world.nodes, transport="auto"), world.request(50, 13)
    assert client.uses_rdma
    rdma = client._transports.rdma
    original = rdma.acquire

    def broken(number: int, endpoint: Endpoint, seconds: float) -> RdmaConnection:
        connection = original(number, endpoint, seconds)
        connection.table[..., 1] ^= 0x5A00
        return connection

    rdma.acquire = broken  # type: ignore[method-assign]
    with logged() as lines:
        world.check(client, request)
        world.check(client, request)
    assert len(lines) == 2 and all("by Arrow Flight for 60 s" in line for line in lines), lines
    rdma.acquire = original  # type: ignore[method-assign]
    client._transports._fallback_until.clear()
    with logged() as lines:
        world.check(client, request)
    assert not lines


def check_a_node_without_rdma(world: World) -> None:
    plain = world.spawner.node(transport="flight")
    try:
        with raises(NodeRefusedError, "does not offer RDMA"):
            connect(plain)
        client = connect(plain, transport="auto")
        assert not client.uses_rdma
        world.check(client, world.request(20, 14))
        # Only one of the nodes offers RDMA.
        mixed = connect(plain, world.nodes[0], transport="auto")
        assert mixed.uses_rdma
        for _ in range(2):
            world.check(mixed, world.request(40, 15))
    finally:
        plain.kill()


def check_another_device_is_refused(world: World) -> None:
    os.environ["GEAR_DATA_RDMA_DEVICE"] = "mlx5_7"
    try:
        with raises(DeviceError, "mlx5_7.*no such active port"):
            connect(*world.nodes)
        os.environ["GEAR_DATA_RDMA_DEVICE"] = "rxe0:1"
        connect(*world.nodes)
    finally:
        del os.environ["GEAR_DATA_RDMA_DEVICE"]


def check_nothing_is_left_behind(world: World) -> None:
    """Closed clients and killed nodes leave no RDMA objects."""
    gc.collect()
    for node in world.nodes:
        node.kill()
    limit = time.monotonic() + 10
    while rdma_objects() != world.objects:
        assert time.monotonic() < limit, f"{rdma_objects()}, and before {world.objects}"
        time.sleep(0.1)


def fork_server(dataset: Path, protection: Path, place: str) -> Callable[[], None]:
    """Forks a process that serves the dataset later.

    The process has imported everything: imports take long in a guest. Call this before anything uses gRPC.

    Returns:
        A function that starts the server, and waits for its end.
    """
    command = ["serve", str(dataset), "--listen", place, "--residency", "host", "--transport", "verbs"]
    command += ["--tls-cert", str(protection / "node.pem"), "--tls-key", str(protection / "node.key")]
    command += ["--token-file", str(protection / "token")]
    read_end, write_end = os.pipe()
    process = os.fork()
    if process == 0:
        gear_data.cli.build_parser()  # imports all commands, beside the checks
        os.read(read_end, 1)
        os._exit(gear_data.cli.main(command))

    def serve() -> None:
        os.write(write_end, b"1")
        os.waitpid(process, 0)

    return serve


def main(dataset: str, expected: str, protection: str, place: str) -> None:
    # Four minutes on two idle cores, and twice as long if other tests run.
    faulthandler.dump_traceback_later(2400, exit=True)
    backoff.MIN_BACKOFF_SECONDS = 0.1  # the checks kill nodes
    world = World(Path(dataset), Path(expected), Path(protection), place)
    with Path("/out/results").open("w") as file:
        for row in itertools.chain(run(globals(), world), world.network.rows()):
            file.write(json.dumps(row) + "\n")
    print("all checks ended", flush=True)
    world.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
