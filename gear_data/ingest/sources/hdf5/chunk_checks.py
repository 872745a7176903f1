"""Chunks of HDF5 datasets, whose sizes libhdf5 takes on trust: of one that is too short it reads what lies behind it in
memory, up to a crash (seen in 1.14 and 2.0).

Filters and their numbers: HDF5 file format specification, section IV.A.2.l.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5p, h5z

from gear_data.errors import CorruptSourceError

#: Deflate cannot do better than 1032 to 1 (RFC 1951).
_MAX_DEFLATE_RATIO = 1040
_CHECKSUM_BYTES = 4  # of fletcher32, behind the data
_KNOWN = {h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32}


def check_chunk_sizes(dataset: h5d.DatasetID, item: int, file: str, column: str) -> None:
    """That the chunks of a chunked dataset have the bytes in the file, or with deflate can have them.

    Args:
        item: bytes of an element in the file.

    Raises:
        CorruptSourceError: a chunk of another size.
    """
    plist = dataset.get_create_plist()
    filters = _filters(plist)
    whole = math.prod(plist.get_chunk()) * item
    for chunk in stored_chunks(dataset):
        codes = _applied(filters, chunk.filter_mask)
        most = chunk.size * _MAX_DEFLATE_RATIO if h5z.FILTER_DEFLATE in codes else chunk.size
        if (most < whole and set(codes) <= _KNOWN) or (not codes and chunk.size != whole):
            raise CorruptSourceError(
                f"a chunk of {whole} bytes, at its row {chunk.chunk_offset[0]}, has {chunk.size} in the file",
                file=file,
                column=column,
                hint="the file is damaged: download it again",
            )


def stored_chunks(dataset: h5d.DatasetID) -> list[Any]:
    """A `h5py.h5d.StoreInfo` for each chunk that is in the file."""
    found: list[Any] = []
    dataset.chunk_iter(found.append)
    return found


def unpacked_chunks(dataset: h5py.Dataset, item: int) -> Iterator[bytes]:
    """The bytes of every chunk, without its filters: as many as its elements take, or the chunk is damaged.

    Raises:
        CorruptSourceError: filtered with something else than deflate, shuffle and fletcher32.
    """
    plist, size = dataset.id.get_create_plist(), os.path.getsize(dataset.file.filename)
    filters = _filters(plist)
    if not set(filters) <= _KNOWN:
        raise CorruptSourceError(
            "is text or bytes packed in a way that cannot be checked before it is read; refused",
            file=os.path.basename(dataset.file.filename),
            column=dataset.name,
            hint="pack it with gzip: h5repack -f GZIP=4 OLD NEW",
        )
    whole = math.prod(dataset.chunks) * item
    for chunk in stored_chunks(dataset.id):
        if chunk.size <= size:
            mask, data = dataset.id.read_direct_chunk(chunk.chunk_offset)
            yield _unpacked(data, _applied(filters, mask), whole, item)


def _filters(plist: h5p.PropDCID) -> list[int]:
    """Numbers of the filters, in the order in which a writer applies them."""
    return [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]


def _applied(filters: list[int], mask: int) -> list[int]:
    """Those that a chunk went through: a writer may leave out one that gained nothing, and sets its bit."""
    return [code for i, code in enumerate(filters) if not mask >> i & 1]


def _unpacked(data: bytes, codes: list[int], whole: int, item: int) -> bytes:
    for code in reversed(codes):
        if code == h5z.FILTER_FLETCHER32:
            data = data[:-_CHECKSUM_BYTES]
        elif code == h5z.FILTER_DEFLATE:
            try:  # a byte more than there may be, and a checksum, shows that it is too long
                data = zlib.decompressobj().decompress(data, whole + _CHECKSUM_BYTES + 1)
            except zlib.error:
                return b""
        elif len(data) == whole:
            data = np.frombuffer(data, np.uint8).reshape(item, -1).T.tobytes()
    return data
