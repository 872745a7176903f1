"""Zarr arrays: their metadata, checked before any value is read, and their rows, chunk by chunk.

`zarr` reads the values. Metadata of version 2: https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html, and of
version 3: https://zarr-specs.readthedocs.io/en/latest/v3/core/index.html.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from gear_data.common.extras import import_extra
from gear_data.errors import CorruptSourceError, GearError, MissingExtraError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.sources.arrays.step_arrays import RowArray
from gear_data.ingest.sources.json_files import json_object
from gear_data.ingest.sources.zarr.guard import guarded_version_2, guarded_version_3, sharded_chunks
from gear_data.ingest.sources.zarr.store import ARRAY_V2, ATTRIBUTES_V2, NODE_V3, StoreReader, ZarrStore

#: Limit for one row, and for the chunks that hold one row: chunks are decompressed as a whole.
_MAX_PIECE_BYTES = 1 << 30
#: Memory that zarr needs to plan the read of a chunk, in bytes.
_CHUNK_BYTES = 2048
#: Up to this size an array may have no chunks in the store.
_UNCHECKED_BYTES = 64 << 20
#: Limit of claimed to stored bytes, above `_UNCHECKED_BYTES`. Deflate reaches 1,032, and Blosc 255.
_MAX_RATIO = 1040
#: Data types of version 3 that NumPy does not know.
_EXTENSIONS = frozenset({"string", "variable_length_bytes"})
_WRITE_AGAIN = "download the store again, or write it again with zarr"


@dataclass(frozen=True)
class ZarrArray(RowArray):
    """An array of a store, whose metadata fits the sizes of its chunks.

    Attributes:
        store: the store.
        path: the path of the array in its store.
        dtype: the stored dtype; its byte order may not be native. It is object if no column can hold the values.
        shape: the shape. The first axis is the rows.
        chunks: the shape of what is decompressed at once: of a chunk, or of a shard if its chunks cannot be read alone.
        files: the shape of what a key of the store holds: of a chunk or of a shard.
        version: of Zarr: 2 or 3.
        guarded: the metadata that `zarr` may read.
        problem: why the values cannot be read; None if they can.
        fill: the value of chunks that the store does not have; None if it is undefined.
        stored_bytes: the bytes of all chunks in the store.
        missing_chunks: the number of chunks, or shards, that the store does not have.
    """

    store: ZarrStore
    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    files: tuple[int, ...]
    version: int
    guarded: Mapping[str, Any] = field(default_factory=dict)
    problem: GearError | None = None
    fill: Any = None
    stored_bytes: int = 0
    missing_chunks: int = 0

    @property
    def place(self) -> str:
        """Store and path, for messages."""
        return f"{self.store.name}/{self.path}"

    @property
    def chunks_of_a_row(self) -> int:
        """The number of chunks that hold one row."""
        return math.prod(-(-size // chunk) for size, chunk in zip(self.row_shape, self.chunks[1:], strict=True))

    def check_readable(self, column: str) -> None:
        """Checks that the chunks can be decompressed.

        Raises:
            UnsupportedColumnError: the array has a codec that is not supported. The error names `column`.
            MissingExtraError: the package of the codec is not installed.
        """
        if self.problem is not None:
            error = self.problem
            raise type(error)(error.message, file=self.store.name, column=column, hint=error.hint) from error

    def column_dtype(self, column: str) -> str:
        """Returns the dtype of a step column with these values, in native byte order.

        Raises:
            UnsupportedColumnError: no column can hold the values, or they cannot be read. The error names `column`.
            MissingExtraError: the package of the codec is not installed.
        """
        self.check_readable(column)
        return super().column_dtype(column)

    def missing_finding(self) -> Finding | None:
        """Returns the finding for chunks that the store does not have; None if it has all.

        Zarr reads such a chunk as the fill value: a writer may leave out chunks that hold nothing else. A download that
        was interrupted looks the same.
        """
        if not self.missing_chunks:
            return None
        message = f"chunks are not in the store; read as the fill value {self.fill}, as Zarr does"
        return Finding("missing-chunks", message, self.missing_chunks, self.store.name, column=self.path)

    def open(self, reader: StoreReader) -> Any:
        """Opens the array as a `zarr.Array` over `GuardedStore`.

        Args:
            reader: reads the keys of the store.

        Raises:
            CorruptSourceError: zarr refuses the metadata.
            MissingExtraError: zarr is not installed.
        """
        import_extra("zarr", "zarr")
        from gear_data.ingest.sources.zarr.bounded import open_guarded

        try:
            metadata = json.dumps(self.guarded).encode()
            return open_guarded(reader, self.path, self.version, metadata, self.fill is not None)
        except Exception as error:  # zarr raises many kinds of errors
            raise _undescribed(error, self.place) from error


def array_paths(store: ZarrStore) -> dict[str, str]:
    """Returns the path of every array -> the key of its metadata.

    Groups of version 3 are included: only their metadata tells that they are groups.
    """
    keys = (key for key, _ in store.sizes() if key.rpartition("/")[2] in (ARRAY_V2, NODE_V3))
    return {key.rpartition("/")[0]: key for key in keys}


def open_arrays(store: ZarrStore, under: str = "") -> dict[str, ZarrArray]:
    """Opens the arrays below a group of a store.

    Args:
        store: the store.
        under: the path of the group; "" is the root.

    Returns:
        Path in the store -> array.

    Raises:
        CorruptSourceError: the metadata of an array is damaged, or claims more bytes than the store can have.
    """
    start = f"{under}/" if under else ""
    arrays = {}
    with StoreReader(store) as reader:
        for path, key in array_paths(store).items():
            if path.startswith(start):
                metadata = json_object(reader.read(key) or b"", store.place(key))
                if metadata.get("node_type", "array") == "array":
                    arrays[path] = _parse(store, path, key, metadata, reader)
    counts = _chunk_counts(store, arrays)
    return {
        path: array if array.problem is not None else _with_chunks(array, *counts[path])
        for path, array in arrays.items()
    }


def read_attributes(store: ZarrStore) -> dict[str, Any]:
    """Returns the attributes of a store's root; empty if it has none.

    Raises CorruptSourceError if they are not JSON.
    """
    with StoreReader(store) as reader:
        for key in (ATTRIBUTES_V2, NODE_V3):
            if (data := reader.read(key)) is not None:
                found = json_object(data, store.place(key))
                attributes = found.get("attributes", {}) if key == NODE_V3 else found
                return attributes if isinstance(attributes, dict) else {}
    return {}


def _parse(store: ZarrStore, path: str, key: str, metadata: Mapping[str, Any], reader: StoreReader) -> ZarrArray:
    """Builds an array from its metadata."""
    place, version = store.place(key), 3 if key.endswith(NODE_V3) else 2
    try:
        shape, files = (tuple(int(n) for n in values) for values in _shapes(metadata, version))
        dtype = _dtype(metadata["dtype"] if version == 2 else metadata["data_type"])
        chunks = (sharded_chunks(metadata) if version == 3 else None) or files
        if (
            not len(shape) == len(files) == len(chunks)
            or min(shape, default=0) < 0
            or min((*files, *chunks), default=1) < 1
        ):
            raise CorruptSourceError(f"has the shape {shape} and chunks of {chunks}", file=place, hint=_WRITE_AGAIN)
        array = ZarrArray(store, path, dtype, shape, chunks, files, version)
        if dtype.kind not in "biuf" and not array.is_bytes:
            return array
        try:
            guarded = guarded_version_2(metadata, dtype) if version == 2 else guarded_version_3(metadata, files, dtype)
        except (UnsupportedColumnError, MissingExtraError) as error:
            return replace(array, problem=error)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, SyntaxError) as error:
        raise _undescribed(error, place) from error
    array = replace(array, guarded=guarded)
    fill = array.open(reader).fill_value
    return replace(array, fill=None if fill is None else fill.item())


def _shapes(metadata: Mapping[str, Any], version: int) -> tuple[Any, Any]:
    """Returns the shape of an array, and the shape of what a key holds."""
    if version == 2:
        return metadata["shape"], metadata["chunks"]
    grid = metadata["chunk_grid"]
    # `guarded_version_3` refuses other grids.
    return metadata["shape"], grid["configuration"]["chunk_shape"] if grid["name"] == "regular" else metadata["shape"]


def _dtype(name: Any) -> np.dtype[Any]:
    """Returns a stored dtype; object for a dtype of several fields, and for an extension of version 3."""
    if not isinstance(name, str) or name in _EXTENSIONS:
        return np.dtype(object)
    return np.dtype(name)


def _undescribed(error: Exception, place: str) -> CorruptSourceError:
    return CorruptSourceError(
        f"does not describe a Zarr array: {type(error).__name__}: {error}", file=place, hint=_WRITE_AGAIN
    )


def _chunk_counts(store: ZarrStore, arrays: Mapping[str, ZarrArray]) -> dict[str, tuple[int, int]]:
    """Returns path -> the number and the bytes of the chunks in the store.

    It takes one pass over the keys.
    """
    counts = dict.fromkeys(arrays, (0, 0))
    for key, size in store.sizes():
        path = key
        while (path := path.rpartition("/")[0]) and path not in counts:
            pass
        if path in counts and key.rpartition("/")[2] not in (ARRAY_V2, ATTRIBUTES_V2, NODE_V3):
            number, total = counts[path]
            counts[path] = number + 1, total + size
    return counts


def _with_chunks(array: ZarrArray, number: int, stored: int) -> ZarrArray:
    """Returns the array with the counts of its chunks, after a check of its sizes."""
    expected = math.prod(-(-size // chunk) for size, chunk in zip(array.shape, array.files, strict=True))
    claimed = math.prod(array.shape) * array.dtype.itemsize
    # Chunks at the end of an axis are stored as a whole.
    piece = array.chunks_of_a_row * max(math.prod(array.chunks) * array.dtype.itemsize, _CHUNK_BYTES)
    if piece > _MAX_PIECE_BYTES:
        raise CorruptSourceError(
            f"the chunks of one row take {piece} bytes, above the limit of {_MAX_PIECE_BYTES}",
            column=array.path,
            hint="write the array again with fewer rows in a chunk",
        )
    if claimed > max(_UNCHECKED_BYTES, stored * _MAX_RATIO):
        raise CorruptSourceError(
            f"claims {claimed} bytes, but the store has only {stored} bytes of its chunks",
            column=array.path,
            hint="download the store again; if it is complete, write the array again with less compression",
        )
    missing = max(0, expected - number)
    if missing and array.fill is None:
        raise CorruptSourceError(
            f"{missing} of {expected} chunks are not in the store, and there is no fill value for them",
            column=array.path,
            hint="download the store again",
        )
    return replace(array, stored_bytes=stored, missing_chunks=missing)


#: Chunks that zarr reads at once. It plans a read before it begins, and its plan has an object a chunk.
_CHUNKS_AT_ONCE = 1024


class ZarrReader:
    """Reads rows of the arrays of stores; a context manager.

    Reading from front to back is fastest: each chunk is decompressed once. In memory are the requested rows, and of
    each array the chunks that hold its last row.
    """

    def __init__(self) -> None:
        self._stores: dict[str, StoreReader] = {}
        #: Place of an array -> the array as zarr has it.
        self._arrays: dict[str, Any] = {}
        #: Place of an array -> index along the first axis, and rows, of the chunks that were read in part.
        self._partial: dict[str, tuple[int, npt.NDArray[Any]]] = {}

    def __enter__(self) -> ZarrReader:
        return self

    def __exit__(self, *error: object) -> None:
        for store in self._stores.values():
            store.__exit__(*error)

    def read(self, array: ZarrArray, start: int, stop: int) -> npt.NDArray[Any]:
        """Reads the rows [start, stop) of an array. A scalar has one row.

        Returns:
            [stop - start, *row_shape], C-contiguous and in native byte order.

        Raises:
            CorruptSourceError: a chunk is damaged.
        """
        array.check_readable(array.path)
        out = np.empty((stop - start, *array.row_shape), array.dtype.newbyteorder("="))
        if not array.shape:
            out[:] = self._decode(array, 0, 1)
            return out
        rows = array.chunks[0]
        at_once = rows * max(1, _CHUNKS_AT_ONCE // array.chunks_of_a_row)
        at = start
        while at < stop:
            first, last = at // rows * rows, min((at // rows + 1) * rows, len(array))
            if at == first and last <= stop:
                last = max(last, min(at + at_once, stop // rows * rows))
                values = self._decode(array, at, last)
                if (at, last) == (start, stop):
                    return np.ascontiguousarray(values, out.dtype)
            else:
                last = min(last, stop)
                values = self._partial_rows(array, first // rows)[at - first : last - first]
            out[at - start : last - start] = values
            at = last
        return out

    def release(self, array: ZarrArray) -> None:
        """Forgets the chunks of an array that has been read. It may be read again."""
        self._partial.pop(array.place, None)

    def _partial_rows(self, array: ZarrArray, index: int) -> npt.NDArray[Any]:
        """Returns all rows of the chunks at `index` along the first axis.

        They are kept until other chunks of the array are read in part.
        """
        known = self._partial.get(array.place)
        if known is None or known[0] != index:
            values = self._decode(array, index * array.chunks[0], min((index + 1) * array.chunks[0], len(array)))
            self._partial[array.place] = known = (index, values)
        return known[1]

    def _decode(self, array: ZarrArray, first: int, last: int) -> npt.NDArray[Any]:
        """Returns the rows [first, last), which are whole chunks."""
        if array.place not in self._arrays:
            store = self._stores.setdefault(array.store.name, StoreReader(array.store))
            self._arrays[array.place] = array.open(store)
        opened = self._arrays[array.place]
        try:
            return cast("npt.NDArray[Any]", opened[first:last] if array.shape else opened[()])
        except GearError:
            raise
        except Exception as error:  # the errors of the codecs have no common base
            raise _damaged(array, opened, first, last, error) from error


def _damaged(array: ZarrArray, opened: Any, first: int, last: int, error: Exception) -> CorruptSourceError:
    """Returns the error for the first chunk that cannot be decompressed.

    zarr does not say which of the chunks it is, so they are read again, one by one.
    """
    begins = (first, *[0] * len(array.row_shape))
    axes = zip(begins, (last, *array.row_shape), array.chunks, strict=True) if array.shape else ()
    for starts in itertools.product(*(range(begin, end, chunk) for begin, end, chunk in axes)):
        try:
            opened[tuple(slice(start, start + chunk) for start, chunk in zip(starts, array.chunks, strict=True))]
        except Exception as found:
            error = found
            break
    return CorruptSourceError(
        f"cannot be decompressed: {type(error).__name__}: {error}",
        file=array.store.place(opened.store.key),
        hint="the chunk is damaged: download it again",
    )
