"""Arrays that `zarr` reads from a guarded store: `GuardedStore`, and the codecs that its metadata names.

Importing this module needs the extra `zarr`.
"""

from __future__ import annotations

import asyncio
import bz2
import lzma
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numcodecs
import numpy as np
import pyarrow as pa
import zarr
from numcodecs.abc import Codec
from zarr.abc.codec import BytesBytesCodec
from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.registry import register_codec
from zarr.storage import MemoryStore, WrapperStore

from gear_data.common.extras import import_extra
from gear_data.errors import CorruptSourceError
from gear_data.ingest.sources.zarr.guard import BOUNDED, IMAGES
from gear_data.ingest.sources.zarr.store import ARRAY_V2, ATTRIBUTES_V2, NODE_V3, StoreReader

_BLOSC_HEADER = 16


class GuardedStore(WrapperStore[MemoryStore]):
    """The store of one array, as zarr sees it: the guarded metadata, and the chunks.

    Args:
        reader: reads the stored keys.
        path: the path of the array in its store.
        metadata: the guarded metadata, as JSON.
        has_fill: whether a chunk that the store does not have is the fill value.

    Attributes:
        key: the key that zarr asked for last.
    """

    def __init__(self, reader: StoreReader, path: str, metadata: bytes, has_fill: bool) -> None:
        super().__init__(MemoryStore(read_only=True))
        self._reader = reader
        self._path = path
        self._metadata = metadata
        self._has_fill = has_fill
        self.key = path

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        """Returns the bytes of a key; None if the store does not have the key.

        Raises:
            CorruptSourceError: the file or the archive is damaged, or a chunk is missing that has no fill value.
        """
        if key in (ARRAY_V2, NODE_V3):
            return prototype.buffer.from_bytes(self._metadata)
        if key == ATTRIBUTES_V2:
            return None
        self.key = f"{self._path}/{key}"
        data = self._reader.read(self.key, *_bounds(byte_range))
        # zarr reads an empty shard as the fill value, too.
        if not data and (data is not None or not self._has_fill):
            problem = "is missing" if data is None else "is empty"
            raise CorruptSourceError(problem, file=self._reader.place(self.key), hint="download the store again")
        return None if data is None else prototype.buffer.from_bytes(data)


def open_guarded(reader: StoreReader, path: str, version: int, metadata: bytes, has_fill: bool) -> zarr.Array[Any]:
    """Opens the array of a `GuardedStore` of these arguments.

    It raises all errors that zarr has for bad metadata.
    """
    store = GuardedStore(reader, path, metadata, has_fill)
    return zarr.open_array(store, mode="r", zarr_format=2 if version == 2 else 3)


def _bounds(byte_range: ByteRequest | None) -> tuple[int, int | None]:
    """Returns the first byte, from the end if it is negative, and the byte after the last."""
    match byte_range:
        case RangeByteRequest(start, end):
            return start, end
        case OffsetByteRequest(offset):
            return offset, None
        case SuffixByteRequest(suffix):
            return -suffix, None
    return 0, None


def _decode(codec: Mapping[str, Any], data: Any, limit: int) -> Any:
    """Returns what a codec of numcodecs makes of some bytes.

    Raises ValueError if that is more than `limit` bytes. Decompressors are asked before they allocate it.
    """
    name = codec["id"]
    if name in _BOUNDED:
        plain = _BOUNDED[name](data, limit, codec)
    elif name in _SIZED:
        _check_size(_SIZED[name](data), limit)
        plain = numcodecs.get_codec({"id": name}).decode(data)
    else:
        plain = numcodecs.get_codec(dict(codec)).decode(data)
    _check_size(memoryview(plain).nbytes, limit)
    return plain


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise ValueError(f"holds {size} bytes of values, where a chunk has at most {limit}")


class BoundedCodec(Codec):  # type: ignore[misc]
    """A codec of numcodecs that decodes at most `limit` bytes: see `guard`.

    Args:
        codec: the configuration of the codec.
        limit: bytes.
        shape: the shape of a chunk of images; None for other codecs.
        dtype: the dtype of a chunk of images.
    """

    codec_id = BOUNDED

    def __init__(
        self, codec: Mapping[str, Any], limit: int, shape: Sequence[int] | None = None, dtype: str = "u1"
    ) -> None:
        self._codec, self._limit, self._shape, self._dtype = dict(codec), limit, shape, dtype

    def encode(self, buf: Any) -> Any:
        raise NotImplementedError

    def decode(self, buf: Any, out: Any = None) -> Any:
        if self._shape is None:
            return _decode(self._codec, buf, self._limit)
        image = np.empty(tuple(self._shape), self._dtype)
        # The decoder refuses an image of another shape before it allocates its pixels. It drops axes of one element.
        view = image.squeeze()
        decoded = getattr(import_extra("imagecodecs", "umi"), IMAGES[self._codec["id"]])(bytes(buf), out=view)
        if not np.shares_memory(decoded, image):
            view[...] = decoded
        return image


@dataclass(frozen=True)
class BoundedBytesCodec(BytesBytesCodec):
    """The same codec in the metadata of version 3.

    Attributes:
        codec: the configuration of the codec, with the id of numcodecs.
        limit: bytes.
    """

    is_fixed_size = False
    codec: Mapping[str, Any]
    limit: int

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BoundedBytesCodec:
        return cls(**data["configuration"])

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        raise NotImplementedError

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        plain = await asyncio.to_thread(_decode, self.codec, chunk_data.as_numpy_array(), self.limit)
        return chunk_spec.prototype.buffer.from_bytes(plain)


numcodecs.register_codec(BoundedCodec)
register_codec(BOUNDED, BoundedBytesCodec)


def _inflate(data: bytes, size: int, window: int) -> bytes:
    return zlib.decompressobj(window).decompress(data, size + 1)


def _unlzma(data: bytes, size: int, config: Mapping[str, Any]) -> bytes:
    form, filters = config.get("format", lzma.FORMAT_XZ), config.get("filters")
    filters = filters if form == lzma.FORMAT_RAW else None
    return lzma.LZMADecompressor(format=form, filters=filters).decompress(data, size + 1)


def _unzstd(data: bytes, size: int) -> bytes:
    with pa.input_stream(pa.py_buffer(data), compression="zstd") as stream:
        return bytes(stream.read(size + 1))


#: Codec -> decompresses at most one byte more than the size of a chunk.
_BOUNDED: Mapping[str, Callable[[bytes, int, Mapping[str, Any]], bytes]] = {
    "zlib": lambda data, size, _: _inflate(data, size, zlib.MAX_WBITS),
    "gzip": lambda data, size, _: _inflate(data, size, zlib.MAX_WBITS | 16),
    "bz2": lambda data, size, _: bz2.BZ2Decompressor().decompress(data, size + 1),
    "lzma": _unlzma,
    "zstd": lambda data, size, _: _unzstd(data, size),
}


def _blosc_size(data: bytes) -> int:
    """Returns the size that a Blosc chunk states.

    The library trusts the stated size of the compressed bytes, so the size is checked here.
    """
    if len(data) < _BLOSC_HEADER:
        raise ValueError(f"{len(data)} bytes are no Blosc chunk")
    size, _, stored = struct.unpack_from("<III", data, 4)
    if stored != len(data):
        raise ValueError(f"states {stored} compressed bytes, but has {len(data)}")
    return int(size)


def _lz4_size(data: bytes) -> int:
    return int(struct.unpack_from("<I", data)[0])


#: Codec of numcodecs -> reads the size of the values that a chunk states.
_SIZED: Mapping[str, Callable[[bytes], int]] = {"blosc": _blosc_size, "lz4": _lz4_size}
