"""Residency `host`: one copy of a dataset's columns a machine, in shared memory, mapped by all its processes."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from gear_data.errors import CorruptShardError, HostMemoryError
from gear_data.progress import progress_bar
from gear_data.residency.registry import find_or_create
from gear_data.residency.segment import HEADER_BYTES, create_segment, map_segment
from gear_data.schema import Schema
from gear_data.storage.manifest import ShardEntry
from gear_data.storage.reader import MappedShards, check_size
from gear_data.storage.variable import OFFSET_BYTES

_ALIGNMENT = 256
#: Bytes a thread copies before it takes the next piece, and bytes it copies at once: those stay in the cache.
_PIECE = 64 << 20
_CHUNK = 256 << 10
_THREADS = 4


@dataclass(frozen=True)
class _Piece:
    """`count` bytes from byte `start` of a shard's file, that go to byte `place` of the segment."""

    file: str
    start: int
    place: int
    count: int


def host_shards(folder: Path, schema: Schema, shards: tuple[ShardEntry, ...]) -> MappedShards:
    """The shards in a folder, every column at a multiple of 256 bytes of one segment of shared memory, which the first
    process of this machine fills and the others map.

    Raises:
        HostMemoryError: there is too little memory for a copy.
        CorruptShardError: a shard is missing, cut short, or cannot be read.
    """
    pieces, places, size = _layout(schema, shards)
    key = _key(folder, schema, shards)
    descriptor = find_or_create(key, size, lambda: create_segment(key, size, lambda new: _fill(new, folder, pieces)))
    buffer = map_segment(descriptor)
    mapped = MappedShards(schema, places, lambda shard: buffer)
    for shard in range(len(shards)):
        mapped.touch(shard)
    return mapped


def _layout(schema: Schema, shards: Sequence[ShardEntry]) -> tuple[list[_Piece], tuple[ShardEntry, ...], int]:
    """What is copied; the shards with their places in the segment for those in the files; the segment's bytes."""
    pieces: list[_Piece] = []
    end = HEADER_BYTES

    def place(file: str, start: int, count: int) -> int:
        nonlocal end
        first = -(-end // _ALIGNMENT) * _ALIGNMENT
        for done in range(0, count, _PIECE):
            pieces.append(_Piece(file, start + done, first + done, min(_PIECE, count - done)))
        end = first + count
        return first

    placed = []
    for shard in shards:
        file, buffers, variable = shard.entry.file, {}, {}
        for column in schema:
            start = shard.buffers[column.name]
            if column.variable_length:
                known = shard.variable[column.name]
                buffers[column.name] = place(file, start, known.bytes)
                offsets = place(file, known.offsets, (shard.steps + 1) * OFFSET_BYTES)
                variable[column.name] = replace(known, offsets=offsets)
            else:
                buffers[column.name] = place(file, start, shard.steps * column.row_bytes)
        placed.append(replace(shard, buffers=buffers, variable=variable))
    return pieces, tuple(placed), end


def _key(folder: Path, schema: Schema, shards: Sequence[ShardEntry]) -> str:
    """Names a copy: another place, other contents by their checksums, files written anew or other columns give another
    name."""
    path = Path(os.path.realpath(folder))
    digest = xxhash.xxh3_128(json.dumps([str(path), schema.to_json()]).encode())
    for shard in shards:
        check_size(path, shard.entry)
        found = (path / shard.entry.file).stat()
        digest.update(json.dumps([shard.to_json(), found.st_ino, found.st_mtime_ns]).encode())
    return digest.hexdigest()


def _fill(descriptor: int, folder: Path, pieces: Sequence[_Piece]) -> None:
    """Copies the pieces in several threads: one does not keep a fast disk busy, nor the memory."""
    with (
        progress_bar(sum(piece.count for piece in pieces), "load", "B", None) as bar,
        ThreadPoolExecutor(min(_THREADS, len(os.sched_getaffinity(0)))) as pool,
    ):
        tasks = [pool.submit(_copy, descriptor, folder, piece) for piece in pieces]
        try:
            for task in as_completed(tasks):
                bar.update(task.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _copy(descriptor: int, folder: Path, piece: _Piece) -> int:
    path = folder / piece.file
    chunk = memoryview(bytearray(min(_CHUNK, piece.count)))
    done = 0
    with path.open("rb", buffering=0) as file:
        while done < piece.count:
            try:
                count = os.preadv(file.fileno(), [chunk[: piece.count - done]], piece.start + done)
            except OSError as error:
                raise CorruptShardError(f"cannot be read: {error.strerror}", file=str(path)) from error
            if not count:
                raise CorruptShardError("the file ends before its columns", file=str(path), hint="restore it")
            try:
                # Not through a mapping, where memory that has run out is a signal that ends the process.
                written = os.pwrite(descriptor, chunk[:count], piece.place + done)
            except OSError as error:
                if error.errno not in (errno.ENOMEM, errno.ENOSPC):
                    raise
                raise HostMemoryError("memory ran out while the columns were loaded", file=str(path)) from error
            done += written
    return piece.count
