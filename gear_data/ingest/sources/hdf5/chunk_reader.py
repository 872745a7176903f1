"""Reads rows of chunked HDF5 datasets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.extras import h5py
from gear_data.ingest.sources.hdf5.chunk_checks import (
    DEFLATE,
    FLETCHER32,
    KNOWN_FILTERS,
    LZF,
    filter_codes,
    stored_chunks,
    unpack_chunk,
)
from gear_data.ingest.sources.hdf5.open_file import reading

#: Reads the rows [start, stop).
ReadRows = Callable[[int, int], npt.NDArray[Any]]
#: Rows beyond those that were asked for are not kept if they are larger.
_MAX_KEPT_BYTES = 256 << 20


def chunked_rows(dataset: h5py.h5d.DatasetID, read: ReadRows, file: str, column: str) -> ReadRows:
    """Returns a reader of the rows of a dataset of numbers, or of texts of one size.

    It raises a CorruptSourceError if a chunk that was compressed with deflate or LZF unpacks to more or fewer bytes
    than the chunk's elements take. It keeps rows, so that a chunk is not decompressed again for the rows that follow.

    Args:
        dataset: a dataset whose size and layout have been checked.
        read: reads rows with libhdf5.
        file: the name of the file, for the error.
        column: the name of the dataset, for the error.
    """
    plist = dataset.get_create_plist()
    if plist.get_layout() != h5py.h5d.CHUNKED:
        return read
    chunk, filters = plist.get_chunk(), set(filter_codes(plist))
    if filters & {DEFLATE, LZF} and filters <= KNOWN_FILTERS:
        read = _Unpacked(dataset, chunk, read, file, column).read
    kept_bytes = chunk[0] * math.prod(dataset.shape[1:]) * dataset.dtype.itemsize
    return (
        _WholeChunks(read, dataset.shape[0], chunk[0]).read if chunk[0] > 1 and kept_bytes <= _MAX_KEPT_BYTES else read
    )


@dataclass(frozen=True)
class _Unpacked:
    """A reader of a dataset that was compressed with deflate or LZF."""

    dataset: h5py.h5d.DatasetID
    chunk: tuple[int, ...]
    libhdf5: ReadRows
    file: str
    column: str

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Reads the rows [start, stop)."""
        shape, dtype, element_bytes = self.dataset.shape, self.dataset.dtype, self.dataset.get_type().get_size()
        values = np.empty((stop - start, *shape[1:]), dtype.newbyteorder("="))
        with reading(self.file, self.column):
            for offset in self._offsets(start, stop):
                data = unpack_chunk(self.dataset, offset, element_bytes)
                rows = np.frombuffer(data, dtype).reshape(self.chunk)[max(start - offset[0], 0) :]
                ends = [at + step for at, step in zip(offset, self.chunk, strict=True)]
                place = values[max(offset[0] - start, 0) : ends[0] - start]
                place = place[(slice(None), *map(slice, offset[1:], ends[1:]))]
                place[...] = rows[tuple(map(slice, place.shape))]
            return values if self._is_plain and self._is_whole else self.libhdf5(start, stop)

    def _offsets(self, start: int, stop: int) -> Iterable[tuple[int, ...]]:
        """Returns the places of the stored chunks that hold the rows [start, stop)."""
        first = range(start - start % self.chunk[0], stop, self.chunk[0])
        if self._is_whole:
            return itertools.product(first, *map(range, itertools.repeat(0), self.dataset.shape[1:], self.chunk[1:]))
        return (chunk.chunk_offset for chunk in stored_chunks(self.dataset) if chunk.chunk_offset[0] in first)

    @cached_property
    def _is_whole(self) -> bool:
        """Whether all chunks are in the file. libhdf5 fills others."""
        counts = (-(-size // step) for size, step in zip(self.dataset.shape, self.chunk, strict=True))
        return bool(self.dataset.get_num_chunks() == math.prod(counts))

    @cached_property
    def _is_plain(self) -> bool:
        """Whether chunks hold values as NumPy does. Of others, libhdf5 converts the type or compares checksums."""
        is_same = self.dataset.get_type() == h5py.h5t.py_create(self.dataset.dtype, logical=True)
        return is_same and FLETCHER32 not in filter_codes(self.dataset.get_create_plist())


@dataclass
class _WholeChunks:
    """A reader that reads up to the end of a chunk, and keeps the rows beyond what was asked for.

    Attributes:
        source: reads rows.
        rows: the number of rows.
        chunk: the number of rows of a chunk.
        first: the first row that it keeps.
        kept: the rows that it keeps, up to the end of a chunk.
    """

    source: ReadRows
    rows: int
    chunk: int
    first: int = 0
    kept: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0))

    def read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Reads the rows [start, stop)."""
        last, end = self.first + len(self.kept), min(self.rows, -(-stop // self.chunk) * self.chunk)
        if not self.first <= start < last:
            values = self.source(start, end)
        elif end > last:
            values = np.concatenate([self.kept[start - self.first :], self.source(last, end)])
        else:
            values = self.kept[start - self.first :]
        self.first, self.kept = stop, values[stop - start :]
        return values[: stop - start]
