"""Global heaps of HDF5 files, where values of variable length are: looked at before the C library reads them.

A damaged heap, whose objects have sizes that lead nowhere, keeps libhdf5 (1.14) in an endless loop, which nothing in
Python can end. The layout is that of the HDF5 file format specification, section III.E.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import h5py
import numpy as np

from gear_data.errors import CorruptSourceError
from gear_data.ingest.sources.hdf5.chunk_checks import unpacked_chunks

_SIGNATURE = b"GCOL\x01\x00\x00\x00"
#: How a value of variable length stands in a dataset, where lengths take 8 bytes.
_ELEMENT = np.dtype([("length", "<u4"), ("heap", "<u8"), ("index", "<u4")])
#: Its bytes, in datasets and attributes.
ELEMENT_BYTES = _ELEMENT.itemsize
_HEADER, _OBJECT = 16, 16  # bytes, where lengths take 8, as h5py writes them


def check_heaps(thing: h5py.Group | h5py.Dataset) -> None:
    """Call before reading text or bytes of variable length, of a dataset or of a group's attributes.

    Files behind a file system of fsspec are not looked through.

    Raises:
        CorruptSourceError: a heap of the file cannot be walked through, or an element of the dataset is not in the
            file.
    """
    path = thing.file.filename
    if os.path.isfile(path):
        status = os.stat(path)
        bad = _bad_heap(path, status.st_size, status.st_mtime_ns)
        if bad is not None:
            raise CorruptSourceError(
                f"the heap of text and bytes at byte {bad} is damaged",
                file=os.path.basename(path),
                hint="it may have been cut short or changed: download it again",
            )
        if isinstance(thing, h5py.Dataset) and is_variable(thing.dtype):
            _check_elements(thing, path, status.st_size)


def is_variable(dtype: np.dtype[Any]) -> bool:
    text = h5py.check_string_dtype(dtype)
    return h5py.check_vlen_dtype(dtype) is not None or (text is not None and text.length is None)


def _check_elements(dataset: h5py.Dataset, path: str, size: int) -> None:
    """That what a dataset of variable length points to is in the file: libhdf5 hangs where it is not, and crashes where
    elements are not of the size that they have."""
    for count, raw in _stored(dataset, path, size):
        whole = len(raw) == count * ELEMENT_BYTES
        elements = np.frombuffer(raw, _ELEMENT) if whole else np.empty(0, _ELEMENT)
        outside = (elements["length"] > size) | ((elements["length"] > 0) & (elements["heap"] > size - _HEADER))
        if not whole or outside.any():
            raise CorruptSourceError(
                "points outside the file for its text or bytes" if whole else "has elements of a size that none have",
                file=os.path.basename(path),
                column=dataset.name,
                hint="it may have been cut short or changed: download it again",
            )


def _stored(dataset: h5py.Dataset, path: str, size: int) -> Iterator[tuple[int, bytes]]:
    """The bytes of a dataset's elements, without filters, and of how many elements they should be."""
    if dataset.chunks is None:
        at, length = dataset.id.get_offset(), dataset.id.get_storage_size()
        if at is not None and at + length <= size:
            with open(path, "rb") as file:
                file.seek(at)
                yield dataset.size, file.read(length)
        return
    for data in unpacked_chunks(dataset, ELEMENT_BYTES):
        yield math.prod(dataset.chunks), data


@lru_cache(maxsize=64)
def _bad_heap(path: str, size: int, changed: int) -> int | None:
    """Where the first heap is whose objects do not fill it; `size` and `changed` tell versions of a file apart."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = data.find(_SIGNATURE)
        while at >= 0:
            (length,) = struct.unpack_from("<Q", data, at + len(_SIGNATURE)) if at + _HEADER <= size else (0,)
            if _HEADER < length <= size - at and not _is_walkable(data, at + _HEADER, at + length):
                return at
            at = data.find(_SIGNATURE, at + 1)
    return None


def _is_walkable(data: mmap.mmap, at: int, end: int) -> bool:
    """Whether every object's size leads to the next, up to the end."""
    while end - at >= _OBJECT:
        index, _, _, size = struct.unpack_from("<HHIQ", data, at)
        # Object 0 is the free space; its size counts its header.
        need = _OBJECT + (size + 7) // 8 * 8 if index else size
        if not _OBJECT <= need <= end - at:
            return False
        at += need
    return True
