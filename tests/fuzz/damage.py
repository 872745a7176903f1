"""Damage to the files of a source, for tests/fuzz/readers.py. Not a test."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzz import damage_formats as formats
from tests.fuzz.mp4_boxes import damage_mp4

#: Values that replace a value of a JSON file.
_JSON = (None, True, -1, 0, 1 << 70, 1e308, "", "x", "../../etc/passwd", "\0", [], {}, [[]], {"a": {}}, float("nan"))
_ZARR_METADATA = (".zarray", ".zattrs", ".zgroup")
#: Part of a file's name -> damage that knows the format, and its weight.
_KNOWN: tuple[tuple[str, Callable[[Path, random.Random], str], int], ...] = (
    (".hdf5", formats.damage_hdf5, 6),
    (".parquet", formats.damage_table, 5),
    (".arrow", formats.damage_table, 4),
    (".feather", formats.damage_table, 4),
    (".npz", formats.damage_npz, 5),
    (".npy", formats.damage_npy, 5),
    (".zarr.zip", formats.damage_members, 5),
    (".gz", formats.damage_gzipped_npy, 8),
    (".tfrecord", formats.damage_records, 8),
    (".mp4", damage_mp4, 12),
)


def damage(folder: Path, rng: random.Random) -> str:
    """Damages one file of a folder or several, and returns a description."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    done: list[str] = []
    damaged: list[Path] = []
    for _ in range(1 if rng.random() < 0.6 else rng.randint(2, 3)):
        path = rng.choice([*files, *damaged])
        ways: list[Callable[[Path, random.Random], str]] = [damage_bytes] * 4
        ways += [lambda path, rng: damage_files(path, rng.choice(files), rng)]
        if path not in damaged and (".json" in path.suffix or path.name in _ZARR_METADATA):
            ways += [damage_json] * 8
        if path not in damaged:  # such damage uses the format's library, which a damaged file may crash
            ways += [way for ending, way, weight in _KNOWN if ending in path.name for _ in range(weight)]
        if path.is_file():
            try:
                change = rng.choice(ways)(path, rng)
            except Exception as error:  # such as a column cast to a type that Parquet lacks
                change = f"only partly done ({type(error).__name__})"
            done.append(f"{path.relative_to(folder)}: {change}")
            damaged += files if done[-1].endswith("swap file") else [path]
    if rng.random() < 0.6:
        done += [f"{path.relative_to(folder)}: sizes and checksums updated" for path in files if formats.settle(path)]
    return "; ".join(done)


def damage_bytes(path: Path, rng: random.Random) -> str:
    """Changes, inserts or removes bytes at random offsets; returns a description."""
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
            value = rng.choice(formats.INTEGERS) & ((1 << (8 * width)) - 1)
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
    """Returns a random offset, more often near the file's beginning or end.

    Formats keep their headers and footers there.
    """
    if size == 0:
        return 0
    near = min(size, 768)
    return rng.choice((rng.randrange(size), rng.randrange(near), size - 1 - rng.randrange(near)))


def damage_files(path: Path, other: Path, rng: random.Random) -> str:
    """Removes, empties, copies or swaps a file, or puts a folder in its place."""
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
    """Changes one value of a JSON file, or of one line of a JSONL file."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    index = rng.randrange(len(lines))
    lines[index], done = _damaged_json(lines[index], rng)
    path.write_text("\n".join(lines))
    return f"JSON {done}"


def _damaged_json(text: str, rng: random.Random) -> tuple[str, str]:
    """Changes, removes, renames or repeats one value of a JSON text.

    Returns the new text, and a description.
    """
    data = json.loads(text)
    holders: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in items:
            holders.append((node, key))
            visit(value)

    visit(data)
    if not holders or rng.random() < 0.03:
        return json.dumps(rng.choice(_JSON)), "whole"
    holder, key = rng.choice(holders)
    value, done = holder[key], f"key {key!r}"
    draw = rng.random()
    if isinstance(value, str) and value.startswith('{"'):  # a JSON text inside JSON
        holder[key], inner = _damaged_json(value, rng)
        done += f", {inner}"
    elif draw < 0.15:
        del holder[key]
    elif draw < 0.25 and isinstance(holder, dict):
        holder[rng.choice(("", "x", f"{key}s", *(str(other) for _, other in holders)))] = holder.pop(key)
        done += " renamed"
    elif draw < 0.25:
        holder.append(value)
        done += " repeated"
    elif draw < 0.35:
        other, other_key = rng.choice(holders)
        holder[key] = other[other_key] if other_key in other or isinstance(other, list) else None
        done += f" given the value of {other_key!r}"
    else:
        holder[key] = rng.choice(formats.INTEGERS) if isinstance(value, int) else rng.choice(_JSON)
    return json.dumps(data), done
