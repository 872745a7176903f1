"""Ways to damage a source, for tests/fuzz_readers.py. Not a test."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import source_makers

_INTEGERS = (0, 1, -1, 255, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1)
_JSON = (None, True, -1, 0, 1 << 70, 1e308, "", "x", "../../etc/passwd", "\0", [], {}, [[]], {"a": {}}, float("nan"))
_DTYPES = (np.uint8, np.int64, np.float16, np.float64, np.complex128, "S3", ">f4", np.dtype([("a", "f4")]))


def damage(folder: Path, rng: random.Random) -> str:
    """Damages one file of a folder or a few; what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    done = []
    for _ in range(1 if rng.random() < 0.7 else rng.randint(2, 3)):
        path = rng.choice(files)
        ways: list[Callable[[Path, random.Random], str]] = [damage_bytes] * 4
        ways += [lambda path, rng: damage_files(path, rng.choice(files), rng)]
        if path.suffix in (".json", ".jsonl"):
            ways += [damage_json] * 8
        elif path.suffix == ".hdf5":
            ways += [damage_hdf5] * 5
        elif path.suffix == ".parquet":
            ways += [damage_parquet] * 4
        elif path.suffix == ".npz":
            ways += [damage_npz] * 4
        if path.exists():
            try:
                done.append(f"{path.relative_to(folder)}: {rng.choice(ways)(path, rng)}")
            except Exception as error:  # damaged before, so that it cannot be rewritten any more
                done.append(f"{path.relative_to(folder)}: not damaged again ({type(error).__name__})")
    return "; ".join(done)


def damage_bytes(path: Path, rng: random.Random) -> str:
    data = bytearray(path.read_bytes())
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = _place(len(data), rng)
        size = rng.choice((1, 2, 4, 8, 8, 64))
        way = rng.choice(("flip", "set", "integer", "integer", "zero", "cut", "insert", "remove", "copy"))
        if way == "flip" and data:
            data[at] ^= 1 << rng.randrange(8)
        elif way == "set" and data:
            data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif way == "integer":
            width = rng.choice((2, 4, 8))
            value = rng.choice(_INTEGERS) & ((1 << (8 * width)) - 1)
            data[at : at + width] = value.to_bytes(width, "little")
        elif way == "zero":
            data[at : at + size] = bytes(len(data[at : at + size]))
        elif way == "cut":
            del data[at:]
        elif way == "insert":
            data[at:at] = rng.randbytes(size)
        elif way == "remove":
            del data[at : at + size]
        elif way == "copy":
            start = _place(len(data), rng)
            data[at : at + size] = data[start : start + size]
        done.append(f"{way} at {at}")
    path.write_bytes(data)
    return ", ".join(done)


def _place(size: int, rng: random.Random) -> int:
    """Where a format keeps what it knows of itself, more often than elsewhere."""
    if size == 0:
        return 0
    near = min(size, 768)
    return rng.choice((rng.randrange(size), rng.randrange(near), size - 1 - rng.randrange(near)))


def damage_files(path: Path, other: Path, rng: random.Random) -> str:
    way = rng.choice(("remove", "empty", "swap", "copy", "folder"))
    if way == "remove":
        path.unlink()
    elif way == "empty":
        path.write_bytes(b"")
    elif way == "swap" and other.exists():
        mine, theirs = path.read_bytes(), other.read_bytes()
        path.write_bytes(theirs)
        other.write_bytes(mine)
    elif way == "copy":
        shutil.copyfile(path, path.with_name(f"0{path.name}"))
    elif way == "folder":
        path.unlink()
        path.mkdir()
    return f"{way} file"


def damage_json(path: Path, rng: random.Random) -> str:
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    index = rng.randrange(len(lines))
    data = json.loads(lines[index])
    holders: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in items:
            holders.append((node, key))
            visit(value)

    visit(data)
    if not holders or rng.random() < 0.03:
        data, done = rng.choice(_JSON), "whole"
    else:
        holder, key = rng.choice(holders)
        done = f"key {key!r}"
        if rng.random() < 0.2:
            del holder[key]
        else:
            # Text of a number stays one, now and then: counts and sizes are where it hurts.
            holder[key] = rng.choice(_INTEGERS) if isinstance(holder[key], int) else rng.choice(_JSON)
    lines[index] = json.dumps(data)
    path.write_text("\n".join(lines))
    return f"JSON {done}"


def damage_hdf5(path: Path, rng: random.Random) -> str:
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name = rng.choice(names)
        item = file[name]
        way = rng.choice(("remove", "dtype", "shape", "external", "soft", "text", "object", "attribute", "huge", "vds"))
        if way == "attribute":
            item.attrs[rng.choice([*item.attrs, "total_steps", "id"])] = rng.choice((b"x", -1, 1 << 40, [1.5, 2.5], ""))
            return f"{way} of {name}"
        values = item[()] if isinstance(item, h5py.Dataset) else np.zeros(3)
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
        return f"{way} of {name}"


def damage_parquet(path: Path, rng: random.Random) -> str:
    way = rng.choice(("drop", "nulls", "text", "cast", "repeat", "empty", "rename", "order"))

    def change(table: pa.Table) -> pa.Table:
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
            return table.set_column(index, name, [pa.nulls(len(table), rng.choice(types))])
        if way == "repeat":
            return table.append_column(name, column)
        if way == "empty":
            return table.slice(0, 0)
        if way == "rename":
            names = [*table.column_names]
            names[index] = rng.choice(("", "dones", "observations", "episode_index", "a.b..c", "\0", "actions"))
            return table.rename_columns(names)
        return table.take(rng.sample(range(len(table)), len(table)))

    source_makers.rewritten_parquet(path, change)
    return f"table {way}"


def damage_npz(path: Path, rng: random.Random) -> str:
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
