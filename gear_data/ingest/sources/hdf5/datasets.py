"""Defensive reading of HDF5 datasets.

Sizes, layouts and types are validated before values are read.

Datasets with external or virtual storage are refused, so no other file is read. No Python object is created except text
and bytes. No more memory is allocated than the file has data for.
"""

from __future__ import annotations

import math

from h5py import h5d

from gear_data.errors import CorruptSourceError
from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.hdf5.chunk_checks import check_chunk_sizes
from gear_data.ingest.sources.hdf5.heap_checks import HEAP_REFERENCE_BYTES, is_variable

_LEAVE_OUT = "name the columns to keep with --columns (columns=[...]), without this one"
#: Limit for one row and for one chunk: HDF5 reads and decompresses whole chunks.
_MAX_PIECE_BYTES = 1 << 30
#: Up to this size a dataset may have no data in the file: rows that were never written read as the fill value.
_UNCHECKED_BYTES = 64 << 20
#: Limit of claimed to stored bytes, above `_UNCHECKED_BYTES`. Deflate reaches 1,032; real data stays far below 200.
_MAX_RATIO = 200


def check_dataset(dataset: h5d.DatasetID, file: SourceFile, column: str) -> tuple[int, ...]:
    """Checks that a dataset is safe to read, and returns its shape.

    Raises:
        CorruptSourceError: its data is in other files, its size is absurd, or its chunks are too short.
    """
    plist, shape = dataset.get_create_plist(), dataset.shape
    layout = plist.get_layout()
    if layout == h5d.VIRTUAL or plist.get_external_count():
        raise CorruptSourceError(
            "keeps its data in other files, which are not followed",
            file=file.name,
            column=column,
            hint="write it into one file: h5py.File(new, 'w')[column] = old[column][...]",
        )
    if shape is None:
        raise CorruptSourceError("is a dataset without a shape", file=file.name, column=column, hint=_LEAVE_OUT)
    dtype = dataset.dtype
    chunk_shape = plist.get_chunk() if layout == h5d.CHUNKED else None
    _check_sizes(dataset, shape, dtype.itemsize, chunk_shape, file, column)
    if chunk_shape is not None and dtype.kind in "biufS":
        check_chunk_sizes(dataset, dataset.get_type().get_size(), file, column)
    elif chunk_shape is not None and is_variable(dtype):
        check_chunk_sizes(dataset, HEAP_REFERENCE_BYTES, file, column)
    return tuple(shape)


def _check_sizes(
    dataset: h5d.DatasetID,
    shape: tuple[int, ...],
    item_bytes: int,
    chunk_shape: tuple[int, ...] | None,
    file: SourceFile,
    column: str,
) -> None:
    """Checks the sizes of one row, of one chunk and of the whole dataset."""
    claimed, row_bytes = math.prod(shape) * item_bytes, math.prod(shape[1:]) * item_bytes
    chunk_bytes = math.prod(chunk_shape) * item_bytes if chunk_shape is not None else 0
    largest = max(row_bytes, chunk_bytes)
    if largest > _MAX_PIECE_BYTES:
        piece = "row" if row_bytes > _MAX_PIECE_BYTES else "chunk"
        raise CorruptSourceError(
            f"one {piece} takes {largest} bytes, above the limit of {_MAX_PIECE_BYTES}",
            file=file.name,
            column=column,
            hint="write the dataset again with smaller chunks, and with the steps as its first axis",
        )
    if claimed > _UNCHECKED_BYTES:
        stored = dataset.get_storage_size()
        if stored > file.size or claimed > stored * _MAX_RATIO:
            raise CorruptSourceError(
                f"claims {claimed} bytes, but the file of {file.size} bytes stores only {stored} of them",
                file=file.name,
                column=column,
                hint="if the file is correct, decompress it first: h5repack -f NONE OLD NEW",
            )
