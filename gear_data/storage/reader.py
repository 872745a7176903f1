"""Shards mapped into memory, on first touch, as zero-copy NumPy views."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import CorruptShardError, DatasetNotFoundError
from gear_data.schema import Schema
from gear_data.storage.manifest import FileEntry, ShardEntry
from gear_data.storage.variable import OFFSET_BYTES, array_over, python_values, validated

_MAKE_AGAIN = "restore it, or make it again with 'gear-data repair'"
_LIBC = ctypes.CDLL(None, use_errno=True)


def check_size(folder: Path, entry: FileEntry) -> None:
    """Raises CorruptShardError if a file is missing or of another size than the manifest says."""
    path = folder / entry.file
    try:
        size = path.stat().st_size
    except OSError:
        size = None
    check_file_size(str(path), size, entry)


def check_file_size(name: str, size: int | None, entry: FileEntry) -> None:
    """Raises CorruptShardError for a file `name` that is missing (None) or of another size than the manifest says."""
    if size is None:
        raise CorruptShardError("the file is missing", file=name, hint=_MAKE_AGAIN)
    if size != entry.bytes:
        raise CorruptShardError(
            f"the file has {size} bytes, the manifest says {entry.bytes}",
            file=name,
            hint=f"it was cut short or changed: {_MAKE_AGAIN}",
        )


def map_file(path: Path) -> pa.Buffer:
    """A whole file as a read-only buffer. It holds no file descriptor.

    Kernel read-ahead is off: with it, reading a window at a random place reads megabytes.

    Raises:
        DatasetNotFoundError: it is gone.
        CorruptShardError: the system does not let it be read.
    """
    try:
        with pa.memory_map(str(path)) as source:
            buffer = source.read_buffer()
    except FileNotFoundError as error:
        raise DatasetNotFoundError("the file is gone", file=str(path)) from error
    except OSError as error:
        raise CorruptShardError(f"cannot be read: {error}", file=str(path)) from error
    _LIBC.madvise(ctypes.c_void_p(buffer.address), ctypes.c_size_t(buffer.size), mmap.MADV_RANDOM)
    return buffer


def prefetch_pages(values: npt.NDArray[Any]) -> None:
    """Asks the system to read the pages of a contiguous array now, all at once: they are about to be read in order."""
    address, page = values.ctypes.data, mmap.PAGESIZE
    first = address // page * page
    _LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(address + values.nbytes - first), mmap.MADV_WILLNEED)


@dataclass(frozen=True)
class ShardLease:
    """Where the columns of some shards are, as long as this lives.

    Attributes:
        addresses: int64 [shards, columns], where each column's first byte is; those of the leased shards are good. 0
            for columns of variable length.
        held: keeps the memory mapped.
    """

    addresses: npt.NDArray[np.int64]
    held: object = None


class MappedShards:
    """All shards of a dataset; each is mapped when first needed and stays so.

    Args:
        schema: all columns.
        shards: what each holds and where in its memory.
        map_shard: gives a shard's memory.

    Attributes:
        addresses: int64 [shards, columns], where each column's first byte is; 0 until `touch` mapped the shard, and
            for columns of variable length.
    """

    def __init__(self, schema: Schema, shards: tuple[ShardEntry, ...], map_shard: Callable[[int], pa.Buffer]) -> None:
        self._schema = schema
        self._shards = shards
        self._map_shard = map_shard
        self._buffers: dict[int, pa.Buffer] = {}
        self._ready: set[int] = set()
        self.addresses: npt.NDArray[np.int64] = np.zeros((len(shards), len(schema)), np.int64)

    def touch(self, shard: int) -> pa.Buffer:
        """Maps a shard. Safe to call from several threads."""
        if shard not in self._ready:
            # setdefault is atomic: of two threads here at once one's mapping stays, and both use its addresses. The
            # other's is dropped before anyone has read from it.
            buffer = self._buffers.setdefault(shard, self._map_shard(shard))
            self.addresses[shard] = self._addresses_in(shard, buffer)
            # Last: whoever finds a shard ready finds its addresses.
            self._ready.add(shard)
        return self._buffers[shard]

    def _addresses_in(self, shard: int, buffer: pa.Buffer) -> list[int]:
        entry = self._shards[shard]
        return [0 if column.variable_length else buffer.address + entry.buffers[column.name] for column in self._schema]

    def lease(self, shards: Sequence[int]) -> ShardLease:
        """Maps these shards. Safe to call from several threads."""
        for shard in shards:
            self.touch(shard)
        return ShardLease(self.addresses)

    @property
    def all_mapped(self) -> bool:
        """Whether `addresses` holds those of every shard."""
        return len(self._ready) == len(self._shards)

    def column(self, shard: int, index: int, first: int = 0, last: int | None = None) -> npt.NDArray[Any]:
        """[steps, *shape] read-only view of a shard's column, or of its rows `first` to `last`.

        A column of variable length gives an object array of str or bytes: the rows asked for, decoded and checked anew
        at each call.

        Raises:
            CorruptShardError: values of variable length that are damaged.
        """
        entry, spec = self._shards[shard], self._schema.columns[index]
        if spec.variable_length:
            array = self.values(shard, index)[first:last]
            return python_values(validated(array, file=entry.entry.file, column=spec.name))
        values = np.frombuffer(self.touch(shard), spec.storage_dtype, entry.steps * spec.size, entry.buffers[spec.name])
        return values.view(spec.numpy_dtype).reshape(entry.steps, *spec.shape)[first:last]

    def values(self, shard: int, index: int) -> pa.Array:
        """A shard's column of variable length: `LargeStringArray` or `LargeBinaryArray` [steps] over the mapping.

        Raises:
            CorruptShardError: its offsets do not fit its values; of those between the first and the last nothing is
                known: `storage.variable.validated` looks at those of a slice.
        """
        entry, spec, buffer = self._shards[shard], self._schema.columns[index], self.touch(shard)
        known = entry.variable[spec.name]
        offsets = buffer.slice(known.offsets, (entry.steps + 1) * OFFSET_BYTES)
        values = buffer.slice(entry.buffers[spec.name], known.bytes)
        return array_over(spec.arrow_type, entry.steps, offsets, values, file=entry.entry.file, column=spec.name)
