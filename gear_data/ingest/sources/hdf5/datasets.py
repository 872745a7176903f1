"""Defensive reading of HDF5 datasets.

Sizes, layouts, types, and the heaps of text and bytes are validated before values are read.

Datasets with external or virtual storage are refused, so no other file is read. No Python object is created except text
and bytes. No more memory is allocated than the file has data for.

Heaps hold text and other values of variable length. A damaged heap, whose object sizes do not add up, puts libhdf5
(1.14) into an endless loop that Python cannot stop. So heaps are checked first. Layout: HDF5 file format specification,
section III.E.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from gear_data.common.extras import h5py
from gear_data.errors import CorruptSourceError
from gear_data.ingest.location import placed
from gear_data.ingest.sources.hdf5.chunk_checks import (
    KNOWN_FILTERS,
    WRITE_AGAIN,
    check_chunk_sizes,
    filter_codes,
    stored_chunks,
    unchecked_filter,
    unpack_chunk,
)

_SIGNATURE = b"GCOL\x01\x00\x00\x00"
#: A reference to a heap object, as datasets and attributes store it. Lengths take 8 bytes, as h5py writes them.
_HEAP_REFERENCE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("index", "<u4")])
HEAP_REFERENCE_BYTES = _HEAP_REFERENCE.itemsize
#: Bytes of a heap's header and of an object's header.
_HEADER, _OBJECT_HEADER = 16, 16


def check_heaps(item: h5py.Group | h5py.Dataset) -> None:
    """Checks the heaps of a file before values of variable length are read.

    Call this before you read text or bytes of variable length from a dataset, or from a group's attributes. Files
    behind an fsspec file system are not checked.

    Raises:
        CorruptSourceError: a heap is damaged, or an element of the dataset points outside the file.
    """
    path = item.file.filename
    if os.path.isfile(path):
        status = os.stat(path)
        damaged_at = _first_damaged_heap(path, status.st_size, status.st_mtime_ns)
        if damaged_at is not None:
            raise CorruptSourceError(
                f"the heap of text and bytes at byte {damaged_at} is damaged",
                file=os.path.basename(path),
                hint="the file may have been truncated or changed: download it again",
            )
        if isinstance(item, h5py.Dataset) and is_variable(item.dtype):
            with placed(os.path.basename(path), item.name):
                _check_references(item, path, status.st_size)


def is_variable(dtype: np.dtype[Any]) -> bool:
    """Returns whether values of this HDF5 dtype have a variable length."""
    text = h5py.check_string_dtype(dtype)
    return h5py.check_vlen_dtype(dtype) is not None or (text is not None and text.length is None)


def _check_references(dataset: h5py.Dataset, path: str, file_bytes: int) -> None:
    """Checks that the heap references of a dataset point into the file.

    libhdf5 hangs if one points outside, and crashes if elements have another size than `HEAP_REFERENCE_BYTES`.
    """
    for count, raw in _stored_elements(dataset, path, file_bytes):
        size_fits = len(raw) == count * HEAP_REFERENCE_BYTES
        references = np.frombuffer(raw, _HEAP_REFERENCE) if size_fits else np.empty(0, _HEAP_REFERENCE)
        outside = (references["length"] > file_bytes) | (
            (references["length"] > 0) & (references["heap"] > file_bytes - _HEADER)
        )
        if not size_fits or outside.any():
            raise CorruptSourceError(
                "points outside the file for its text or bytes" if size_fits else "has elements of an impossible size",
                hint="the file may have been truncated or changed: download it again",
            )


def _stored_elements(dataset: h5py.Dataset, path: str, file_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yields runs of a dataset's elements: their count, and their unpacked bytes."""
    if dataset.chunks is None:
        offset, length = dataset.id.get_offset(), dataset.id.get_storage_size()
        if offset is not None and offset + length <= file_bytes:
            with open(path, "rb") as file:
                file.seek(offset)
                yield dataset.size, file.read(length)
        return
    if not KNOWN_FILTERS.issuperset(filter_codes(dataset.id.get_create_plist())):
        raise unchecked_filter("is text or bytes behind an unknown HDF5 filter")
    for chunk in stored_chunks(dataset.id):
        data = unpack_chunk(dataset.id, chunk.chunk_offset, HEAP_REFERENCE_BYTES)
        yield math.prod(dataset.chunks), data


@lru_cache(maxsize=64)
def _first_damaged_heap(path: str, size: int, modified_ns: int) -> int | None:
    """Returns the offset of the first heap whose objects do not fill it, or None.

    `size` and `modified_ns` are part of the cache key: they tell versions of a file apart.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = data.find(_SIGNATURE)
        while start >= 0:
            (length,) = struct.unpack_from("<Q", data, start + len(_SIGNATURE)) if start + _HEADER <= size else (0,)
            if _HEADER < length <= size - start and not _objects_fill(data, start + _HEADER, start + length):
                return start
            start = data.find(_SIGNATURE, start + 1)
    return None


def _objects_fill(data: mmap.mmap, offset: int, end: int) -> bool:
    """Returns whether the objects' sizes add up to the end of the heap."""
    while end - offset >= _OBJECT_HEADER:
        index, _, _, size = struct.unpack_from("<HHIQ", data, offset)
        # Object 0 is the free space; its size includes its header.
        needed = _OBJECT_HEADER + (size + 7) // 8 * 8 if index else size
        if not _OBJECT_HEADER <= needed <= end - offset:
            return False
        offset += needed
    return True


#: Limit for one row and for one chunk: HDF5 reads and decompresses whole chunks.
_MAX_PIECE_BYTES = 1 << 30
#: Up to this size a dataset may have no data in the file: rows that were never written read as the fill value.
_UNCHECKED_BYTES = 64 << 20
#: Limit of claimed to stored bytes, above `_UNCHECKED_BYTES`. Deflate reaches 1,032; real data stays far below 200.
_MAX_RATIO = 200


def check_dataset(dataset: h5py.h5d.DatasetID, file_bytes: int) -> tuple[int, ...]:
    """Checks that a dataset with a shape is safe to read, and returns the shape.

    Args:
        dataset: the dataset.
        file_bytes: the size of its file.

    Raises:
        CorruptSourceError: its data is in other files, its size is absurd, or its chunks are too short.
    """
    plist, shape = dataset.get_create_plist(), dataset.shape
    layout = plist.get_layout()
    if layout == h5py.h5d.VIRTUAL or plist.get_external_count():
        raise CorruptSourceError(
            "keeps its data in other files, which are not followed",
            hint="write it into one file: h5py.File(new, 'w')[column] = old[column][...]",
        )
    dtype = dataset.dtype
    chunk_shape = plist.get_chunk() if layout == h5py.h5d.CHUNKED else None
    claimed, row_bytes = math.prod(shape) * dtype.itemsize, math.prod(shape[1:]) * dtype.itemsize
    chunk_bytes = math.prod(chunk_shape) * dtype.itemsize if chunk_shape is not None else 0
    largest = max(row_bytes, chunk_bytes)
    if largest > _MAX_PIECE_BYTES:
        piece = "row" if row_bytes > _MAX_PIECE_BYTES else "chunk"
        raise CorruptSourceError(
            f"one {piece} takes {largest} bytes, above the limit of {_MAX_PIECE_BYTES}",
            hint="write the dataset again with smaller chunks, and with the steps as its first axis",
        )
    if claimed > _UNCHECKED_BYTES:
        stored = dataset.get_storage_size()
        if stored > file_bytes or claimed > stored * _MAX_RATIO:
            raise CorruptSourceError(
                f"claims {claimed} bytes, but the file of {file_bytes} bytes stores only {stored} of them",
                hint=f"if the file is correct, write it again without compression: {WRITE_AGAIN})",
            )
    if chunk_shape is not None and dtype.kind in "biufS":
        check_chunk_sizes(dataset, dataset.get_type().get_size(), file_bytes)
    elif chunk_shape is not None and is_variable(dtype):
        check_chunk_sizes(dataset, HEAP_REFERENCE_BYTES, file_bytes)
    return tuple(shape)
