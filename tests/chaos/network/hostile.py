"""Hostile clients of a node, and hostile nodes of a client.

After every attack the node serves right batches, and its memory has not grown much. A client of a hostile node ends
with a typed error within its timeout, or has the right batches.
"""

from __future__ import annotations

import base64
import contextlib
import faulthandler
import json
import os
import random
import socket
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import torch
from pyarrow import flight

import gear_data
from gear_data import SequenceLoader
from gear_data.cluster.protocol import STREAM_SCHEMA, TOKEN_HEADER, byte_batch, handshake
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.errors import GearError
from gear_data.storage.dataset_files import open_files
from tests.chaos.result import ChaosResult, Limit
from tests.support.chaos.nodes import ForkedNode, url
from tests.support.cluster import http2
from tests.support.feed import data as feed_data

_TOKEN = b"0123456789abcdef0123456789abcdef"
#: Timeout of the clients, and seconds that a busy machine may take in addition.
_TIMEOUT, _SLACK = 1.0, 10.0
#: Most bytes by which the node, and this process with its hostile nodes, may grow over all attacks.
_NODE_GROWTH, _OWN_GROWTH = 256 << 20, 1536 << 20
_OPTIONS = {"batch_size": 16, "context": 7, "seed": 3, "prefetch": 0}
_METHODS = (b"DoAction", b"DoExchange", b"DoGet", b"DoPut", b"GetFlightInfo", b"ListFlights", b"Handshake", b"Nothing")
Attack = Callable[[random.Random, int], None]


def run(seed: int, limit: Limit) -> ChaosResult:
    """Attacks a node, and a client, in turns."""
    tried: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="gear-chaos-") as scratch:
        token = Path(scratch, "token")
        token.write_bytes(_TOKEN)
        os.environ.update(
            GEAR_DATA_CACHE=str(Path(scratch, "cache")),
            GEAR_DATA_NODE_TIMEOUT=str(_TIMEOUT),
            GEAR_DATA_TOKEN_FILE=str(token),
        )
        folder = Path(scratch, "d")
        feed_data.convert_episodes(feed_data.locomotion([9, 20, 31, 4, 25, 17], seed=3), folder, shard_bytes=1024)
        expected = _batches(str(folder))
        node, shards = ForkedNode(str(folder), token=_TOKEN), ShardServer(open_files(folder))
        try:
            _batches(url([node]))
            before = {process: psutil.Process(process).memory_info().rss for process in (node.pid, os.getpid())}
            for number in limit.numbers():
                faulthandler.dump_traceback_later(300, exit=True)
                rng = random.Random(f"{seed} {number}")
                if number % 2:
                    kind, problem = _attack_client(rng, shards, expected)
                else:
                    kind, problem = _attack_node(rng, node, expected)
                problem = problem or _growth(before)
                tried[kind] += 1
                failures += [f"case {number}: {kind}: {problem}"] if problem else []
            faulthandler.cancel_dump_traceback_later()
        finally:
            node.kill()
    return ChaosResult("hostile", seed, tried.total(), dict(tried), tuple(failures))


def _batches(location: str, count: int = 4) -> list[dict[str, torch.Tensor]]:
    batches = iter(SequenceLoader(gear_data.open(location), **_OPTIONS))
    return [{key: value.clone() for key, value in next(batches).items()} for _ in range(count)]


def _same(batches: Sequence[dict[str, torch.Tensor]], expected: Sequence[dict[str, torch.Tensor]]) -> bool:
    return all(
        batch.keys() == other.keys() and all(torch.equal(batch[key], other[key]) for key in other)
        for batch, other in zip(batches, expected, strict=True)
    )


def _growth(before: dict[int, int]) -> str | None:
    for process, size in before.items():
        grown = psutil.Process(process).memory_info().rss - size
        if grown > (_OWN_GROWTH if process == os.getpid() else _NODE_GROWTH):
            return f"process {process} has grown by {grown >> 20} MiB"
    return None


# Attacks of clients on a node.


def _attack_node(rng: random.Random, node: ForkedNode, expected: Any) -> tuple[str, str | None]:
    kind = rng.choice(list(_CLIENTS))
    # Whatever the node answers or does not answer to an attack is fine.
    with contextlib.suppress(OSError, pa.ArrowException):
        _CLIENTS[kind](rng, node.port)
    if not node.is_running:
        return f"client: {kind}", "the node has ended"
    try:
        if not _same(_batches(url([node])), expected):
            return f"client: {kind}", "the node serves other batches"
    except GearError as error:
        return f"client: {kind}", f"the node does not serve any more: {error}"
    return f"client: {kind}", None


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=2)


def _token_header() -> http2.Header:
    return TOKEN_HEADER, base64.b64encode(_TOKEN)


def _random_bytes(rng: random.Random, port: int) -> None:
    for _ in range(20):
        with contextlib.suppress(OSError), _connect(port) as connection:
            connection.sendall(
                rng.choice((b"", http2.PREFACE)) + rng.randbytes(rng.choice((1, 100, 10_000, 1_000_000)))
            )


def _half_open(rng: random.Random, port: int) -> None:
    """Connections without end, some of them in the middle of a call."""
    opening = http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0, b"")
    call = http2.frame(http2.HEADERS, http2.END_HEADERS, 1, http2.call_headers(b"DoExchange", [_token_header()]))
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            connection = stack.enter_context(_connect(port))
            connection.sendall((opening + call)[: rng.randint(0, len(opening + call))])
        time.sleep(0.1)


def _many_connections(rng: random.Random, port: int) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(800):
            stack.enter_context(_connect(port))


def _giant_headers(rng: random.Random, port: int) -> None:
    name = rng.choice((b"x", TOKEN_HEADER, b":path"))
    block = http2.call_headers(b"DoAction") + http2.literal(name, b"a" * rng.choice((10_000, 1 << 20, 16 << 20)))
    with _connect(port) as connection:
        connection.sendall(http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0, b""))
        pieces = [block[first : first + 16_000] for first in range(0, len(block), 16_000)]
        for number, piece in enumerate(pieces):
            flags = http2.END_HEADERS if number == len(pieces) - 1 else 0
            connection.sendall(http2.frame(http2.CONTINUATION if number else http2.HEADERS, flags, 1, piece))
        connection.recv(1 << 16)


def _random_calls(rng: random.Random, port: int) -> None:
    for _ in range(20):
        headers = [_token_header()] if rng.random() < 0.7 else [(b"x", rng.randbytes(9))]
        with contextlib.suppress(OSError):
            http2.call(port, rng.choice(_METHODS), rng.randbytes(rng.choice((0, 3, 500))), headers, seconds=2)


def _unfinished_message(rng: random.Random, port: int) -> None:
    """A message that declares a gigabyte, of which a part is sent."""
    headers = http2.call_headers(b"DoAction", [_token_header()] if rng.random() < 0.5 else [])
    with _connect(port) as connection:
        connection.sendall(
            http2.PREFACE
            + http2.frame(http2.SETTINGS, 0, 0, b"")
            + http2.frame(http2.HEADERS, http2.END_HEADERS, 1, headers)
            + http2.frame(http2.DATA, 0, 1, b"\0" + struct.pack(">I", 1 << 30))
        )
        for _ in range(1000):
            connection.sendall(http2.frame(http2.DATA, 0, 1, bytes(16_000)))


def _arrow_client(rng: random.Random, port: int) -> None:
    """Random tickets, actions and streams with the token."""
    options = flight.FlightCallOptions(timeout=2, headers=[(TOKEN_HEADER, _TOKEN)])
    with flight.connect(f"grpc://127.0.0.1:{port}") as client:
        for _ in range(10):
            data = rng.randbytes(rng.choice((0, 8, 64, 4096, 1 << 20)))
            with contextlib.suppress(pa.ArrowException, OSError, StopIteration):
                match rng.randrange(4):
                    case 0:
                        client.do_get(flight.Ticket(data), options).read_all()
                    case 1:
                        list(client.do_action(flight.Action(rng.choice(("describe", "file", "x")), data), options))
                    case 2:
                        client.get_flight_info(flight.FlightDescriptor.for_command(data), options)
                    case _:
                        command = rng.choice((data, handshake("0" * 32)))
                        writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(command), options)
                        with contextlib.suppress(pa.ArrowException, OSError, StopIteration):
                            writer.begin(rng.choice((STREAM_SCHEMA, pa.schema([("x", pa.string())]))))
                            writer.write_metadata(data)
                            reader.read_chunk()
                        writer.close()


_CLIENTS: dict[str, Attack] = {
    "random bytes": _random_bytes,
    "half-open calls": _half_open,
    "800 connections": _many_connections,
    "giant headers": _giant_headers,
    "random calls": _random_calls,
    "unfinished message": _unfinished_message,
    "random requests": _arrow_client,
}


# Attacks of nodes on a client.


class _HostileNode(flight.FlightServerBase):  # type: ignore[misc]
    """Describes itself well, and misbehaves in one place.

    Args:
        shards: what it should serve.
        place: `describe`, `file` or `rows`: where it misbehaves.
        manner: how it misbehaves.
        rng: random numbers of the case.
    """

    def __init__(self, shards: ShardServer, place: str, manner: str, rng: random.Random) -> None:
        self._shards, self._place, self._manner, self._rng = shards, place, manner, rng
        self.ended = threading.Event()
        super().__init__("grpc://127.0.0.1:0")

    def do_action(self, context: Any, action: Any) -> Any:
        if action.type == self._place:
            yield from self._bad_results()
        elif action.type == "describe":
            yield handshake(self._shards.identity, shards=self._shards.shards, verbs=False)
        else:
            fields = json.loads(action.body.to_pybytes())
            yield self._shards.file_chunk(fields["file"], fields["offset"])

    def _bad_results(self) -> Any:
        match self._manner:
            case "endless":
                while not self.ended.is_set():
                    yield self._rng.randbytes(1 << 16)
            case "slow":
                while not self.ended.wait(0.3):
                    yield b"{}"
            case "huge":
                yield bytes(64 << 20)
            case "error":
                raise MemoryError("\x1b[31m" * 1000)
            case "nothing":
                return
            case _:
                yield self._rng.choice((b"", b"[" * 10_000, self._rng.randbytes(1000)))

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        if self._place != "rows":
            return
        with contextlib.suppress(pa.ArrowException, OSError, StopIteration):
            self._bad_rows(reader, writer)

    def _bad_rows(self, reader: Any, writer: Any) -> None:
        rng = self._rng
        if self._manner == "types":
            writer.begin(pa.schema([("bytes", pa.int64())]))
            reader.read_chunk()
            head = np.array([64], np.int64).tobytes()
            writer.write_with_metadata(pa.record_batch([pa.array(range(8), pa.int64())], ["bytes"]), head)
            return
        writer.begin(STREAM_SCHEMA)
        reader.read_chunk()
        match self._manner:
            case "endless":
                head = np.array([1 << 29], np.int64).tobytes()
                writer.write_with_metadata(byte_batch(np.zeros(8 << 20, np.uint8)), head)
                while not self.ended.is_set():
                    writer.write_batch(byte_batch(np.zeros(rng.choice((1, 8 << 20)), np.uint8)))
            case "slow":
                writer.write_with_metadata(byte_batch(np.zeros(1, np.uint8)), np.array([1 << 20], np.int64).tobytes())
                while not self.ended.wait(0.3):
                    writer.write_batch(byte_batch(np.zeros(1, np.uint8)))
            case "huge":
                writer.write_with_metadata(byte_batch(np.zeros(64 << 20, np.uint8)), bytes(8))
            case "error":
                raise MemoryError
            case "nothing":
                self.ended.wait(30)
            case _:
                sizes = [rng.choice((-1, 0, 64, 640, 1 << 62)) for _ in range(rng.randint(0, 9))]
                data = np.frombuffer(rng.randbytes(rng.choice((0, 64, 6400))), np.uint8)
                head = rng.choice((np.array(sizes, np.int64).tobytes(), rng.randbytes(9)))
                writer.write_with_metadata(byte_batch(data), head)


_PLACES = ("describe", "file", "rows")
_MANNERS = ("endless", "slow", "huge", "error", "nothing", "random", "types")


def _attack_client(rng: random.Random, shards: ShardServer, expected: Any) -> tuple[str, str | None]:
    if rng.random() < 0.25:
        kind = "node: not a node"
        with _raw_server(rng) as port:
            return kind, _read(f"gear://127.0.0.1:{port}", expected)
    place, manner = rng.choice(_PLACES), rng.choice(_MANNERS)
    server = _HostileNode(shards, place, manner, rng)
    try:
        problem = _read(f"gear://127.0.0.1:{server.port}", expected)
    finally:
        server.ended.set()
        # A server waits for its streams.
        threading.Thread(target=server.shutdown, daemon=True).start()
    return f"node: {place}", problem and f"{manner}: {problem}"


def _read(location: str, expected: Any) -> str | None:
    """Reads from a hostile node; returns the failure."""
    begun = time.monotonic()
    # Tables are fetched again: the cache would hide the node.
    cache = tempfile.TemporaryDirectory(prefix="gear-chaos-")
    with cache:
        try:
            batches = iter(SequenceLoader(gear_data.open(location, cache_dir=cache.name), **_OPTIONS))
            found = [{key: value.clone() for key, value in next(batches).items()} for _ in range(4)]
        except GearError as error:
            text = str(error)
            if "Traceback" in text or "\x1b" in text or len(text) > 20_000:
                return f"the error shows too much: {text[:300]!r}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        else:
            if not _same(found, expected):
                return "other batches"
    seconds = time.monotonic() - begun
    return None if seconds < _TIMEOUT + _SLACK else f"took {seconds:.1f} s"


@contextlib.contextmanager
def _raw_server(rng: random.Random) -> Any:
    """A TCP server that sends nothing, nonsense, or closes."""
    answer = rng.choice((b"", rng.randbytes(1000), b"HTTP/1.1 200 OK\r\n\r\n", http2.frame(4, 0, 0, rng.randbytes(60))))
    is_closing = rng.random() < 0.5
    ended = threading.Event()

    def serve(listening: socket.socket) -> None:
        kept = []
        while not ended.is_set():
            try:
                connection, _ = listening.accept()
                connection.sendall(answer)
            except OSError:
                continue
            if is_closing:
                connection.close()
            else:
                kept.append(connection)
        for connection in kept:
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.1)
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            ended.set()
            thread.join()
