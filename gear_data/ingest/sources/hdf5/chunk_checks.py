"""Checks of the chunk sizes of HDF5 datasets, before libhdf5 reads the chunks.

libhdf5 trusts the sizes in the file. If a chunk is too short, libhdf5 reads past its end in memory and may crash
(seen in 1.14 and 2.0). Filters and their numbers: HDF5 file format specification, section IV.A.2.l.
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

#: Upper bound on the compression ratio of deflate, which is 1032 to 1 (RFC 1951).
_MAX_DEFLATE_RATIO = 1040
#: Bytes of the fletcher32 checksum, which follows the data.
_CHECKSUM_BYTES = 4
_KNOWN_FILTERS = {h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32}


def check_chunk_sizes(dataset: h5d.DatasetID, element_bytes: int, file: str, column: str) -> None:
    """Checks that every chunk of a chunked dataset can hold its elements.

    Args:
        dataset: a dataset with the chunked layout.
        element_bytes: bytes of one element in the file.
        file: the name of the file, for the error.
        column: the name of the dataset, for the error.

    Raises:
        CorruptSourceError: a chunk is too short, or is uncompressed and has another size.
    """
    plist = dataset.get_create_plist()
    filters = _filter_codes(plist)
    expected = math.prod(plist.get_chunk()) * element_bytes
    for chunk in stored_chunks(dataset):
        codes = _applied_filters(filters, chunk.filter_mask)
        upper_bound = chunk.size * _MAX_DEFLATE_RATIO if h5z.FILTER_DEFLATE in codes else chunk.size
        too_short = upper_bound < expected and set(codes) <= _KNOWN_FILTERS
        if too_short or (not codes and chunk.size != expected):
            raise CorruptSourceError(
                f"a chunk of {expected} bytes, at its row {chunk.chunk_offset[0]}, has {chunk.size} in the file",
                file=file,
                column=column,
                hint="the file is damaged: download it again",
            )


def stored_chunks(dataset: h5d.DatasetID) -> list[Any]:
    """Returns a `h5py.h5d.StoreInfo` for each chunk that is in the file."""
    chunks: list[Any] = []
    dataset.chunk_iter(chunks.append)
    return chunks


def unpacked_chunks(dataset: h5py.Dataset, element_bytes: int) -> Iterator[bytes]:
    """Yields the bytes of every chunk, with its filters undone.

    A sound chunk has as many bytes as its elements take; a damaged chunk has another number.

    Raises:
        CorruptSourceError: a filter is not deflate, shuffle or fletcher32.
    """
    plist, file_bytes = dataset.id.get_create_plist(), os.path.getsize(dataset.file.filename)
    filters = _filter_codes(plist)
    if not set(filters) <= _KNOWN_FILTERS:
        raise CorruptSourceError(
            "is text or bytes behind an unknown HDF5 filter, and cannot be checked before it is read",
            file=os.path.basename(dataset.file.filename),
            column=dataset.name,
            hint="compress it with gzip: h5repack -f GZIP=4 OLD NEW",
        )
    expected = math.prod(dataset.chunks) * element_bytes
    for chunk in stored_chunks(dataset.id):
        if chunk.size <= file_bytes:
            mask, data = dataset.id.read_direct_chunk(chunk.chunk_offset)
            yield _unpack(data, _applied_filters(filters, mask), expected, element_bytes)


def _filter_codes(plist: h5p.PropDCID) -> list[int]:
    """Returns the numbers of the filters, in the order in which a writer applies them."""
    return [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]


def _applied_filters(filters: list[int], mask: int) -> list[int]:
    """Returns the filters that a chunk went through.

    A bit in `mask` marks each filter that the writer skipped, because it gained nothing.
    """
    return [code for i, code in enumerate(filters) if not mask >> i & 1]


def _unpack(data: bytes, codes: list[int], expected: int, element_bytes: int) -> bytes:
    for code in reversed(codes):
        if code == h5z.FILTER_FLETCHER32:
            data = data[:-_CHECKSUM_BYTES]
        elif code == h5z.FILTER_DEFLATE:
            # The limit allows for a checksum and one byte more, which shows that the data is too long.
            try:
                data = zlib.decompressobj().decompress(data, expected + _CHECKSUM_BYTES + 1)
            except zlib.error:
                return b""
        elif len(data) == expected:
            data = np.frombuffer(data, np.uint8).reshape(element_bytes, -1).T.tobytes()
    return data
