"""Damage to a source that its checksums and magic bytes do not reveal.

tests/fuzz/damage.py chooses among these functions. Not a test.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tests.support.manifests import signed

#: Counts, sizes and offsets that often break readers.
INTEGERS = (0, 1, -1, 255, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1)
_DTYPES = (np.uint8, np.int64, np.float16, np.float64, np.complex128, "S3", ">f4", np.dtype([("a", "f4")]))
_DESCRIPTIONS = (
    "<f4",
    ">f8",
    "|O",
    "|b1",
    "<U1",
    "|S0",
    "|V4",
    "<M8[s]",
    "<f2",
    "<U1000000000",
    "x",
    None,
    [("a", "<f4")],
)
#: Masked CRC-32C, https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details.
_CRC32C, _CRC_MASK = 0x82F63B78, 0xA282EAD8

Damage = Callable[[bytearray, random.Random], str]


def damage_table(path: Path, rng: random.Random) -> str:
    """Changes a Parquet or Arrow table, or writes it with other options."""
    way = rng.choice(("drop", "nulls", "text", "cast", "repeat", "empty", "rename", "order", "metadata", "rewrite"))
    table = _changed(_read_table(path), way, rng)
    if path.suffix == ".parquet":
        options = {"row_group_size": 3}
        if way == "rewrite":
            options = {
                "row_group_size": rng.choice((1, 3, 1000)),
                "compression": rng.choice(("none", "snappy", "gzip", "zstd", "lz4", "brotli")),
                "data_page_version": rng.choice(("1.0", "2.0")),
                "use_dictionary": rng.random() < 0.5,
                "write_page_checksum": False,
                "write_page_index": rng.random() < 0.3,
            }
        pq.write_table(table, path, **options)
    else:
        pack = rng.choice((None, "lz4", "zstd")) if way == "rewrite" else None
        new = pa.ipc.new_file if path.read_bytes().startswith(b"ARROW1") else pa.ipc.new_stream
        with (
            pa.OSFile(str(path), "wb") as sink,
            new(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=pack)) as writer,
        ):
            writer.write_table(table, max_chunksize=rng.choice((2, 1000)) if way == "rewrite" else None)
    return f"table {way}"


def _read_table(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pq.read_table(path)
    data = path.read_bytes()
    return (pa.ipc.open_file if data.startswith(b"ARROW1") else pa.ipc.open_stream)(pa.BufferReader(data)).read_all()


def _changed(table: pa.Table, way: str, rng: random.Random) -> pa.Table:
    index = rng.randrange(table.num_columns)
    name, column = table.column_names[index], table.column(index)
    if way == "drop":
        return table.remove_column(index)
    if way == "nulls":
        keep = pa.array([rng.random() < 0.6 for _ in range(len(table))])
        return table.set_column(index, name, pa.compute.if_else(keep, column, None))
    if way == "text":
        return table.set_column(index, name, [["x"] * len(table)])
    if way == "cast":
        types = (pa.decimal128(20, 3), pa.timestamp("us"), pa.large_list(pa.float16()), pa.null(), pa.uint8())
        types += (pa.dictionary(pa.int8(), pa.string()), pa.map_(pa.string(), pa.int8()), pa.list_view(pa.float32()))
        types += (pa.struct([]), pa.list_(pa.float32(), 0), pa.binary(3), pa.run_end_encoded(pa.int32(), pa.float32()))
        return table.set_column(index, name, [pa.nulls(len(table), rng.choice(types))])
    if way == "repeat":
        return table.append_column(name, column)
    if way == "empty":
        return table.slice(0, 0)
    if way == "rename":
        names = [*table.column_names]
        names[index] = rng.choice(("", "dones", "observations", "episode_index", "a.b..c", "\0", "actions"))
        return table.rename_columns(names)
    if way == "order":
        return table.take(rng.sample(range(len(table)), len(table)))
    if way == "metadata":
        texts = (
            "",
            "{",
            "[]",
            '{"info": {"features": 3}}',
            '{"info": {"features": {"a": {"_type": "Image"}}}}',
            "\xff",
        )
        return table.replace_schema_metadata({rng.choice(("huggingface", "pandas", "x")): rng.choice(texts)})
    return table


def damage_hdf5(path: Path, rng: random.Random) -> str:
    """Changes an object of an HDF5 file, or writes the file in a newer version."""
    if rng.random() < 0.15:
        return _repacked(path)
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name = rng.choice(names)
        item = file[name]
        ways = ("remove", "dtype", "shape", "external", "soft", "text", "object", "attribute", "huge", "vds")
        way = rng.choice((*ways, "chunk", "chunk", "chunk", "rename"))
        if way == "attribute":
            item.attrs[rng.choice([*item.attrs, "total_steps", "id"])] = rng.choice((b"x", -1, 1 << 40, [1.5, 2.5], ""))
            return f"{way} of {name}"
        if way == "rename":
            file.move(
                name, rng.choice(("x", f"{name}/x", "data", "observations", "episode_00", "episode_1000000", "é"))
            )
            return f"{way} of {name}"
        values = item[()] if isinstance(item, h5py.Dataset) else np.zeros(3)
        kind = item.dtype if isinstance(item, h5py.Dataset) else None
        del file[name]
        if way == "dtype":
            file[name] = np.zeros(np.shape(values), rng.choice(_DTYPES))
        elif way == "shape":
            shapes = ((), (0,), (1,), (2, 0), (3, 4, 5), (*np.shape(values), 1), np.shape(values)[::-1])
            file[name] = np.zeros(rng.choice(shapes), np.float32)
        elif way == "external":
            file[name] = h5py.ExternalLink("/etc/passwd", "/")
        elif way == "soft":
            file[name] = h5py.SoftLink(rng.choice(("/", "/nothing", f"/{name}", f"/{names[0]}")))
        elif way == "text":
            file.create_dataset(name, data=["é" * rng.randrange(4)] * max(1, len(np.atleast_1d(values))))
        elif way == "object":
            file.create_dataset(name, data=np.frombuffer(b"\x80\x04K\x01.", np.uint8), dtype=np.uint8)
            file[f"{name}_reference"] = file[name].ref
        elif way == "huge":
            file.create_dataset(name, (1 << rng.choice((31, 40, 50)), 3), np.float64, chunks=(1024, 3))
        elif way == "vds":
            layout = h5py.VirtualLayout((8,), np.float32)
            layout[:] = h5py.VirtualSource("/etc/hostname", "x", (8,))
            file.create_virtual_dataset(name, layout)
        elif way == "chunk":
            way += f" ({_damaged_chunk(file, name, np.atleast_1d(values), kind, rng)})"
        return f"{way} of {name}"


def _damaged_chunk(file: h5py.File, name: str, values: Any, kind: Any, rng: random.Random) -> str:
    """Writes a chunk that decompresses, but to other bytes than the values.

    The values are often text, so the bytes are references into a heap.
    """
    if rng.random() < 0.4:
        values, kind = np.array([f"step {i}" for i in range(len(values))], object), h5py.string_dtype()
    packing = rng.choice((None, "gzip", "gzip", "lzf"))
    rows = max(1, rng.choice((len(values), len(values) // 2)))
    dataset = file.create_dataset(
        name, values.shape, kind, data=values, chunks=(rows, *values.shape[1:]), compression=packing
    )
    file.flush()
    mask, raw = dataset.id.read_direct_chunk((0,) * values.ndim)
    data = bytearray(zlib.decompress(raw) if packing == "gzip" else raw)
    done = _damaged_bytes(data, rng)
    packed = zlib.compress(data) if packing == "gzip" else bytes(data)
    dataset.id.write_direct_chunk((0,) * values.ndim, packed, mask)
    return f"{packing}, {done}"


def _damaged_bytes(data: bytearray, rng: random.Random) -> str:
    way = rng.choice(("cut", "cut", "integer", "integer", "flip", "longer", "empty"))
    at = rng.randrange(len(data)) if data else 0
    if way == "cut":
        del data[at:]
    elif way == "integer":
        data[at - at % 4 : at - at % 4 + 4] = (rng.choice(INTEGERS) & 0xFFFFFFFF).to_bytes(4, "little")
    elif way == "flip" and data:
        data[at] ^= 1 << rng.randrange(8)
    elif way == "longer":
        data += bytes(rng.choice((1, 1000)))
    elif way == "empty":
        data.clear()
    return f"{way} at {at}"


def _repacked(path: Path) -> str:
    """Writes the same objects in the newest version of the format."""
    new = path.with_name("new")
    with h5py.File(path) as file, h5py.File(new, "w", libver="latest", track_order=True) as copy:
        copy.attrs.update(file.attrs)
        for name in file:
            file.copy(name, copy)
    shutil.move(new, path)
    return "repacked"


def damage_npz(path: Path, rng: random.Random) -> str:
    """Changes an array or a member of an `.npz` archive."""
    if rng.random() < 0.5:
        return damage_members(path, rng)
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    name = rng.choice(list(arrays))
    way = rng.choice(("remove", "dtype", "shape", "object", "name"))
    if way == "remove":
        del arrays[name]
    elif way == "dtype":
        arrays[name] = np.zeros(arrays[name].shape, rng.choice(_DTYPES))
    elif way == "shape":
        arrays[name] = np.zeros(rng.choice(((), (0,), (2, 0), (3, 4, 5), arrays[name].shape[::-1])), np.float32)
    elif way == "object":
        arrays[name] = np.array([None, "x"], object)
    elif way == "name":
        arrays[rng.choice(("../x", "a/b", "", "observations.x"))] = arrays.pop(name)
    np.savez(path, **arrays)
    return f"array {way} of {name}"


def damage_members(path: Path, rng: random.Random) -> str:
    """Changes a member's bytes, with a correct checksum, or its packing or name."""
    with zipfile.ZipFile(path) as archive:
        members = {name: bytearray(archive.read(name)) for name in archive.namelist()}
    name = rng.choice(list(members))
    way = rng.choice(("header", "header", "bytes", "packing", "twice"))
    done = ""
    if way == "header":
        done = _damaged_header(members[name], rng)
    elif way == "bytes":
        done = _damaged_bytes(members[name], rng)
    packings = (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA) if way == "packing" else (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED)
    with zipfile.ZipFile(path, "w", rng.choice(packings)) as archive:
        for member, data in members.items():
            archive.writestr(member, bytes(data))
    if way == "twice":
        with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings(action="ignore"):
            archive.writestr(zipfile.ZipInfo(name), bytes(members[name]))
    return f"member {way} {done} of {name}"


def damage_npy(path: Path, rng: random.Random) -> str:
    """Changes the header of an `.npy` file."""
    data = bytearray(path.read_bytes())
    done = _damaged_header(data, rng)
    path.write_bytes(data)
    return done


def damage_gzipped_npy(path: Path, rng: random.Random) -> str:
    """Changes the header, a byte or the length of an `.npy` file inside gzip."""
    data = bytearray(gzip.decompress(path.read_bytes()))
    way = rng.choice(("header", "header", "byte", "cut", "append"))
    done = ""
    if way == "header":
        done = _damaged_header(data, rng)
    elif way == "byte":
        data[rng.randrange(len(data))] = rng.choice((0, 1, 2, 0x7F, 0xFF))
    elif way == "cut":
        del data[rng.randrange(len(data)) :]
    else:
        data += bytes(rng.choice((1, 100)))
    path.write_bytes(gzip.compress(bytes(data)))
    return f"gzipped {way} {done}"


def _damaged_header(data: bytearray, rng: random.Random) -> str:
    """Writes a header that can (almost) be parsed, but does not fit the values."""
    stream = io.BytesIO(data)
    np.lib.format.read_magic(stream)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    values = data[stream.tell() :]
    header: dict[Any, Any] = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": fortran, "shape": shape}
    way = rng.choice(("descr", "shape", "shape", "fortran", "key", "text", "version"))
    if way == "descr":
        header["descr"] = rng.choice(_DESCRIPTIONS)
    elif way == "shape":
        rows = shape[0] if shape else 1
        shapes = (
            (),
            (rows,),
            (rows, -1),
            (-rows, -1),
            (True,),
            (rows * 1.0,),
            (1 << 40,),
            (1 << 63, 2),
            (rows, 0),
            rows,
        )
        header["shape"] = rng.choice((*shapes, shape[::-1], (*shape, 1), (0, 1 << 62), (1,) * 40))
    elif way == "fortran":
        header["fortran_order"] = rng.choice((True, 1, None, "x"))
    elif way == "key":
        header[rng.choice(("", "x", 3))] = header.pop(rng.choice(list(header)))
    text = (
        repr(header).encode() if way != "text" else rng.choice((b"", b"{", b"(" * 5000, b"__import__('os')", b"\xff"))
    )
    version = rng.choice((0, 2, 3, 9)) if way == "version" else 1
    length = struct.pack("<H" if version < 2 else "<I", len(text))
    data[:] = b"\x93NUMPY" + bytes((version, 0)) + length + text + values
    return f"header {way}"


def damage_records(path: Path, rng: random.Random) -> str:
    """Changes the protocol buffers in TFRecords, with correct checksums."""
    data, records, at = path.read_bytes(), [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        records.append(bytearray(data[at + 12 : at + 12 + length]))
        at += length + 16
    way = rng.choice(("bytes", "bytes", "bytes", "bytes", "remove", "repeat", "order", "length"))
    index = rng.randrange(len(records))
    done = ""
    if way == "bytes":
        done = ", ".join(_damaged_bytes(records[index], rng) for _ in range(rng.choice((1, 1, 3))))
    elif way == "remove":
        del records[index]
    elif way == "repeat":
        records.append(records[index])
    elif way == "order":
        rng.shuffle(records)
    packed = bytearray()
    for i, record in enumerate(records):
        length = rng.choice(INTEGERS) & ((1 << 64) - 1) if way == "length" and i == index else len(record)
        size = struct.pack("<Q", length)
        packed += size + masked_crc(size) + record + masked_crc(record)
    path.write_bytes(packed)
    return f"record {way} {done}"


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_CRC32C if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


def masked_crc(data: bytes | bytearray) -> bytes:
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _CRC_MASK) & 0xFFFFFFFF)


def settle(path: Path) -> bool:
    """Writes the damaged files' sizes and checksums to a gear dataset's manifest.

    Returns whether the file is such a manifest. Otherwise nearly all damage would end at the check of sizes.
    """
    try:
        manifest = json.loads(path.read_bytes())
        entries = [*manifest["shards"], *manifest["tables"].values()]
        for entry in entries:
            data = (path.parent / entry["file"]).read_bytes()
            entry |= {"bytes": len(data), "checksum": f"xxh3-128:{xxhash.xxh3_128_hexdigest(data)}"}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
    path.write_text(signed(manifest))
    return True
