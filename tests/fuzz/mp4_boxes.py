"""Damage to the boxes of an MP4 file, for tests/fuzz/damage.py. Not a test."""

from __future__ import annotations

import random
from pathlib import Path

from tests.fuzz.damage_formats import INTEGERS

#: Boxes of an MP4 file that hold boxes, and the bytes of their own before these.
_HOLDERS = {b"moov": 0, b"trak": 0, b"mdia": 0, b"minf": 0, b"stbl": 0, b"edts": 0, b"dinf": 0, b"stsd": 8, b"udta": 0}


def damage_mp4(path: Path, rng: random.Random) -> str:
    """Changes a box of an MP4 file: a number, its type, or its size. Or copies one box over the numbers of another."""
    data = bytearray(path.read_bytes())
    boxes = _boxes(data, 0, len(data))
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        first, size, kind = rng.choice([box for box in boxes if box[2] != b"mdat"])
        way = rng.choice(("number", "number", "number", "number", "type", "size", "copy"))
        width = rng.choice((2, 4, 4, 4, 8))
        value = (rng.choice((*INTEGERS, 60_000, 1 << 28)) & ((1 << 8 * width) - 1)).to_bytes(width, "big")
        if way == "number" and size > 8:
            at = first + 8 + rng.randrange(size - 8)
            at -= rng.choice((0, at % 4))
            data[at : at + width] = value
        elif way == "type":
            data[first + 4 : first + 8] = rng.choice((b"free", b"mdat", *(box[2] for box in boxes)))
        elif way == "size":
            data[first : first + 4] = value[:4].rjust(4, b"\0")
        elif way == "copy":
            other, _, _ = rng.choice(boxes)
            data[first + 8 : first + size] = data[other + 8 : other + size]
        done.append(f"{way} of {kind.decode(errors='replace')}")
    path.write_bytes(data)
    return ", ".join(done)


def _boxes(data: bytes, first: int, end: int) -> list[tuple[int, int, bytes]]:
    """Returns the boxes between two offsets of an MP4 file, and the boxes in them: (offset, size, type)."""
    found = []
    while first + 8 <= end:
        size, kind = int.from_bytes(data[first : first + 4], "big"), bytes(data[first + 4 : first + 8])
        if not 8 <= size <= end - first:
            break
        found.append((first, size, kind))
        if kind in _HOLDERS:
            found += _boxes(data, first + 8 + _HOLDERS[kind], first + size)
        first += size
    return found
