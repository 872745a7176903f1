"""Faults: hostile requests; nodes that die, hang or serve another dataset."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import gear_data
from gear_data import SequenceLoader
from gear_data.cli import main
from gear_data.cluster.protocol import STREAM_SCHEMA, ColumnGroup, Request, handshake
from gear_data.errors import (
    ClusterError,
    CorruptResponseError,
    InvalidArgumentError,
    MissingShardsError,
    NodeRefusedError,
    NodeUnreachableError,
)
from gear_data.storage.identity import dataset_identity
from tests.support.cluster.certificates import self_signed
from tests.support.cluster.nodes import NodeProcess, url
from tests.support.feed import data as feed_data
from tests.support.feed.batches import clones, same

#: Seconds that a response may take.
TIMEOUT = 2.0
#: Seconds that only a hang takes, however busy the machine is.
HANG = 60.0
TOKEN = "0123456789abcdef0123456789abcdef"
OPTIONS = {"batch_size": 8, "context": 5, "seed": 2, "prefetch": 0}


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("GEAR_DATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", str(TIMEOUT))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("faults") / "d"
    feed_data.convert_episodes(feed_data.locomotion([9, 20, 31, 4, 25, 17], seed=3), path, shard_bytes=1024)
    return path


@pytest.fixture(scope="module")
def pair(folder):
    """Two nodes that hold all shards."""
    nodes = [NodeProcess(folder), NodeProcess(folder)]
    for node in nodes:
        node.wait()
    yield nodes
    for node in nodes:
        node.kill()


@pytest.fixture
def both(pair):
    """The nodes of `pair`, restored after each test."""
    yield pair
    for node in pair:
        if node.is_running:
            node.resume()
        else:
            node.begin()
            node.wait()


@pytest.fixture(scope="module")
def expected(folder):
    return clones(itertools.islice(SequenceLoader(gear_data.open(folder), **OPTIONS), 30))


def one_request():
    return Request(np.array([0]), (ColumnGroup((0,), np.array([0]), np.array([2])),)).to_bytes()


def exchange(client, command, message):
    """Sends one message, as any client could, and returns the response.

    None stands for a message with data only.
    """
    writer, reader = client.do_exchange(
        flight.FlightDescriptor.for_command(command), flight.FlightCallOptions(timeout=20)
    )
    try:
        writer.begin(STREAM_SCHEMA)
        if message is None:
            writer.write_batch(pa.record_batch([pa.array([1, 2], pa.uint8())], schema=STREAM_SCHEMA))
        else:
            writer.write_metadata(message)
        chunk = reader.read_chunk()
        writer.done_writing()
        return chunk.data.column(0).to_numpy().tobytes()
    finally:
        with contextlib.suppress(pa.ArrowException):
            writer.close()


def test_hostile_clients_are_refused_and_the_node_survives(folder, pair):
    dataset = gear_data.open(folder)
    name = dataset_identity(dataset.manifest)
    good, request = handshake(name), one_request()
    expected = dataset.episode(0)["observations"][:2].tobytes()
    client = flight.connect(f"grpc://{pair[0].address}")
    words = np.frombuffer(request, np.int64)
    beyond, elsewhere, negative = words.copy(), words.copy(), words.copy()
    beyond[-1], elsewhere[4], negative[-2] = 1 << 40, 77, -1
    cases = [
        (b"", request, "malformed handshake"),
        (b"\xff" * 1000, request, "malformed handshake"),
        (handshake("0" * 32), request, "another dataset"),
        (json.dumps({**json.loads(good), "version": 99}).encode(), request, "speaks protocol version"),
        (good, None, "without a request"),
        (good, b"\xff" * 16, "malformed"),
        (good, b"\0" * (1 << 20), "malformed"),
        (good, words[:-1].tobytes(), "malformed"),
        (good, np.array([1, 1 << 60, 1, 0], np.int64).tobytes(), "malformed"),
        (good, beyond.tobytes(), "does not have"),
        (good, negative.tobytes(), "does not have"),
        (good, elsewhere.tobytes(), "shards are"),
    ]
    try:
        for command, message, match in cases:
            with pytest.raises(pa.ArrowException, match=match):
                exchange(client, command, message)
        many = Request(
            np.zeros(60_000, np.int64), (ColumnGroup((0,) * 1000, np.zeros(60_000, np.int64), np.full(60_000, 2)),)
        )
        with pytest.raises(pa.ArrowException, match="at once"):
            exchange(client, good, many.to_bytes())
        for action, body in [
            ("shutdown", b""),
            ("file", b""),
            ("file", good),
            ("file", json.dumps({**json.loads(good), "file": "../../etc/passwd", "offset": 0}).encode()),
            ("file", json.dumps({**json.loads(good), "file": "episodes", "offset": -1}).encode()),
            ("file", json.dumps({**json.loads(good), "file": "episodes", "offset": 1.5}).encode()),
            ("file", json.dumps({**json.loads(handshake("x")), "file": "episodes", "offset": 0}).encode()),
        ]:
            with pytest.raises(pa.ArrowException):
                list(client.do_action(flight.Action(action, body)))
        for call in (lambda: client.do_get(flight.Ticket(b"x")).read_all(), lambda: list(client.list_flights())):
            with pytest.raises((pa.ArrowException, NotImplementedError)):
                call()
        # A client that does not speak HTTP.
        host, port = pair[0].address.split(":")
        with socket.create_connection((host, int(port))) as plain:
            plain.sendall(b"\x80\0\xff" * 5000)
        assert pair[0].is_running
        assert exchange(client, good, request)[: len(expected)] == expected
    finally:
        client.close()


def test_a_replica_takes_over_and_a_restarted_node_is_used(folder, both, expected):
    one, two = both
    loader = SequenceLoader(gear_data.open(url(one, two)), **OPTIONS)
    found = []
    for step, batch in enumerate(itertools.islice(loader, 30)):
        found += clones([batch])
        if step == 4:
            one.kill()
        elif step == 14:
            one.begin()
            one.wait()
            time.sleep(1.1)  # longer than its backoff
        elif step == 19:
            two.kill()
    same(found, expected)


def test_without_a_replica_the_error_names_the_node_and_windows_are_unchanged(folder, both, expected):
    node, other = both
    other.kill()
    dataset = gear_data.open(url(node))
    found = clones(itertools.islice(SequenceLoader(dataset, **OPTIONS), 5))
    node.kill()
    begun = time.monotonic()
    with pytest.raises(NodeUnreachableError, match="no other node gives shards 0") as error:
        dataset.steps("rewards", 0, 1)
    loader = SequenceLoader(dataset, **OPTIONS)
    loader.load_state_dict({**loader.state_dict(), "step": 5})
    with pytest.raises(NodeUnreachableError) as error:
        next(iter(loader))
    assert time.monotonic() - begun < HANG
    assert error.value.file == url(node)
    assert url(node) in str(error.value)
    node.begin()
    node.wait()
    loader = SequenceLoader(dataset, **OPTIONS)
    loader.load_state_dict({**loader.state_dict(), "step": 5})
    same(found + clones(itertools.islice(loader, 25)), expected)


def test_a_node_that_hangs(folder, both, expected):
    one, two = both
    single, replicated = gear_data.open(url(one)), gear_data.open(url(one, two))
    same(clones(itertools.islice(SequenceLoader(single, **OPTIONS), 3)), expected[:3])
    one.stop()
    begun = time.monotonic()
    with pytest.raises(NodeUnreachableError, match="did not answer within 2 s"):
        next(iter(SequenceLoader(single, **OPTIONS)))
    assert TIMEOUT * 0.9 < time.monotonic() - begun < HANG
    begun = time.monotonic()
    same(clones(itertools.islice(SequenceLoader(replicated, **OPTIONS), 10)), expected[:10])
    # Not every batch waits for the node. On a busy machine its backoff ends, and it is tried again.
    assert time.monotonic() - begun < 9 * TIMEOUT
    one.resume()
    same(clones(itertools.islice(SequenceLoader(single, **OPTIONS), 30)), expected)


def test_nodes_that_do_not_hold_all(folder, both):
    one, two = both
    count = len(gear_data.open(folder).manifest.shards)
    some = NodeProcess(folder, "1,2")
    assert some.wait()["shards"] == [1, 2]
    try:
        missing = ", ".join(map(str, [0, *range(3, count)]))
        with pytest.raises(MissingShardsError, match=f"no node holds shards {missing} of {count}"):
            gear_data.open(url(some))
        two.kill()
        with pytest.raises(MissingShardsError, match=f"{two.address}: cannot be reached"):
            gear_data.open(url(some, two))
        # A node that is unreachable when the dataset is opened is used later.
        dataset = gear_data.open(url(one, two))
        two.begin()
        two.wait()
        one.kill()
        assert len(next(iter(SequenceLoader(dataset, **OPTIONS)))["rewards"]) == 8
        one.begin()
        one.wait()
    finally:
        some.kill()
    with pytest.raises(NodeUnreachableError, match="cannot be reached"):
        gear_data.open(url(some))


def test_nodes_of_different_datasets(both, tmp_path):
    feed_data.convert_episodes(feed_data.locomotion([9, 20], seed=4), tmp_path / "other")
    other = NodeProcess(tmp_path / "other")
    other.wait()
    try:
        with pytest.raises(NodeRefusedError, match="another dataset than the other nodes") as error:
            gear_data.open(url(both[0], other))
        assert other.address in str(error.value)
    finally:
        other.kill()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A folder with a self-signed certificate for 127.0.0.1, its key, and tokens."""
    path = tmp_path_factory.mktemp("tls")
    self_signed(path)
    (path / "token").write_text(TOKEN)
    (path / "wrong").write_text(TOKEN[::-1])
    return path


def test_tokens_and_tls(folder, certificate, expected, monkeypatch):
    files = {name: str(certificate / name) for name in ("node.pem", "node.key", "token", "wrong")}
    protection = ["--token-file", files["token"], "--tls-cert", files["node.pem"], "--tls-key", files["node.key"]]
    node, without_tls = NodeProcess(folder, options=protection), NodeProcess(folder, options=protection[:2])
    node.wait(), without_tls.wait()
    try:
        with pytest.raises(NodeUnreachableError):
            gear_data.open(url(node))  # without TLS
        with pytest.raises(NodeRefusedError, match="needs a token"):
            gear_data.open(url(without_tls))
        for token in ("wrong", "token"):
            monkeypatch.setenv("GEAR_DATA_TOKEN_FILE", files[token])
            if token == "wrong":
                with pytest.raises(NodeRefusedError, match="does not accept the token"):
                    gear_data.open(url(without_tls))
        same(clones(itertools.islice(SequenceLoader(gear_data.open(url(without_tls)), **OPTIONS), 3)), expected[:3])
        monkeypatch.setenv("GEAR_DATA_TLS_CA", files["node.pem"])
        same(clones(itertools.islice(SequenceLoader(gear_data.open(url(node)), **OPTIONS), 3)), expected[:3])
        monkeypatch.setenv("GEAR_DATA_TOKEN_FILE", files["wrong"])
        with pytest.raises(NodeRefusedError, match="does not accept the token"):
            gear_data.open(url(node))
        assert node.is_running and without_tls.is_running
    finally:
        node.kill()
        without_tls.kill()


def test_public_addresses_need_a_token_and_tls(folder, certificate, capsys):
    """A server that other machines can reach does not start without a token and TLS."""
    tls = ["--tls-cert", str(certificate / "node.pem"), "--tls-key", str(certificate / "node.key")]
    token = ["--token-file", str(certificate / "token")]
    for options in ([], tls, token):
        assert main(["serve", str(folder), "--listen", "0.0.0.0:0", *options]) == 2
        assert "needs TLS and a token" in capsys.readouterr().err
    assert main(["serve", str(folder), "--listen", "127.0.0.1:0", *tls[:2]]) == 2
    assert "certificate and its key" in capsys.readouterr().err
    assert main(["serve", str(folder), "--listen", "127.0.0.1:0", "--shards", "99"]) == 2
    for shards in ("x", "3-1", "1-", "-1", "0-99999999999"):
        with pytest.raises(SystemExit):
            main(["serve", str(folder), "--listen", "127.0.0.1:0", "--shards", shards])


def test_an_interrupted_reader_does_not_wait_for_a_node_that_hangs(both, monkeypatch):
    monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", str(2 * HANG))
    client, request = gear_data.open(url(both[0])).store._client, Request.from_bytes(one_request())
    client.fetch(request)
    both[0].stop()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt), client.fetching(request):
        raise KeyboardInterrupt
    assert time.monotonic() - begun < HANG


#: A node that describes itself correctly, and answers every request with the given sizes and number of bytes.
INVALID_NODE = """
import json, sys
import numpy as np, pyarrow as pa
from pyarrow import flight
from gear_data.cluster.flight import server as flight_server
from gear_data.cluster.server import shard_server as served
from gear_data.cluster.addresses import Address
from gear_data.cluster.credentials import ServerCredentials
from gear_data.storage.dataset_files import FolderFiles
sizes = json.loads(sys.argv[2])
class InvalidServer(served.ShardServer):
    def answer(self, request):
        return served.Response(np.array(sizes, np.int64), np.zeros(json.loads(sys.argv[3]), np.uint8))
shards = InvalidServer(FolderFiles(__import__("pathlib").Path(sys.argv[1])))
server = flight_server.FlightServer(shards, Address("127.0.0.1", 0), ServerCredentials())
print(json.dumps({"listen": f"127.0.0.1:{server.port}"}), flush=True)
server.serve()
"""


@pytest.mark.parametrize(
    ("sizes", "data"),
    # Too few parts, impossible sizes, and more or fewer bytes than the sizes say.
    [([16], 64), ([-1], 64), ([1 << 62], 64), ([64], 128), ([16] * 9, 64)],
)
def test_invalid_responses(folder, sizes, data, pair, expected):
    command = [sys.executable, "-c", INVALID_NODE, str(folder), json.dumps(sizes), str(data)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = json.loads(process.stdout.readline())["listen"]
        with pytest.raises(ClusterError, match=r"answers with|did not answer within 2 s"):
            next(iter(SequenceLoader(gear_data.open(f"gear://{address}"), **OPTIONS)))
        both = gear_data.open(f"gear://{address},{pair[0].address}")
        same(clones(itertools.islice(SequenceLoader(both, **OPTIONS), 3)), expected[:3])
    finally:
        process.kill()
        process.communicate()


#: A node that damages one byte in the middle of each message.
DAMAGING_NODE = """
import json, sys
from gear_data.cluster.flight import server as flight_server
from gear_data.cluster.server import shard_server as served
from gear_data.cluster.addresses import Address
from gear_data.cluster.credentials import ServerCredentials
from gear_data.storage.dataset_files import open_files
undamaged = flight_server.byte_batch
def damaged(values):
    values = values.copy()
    values[len(values) // 2] ^= 1
    return undamaged(values)
flight_server.byte_batch = damaged
server = flight_server.FlightServer(served.ShardServer(open_files(sys.argv[1])), Address("127.0.0.1", 0),
    ServerCredentials())
print(json.dumps({"listen": f"127.0.0.1:{server.port}"}), flush=True)
server.serve()
"""


def test_a_damaged_response(folder, pair, expected, monkeypatch):
    process = subprocess.Popen([sys.executable, "-c", DAMAGING_NODE, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        address = json.loads(process.stdout.readline())["listen"]
        for variable in ("2", "yes"):
            monkeypatch.setenv("GEAR_DATA_CHECKSUM", variable)
            with pytest.raises(InvalidArgumentError, match="set it to 0 or 1"):
                gear_data.open(f"gear://{address}")
        monkeypatch.setenv("GEAR_DATA_CHECKSUM", "1")
        with pytest.raises(CorruptResponseError, match="differs from its checksum") as error:
            next(iter(SequenceLoader(gear_data.open(f"gear://{address}"), **OPTIONS)))
        assert address in str(error.value)
        both = gear_data.open(f"gear://{address},{pair[0].address}")
        same(clones(itertools.islice(SequenceLoader(both, **OPTIONS), 30)), expected)
        # Without checksums the damage is not detected.
        monkeypatch.setenv("GEAR_DATA_CHECKSUM", "0")
        unchecked = SequenceLoader(gear_data.open(f"gear://{address}"), **OPTIONS)
        with pytest.raises(AssertionError):
            same(clones(itertools.islice(unchecked, 3)), expected[:3])
    finally:
        process.kill()
        process.communicate()


def test_a_fork_does_not_wait_for_a_node_that_hangs(both, monkeypatch):
    monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", str(2 * HANG))
    peer = gear_data.open(url(both[0])).store._client._directory.peers[0]
    name = peer.describe().dataset
    streams = [peer.acquire_stream(name)[0] for _ in range(4)]
    for stream in streams:
        peer.release_stream(stream)
    both[0].stop()
    begun = time.monotonic()
    child = os.fork()
    if not child:
        os._exit(0)
    seconds = time.monotonic() - begun
    assert os.waitpid(child, 0)[1] == 0
    assert seconds < HANG
