"""Residencies `host` and `pinned`: one copy on each machine, in shared memory."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from gear_data.common.environment import usable_cores
from gear_data.common.progress import progress_bar
from gear_data.errors import CorruptShardError, GearError, errors_as, refuse_exhausted
from gear_data.residency.shared_memory import HEADER_BYTES, Segment, write
from gear_data.residency.shared_memory_registry import shared_buffer
from gear_data.schema import Schema
from gear_data.selection.windows import Int64Array
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.manifest import REPAIR_OR_SKIP, FileEntry, ShardEntry
from gear_data.storage.mapped_shards import MappedShards
from gear_data.storage.variable_columns import OFFSET_BYTES

_ALIGNMENT = 256
#: Bytes of one task of a thread.
_PIECE = 64 << 20
#: Bytes that a thread copies at a time; they stay in the cache.
_CHUNK = 256 << 10
_THREADS = 4


@dataclass(frozen=True)
class _CopyRange:
    """Bytes of a shard's file that are copied to the segment.

    `count` bytes from byte `start` of the file go to byte `target` of the segment.
    """

    entry: FileEntry
    start: int
    target: int
    count: int


@dataclass
class _Layout:
    """A segment that is being planned.

    Attributes:
        pieces: the ranges to copy.
        end: the byte after the last one.
    """

    pieces: list[_CopyRange] = field(default_factory=list)
    end: int = HEADER_BYTES

    def place(self, entry: FileEntry, start: int, count: int) -> int:
        """Adds `count` bytes from byte `start` of a file.

        Returns their place in the segment.
        """
        first = -(-self.end // _ALIGNMENT) * _ALIGNMENT
        for done in range(0, count, _PIECE):
            self.pieces.append(_CopyRange(entry, start + done, first + done, min(_PIECE, count - done)))
        self.end = first + count
        return first


def host_shards(
    files: DatasetFiles,
    schema: Schema,
    shards: tuple[ShardEntry, ...],
    bad: frozenset[str] = frozenset(),
    *,
    registrable: bool = False,
) -> MappedShards:
    """Maps the shards of a dataset in one segment of shared memory.

    The first process of this machine fills the segment, and the others map it. Every column begins at a multiple of 256
    bytes.

    Args:
        files: the shards' files.
        schema: the columns.
        shards: the manifest's entries.
        bad: files that are not read; zeros stand for them.
        registrable: whether CUDA can register the mapping, see `Segment`.

    Raises:
        HostMemoryError: there is too little memory for a copy.
        CorruptShardError: a shard is missing, truncated, or cannot be read.
    """
    layout, places = _place_columns(schema, shards)
    pieces = [piece for piece in layout.pieces if piece.entry.file not in bad]
    key = Contents(files, schema, shards, bad).key()
    # Two kinds of segments have two keys: a process that wants the write seal must not find a segment without it.
    segment = Segment(f"pinned.{key}" if registrable else key, layout.end, registrable)
    buffer = shared_buffer(segment, lambda descriptor: _fill(descriptor, files, pieces))
    mapped = MappedShards(schema, places, lambda shard: (buffer,), files.mapped)
    for shard in range(len(shards)):
        mapped.touch(shard)
    return mapped


def host_files(files: DatasetFiles, entries: Sequence[FileEntry], name: str) -> tuple[pa.Buffer, Int64Array]:
    """Copies whole files to one segment of shared memory.

    The first process of this machine fills the segment, and the others map it.

    Args:
        files: files of the dataset.
        entries: the files.
        name: see `Segment`.

    Returns:
        The segment, and int64 [n], the place of each file's first byte in it.

    Raises:
        HostMemoryError: there is too little memory for a copy.
        CorruptShardError: a file is missing, truncated, or cannot be read.
    """
    layout, digest = _Layout(), xxhash.xxh3_128()
    places = [layout.place(entry, 0, entry.bytes) for entry in entries]
    for entry in entries:
        digest.update(json.dumps([entry.file, entry.bytes, entry.checksum, *files.identity(entry)]).encode())
    segment = Segment(f"files.{digest.hexdigest()}", layout.end, name=name)
    buffer = shared_buffer(segment, lambda descriptor: _fill(descriptor, files, layout.pieces))
    return buffer, np.array(places, np.int64)


def _place_columns(schema: Schema, shards: Sequence[ShardEntry]) -> tuple[_Layout, tuple[ShardEntry, ...]]:
    """Returns the layout of a segment with all columns, and the shards.

    The shards' entries have the offsets of columns in the segment.
    """
    layout, placed = _Layout(), []
    place = layout.place
    for shard in shards:
        buffers, variable = {}, {}
        for column in schema:
            start, file = shard.buffers[column.name], shard.files[shard.file_of(column.name)]
            if column.variable_length:
                known = shard.variable[column.name]
                buffers[column.name] = place(file, start, known.bytes)
                offsets = place(file, known.offsets, (shard.steps + 1) * OFFSET_BYTES)
                variable[column.name] = replace(known, offsets=offsets)
            else:
                buffers[column.name] = place(file, start, shard.steps * column.row_bytes)
        placed.append(replace(shard, buffers=buffers, variable=variable, added=()))
    return layout, tuple(placed)


@dataclass(frozen=True)
class Contents:
    """Columns of some shards, of which there are copies.

    Attributes:
        files: the shards' files.
        schema: the columns.
        shards: the manifest's entries.
        bad: files that are not read.
    """

    files: DatasetFiles
    schema: Schema
    shards: tuple[ShardEntry, ...]
    bad: frozenset[str] = frozenset()

    def key(self) -> str:
        """Returns the key of a copy, a hash.

        A copy of another folder, of files with other checksums, of rewritten files, or of other columns has another
        key.
        """
        digest = xxhash.xxh3_128(json.dumps(self.schema.to_json()).encode())
        for shard in self.shards:
            known: list[Any] = ["bad"]
            if shard.entry.file not in self.bad:
                known = [shard.to_json(), *(part for file in shard.files for part in self.files.identity(file))]
            digest.update(json.dumps(known).encode())
        return digest.hexdigest()

    def only(self, shard: int) -> Contents:
        """Returns the contents of one shard, given by its number."""
        return replace(self, shards=(self.shards[shard],))


def _fill(descriptor: int, files: DatasetFiles, pieces: Sequence[_CopyRange]) -> None:
    """Copies the pieces in several threads.

    One thread cannot use the whole speed of a fast disk, nor of the memory.
    """
    with (
        progress_bar(sum(piece.count for piece in pieces), "load", "B", None) as bar,
        ThreadPoolExecutor(min(_THREADS, usable_cores())) as pool,
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

    def unreadable(error: Exception) -> GearError:
        refuse_exhausted(error, name)
        return CorruptShardError(f"cannot be read: {error}", file=name, hint=REPAIR_OR_SKIP)

    with files.local(piece.entry) as path:
        with errors_as(OSError, unreadable):
            file = path.open("rb", buffering=0)
        with file:
            while done < piece.count:
                with errors_as(OSError, unreadable):
                    count = os.preadv(file.fileno(), [chunk[: piece.count - done]], piece.start + done)
                if not count:
                    raise CorruptShardError(
                        f"the file ends at byte {piece.start + done}, before the end of its columns",
                        file=name,
                        hint="restore the file, or convert the dataset again",
                    )
                write(descriptor, chunk[:count], piece.target + done, name)
                done += count
    return piece.count
