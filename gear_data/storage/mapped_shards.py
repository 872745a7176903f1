"""Shards mapped into memory on first use, as zero-copy NumPy views.

Why: docs/explanation/decisions/memory.md
"""

from __future__ import annotations

import ctypes
import mmap
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import CorruptShardError, DatasetNotFoundError, refuse_exhausted
from gear_data.schema import Schema
from gear_data.storage.manifest import REPAIR_OR_SKIP, FileEntry, ShardEntry
from gear_data.storage.mapped_files import MappedFiles
from gear_data.storage.variable_columns import OFFSET_BYTES, array_over, python_values, validated

_LIBC = ctypes.CDLL(None, use_errno=True)


def check_size(folder: Path, entry: FileEntry) -> None:
    """Checks that a file exists and has the size in the manifest.

    Raises:
        CorruptShardError: the file is missing, has another size, is no regular file, or cannot be read.
    """
    path = folder / entry.file
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        check_file_size(str(path), None, entry)
    except OSError as error:
        refuse_exhausted(error, str(path))
        raise CorruptShardError(f"cannot be read: {error}", file=str(path), hint=REPAIR_OR_SKIP) from error
    else:
        if not stat.S_ISREG(status.st_mode):
            raise CorruptShardError("it is not a regular file", file=str(path), hint=REPAIR_OR_SKIP)
        check_file_size(str(path), status.st_size, entry)


def check_file_size(name: str, size: int | None, entry: FileEntry) -> None:
    """Compares the size of a file with the manifest.

    Args:
        name: path or URL of the file, for the error.
        size: size of the file in bytes; None if the file is missing.
        entry: entry of the file in the manifest.

    Raises:
        CorruptShardError: the file is missing or has another size.
    """
    if size is None:
        raise CorruptShardError("the file is missing", file=name, hint=REPAIR_OR_SKIP)
    if size != entry.bytes:
        raise CorruptShardError(
            f"the file has {size} bytes, the manifest says {entry.bytes}",
            file=name,
            hint=f"it was truncated or changed: {REPAIR_OR_SKIP}",
        )


def map_file(path: Path, *, read_ahead: bool = False) -> pa.Buffer:
    """Maps a whole file as a read-only buffer. It keeps no file descriptor open.

    Args:
        path: the file.
        read_ahead: whether the kernel reads ahead. With read-ahead, reading one window of a shard at a random place
            reads megabytes.

    Raises:
        DatasetNotFoundError: the file does not exist.
        HostMemoryError, OpenFilesError: this process can have no further memory, or can open no further file.
        CorruptShardError: the system cannot read the file.
    """
    try:
        with pa.memory_map(str(path)) as source:
            buffer = source.read_buffer()
    except FileNotFoundError as error:
        raise DatasetNotFoundError("the file does not exist", file=str(path), hint=REPAIR_OR_SKIP) from error
    except OSError as error:
        refuse_exhausted(error, str(path))
        raise CorruptShardError(f"cannot be read: {error}", file=str(path), hint=REPAIR_OR_SKIP) from error
    if not read_ahead:
        _LIBC.madvise(ctypes.c_void_p(buffer.address), ctypes.c_size_t(buffer.size), mmap.MADV_RANDOM)
    return buffer


def prefetch_pages(values: npt.NDArray[Any]) -> None:
    """Asks the system to read all pages of a contiguous array in the background."""
    address, page = values.ctypes.data, mmap.PAGESIZE
    first = address // page * page
    _LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(address + values.nbytes - first), mmap.MADV_WILLNEED)


@dataclass(frozen=True)
class ShardLease:
    """Memory addresses of shards' columns, valid while this object lives.

    Attributes:
        addresses: int64 [shards, columns], address of each column's first byte. Only the rows of the leased shards are
            valid. Variable-length columns have 0.
        held: object that keeps the memory mapped.
    """

    addresses: npt.NDArray[np.int64]
    held: object = None


class MappedShards:
    """All shards of a dataset. A shard is mapped on first use and stays mapped.

    Args:
        schema: all columns.
        shards: sizes and buffer offsets of each shard.
        map_shard: returns the memory of each file of a shard, in the order of `ShardEntry.files`.
        mapped: checks the files that are mapped.

    Attributes:
        addresses: int64 [shards, columns], address of each column's first byte; 0 until `touch` has mapped the shard,
            and for variable-length columns.
    """

    def __init__(
        self,
        schema: Schema,
        shards: tuple[ShardEntry, ...],
        map_shard: Callable[[int], tuple[pa.Buffer, ...]],
        mapped: MappedFiles,
    ) -> None:
        self._schema = schema
        self._shards = shards
        self._map_shard = map_shard
        self._mapped = mapped
        #: Checks mapped files of the dataset before a batch: see `MappedFiles.check`.
        self.check: Callable[[], None] = mapped.check
        self._buffers: dict[int, tuple[pa.Buffer, ...]] = {}
        self._ready: set[int] = set()
        self.addresses: npt.NDArray[np.int64] = np.zeros((len(shards), len(schema)), np.int64)

    def touch(self, shard: int) -> tuple[pa.Buffer, ...]:
        """Maps the files of a shard, and returns their memory. Thread-safe."""
        if shard not in self._ready:
            # setdefault is atomic. If two threads arrive at once, both use the mapping that one of them stored, and the
            # other mapping is dropped before any read.
            buffers = self._buffers.setdefault(shard, self._map_shard(shard))
            self.addresses[shard] = self._addresses_in(shard, buffers)
            # Last, so that a shard is ready only after its addresses are set.
            self._ready.add(shard)
        return self._buffers[shard]

    def _addresses_in(self, shard: int, buffers: tuple[pa.Buffer, ...]) -> list[int]:
        entry = self._shards[shard]
        return [
            0 if column.variable_length else buffers[entry.file_of(column.name)].address + entry.buffers[column.name]
            for column in self._schema
        ]

    def lease(self, shards: Sequence[int]) -> ShardLease:
        """Maps shards and returns their addresses. Thread-safe."""
        for shard in shards:
            self.touch(shard)
        return ShardLease(self.addresses)

    @property
    def all_mapped(self) -> bool:
        """Whether every shard is mapped."""
        return len(self._ready) == len(self._shards)

    def column(self, shard: int, index: int, first: int = 0, last: int | None = None) -> npt.NDArray[Any]:
        """Returns rows `first` to `last` of a shard's column.

        Returns:
            A read-only view, [rows, *shape]. For a variable-length column a new object array of str or bytes: every
            call checks and decodes the requested rows.

        Raises:
            CorruptShardError: variable-length values are damaged, or the file was truncated.
        """
        entry, spec = self._shards[shard], self._schema.columns[index]
        if spec.variable_length:
            array = self.values(shard, index)[first:last]
            return python_values(validated(array, file=entry.entry.file, column=spec.name))
        values = np.frombuffer(
            self._checked(shard, spec.name), spec.storage_dtype, entry.steps * spec.size, entry.buffers[spec.name]
        )
        return values.view(spec.numpy_dtype).reshape(entry.steps, *spec.shape)[first:last]

    def values(self, shard: int, index: int) -> pa.Array:
        """Returns a shard's variable-length column, [steps], over the mapping.

        Returns:
            A `LargeStringArray` or `LargeBinaryArray`. `storage.variable.validated` checks the values of a slice.

        Raises:
            CorruptShardError: the first or last offset does not fit the values, or the file was truncated. Other
                offsets are not checked.
        """
        entry, spec = self._shards[shard], self._schema.columns[index]
        buffer, buffers = self._checked(shard, spec.name), entry.variable[spec.name]
        offsets = buffer.slice(buffers.offsets, (entry.steps + 1) * OFFSET_BYTES)
        values = buffer.slice(entry.buffers[spec.name], buffers.bytes)
        return array_over(spec.arrow_type, entry.steps, offsets, values, file=entry.entry.file, column=spec.name)

    def only(self, shard: int) -> MappedShards:
        """Returns one shard, in the same mapping."""
        return MappedShards(self._schema, (self._shards[shard],), lambda _: self.touch(shard), self._mapped)

    def _checked(self, shard: int, column: str) -> pa.Buffer:
        """Returns the memory of the file that has a shard's column. The file has its size now."""
        buffers, entry = self.touch(shard), self._shards[shard]
        index = entry.file_of(column)
        self._mapped.check_file(entry.files[index].file)
        return buffers[index]
