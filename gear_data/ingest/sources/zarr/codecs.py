"""Decompression of the chunks of Zarr arrays, with sizes checked first.

Chunks of zlib, gzip, bz2 and LZMA need no further package. Blosc, Zstandard and LZ4 need `numcodecs` (extra `zarr`).
Chunks that are images, such as UMI's JPEG XL, need `imagecodecs` (extra `umi`). Codecs that run code, such as `pickle`,
are never used.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.extras import import_extra
from gear_data.errors import CorruptSourceError, GearError, UnsupportedColumnError

#: The numcodecs id of a chunk of images -> the decoder in `imagecodecs`.
_IMAGES = {
    "imagecodecs_jpegxl": "jpegxl_decode",
    "imagecodecs_jpeg2k": "jpeg2k_decode",
    "imagecodecs_jpegls": "jpegls_decode",
    "imagecodecs_jpeg": "jpeg_decode",
    "imagecodecs_png": "png_decode",
    "imagecodecs_webp": "webp_decode",
}
#: Options of these codecs that change what is decoded. Chunks are decoded without them.
_DECODER_OPTIONS = (
    "colorspace_data", "colorspace_jpeg", "hasalpha", "header", "index", "keeporientation", "planar", "tables",
)  # fmt: skip
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_BLOSC_HEADER = 16
_DAMAGED = "the chunk is damaged: download it again"


def check_codec(codec: str | None, config: Mapping[str, Any], place: str, column: str) -> None:
    """Checks that chunks of a codec can be read, and imports the codec's package.

    Args:
        codec: the numcodecs id; None for plain chunks.
        config: the configuration of the codec.
        place: the name of the store, for errors.
        column: the path of the array, for errors.

    Raises:
        MissingExtraError: the package is not installed.
        UnsupportedColumnError: there is no such codec here, or it has an option that is not supported.
    """
    if codec in _IMAGES:
        if options := [name for name in _DECODER_OPTIONS if config.get(name)]:
            raise UnsupportedColumnError(
                f"is compressed by '{codec}' with the option '{options[0]}', which is not supported",
                file=place,
                column=column,
                hint="write the array again without it, or leave it out with --columns (columns=[...])",
            )
        import_extra("imagecodecs", "umi")
    elif codec in _SIZED:
        import_extra("numcodecs", "zarr")
    elif codec is not None and codec not in _BOUNDED:
        raise UnsupportedColumnError(
            f"is compressed by '{codec}', which is not supported",
            file=place,
            column=column,
            hint=f"use one of {', '.join(sorted({*_BOUNDED, *_SIZED, *_IMAGES}))}; or leave the array out with "
            "--columns (columns=[...])",
        )


def decode_into(out: npt.NDArray[Any], data: bytes, codec: str | None, config: Mapping[str, Any], place: str) -> None:
    """Decompresses a chunk into a C-contiguous array.

    Args:
        out: receives the values; its size is the size of the chunk.
        data: the chunk in the store.
        codec: the numcodecs id; None for plain bytes.
        config: the configuration of the codec.
        place: the name of the chunk, for errors.

    Raises:
        CorruptSourceError: the chunk is damaged, or has another size.
    """
    try:
        if codec is None:
            plain = data
        elif codec in _IMAGES:
            _decode_image(out, data, _IMAGES[codec])
            return
        elif codec in _SIZED:
            claimed = _SIZED[codec](data)
            _check_size(claimed, out.nbytes, place)
            import_extra("numcodecs", "zarr").get_codec({"id": codec}).decode(data, out=out.reshape(-1).view(np.uint8))
            return
        else:
            plain = _BOUNDED[codec](data, out.nbytes, config)
        _check_size(len(plain), out.nbytes, place)
        out.reshape(-1).view(np.uint8)[...] = np.frombuffer(plain, np.uint8)
    except GearError:
        raise
    except Exception as error:  # the errors of the codecs have no common base
        raise CorruptSourceError(
            f"cannot be decompressed: {type(error).__name__}: {error}", file=place, hint=_DAMAGED
        ) from error


def _check_size(claimed: int, expected: int, place: str) -> None:
    if claimed != expected:
        raise CorruptSourceError(
            f"holds {claimed} bytes of values, where a chunk has {expected}", file=place, hint=_DAMAGED
        )


def _decode_image(out: npt.NDArray[Any], data: bytes, decoder: str) -> None:
    # The decoder refuses an image of another shape before it allocates its pixels. It drops axes of one element.
    view = out.squeeze()
    decoded = getattr(import_extra("imagecodecs", "umi"), decoder)(data, out=view)
    if not np.shares_memory(decoded, out):
        view[...] = decoded


def _inflate(data: bytes, size: int, window: int) -> bytes:
    return zlib.decompressobj(window).decompress(data, size + 1)


def _unlzma(data: bytes, size: int, config: Mapping[str, Any]) -> bytes:
    form, filters = config.get("format", lzma.FORMAT_XZ), config.get("filters")
    filters = filters if form == lzma.FORMAT_RAW else None
    return lzma.LZMADecompressor(format=form, filters=filters).decompress(data, size + 1)


#: Codec -> decompresses at most one byte more than the size of a chunk.
_BOUNDED: Mapping[str, Callable[[bytes, int, Mapping[str, Any]], bytes]] = {
    "zlib": lambda data, size, _: _inflate(data, size, zlib.MAX_WBITS),
    "gzip": lambda data, size, _: _inflate(data, size, zlib.MAX_WBITS | 16),
    "bz2": lambda data, size, _: bz2.BZ2Decompressor().decompress(data, size + 1),
    "lzma": _unlzma,
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


def _zstd_size(data: bytes) -> int:
    """Returns the size that a Zstandard frame states (RFC 8878, section 3.1.1)."""
    if data[:4] != _ZSTD_MAGIC:
        raise ValueError("is no Zstandard frame")
    flags = data[4]
    single, dictionary = flags >> 5 & 1, (0, 1, 2, 4)[flags & 3]
    width = (single, 2, 4, 8)[flags >> 6]
    if not width:
        raise ValueError("does not state its size")
    start = 5 + (1 - single) + dictionary
    if len(data) < start + width:
        raise ValueError("ends inside its header")
    return int.from_bytes(data[start : start + width], "little") + (256 if width == 2 else 0)


#: Codec of numcodecs -> reads the size of the values that a chunk states.
_SIZED: Mapping[str, Callable[[bytes], int]] = {"blosc": _blosc_size, "lz4": _lz4_size, "zstd": _zstd_size}
