"""Arrow IPC files that would take far more memory than their size."""

from __future__ import annotations

import random
import struct

import polars as pl
import pyarrow as pa
import pytest

from gear_data.errors import CorruptShardError
from gear_data.storage.arrow_files import parse_table
from gear_data.storage.arrow_footer import check_blocks


def _file(table: pa.Table, rows: int | None = None, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return bytes(sink.getvalue())


TABLE = pa.table(
    {
        "n": pa.array(range(100)),
        "text": pa.array([str(i % 3) for i in range(100)], pa.large_string()).dictionary_encode(),
        "lists": pa.array([[i] * (i % 4) for i in range(100)]),
    }
)


@pytest.mark.parametrize("table", [TABLE, TABLE.slice(0, 0), TABLE.select([]), TABLE.select(["n"])], ids=str)
@pytest.mark.parametrize("rows", [None, 7])
def test_uncompressed_files_are_sound(table: pa.Table, rows: int | None) -> None:
    assert parse_table(_file(table, rows), "x").equals(table)


def test_files_of_polars_are_sound() -> None:
    frame = pl.DataFrame({"n": range(1000), "text": [str(i % 3) for i in range(1000)]})
    data = frame.with_columns(pl.col("text").cast(pl.Categorical)).write_ipc(None).getvalue()
    check_blocks(pa.py_buffer(data), "x", "hint")


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_compressed_file_is_refused(codec: str) -> None:
    for table in (TABLE, TABLE.select(["text"])):
        with pytest.raises(CorruptShardError, match="it is compressed"):
            parse_table(_file(table, compression=codec), "x")
    zeros = pa.table({"n": pa.array([bytes(1 << 24)], pa.binary(1 << 24))})
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptShardError, match="it is compressed"):
        parse_table(_file(zeros, compression=codec), "x")
    assert pa.total_allocated_bytes() - before < 1 << 24


def test_messages_that_are_listed_twice() -> None:
    """A footer may list one dictionary many times, to be joined in memory."""
    data = bytearray(_file(TABLE, 10))
    size = struct.unpack_from("<i", data, len(data) - 10)[0]
    footer = memoryview(data)[len(data) - 10 - size : len(data) - 10]
    blocks = [i for i in range(0, size - 24, 4) if _is_block(footer[i : i + 24], len(data) - size)]
    assert len(blocks) >= 11
    largest = max(blocks, key=lambda i: struct.unpack_from("<qi4xq", footer, i)[2])
    copied = bytes(footer[largest : largest + 24])
    for place in blocks:
        footer[place : place + 24] = copied
    with pytest.raises(CorruptShardError, match="not an uncompressed Arrow IPC file"):
        check_blocks(pa.py_buffer(bytes(data)), "x", "hint")


def _is_block(data: memoryview, end: int) -> bool:
    offset, metadata, padding, body = struct.unpack("<qiiq", data)
    return 0 < offset < end and 0 < metadata < 1000 and padding == 0 and 0 < body < end and offset % 8 == 0


def test_a_file_with_a_hole() -> None:
    data = _file(TABLE)
    size = struct.unpack_from("<i", data, len(data) - 10)[0]
    at = len(data) - 10 - size
    with pytest.raises(CorruptShardError, match="bytes belong to no message"):
        check_blocks(pa.py_buffer(data[:at] + bytes(2 << 20) + data[at:]), "x", "hint")


def test_damaged_bytes_never_give_another_error() -> None:
    whole = _file(TABLE, 30)
    rng = random.Random(5)
    refused = 0
    for _ in range(3000):
        data = bytearray(whole)
        place = rng.randrange(len(data))
        if rng.random() < 0.5:
            data[place] ^= 1 << rng.randrange(8)
        else:
            value = rng.choice((-1, 1 << 31, (1 << 32) - 1, 1 << 62, -(1 << 62), 0)) & ((1 << 64) - 1)
            data[place : place + 8] = value.to_bytes(8, "little")
        try:
            check_blocks(pa.py_buffer(bytes(data)), "x", "hint")
        except CorruptShardError as error:
            assert error.hint == "hint"
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("data", [b"", b"ARROW1", b"ARROW1\0\0" + bytes(50) + b"ARROW1", bytes(1000), b"?" * 5000])
def test_other_bytes(data: bytes) -> None:
    with pytest.raises(CorruptShardError, match="not an uncompressed Arrow IPC file"):
        parse_table(data, "x")
