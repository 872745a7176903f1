"""What a node tells clients about calls that it refuses, and about errors of its own."""

from __future__ import annotations

import contextlib
import copy
import errno
import itertools
import logging
import math
import re
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import gear_data
from gear_data import SequenceLoader
from gear_data.cluster.addresses import Address
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.client.peer import Peer
from gear_data.cluster.credentials import ServerCredentials
from gear_data.cluster.flight import grpc_fork
from gear_data.cluster.flight.client import Endpoint, Stream
from gear_data.cluster.flight.server import FlightServer
from gear_data.cluster.protocol import TOKEN_HEADER, ColumnGroup, Request, handshake
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.common.secret import Secret
from gear_data.errors import CorruptShardError, HostMemoryError, NodeFailedError, NodeUnreachableError, OpenFilesError
from gear_data.storage.dataset_files import open_files
from tests.support.cluster import http2
from tests.support.feed import data as feed_data
from tests.support.feed.batches import clones, same

WAIT = 60.0
TOKEN = Secret(b"0123456789abcdef0123456789abcdef")
REQUEST = Request(np.array([0]), (ColumnGroup((0,), np.array([0]), np.array([1])),)).to_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("errors") / "d"
    feed_data.convert_episodes(feed_data.locomotion([9, 20, 31], seed=3), path, shard_bytes=1024)
    return path


class FailingShards(ShardServer):
    """Shards that raise a copy of `error` for every request of rows and for every chunk of a file.

    An error that was raised keeps the call, and gRPC's threads. Parameters of tests live until the process ends.
    """

    error: Exception | None = None

    def answer(self, request):
        if self.error is not None:
            raise copy.copy(self.error)
        return super().answer(request)

    def file_chunk(self, name, offset):
        if self.error is not None:
            raise copy.copy(self.error)
        return super().file_chunk(name, offset)


@pytest.fixture
def serve(folder):
    """serve(token) -> a server and its shards."""
    with contextlib.ExitStack() as stack:

        def make(token=None):
            shards = FailingShards(open_files(folder))
            server = FlightServer(shards, Address("127.0.0.1", 0), ServerCredentials(token))
            stack.callback(server.shutdown)
            return server, shards

        yield make


def all_calls(client, options):
    """Every call that a client of Arrow Flight can make, with odd arguments, by name."""
    path, command = flight.FlightDescriptor.for_path("/etc/passwd"), flight.FlightDescriptor.for_command(b"\xff\0x")
    schema = pa.schema([("x", pa.int64())])

    def put(descriptor):
        writer, reader = client.do_put(descriptor, schema, options)
        # Pyarrow drops the error of a writer that is not closed.
        writer.close()
        return reader

    calls = {
        "list_actions": lambda: list(client.list_actions(options)),
        "list_flights": lambda: list(client.list_flights(b"\xff", options)),
        "authenticate": lambda: client.authenticate_basic_token(b"user", b"password", options),
    }
    for name, descriptor in (("path", path), ("command", command)):
        calls[f"get_flight_info {name}"] = lambda d=descriptor: client.get_flight_info(d, options)
        calls[f"do_put {name}"] = lambda d=descriptor: put(d)
        calls[f"do_exchange {name}"] = lambda d=descriptor: client.do_exchange(d, options)[1].read_chunk()
    for ticket in (b"", b"\xff\xfe", b"x" * 100_000):
        calls[f"do_get {len(ticket)}"] = lambda t=ticket: client.do_get(flight.Ticket(t), options).read_all()
    for action in ("", "shutdown", "describe\n", "\u00e9" * 10_000, "file", "video"):
        for body in (b"", b"\xff" * 9, b"[" * 100_000, b'{"version":' + b"9" * 10_000):
            calls[f"do_action {action[:9]} {len(body)}"] = lambda a=action, b=body: list(
                client.do_action(flight.Action(a, b), options)
            )
    return calls


@pytest.mark.parametrize(("token", "sent"), [(None, None), (TOKEN, TOKEN), (TOKEN, None), (TOKEN, Secret(b"x" * 32))])
def test_refused_calls_show_no_traceback(serve, folder, token, sent):
    server, _ = serve(token)
    headers = [] if sent is None else [(TOKEN_HEADER, sent.reveal())]
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        for name, call in all_calls(client, flight.FlightCallOptions(timeout=20, headers=headers)).items():
            with pytest.raises((pa.ArrowException, OSError)) as error:
                call()
            text = str(error.value).partition(" gRPC client debug context")[0]
            assert "Traceback" not in str(error.value) and ".py" not in str(error.value), name
            assert str(folder.parent) not in str(error.value), name
            assert len(text) < 400, name
            assert name == "authenticate" or ("token" in text) is (token is not sent), name
        # Arrow cannot refuse this call without a traceback.
        with contextlib.suppress(OSError):
            options = flight.FlightCallOptions(timeout=20, headers=headers)
            found = client.get_schema(flight.FlightDescriptor.for_path("x"), options)
            assert found.schema.names == ["bytes"] and token is sent


@pytest.mark.parametrize("header", [(b"x", b"\xff\xfe"), (b"authorization", b"\xff"), (b"x", b"")])
@pytest.mark.parametrize("token", [None, TOKEN])
def test_headers_that_are_not_text(serve, token, header):
    server, _ = serve(token)
    answer = http2.call(server.port, b"DoAction", b"\x0a\x08describe", [header])
    assert b"grpc-status" in answer and b"Traceback" not in answer
    assert (b'"shards":[' in answer) is (token is None)


def test_a_fork_need_not_wait_after_a_refusal(serve, monkeypatch):
    """gRPC tries for a while to connect to a node that does not answer, and a fork waits for that."""
    monkeypatch.setattr(grpc_fork._gate, "attempts_end", -math.inf)
    server, _ = serve(TOKEN)
    refusing, closed = (
        Endpoint(Address("127.0.0.1", port), ClientOptions(None, None, 5.0)) for port in (server.port, 1)
    )
    with pytest.raises(flight.FlightUnauthenticatedError):
        refusing.act("describe", b"", 5.0)
    assert grpc_fork._gate.attempts_end == -math.inf
    with pytest.raises(NodeUnreachableError):
        Stream(closed, b"")
    assert 0 < grpc_fork._gate.attempts_end - time.monotonic() <= 5


@pytest.mark.parametrize("error", [MemoryError("/srv/x"), ZeroDivisionError(), OSError(5, "failed", "/srv/x")])
def test_an_unexpected_error_has_an_id_and_is_logged(serve, caplog, error):
    server, shards = serve()
    shards.error = error
    peer = Peer(Address("127.0.0.1", server.port), ClientOptions(None, None, 5.0))
    stream = Stream(Endpoint(peer.endpoint.address, peer.endpoint.options), handshake(shards.identity))
    stream.post(REQUEST)
    for call in (stream.take, lambda: peer.file_chunk(shards.identity, "episodes", 0)):
        with caplog.at_level(logging.ERROR), pytest.raises(NodeFailedError) as found:
            call()
        text = str(found.value)
        number = re.search(r"failed with an unexpected error, id ([0-9a-f]{8})", text)
        assert number is not None and f"search the log of that node for {number[1]}" in text
        assert "Traceback" not in text and "/srv" not in text
        (record,) = caplog.records
        assert number[1] in record.getMessage() and repr(record.exc_info[1]) == repr(error)
        caplog.clear()
    stream.abandon()


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (
            CorruptShardError("cannot be read: [Errno 5] '/srv/d/shards/0.arrow'", file="/srv/d/shards/0.arrow"),
            CorruptShardError,
            "cannot be read: [Errno 5] '0.arrow'",
        ),
        (
            CorruptShardError("s3://bucket/d/0.arrow is gone", hint="see /srv/log and 1/2 of a/b.c"),
            CorruptShardError,
            "0.arrow is gone\n  see log and 1/2 of a/b.c",
        ),
        # An error of the node's memory is not one of the client's.
        (HostMemoryError("too little memory"), NodeFailedError, "failed: too little memory"),
    ],
)
def test_errors_lose_their_folders(serve, caplog, error, kind, text):
    server, shards = serve()
    shards.error = error
    peer = Peer(Address("127.0.0.1", server.port), ClientOptions(None, None, 5.0))
    with caplog.at_level(logging.WARNING), pytest.raises(kind) as found:
        peer.file_chunk(shards.identity, "episodes", 0)
    assert type(found.value) is kind
    assert str(found.value) == f"{peer.name}: {text}"
    # The node's operator sees everything.
    assert str(error) in caplog.text


def test_a_server_without_free_descriptors_has_no_damaged_table(folder, monkeypatch):
    shards = ShardServer(open_files(folder))

    def refuse(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(OpenFilesError, match="ulimit -n"):
        shards.file_chunk("episodes", 0)


def test_a_replica_takes_over_from_a_node_that_fails(serve, folder, monkeypatch):
    monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", "5")
    (failing, shards), (healthy, _) = serve(), serve()
    options = {"batch_size": 8, "context": 5, "seed": 2, "prefetch": 0}
    expected = clones(itertools.islice(SequenceLoader(gear_data.open(folder), **options), 10))
    dataset = gear_data.open(f"gear://127.0.0.1:{failing.port},127.0.0.1:{healthy.port}")
    for error in (MemoryError(), HostMemoryError("too little memory")):
        shards.error = error
        same(clones(itertools.islice(SequenceLoader(dataset, **options), 10)), expected)
    # A server that is shut down waits for its streams.
    for peer in dataset.store._client._directory.peers:
        peer.close_idle()


class LateServer(FlightServer):
    """A server whose streams begin after their clients have left."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.called, self.ended = threading.Event(), threading.Event()

    def do_exchange(self, context, *arguments):
        self.called.set()
        while not context.is_cancelled():
            time.sleep(0.01)
        try:
            super().do_exchange(context, *arguments)
        finally:
            self.ended.set()


def test_a_client_that_leaves_before_its_stream_begins_is_no_error(folder, caplog):
    shards = ShardServer(open_files(folder))
    with LateServer(shards, Address("127.0.0.1", 0), ServerCredentials(None)) as server:
        with flight.FlightClient(f"grpc://127.0.0.1:{server.port}") as client:
            _, reader = client.do_exchange(flight.FlightDescriptor.for_command(handshake(shards.identity)))
            assert server.called.wait(WAIT)
            reader.cancel()
        assert server.ended.wait(WAIT)
        assert (server.counts.errors, caplog.records) == (0, [])
