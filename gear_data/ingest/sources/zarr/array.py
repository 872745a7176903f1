"""Zarr arrays: their metadata, checked before any value is read.

Metadata of version 2: https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html. Of version 3, the data types of numbers
and the codecs `bytes`, `blosc`, `gzip` and `zstd` are supported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gear_data.errors import CorruptSourceError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.sources.json_files import json_object
from gear_data.ingest.sources.zarr.codecs import check_codec
from gear_data.ingest.sources.zarr.store import ARRAY_V2, ATTRIBUTES_V2, NODE_V3, StoreReader, ZarrStore
from gear_data.schema import DTYPES

#: Limit for one row, and for the chunks that hold one row: chunks are decompressed as a whole.
_MAX_PIECE_BYTES = 1 << 30
#: Up to this size an array may have no chunks in the store.
_UNCHECKED_BYTES = 64 << 20
#: Limit of claimed to stored bytes, above `_UNCHECKED_BYTES`. Deflate reaches 1,032, and Blosc 255.
_MAX_RATIO = 1040
_LEAVE_OUT = "name the columns to keep with --columns (columns=[...]), without this one"
_WRITE_AGAIN = "download the store again, or write it again with zarr"


@dataclass(frozen=True)
class ZarrArray:
    """An array of a store, whose metadata fits the sizes of its chunks.

    Attributes:
        store: the store.
        path: the path of the array in its store.
        dtype: the stored dtype; its byte order may not be native.
        shape: the shape. The first axis is the rows.
        chunks: the shape of a chunk.
        codec: the numcodecs id of the chunks' compression; None for plain values.
        config: the configuration of the codec.
        fill: the value of chunks that the store does not have; None if it is undefined.
        fortran: whether the first axis varies fastest in a chunk.
        prefix: the start of the keys of chunks, in addition to the path.
        separator: what separates the numbers in the keys of chunks.
        unsupported: whether the values went through filters or other codecs that are not supported.
        stored_bytes: the bytes of all chunks in the store.
        missing_chunks: the number of chunks that the store does not have.
    """

    store: ZarrStore
    path: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    codec: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    fill: Any = 0
    fortran: bool = False
    prefix: tuple[str, ...] = ()
    separator: str = "."
    unsupported: bool = False
    stored_bytes: int = 0
    missing_chunks: int = 0

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def place(self) -> str:
        """Store and path, for messages."""
        return f"{self.store.name}/{self.path}"

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[1:]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * self.dtype.itemsize

    def check_readable(self, column: str) -> None:
        """Checks that the chunks can be decompressed.

        Raises:
            UnsupportedColumnError: the array uses a codec that is not supported. The error names `column`.
            MissingExtraError: the package of the codec is not installed.
        """
        if self.unsupported:
            raise UnsupportedColumnError(
                "has filters, sharding or another chunk grid, which are not supported",
                file=self.store.name,
                column=column,
                hint=f"write the array again without them, or {_LEAVE_OUT}",
            )
        check_codec(self.codec, self.config, self.store.name, column)

    def column_dtype(self, column: str) -> str:
        """Returns the dtype of a step column with these values, in native byte order.

        Raises:
            UnsupportedColumnError: no column can hold the values, or they cannot be read. The error names `column`.
            MissingExtraError: the package of the codec is not installed.
        """
        self.check_readable(column)
        name = self.dtype.newbyteorder("=").name
        if name not in DTYPES:
            raise UnsupportedColumnError(
                f"holds {name}, which is not a number or a boolean", file=self.place, column=column, hint=_LEAVE_OUT
            )
        if 0 in self.row_shape:
            raise UnsupportedColumnError(
                f"has steps of shape {self.row_shape}, which hold no values",
                file=self.place,
                column=column,
                hint=_LEAVE_OUT,
            )
        return name

    def chunk_key(self, index: tuple[int, ...]) -> str:
        """Returns the key of a chunk, given its index along each axis."""
        return "/".join((self.path, self.separator.join((*self.prefix, *map(str, index)))))

    def missing_finding(self) -> Finding | None:
        """Returns the finding for chunks that the store does not have; None if it has all.

        Zarr reads such a chunk as the fill value: a writer may leave out chunks that hold nothing else. A download that
        was interrupted looks the same.
        """
        if not self.missing_chunks:
            return None
        message = f"chunks are not in the store; read as the fill value {self.fill}, as Zarr does"
        return Finding("missing-chunks", message, self.missing_chunks, self.store.name, column=self.path)


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
                    arrays[path] = _parse(store, path, key, metadata)
    counts = _chunk_counts(store, arrays)
    return {path: _with_chunks(array, *counts[path]) for path, array in arrays.items()}


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


def _parse(store: ZarrStore, path: str, key: str, metadata: Mapping[str, Any]) -> ZarrArray:
    """Builds an array from its metadata."""
    place = store.place(key)
    try:
        values = _version_3(metadata) if key.endswith(NODE_V3) else _version_2(metadata)
        shape, chunks = (tuple(int(n) for n in values.pop(name)) for name in ("shape", "chunks"))
        dtype = np.dtype(str(values.pop("dtype")))
        fill = values.pop("fill")
        fill = None if fill is None or dtype.kind not in "biuf" else np.array(fill).astype(dtype).item()
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, SyntaxError) as error:
        raise CorruptSourceError(
            f"does not describe a Zarr array: {type(error).__name__}: {error}", file=place, hint=_WRITE_AGAIN
        ) from error
    if values["separator"] not in (".", "/") or not isinstance(values["codec"], str | None):
        raise CorruptSourceError(
            f"has the separator {values['separator']!r} and the codec {values['codec']!r}",
            file=place,
            hint=_WRITE_AGAIN,
        )
    if len(shape) != len(chunks) or min(shape, default=0) < 0 or min(chunks, default=1) < 1:
        raise CorruptSourceError(f"has the shape {shape} and chunks of {chunks}", file=place, hint=_WRITE_AGAIN)
    return ZarrArray(store, path, dtype, shape, chunks, fill=fill, **values)


def _version_2(metadata: Mapping[str, Any]) -> dict[str, Any]:
    compressor = metadata["compressor"] or {"id": None}
    return {
        "shape": metadata["shape"],
        "chunks": metadata["chunks"],
        "dtype": metadata["dtype"],
        "codec": compressor["id"],
        "config": compressor,
        "fill": metadata["fill_value"],
        "fortran": metadata["order"] == "F",
        "separator": metadata.get("dimension_separator", "."),
        "unsupported": bool(metadata["filters"]),
    }


def _version_3(metadata: Mapping[str, Any]) -> dict[str, Any]:
    grid, encoding, codecs = metadata["chunk_grid"], metadata["chunk_key_encoding"], metadata["codecs"]
    is_default = encoding["name"] == "default"
    compressors = [codec for codec in codecs if codec["name"] != "bytes"]
    to_bytes: Mapping[str, Any] = next((codec for codec in codecs if codec["name"] == "bytes"), {})
    endian = to_bytes.get("configuration", {}).get("endian", "little")
    codec = compressors[0] if compressors else {"name": None}
    supported = len(compressors) <= 1 and codec["name"] in (None, "blosc", "gzip", "zstd")
    return {
        "shape": metadata["shape"],
        "chunks": grid["configuration"]["chunk_shape"],
        "dtype": np.dtype(str(metadata["data_type"])).newbyteorder(">" if endian == "big" else "<").str,
        "codec": codec["name"],
        "config": {},
        "fill": metadata["fill_value"],
        "prefix": ("c",) if is_default else (),
        "separator": encoding.get("configuration", {}).get("separator", "/" if is_default else "."),
        "unsupported": grid["name"] != "regular" or not to_bytes or not supported,
    }


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
    expected = math.prod(-(-size // chunk) for size, chunk in zip(array.shape, array.chunks, strict=True))
    claimed = math.prod(array.shape) * array.dtype.itemsize
    # The chunks that hold a row. Chunks at the end of an axis are stored as a whole.
    columns = (-(-size // chunk) * chunk for size, chunk in zip(array.shape[1:], array.chunks[1:], strict=True))
    piece = math.prod((*array.chunks[:1], *columns)) * array.dtype.itemsize
    if piece > _MAX_PIECE_BYTES:
        raise CorruptSourceError(
            f"the chunks of one row take {piece} bytes, above the limit of {_MAX_PIECE_BYTES}",
            file=array.store.name,
            column=array.path,
            hint="write the array again with fewer rows in a chunk",
        )
    if claimed > max(_UNCHECKED_BYTES, stored * _MAX_RATIO):
        raise CorruptSourceError(
            f"claims {claimed} bytes, but the store has only {stored} bytes of its chunks",
            file=array.store.name,
            column=array.path,
            hint="download the store again; if it is complete, write the array again with less compression",
        )
    missing = max(0, expected - number)
    if missing and array.fill is None:
        raise CorruptSourceError(
            f"{missing} of {expected} chunks are not in the store, and there is no fill value for them",
            file=array.store.name,
            column=array.path,
            hint="download the store again",
        )
    return replace(array, stored_bytes=stored, missing_chunks=missing)
