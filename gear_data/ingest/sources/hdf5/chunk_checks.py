"""Checks of the chunk sizes of HDF5 datasets, before libhdf5 reads the chunks.

libhdf5 trusts the sizes in the file. If a chunk is too short, libhdf5 reads past its end in memory and may crash
(seen in 1.14 and 2.0). Filters and their numbers: HDF5 file format specification, section IV.A.2.l.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np

from gear_data.common.extras import h5py
from gear_data.errors import CorruptSourceError

#: Numbers of filters in files.
DEFLATE, SHUFFLE, FLETCHER32, SZIP, NBIT, SCALE_OFFSET, LZF = 1, 2, 3, 4, 5, 6, 32000
#: Filter -> upper bound on its compression ratio. Deflate: 1032 to 1 (RFC 1951). LZF: 264 bytes from 3.
_MAX_RATIOS = {DEFLATE: 1040, LZF: 88}
#: Filters whose output has no bound: libhdf5 believes the sizes and settings in the file.
_REFUSED = {SZIP: "SZIP", NBIT: "N-bit", SCALE_OFFSET: "scale-offset"}
#: Python that writes a dataset again, up to the options of its compression.
WRITE_AGAIN = (
    "with h5py.File(FILE, 'r+') as file: data, dtype = file[COLUMN][...], file[COLUMN].dtype; del file[COLUMN]; "
    "file.create_dataset(COLUMN, data=data, dtype=dtype"
)
#: Bytes of the fletcher32 checksum, which follows the data.
_CHECKSUM_BYTES = 4
#: Bytes beyond its elements that a chunk is unpacked to: a checksum and one more, which shows that it is too long.
_MARGIN_BYTES = _CHECKSUM_BYTES + 1
#: Filters that `unpack_chunk` undoes.
KNOWN_FILTERS = {DEFLATE, LZF, SHUFFLE, FLETCHER32}


def check_chunk_sizes(dataset: h5py.h5d.DatasetID, element_bytes: int, file_bytes: int) -> None:
    """Checks that every chunk of a chunked dataset can hold its elements.

    Args:
        dataset: a dataset with the chunked layout.
        element_bytes: bytes of one element in the file.
        file_bytes: the size of the file.

    Raises:
        CorruptSourceError: a chunk is too short, larger than the file, is uncompressed and has another size, or is
            packed with SZIP, N-bit or scale-offset.
    """
    plist = dataset.get_create_plist()
    filters = filter_codes(plist)
    if refused := next((_REFUSED[code] for code in filters if code in _REFUSED), None):
        raise unchecked_filter(f"is packed with {refused}")
    expected = math.prod(plist.get_chunk()) * element_bytes
    for chunk in stored_chunks(dataset):
        codes = _applied_filters(filters, chunk.filter_mask)
        upper_bound = chunk.size * math.prod(_MAX_RATIOS.get(code, 1) for code in codes)
        upper_bound -= _CHECKSUM_BYTES * codes.count(FLETCHER32)
        too_short = upper_bound < expected and KNOWN_FILTERS.issuperset(codes)
        if too_short or chunk.size > file_bytes or (not codes and chunk.size != expected):
            raise _wrong_size(expected, f"has {chunk.size} in the file", chunk.chunk_offset[0])


def unchecked_filter(problem: str) -> CorruptSourceError:
    """Returns the error of a dataset whose chunks cannot be unpacked safely.

    libhdf5 and the SZIP library believe the sizes and settings in the file. With wrong ones they read and write other
    memory (seen in libhdf5 2.0 with libaec).
    """
    return CorruptSourceError(
        f"{problem}, and cannot be checked before it is read",
        hint=f"if you trust the file, write it again with h5py: {WRITE_AGAIN}, compression='gzip')",
    )


def stored_chunks(dataset: h5py.h5d.DatasetID) -> list[Any]:
    """Returns a `h5py.h5d.StoreInfo` for each chunk that is in the file."""
    chunks: list[Any] = []
    dataset.chunk_iter(chunks.append)
    return chunks


def unpack_chunk(dataset: h5py.h5d.DatasetID, offset: tuple[int, ...], element_bytes: int) -> bytes:
    """Reads a chunk that is in the file, and undoes its filters.

    libhdf5 does not compare the size of an unpacked chunk with the size of its elements: it reads past the end of a
    short one.

    Args:
        dataset: a dataset with `KNOWN_FILTERS` only.
        offset: the place of the chunk's first element.
        element_bytes: bytes of one element in the file.

    Raises:
        CorruptSourceError: the chunk unpacks to more or fewer bytes than its elements take.
    """
    plist = dataset.get_create_plist()
    expected = math.prod(plist.get_chunk()) * element_bytes
    data: bytes
    mask, data = dataset.read_direct_chunk(offset)
    for code in reversed(_applied_filters(filter_codes(plist), mask)):
        if code == FLETCHER32:
            data = data[:-_CHECKSUM_BYTES]
        elif code == DEFLATE:
            data = _inflate(data, expected + _MARGIN_BYTES)
        elif code == LZF:
            from gear_data.ingest.sources.hdf5 import lzf  # needs Numba, which other files do not

            data = lzf.unpack(data, expected + _MARGIN_BYTES)
        elif len(data) == expected:
            data = np.frombuffer(data, np.uint8).reshape(element_bytes, -1).T.tobytes()
    if len(data) != expected:
        raise _wrong_size(expected, f"unpacks to {len(data)}", offset[0])
    return data


def filter_codes(plist: h5py.h5p.PropDCID) -> list[int]:
    """Returns the numbers of the filters, in the order in which a writer applies them."""
    return [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]


def _applied_filters(filters: list[int], mask: int) -> list[int]:
    """Returns the filters that a chunk went through.

    A bit in `mask` marks each filter that the writer skipped, because it gained nothing.
    """
    return [code for i, code in enumerate(filters) if not mask >> i & 1]


def _inflate(data: bytes, limit: int) -> bytes:
    """Returns at most `limit` bytes of a deflate stream; none if it is damaged or its end is missing."""
    stream = zlib.decompressobj()
    try:
        unpacked = stream.decompress(data, limit)
    except zlib.error:
        return b""
    return unpacked if stream.eof or len(unpacked) == limit else b""


def _wrong_size(expected: int, found: str, row: int) -> CorruptSourceError:
    return CorruptSourceError(
        f"a chunk of {expected} bytes, at its row {row}, {found}", hint="the file is damaged: download it again"
    )
