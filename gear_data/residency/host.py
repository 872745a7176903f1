"""Residency `host`: one copy of a dataset's columns a machine, in shared memory, mapped by all its processes."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace

import xxhash

from gear_data.common.progress import progress_bar
from gear_data.errors import CorruptShardError, HostMemoryError
from gear_data.residency.registry import find_or_create
from gear_data.residency.segment import HEADER_BYTES, create_segment, map_segment
from gear_data.schema import Schema
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.manifest import FileEntry, ShardEntry
from gear_data.storage.reader import MappedShards
from gear_data.storage.variable import OFFSET_BYTES

_ALIGNMENT = 256
#: Bytes a thread copies before it takes the next piece, and bytes it copies at once: those stay in the cache.
_PIECE = 64 << 20
_CHUNK = 256 << 10
_THREADS = 4


@dataclass(frozen=True)
class _CopyRange:
    """`count` bytes from byte `start` of a shard's file, that go to byte `place` of the segment."""

    entry: FileEntry
    start: int
    place: int
    count: int


def host_shards(
    files: DatasetFiles, schema: Schema, shards: tuple[ShardEntry, ...], bad: frozenset[str] = frozenset()
) -> MappedShards:
    """The shards of a dataset, every column at a multiple of 256 bytes of one segment of shared memory, which the first
    process of this machine fills and the others map. In place of the files `bad` there are zeros.

    Raises:
        HostMemoryError: there is too little memory for a copy.
        CorruptShardError: a shard is missing, cut short, or cannot be read.
    """
    pieces, places, size = _layout(schema, shards)
    pieces = [piece for piece in pieces if piece.entry.file not in bad]
    key = _key(files, schema, shards, bad)
    descriptor = find_or_create(key, size, lambda: create_segment(key, size, lambda new: _fill(new, files, pieces)))
    buffer = map_segment(descriptor)
    mapped = MappedShards(schema, places, lambda shard: buffer)
    for shard in range(len(shards)):
        mapped.touch(shard)
    return mapped


def _layout(schema: Schema, shards: Sequence[ShardEntry]) -> tuple[list[_CopyRange], tuple[ShardEntry, ...], int]:
    """What is copied; the shards with their places in the segment for those in the files; the segment's bytes."""
    pieces: list[_CopyRange] = []
    end = HEADER_BYTES

    def place(entry: FileEntry, start: int, count: int) -> int:
        nonlocal end
        first = -(-end // _ALIGNMENT) * _ALIGNMENT
        for done in range(0, count, _PIECE):
            pieces.append(_CopyRange(entry, start + done, first + done, min(_PIECE, count - done)))
        end = first + count
        return first

    placed = []
    for shard in shards:
        buffers, variable = {}, {}
        for column in schema:
            start = shard.buffers[column.name]
            if column.variable_length:
                known = shard.variable[column.name]
                buffers[column.name] = place(shard.entry, start, known.bytes)
                offsets = place(shard.entry, known.offsets, (shard.steps + 1) * OFFSET_BYTES)
                variable[column.name] = replace(known, offsets=offsets)
            else:
                buffers[column.name] = place(shard.entry, start, shard.steps * column.row_bytes)
        placed.append(replace(shard, buffers=buffers, variable=variable))
    return pieces, tuple(placed), end


def _key(files: DatasetFiles, schema: Schema, shards: Sequence[ShardEntry], bad: frozenset[str]) -> str:
    """Names a copy: another place, other contents by their checksums, files written anew or other columns give another
    name."""
    digest = xxhash.xxh3_128(json.dumps(schema.to_json()).encode())
    for shard in shards:
        known = ["bad"] if shard.entry.file in bad else [shard.to_json(), *files.identity(shard.entry)]
        digest.update(json.dumps(known).encode())
    return digest.hexdigest()


def _fill(descriptor: int, files: DatasetFiles, pieces: Sequence[_CopyRange]) -> None:
    """Copies the pieces in several threads: one does not keep a fast disk busy, nor the memory."""
    with (
        progress_bar(sum(piece.count for piece in pieces), "load", "B", None) as bar,
        ThreadPoolExecutor(min(_THREADS, len(os.sched_getaffinity(0)))) as pool,
    ):
        tasks = [pool.submit(_copy, descriptor, files, piece) for piece in pieces]
        try:
            for task in as_completed(tasks):
                bar.update(task.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _copy(descriptor: int, files: DatasetFiles, piece: _CopyRange) -> int:
    name = files.name(piece.entry)
    chunk = memoryview(bytearray(min(_CHUNK, piece.count)))
    done = 0
    with files.local(piece.entry) as path, path.open("rb", buffering=0) as file:
        while done < piece.count:
            try:
                count = os.preadv(file.fileno(), [chunk[: piece.count - done]], piece.start + done)
            except OSError as error:
                raise CorruptShardError(f"cannot be read: {error.strerror}", file=name) from error
            if not count:
                raise CorruptShardError("the file ends before its columns", file=name, hint="restore it")
            try:
                # Not through a mapping, where memory that has run out is a signal that ends the process.
                written = os.pwrite(descriptor, chunk[:count], piece.place + done)
            except OSError as error:
                if error.errno not in (errno.ENOMEM, errno.ENOSPC):
                    raise
                raise HostMemoryError("memory ran out while the columns were loaded", file=name) from error
            done += written
    return piece.count
