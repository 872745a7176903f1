"""Messages: malformed requests are refused, and responses equal plain slices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gear_data
from gear_data.cluster.addresses import Address, parse_nodes
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.client.peer import Peer
from gear_data.cluster.credentials import read_token
from gear_data.cluster.error_codec import error_from_bytes, error_to_bytes
from gear_data.cluster.flight.client import Endpoint
from gear_data.cluster.protocol import (
    MAX_SPANS,
    VERSION,
    ColumnGroup,
    Request,
    check_handshake,
    handshake,
    part_offsets,
)
from gear_data.cluster.server import shard_server as served_module
from gear_data.cluster.server.shard_server import ShardServer
from gear_data.common.secret import Secret
from gear_data.errors import CorruptShardError, GearError, InvalidArgumentError, NodeRefusedError, UnknownNameError
from gear_data.storage.dataset_files import FolderFiles
from gear_data.storage.identity import dataset_identity

LENGTHS = [25, 9, 18, 3, 32, 22, 17]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset in several shards.

    Its columns have 12, 1, 8 and 4 bytes per row; one column is text.
    """
    rng = np.random.default_rng(5)
    rows = [
        {
            "observations": rng.normal(size=(length, 3)).astype(np.float32).tolist(),
            "infos.kind": rng.integers(0, 256, length).astype(np.uint8).tolist(),
            "infos.time": rng.integers(0, 1 << 60, length).tolist(),
            "rewards": rng.normal(size=length).astype(np.float32).tolist(),
            "infos.text": ["ä" * int(n) for n in rng.integers(0, 4, length)],
        }
        for length in LENGTHS
    ]
    types = {
        "observations": pa.list_(pa.list_(pa.float32())),
        "infos.kind": pa.list_(pa.uint8()),
        "infos.time": pa.list_(pa.int64()),
        "rewards": pa.list_(pa.float32()),
        "infos.text": pa.list_(pa.string()),
    }
    path = tmp_path_factory.mktemp("served")
    table = pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()})
    pq.write_table(table, path / "source.parquet")
    gear_data.convert(path / "source.parquet", path / "d", format="episode-rows", shard_bytes=1024, progress=False)
    return path / "d"


@pytest.fixture(scope="module")
def served(folder: Path) -> ShardServer:
    """A server of all shards but the first."""
    count = len(FolderFiles(folder).manifest().shards)
    assert count > 2
    return ShardServer(FolderFiles(folder), range(1, count))


def plain_rows(folder: Path, shard: int, name: str) -> Any:
    """Reads a shard's column with pyarrow only."""
    column = pa.ipc.open_file(folder / "shards" / f"{shard:06}.arrow").read_all().column(name).to_pylist()
    return column


def words(*numbers: int) -> bytes:
    return np.array(numbers, np.int64).tobytes()


spans = st.tuples(st.sampled_from((1,) * 6 + (2,) * 6 + (0, 9)), st.integers(0, 20), st.integers(0, 9))


@given(st.lists(spans, max_size=8), st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=4), max_size=3))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_responses_are_plain_slices_or_refusals(
    folder: Path, served: ShardServer, requested: list[tuple[int, int, int]], groups: list[list[int]]
) -> None:
    shard, first, count = (np.array([span[i] for span in requested], np.int64) for i in range(3))
    groups = groups or [[0]]
    # Every group requests other rows.
    parts = tuple(ColumnGroup(tuple(each), first + i, count) for i, each in enumerate(groups))
    request = Request.from_bytes(Request(shard, parts).to_bytes())
    manifest = served.manifest
    columns = list(manifest.schema)
    steps = {i: entry.steps for i, entry in enumerate(manifest.shards)}
    good = all(c < len(columns) for each in groups for c in each) and all(
        s in served.shards and f + i + n <= steps[s] for s, f, n in requested for i in range(len(groups))
    )
    if not good:
        with pytest.raises(NodeRefusedError):
            served.answer(request)
        return
    response = served.answer(request)
    offsets, total = part_offsets(response.sizes.tolist())
    assert len(response.data) == total
    found = iter([response.data[p : p + n].tobytes() for p, n in zip(offsets, response.sizes.tolist(), strict=True)])
    for i, each in enumerate(groups):
        for c in each:
            rows = [row for s, f, n in requested for row in plain_rows(folder, s, columns[c].name)[f + i : f + i + n]]
            if columns[c].variable_length:
                encoded = [row.encode() for row in rows]
                ends = np.cumsum([0, *map(len, encoded)])
                assert next(found) == ends.astype(np.int64).tobytes()
                assert next(found) == b"".join(encoded)
            else:
                assert next(found) == np.array(rows, columns[c].storage_dtype).tobytes()
    assert next(found, None) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        words(1),
        words(1, 0),
        words(0, 0),
        words(-1, 5),
        words(1, -1, 1, 0),
        words(1, MAX_SPANS + 1, 1, 0),
        words(1 << 62, 1 << 62),
        words(1, 1, 1 << 62, 0),
        words(1, 1, -1, 0),
        words(1, 1, 1, 0, 1, 0),  # one word too few
        words(1, 1, 1, 0, 1, 0, 1, 9),  # one word too many
        words(2, 1, 1, 0, 1, 0, 1),
    ],
)
def test_malformed_requests(data: bytes) -> None:
    with pytest.raises(NodeRefusedError, match="malformed"):
        Request.from_bytes(data)


@pytest.mark.parametrize(
    ("shard", "first", "count", "column"),
    [
        (0, 0, 1, 0),  # not served
        (99, 0, 1, 0),
        (-1, 0, 1, 0),
        (1, -1, 2, 0),
        (1, 0, -1, 0),
        (1, 0, 1 << 40, 0),
        (1, (1 << 63) - 1, 2, 0),
        (1, 2, (1 << 63) - 1, 0),
        (1, 0, 1, -1),
        (1, 0, 1, 99),
    ],
)
def test_rows_that_do_not_exist(served: ShardServer, shard: int, first: int, count: int, column: int) -> None:
    group = ColumnGroup((column,), np.array([0, first]), np.array([1, count]))
    with pytest.raises(NodeRefusedError):
        served.answer(Request(np.array([1, shard]), (group,)))


@given(st.data())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_request_with_a_word_changed(served: ShardServer, data: st.DataObject) -> None:
    shard = np.array([1, 2, 1])
    request = Request(
        shard, (ColumnGroup((0, 3), np.array([0, 1, 2]), np.array([1, 1, 0])), ColumnGroup((2,), shard, shard * 0))
    )
    changed = np.frombuffer(request.to_bytes(), np.int64).copy()
    place = data.draw(st.integers(0, len(changed) - 1))
    changed[place] = data.draw(st.one_of(st.integers(-3, 9), st.integers(-(1 << 63), (1 << 63) - 1)))
    try:
        response = served.answer(Request.from_bytes(changed.tobytes()))
    except NodeRefusedError:
        return
    assert len(response.data) == part_offsets(response.sizes.tolist())[1]


def test_responses_that_are_too_large(served: ShardServer, monkeypatch: pytest.MonkeyPatch) -> None:
    text = served.manifest.schema.index("infos.text")
    steps = served.manifest.shards[1].steps
    for column, limit in ((0, 12 * steps * 3 - 1), (text, 8 * 3 * steps + 3)):
        monkeypatch.setattr(served_module, "MAX_RESPONSE_BYTES", limit)
        group = ColumnGroup((column,), np.zeros(3, np.int64), np.full(3, steps))
        with pytest.raises(NodeRefusedError, match="at once"):
            served.answer(Request(np.ones(3, np.int64), (group,)))


def test_large_responses_do_not_use_the_pool(served: ShardServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_module, "MESSAGE_BYTES", 16)
    steps = served.manifest.shards[1].steps
    request = Request(np.ones(1, np.int64), (ColumnGroup((0,), np.zeros(1, np.int64), np.array([steps])),))
    assert len(served.answer(request).data) >= 12 * steps


def test_damaged_text_is_named(folder: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(folder, tmp_path / "d")
    manifest = FolderFiles(folder).manifest()
    index = next(i for i, shard in enumerate(manifest.shards) if shard.variable["infos.text"].bytes)
    entry = manifest.shards[index]
    path = tmp_path / "d" / entry.entry.file
    data = bytearray(path.read_bytes())
    data[entry.buffers["infos.text"]] = 0xFF  # not UTF-8
    path.write_bytes(data)
    damaged = ShardServer(FolderFiles(tmp_path / "d"))
    column = manifest.schema.index("infos.text")
    group = ColumnGroup((column,), np.zeros(1, np.int64), np.array([entry.steps]))
    with pytest.raises(CorruptShardError, match=r"infos\.text"):
        damaged.answer(Request(np.array([index]), (group,)))


def test_shards_that_do_not_exist(folder: Path, tmp_path: Path) -> None:
    import shutil

    files = FolderFiles(folder)
    for shards in ([], [-1], [99]):
        with pytest.raises(InvalidArgumentError, match="the shards are 0 to"):
            ShardServer(files, shards)
    shutil.copytree(folder, tmp_path / "d")
    (tmp_path / "d" / "shards" / "000000.arrow").unlink()
    ShardServer(FolderFiles(tmp_path / "d"), [1])  # needs no other shard's file
    with pytest.raises(CorruptShardError, match="missing"):
        ShardServer(FolderFiles(tmp_path / "d"), [0, 1])


def test_handshakes(folder: Path) -> None:
    name = dataset_identity(FolderFiles(folder).manifest())
    assert check_handshake(handshake(name)).dataset == name
    good = json.loads(handshake(name))
    for data, match in [
        (b"", "malformed"),
        (b"[]", "malformed"),
        (b"[" * 100_000, "malformed"),
        (json.dumps({**good, "version": VERSION - 1}).encode(), f"speaks protocol version {VERSION}"),
        (json.dumps({**good, "byteorder": "middle"}).encode(), "endian"),
    ]:
        with pytest.raises(NodeRefusedError, match=match):
            check_handshake(data)


def test_errors_keep_their_type() -> None:
    error = error_from_bytes(error_to_bytes(CorruptShardError("is bad", column="x", hint="mend it")), "gear://n:1")
    assert type(error) is CorruptShardError
    assert str(error) == "gear://n:1, column 'x': is bad\n  mend it"
    for data in (b"", b"{}", b'{"error": "SystemExit"}', b'{"error": "is_disk_full", "message": ""}', b"[" * 100_000):
        assert error_from_bytes(data, "n") is None
    assert isinstance(error_from_bytes(error_to_bytes(UnknownNameError("x")), "n"), GearError)


def test_addresses() -> None:
    assert parse_nodes("gear://a:1,[::1]:2,10.0.0.1:3/") == (Address("a", 1), Address("::1", 2), Address("10.0.0.1", 3))
    assert [str(address) for address in parse_nodes("gear://a:1,[::1]:2")] == ["a:1", "[::1]:2"]
    for text in ("", "a", "a:", "a:x", ":1", "a:70000", "a:-1", "::1:2", "a/b:1", "u@h:1", "[::1:2", "a b:1"):
        with pytest.raises(InvalidArgumentError, match="is not host:port"):
            parse_nodes(f"gear://{text}")
    with pytest.raises(InvalidArgumentError, match="twice"):
        parse_nodes("gear://a:1,a:1")
    local = {"127.0.0.1": True, "127.9.9.9": True, "::1": True, "localhost": True, "0.0.0.0": False, "::": False}
    for host, is_loopback in {**local, "10.0.0.1": False, "localhost.example.org": False, "n1": False}.items():
        assert Address(host, 1).is_loopback is is_loopback


def test_client_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote, local = Address("10.0.0.1", 1), Address("127.0.0.1", 1)
    bare = ClientOptions.from_environment()
    assert bare == ClientOptions(None, None, 30.0)
    bare.check(local)
    with pytest.raises(InvalidArgumentError, match="needs a token"):
        bare.check(remote)
    assert (bare.flight_location(local), bare.flight_location(remote)) == (
        "grpc://127.0.0.1:1",
        "grpc+tls://10.0.0.1:1",
    )

    path = tmp_path / "token"
    for text in ("", "short", "0123456789abcde ", "0123456789 abcdef", "0123456789abcdefß"):
        path.write_text(text)
        with pytest.raises(InvalidArgumentError, match="token"):
            read_token(path)
    path.write_text("0123456789abcdef\n")
    (tmp_path / "ca.pem").write_bytes(b"pem")
    monkeypatch.setenv("GEAR_DATA_TOKEN_FILE", str(path))
    monkeypatch.setenv("GEAR_DATA_TLS_CA", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", "2.5")
    full = ClientOptions.from_environment()
    assert full == ClientOptions(Secret(b"0123456789abcdef"), b"pem", 2.5)
    assert "0123456789abcdef" not in repr(full)
    full.check(remote)
    assert full.flight_location(local) == "grpc+tls://127.0.0.1:1"
    monkeypatch.setenv("GEAR_DATA_TLS_CA", str(tmp_path / "none"))
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        ClientOptions.from_environment()
    for text in ("x", "0", "-1", "inf", "nan"):
        monkeypatch.setenv("GEAR_DATA_NODE_TIMEOUT", text)
        with pytest.raises(InvalidArgumentError, match="number of seconds"):
            ClientOptions.from_environment()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"dataset": "x"}',
        b'{"dataset": "x", "shards": []}',
        b'{"dataset": "x", "shards": [1e400], "verbs": false}',
        b"[" * 100_000,
    ],
)
def test_malformed_descriptions(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        def do_action(self, *arguments: Any) -> list[Any]:
            return [type("Result", (), {"body": pa.py_buffer(body)})]

        def close(self) -> None:
            pass

    monkeypatch.setattr(Endpoint, "connect", lambda self, seconds: Client())
    with pytest.raises(NodeRefusedError, match="a malformed description") as error:
        Peer(Address("127.0.0.1", 1), ClientOptions(None, None, 1.0)).describe()
    assert error.value.file == "gear://127.0.0.1:1"
