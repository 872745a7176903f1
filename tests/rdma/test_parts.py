"""Parts of the RDMA transport that need no device.

Each is compared with a plain computation.
"""

from __future__ import annotations

import ctypes
import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gear_data
from gear_data.cli import main
from gear_data.cluster.client.options import ClientOptions
from gear_data.cluster.protocol import handshake
from gear_data.cluster.rdma import device, messages, native, ports
from gear_data.cluster.rdma import pyverbs_library as library
from gear_data.cluster.rdma import work_requests as work
from gear_data.cluster.rdma.messages import QueuePairEnd
from gear_data.cluster.rdma.reads import variable_ranges as values
from gear_data.common.secret import Secret
from gear_data.errors import (
    CorruptShardError,
    DeviceError,
    InvalidArgumentError,
    MissingExtraError,
    NodeRefusedError,
    UnknownNameError,
)
from tests.support.feed import data as feed_data
from tests.support.rdma import stand_in

END = QueuePairEnd(700, 1 << 23, ports.ETHERNET, 0, "::ffff:10.0.0.1", 3, 16)


def moves(reads: work.Reads) -> dict[int, tuple[int, int, int]]:
    """Returns local byte -> the remote byte that is written there, and both keys."""
    found = {}
    for remote, rkey, local, lkey, size in zip(
        *(getattr(reads, name).tolist() for name in ("remote", "rkey", "local", "lkey", "size")), strict=True
    ):
        for byte in range(size):
            assert local + byte not in found
            found[local + byte] = (remote + byte, rkey, lkey)
    return found


#: Bytes of a READ, the remote and the local gap before it, and its key.
SPAN = st.tuples(st.integers(0, 9), st.sampled_from([0, 0, 3]), st.sampled_from([0, 0, 5]), st.integers(0, 1))


@settings(derandomize=True, deadline=None)
@given(st.lists(SPAN, max_size=30), st.integers(1, 12))
def test_merging_moves_the_same_bytes_in_the_fewest_reads(spans, largest):
    remote, local, rows = 1000, 9000, []
    for size, gap, other_gap, key in spans:
        remote, local = remote + gap, local + other_gap
        rows.append((remote, 7 + key, local, 5, size))
        remote, local = remote + size, local + size
    reads = work.Reads(*np.array(rows, np.int64).reshape(-1, 5).T)
    merged = reads.merged(largest)
    assert moves(merged) == moves(reads)
    # Plain computation: runs of bytes that are adjacent at both ends, at most `largest` long.
    runs, last, length = 0, None, 0
    for place, (source, key, _) in moves(reads).items():
        if last != (place - 1, source - 1, key) or length == largest:
            runs, length = runs + 1, 0
        last, length = (place, source, key), length + 1
    assert len(merged) == runs


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
def test_work_requests_have_the_layout_of_the_library(count):
    rng = np.random.default_rng(count)
    reads = work.Reads(*(rng.integers(1, 1 << 31, count) for _ in range(5)))
    requests = work.WorkRequestList(reads)
    assert ctypes.sizeof(stand_in.SendWr) == work.WORK_REQUEST.itemsize == 128
    assert ctypes.sizeof(stand_in.Wc) == work.COMPLETION.itemsize == 48
    found = stand_in.walk(requests.address)
    assert len(found) == len(requests) == count
    for number, request in enumerate(found):
        place = request.sg_list.contents
        assert (request.wr_id, request.opcode, request.num_sge) == (number + 1, 4, 1)
        assert bool(request.send_flags & 2) == (number % 64 == 63 or number == count - 1)
        assert [request.remote_addr, request.rkey, place.addr, place.lkey, place.length] == [
            int(values[number]) for values in (reads.remote, reads.rkey, reads.local, reads.lkey, reads.size)
        ]
    # In two sections, as if the queue had no room for all.
    if count > 64:
        assert [each.wr_id for each in stand_in.walk(requests.section(0, 64))] == list(range(1, 65))
        assert [each.wr_id for each in stand_in.walk(requests.section(64, count))] == list(range(65, count + 1))


SIZES = st.lists(st.integers(1, 1000), max_size=40)


@settings(derandomize=True, deadline=None)
@given(SIZES, st.integers(1, 9))
def test_splitting_keeps_every_read_and_balances_bytes(sizes, count):
    size = np.array(sizes, np.int64)
    reads = work.Reads(*(np.arange(len(size)) + 100 * number for number in range(4)), size)
    parts = reads.split(count)
    assert len(parts) == count
    for name in ("remote", "rkey", "local", "lkey", "size"):
        # In order, so that each part has whole runs.
        assert np.concatenate([getattr(part, name) for part in parts]).tolist() == getattr(reads, name).tolist()
    for part in parts:
        assert int(part.size.sum()) <= sum(sizes) / count + max(sizes, default=0)


#: Lengths of the values of each row of three shards; and spans: shard, first row, row count.
VALUES = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=3, max_size=3)
SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 7), st.integers(1, 8)), max_size=12)


def value_spans(lengths, spans):
    """Returns spans as they are read: clipped to the shards, with the offsets of each."""
    offsets = [np.concatenate([[0], np.cumsum(each)]) for each in lengths]
    some = [(shard, first % len(lengths[shard]), count) for shard, first, count in spans]
    some = [(shard, first, min(count, len(lengths[shard]) - first)) for shard, first, count in some]
    parts = [offsets[shard][first : first + count + 1] for shard, first, count in some]
    raw = np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)
    shard, _, count = np.array(some, np.int64).reshape(-1, 3).T
    held = [
        SimpleNamespace(variable={"text": SimpleNamespace(bytes=sum(each))}, entry=SimpleNamespace(file=f"shards/{i}"))
        for i, each in enumerate(lengths)
    ]
    manifest = SimpleNamespace(schema=SimpleNamespace(columns=[SimpleNamespace(name="text")]), shards=held)
    return values.ValueSpans(0, shard, count, raw), manifest, parts, some


@settings(derandomize=True, deadline=None)
@given(VALUES, SPANS)
def test_locating_values(lengths, spans):
    known, manifest, parts, _ = value_spans(lengths, spans)
    first, size, offsets = known.locate(manifest)
    assert first.tolist() == [int(part[0]) for part in parts]
    assert size.tolist() == [int(part[-1] - part[0]) for part in parts]
    expected = [0]
    for part in parts:
        for row in range(len(part) - 1):
            expected.append(expected[-1] + int(part[row + 1] - part[row]))
    assert offsets.tolist() == expected


WRONG = st.sampled_from([-1, -(1 << 63), (1 << 63) - 1, 0, 1, 3, 41])


@settings(derandomize=True, deadline=None, max_examples=300)
@given(VALUES, SPANS.filter(len), st.integers(0, 1000), WRONG)
def test_hostile_offsets_are_detected(lengths, spans, place, wrong):
    known, manifest, parts, some = value_spans(lengths, spans)
    known.offsets[place % len(known.offsets)] = wrong
    bad, begin = [], 0
    for part, (shard, _, count) in zip(parts, some, strict=True):
        found = known.offsets[begin : begin + len(part)].tolist()
        if found != sorted(found) or found[0] < 0 or found[-1] > sum(lengths[shard]):
            bad.append(shard)
        begin += count + 1
    if not bad:
        known.locate(manifest)
        return
    with pytest.raises(CorruptShardError, match=rf"damaged values: offsets of shards/{bad[0]} ") as raised:
        known.locate(manifest)
    assert raised.value.column == "text"


def test_queue_pair_messages_round_trip():
    ends = END, msgspec.structs.replace(END, number=701)
    assert messages.parse_queue_pair_request(handshake("d", queue_pairs=list(ends))) == ends
    assert messages.parse_queue_pair_request(handshake("d")) is None
    table = np.arange(24).reshape(2, 3, 2, 2)
    videos = np.array([[2, 4096, 7, 100], [9, 8192, 8, 1]])
    found_ends, found, found_videos = messages.parse_queue_pair_response(
        messages.queue_pair_response(ends, [4, 1], table, videos), 2, 6, 3
    )
    assert found_ends == ends and found.shape == (6, 3, 2, 2)
    np.testing.assert_array_equal(found_videos, videos)
    np.testing.assert_array_equal(found[[4, 1]], table)
    assert not found[[0, 2, 3, 5]].any()


(GOOD,) = json.loads(handshake("d", queue_pairs=[END]))["queue_pairs"]
HOSTILE = [None, 5, "x", [], {}, {**GOOD, "more": 1}, {**GOOD, "gid": "fe80::1%eth0"}]
HOSTILE += [{**GOOD, name: value} for name in GOOD for value in (-1, 1 << 24, 1 << 70, None, [], "no such", 2.5, True)]


@pytest.mark.parametrize("ends", [None, 5, "x", [], {}, GOOD, [GOOD] * 65, *([GOOD, end] for end in HOSTILE)], ids=str)
def test_malformed_ends_are_refused(ends):
    with pytest.raises(NodeRefusedError, match="malformed"):
        messages.parse_queue_pair_request(json.dumps({"queue_pairs": ends}).encode())


#: Number, address, key and bytes of two video files.
VIDEOS = np.array([[2, 4096, 7, 100], [9, 8192, 8, 1]])


def other_videos(at, value, parts):
    """Returns parts with another number in the table of video files."""
    table = VIDEOS.copy()
    table[at] = value
    return [*parts[:3], table.reshape(-1).view(np.uint8)]


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: [],
        lambda parts: parts[:3],
        lambda parts: [*parts, parts[3]],
        lambda parts: [parts[0][:-1], *parts[1:]],
        lambda parts: [np.frombuffer(b"[" * 100_000, np.uint8), *parts[1:]],
        lambda parts: [np.frombuffer(json.dumps([GOOD]).encode(), np.uint8), *parts[1:]],
        lambda parts: [np.frombuffer(json.dumps([GOOD] * 3).encode(), np.uint8), *parts[1:]],
        lambda parts: [parts[0], parts[1][:-1], *parts[2:]],
        lambda parts: [*parts[:2], parts[2][:-8], parts[3]],
        lambda parts: [parts[0], np.array([4, 6]).view(np.uint8), *parts[2:]],
        lambda parts: [parts[0], np.array([-1, 1]).view(np.uint8), *parts[2:]],
        lambda parts: [*parts[:2], np.where(np.arange(24) == 3, 1 << 32, 1).view(np.uint8), parts[3]],
        lambda parts: [*parts[:2], np.where(np.arange(24) == 4, -5, 1).view(np.uint8), parts[3]],
        lambda parts: [*parts[:3], parts[3][:-8]],
        *(
            partial(other_videos, at, value)
            for at, value in (
                ((0, 0), -1),
                ((0, 0), 9),
                ((1, 0), 2),
                ((0, 1), -1),
                ((1, 1), (1 << 63) - 1),
                ((0, 2), 1 << 32),
                ((0, 2), -1),
                ((1, 3), 0),
                ((0, 3), -5),
                ((0, 3), (1 << 63) - 1),
            )
        ),
    ],
)
def test_malformed_responses_are_refused(change):
    parts = messages.queue_pair_response([END, END], [4, 1], np.ones((2, 3, 2, 2), np.int64), VIDEOS)
    messages.parse_queue_pair_response(parts, 2, 6, 3)
    with pytest.raises(NodeRefusedError, match=r"malformed|impossible"):
        messages.parse_queue_pair_response(change(parts), 2, 6, 3)


@pytest.mark.parametrize("text", ["", "0", "65", "-1", "2.5", "two", "\u0661"])
def test_invalid_numbers_of_queue_pairs(monkeypatch, text):
    monkeypatch.setenv("GEAR_DATA_RDMA_QUEUE_PAIRS", text)
    for make in (ClientOptions.from_environment, lambda: ClientOptions.of_run(Secret(b"0123456789abcdef"), None, "n")):
        with pytest.raises(
            InvalidArgumentError, match=r"GEAR_DATA_RDMA_QUEUE_PAIRS is .*; set it to a .* from 1 to 64"
        ):
            make()


def make_port(root: Path, name: str, number: int, link: str, gids: dict[int, tuple[str, str]], state="4: ACTIVE"):
    folder = root / name / "ports" / str(number)
    (folder / "gids").mkdir(parents=True)
    (folder / "gid_attrs" / "types").mkdir(parents=True)
    for file, text in (("state", state), ("link_layer", link), ("lid", "0x1f")):
        (folder / file).write_text(text + "\n")
    for index, (gid, kind) in gids.items():
        (folder / "gids" / str(index)).write_text(gid + "\n")
        (folder / "gid_attrs" / "types" / str(index)).write_text(kind + "\n")


LINK_LOCAL, V4, V6 = "fe80::1", "0000:0000:0000:0000:0000:ffff:0a09:0001", "2001:db8::1"
V1, V2 = "IB/RoCE v1", "RoCE v2"


def test_choosing_a_port(tmp_path, monkeypatch):
    monkeypatch.delenv(ports.DEVICE_VARIABLE, raising=False)
    with pytest.raises(DeviceError, match="no RDMA device with an active port"):
        ports.choose_port(tmp_path)
    make_port(tmp_path, "down0", 1, ports.ETHERNET, {0: (V4, V2)}, state="1: DOWN")
    with pytest.raises(DeviceError):
        ports.choose_port(tmp_path)
    make_port(tmp_path, "mlx0", 2, ports.ETHERNET, {0: (LINK_LOCAL, V1), 1: (LINK_LOCAL, V2), 2: (V4, V1), 3: (V4, V2)})
    make_port(tmp_path, "mlx0", 10, ports.ETHERNET, {0: ("::", V2), 1: (LINK_LOCAL, V2), 2: (V6, V2)})
    make_port(tmp_path, "ib0", 1, ports.INFINIBAND, {0: (LINK_LOCAL, V1)})
    assert ports.choose_port(tmp_path) == ports.Port("ib0", 1, ports.INFINIBAND, 0x1F, LINK_LOCAL, 0)
    for named, expected in (
        ("mlx0", ports.Port("mlx0", 2, ports.ETHERNET, 0, "::ffff:a09:1", 3)),
        ("mlx0:10", ports.Port("mlx0", 10, ports.ETHERNET, 0, V6, 2)),
    ):
        monkeypatch.setenv(ports.DEVICE_VARIABLE, named)
        assert ports.choose_port(tmp_path) == expected
    monkeypatch.setenv(ports.DEVICE_VARIABLE, "down0")
    with pytest.raises(DeviceError, match=r"'down0'.*no such active port") as raised:
        ports.choose_port(tmp_path)
    assert "mlx0:10" in str(raised.value)


def test_memory_that_is_not_a_queue_pair_is_refused():
    class Small:
        qp_num = 5

    class Other:
        __slots__ = ("a", "b", "c", "d", "e")
        qp_num = 5

    pair, empty = Other(), Other()
    pair.d = np.zeros(9)
    for each in (Small(), empty, pair):
        with pytest.raises(DeviceError, match="release of pyverbs is not supported"):
            native.VerbsCalls(each)


@pytest.mark.parametrize("name", ["pyverbs.enums", "pyverbs.libibverbs_enums"])
def test_both_module_names_of_the_constants(monkeypatch, name):
    stand_in.StandIn().install(monkeypatch)
    module = sys.modules.pop("pyverbs.enums")
    monkeypatch.setitem(sys.modules, name, module)
    assert library.load_library().enums is module


def test_without_a_device(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ports.choose_port, "__defaults__", (tmp_path,))
    monkeypatch.delenv(ports.DEVICE_VARIABLE, raising=False)
    with pytest.raises(DeviceError, match="transport='flight'"):
        device.open_device()
    make_port(tmp_path, "mlx0", 1, ports.ETHERNET, {3: (V4, V2)})
    try:
        import pyverbs  # noqa: F401
    except ImportError:
        with pytest.raises(MissingExtraError, match="python3-pyverbs"):
            device.open_device()
    with pytest.raises(UnknownNameError, match="transport 'tcp'"):
        gear_data.open("gear://127.0.0.1:1", transport="tcp")


@pytest.mark.parametrize(("residency", "message"), [("mmap", "--residency host"), ("host", "no RDMA device")])
def test_serving_by_rdma_without_memory_or_device(tmp_path, monkeypatch, capsys, residency, message):
    monkeypatch.setattr(ports.choose_port, "__defaults__", (tmp_path / "none",))
    monkeypatch.delenv(ports.DEVICE_VARIABLE, raising=False)
    feed_data.convert_episodes(feed_data.locomotion([5, 6], seed=1), tmp_path / "d")
    options = ["--listen", "127.0.0.1:0", "--residency", residency, "--transport", "verbs"]
    assert main(["serve", str(tmp_path / "d"), *options]) > 0
    assert message in capsys.readouterr().err
