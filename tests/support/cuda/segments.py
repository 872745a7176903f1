"""Segments of shared memory that this process has mapped."""

from __future__ import annotations

from pathlib import Path


def mapped_segments(kind: str) -> list[tuple[str, int]]:
    """Returns (permissions, inode) of this process's mappings of a kind, in order.

    Args:
        kind: `pinned` or `tiered`.
    """
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    return sorted((line[1], int(line[4])) for line in lines if f"/memfd:gear-data-{kind}." in " ".join(line))
