"""Guarded metadata of Zarr arrays: what `zarr` may read of a store that nobody trusts.

zarr decompresses whatever a chunk claims to hold, and runs any codec that the metadata names. So zarr never gets the
stored metadata: it gets metadata that names only known codecs, and `BOUNDED` in the place of every decompressor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gear_data.common.extras import import_extra
from gear_data.errors import UnsupportedColumnError

#: The name of the codec that decompresses up to a limit, in metadata of both versions.
BOUNDED = "gear_data.bounded"
#: The numcodecs id of a chunk of images -> the decoder in `imagecodecs`.
IMAGES = {f"imagecodecs_{name}": f"{name}_decode" for name in ("jpegxl", "jpeg2k", "jpegls", "jpeg", "png", "webp")}
COMPRESSORS = frozenset({"blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"})
#: Codecs that change numbers or check sums. None of them runs code.
_FILTERS = frozenset(
    {
        "adler32", "astype", "bitround", "bytes", "crc32", "crc32c", "delta", "fixedscaleoffset", "fletcher32",
        "jenkins_lookup3", "packbits", "quantize", "shuffle", "transpose",
    }
)  # fmt: skip
#: Limit of encoded to decoded bytes: a filter may store a byte as a float64, and eight booleans in a byte.
_MAX_WIDENING = 8
#: Bytes of the check sums that follow the values of a chunk.
_CHECK_SUMS = 64
#: Options of the decoders of images that change what is decoded. Chunks are decoded without them.
_IMAGE_OPTIONS = (
    "colorspace_data", "colorspace_jpeg", "hasalpha", "header", "index", "keeporientation", "planar", "tables",
)  # fmt: skip
_DTYPES_OF_FILTERS = ("dtype", "astype", "encode_dtype", "decode_dtype")


def guarded_version_2(metadata: Mapping[str, Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Returns the metadata of an array of version 2 that zarr may read.

    Args:
        metadata: the stored metadata; its chunks are positive integers.
        dtype: the dtype of the values, a number or a boolean.

    Raises:
        UnsupportedColumnError: the array has a codec that is not known to be safe. The error names no column.
        MissingExtraError: the package of a codec is not installed.
        KeyError, TypeError, ValueError, AttributeError: the metadata is damaged.
    """
    filters = metadata["filters"] or []
    chunk_bytes = math.prod(metadata["chunks"]) * dtype.itemsize
    guarded = []
    for codec in filters:
        _check_filter(codec["id"], codec)
        # A decompressor may be a filter, too; and a filter may be followed by another that widens again.
        guarded.append({"id": BOUNDED, "codec": codec, "limit": _MAX_WIDENING * chunk_bytes + _CHECK_SUMS})
    compressor = metadata["compressor"]
    if compressor is not None and compressor["id"] in IMAGES:
        _check_image(compressor)
        shape = {"shape": metadata["chunks"], "dtype": dtype.str}
        compressor = {"id": BOUNDED, "codec": compressor, "limit": chunk_bytes, **shape}
    elif compressor is not None:
        if compressor["id"] not in COMPRESSORS:
            raise _unsupported(f"is compressed by '{compressor['id']}'")
        limit = guarded[0]["limit"] if guarded else chunk_bytes
        compressor = {"id": BOUNDED, "codec": compressor, "limit": limit}
    return {**metadata, "compressor": compressor, "filters": guarded or None}


def guarded_version_3(metadata: Mapping[str, Any], chunks: Sequence[int], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Returns the metadata of an array of version 3 that zarr may read.

    Args:
        metadata: the stored metadata.
        chunks: the shape of the outermost chunks.
        dtype: the dtype of the values, a number or a boolean.

    Raises:
        UnsupportedColumnError: the array has a codec that is not known to be safe. The error names no column.
        KeyError, TypeError, ValueError, AttributeError: the metadata is damaged.
    """
    if metadata["chunk_grid"]["name"] != "regular":
        raise _unsupported(f"has the chunk grid '{metadata['chunk_grid']['name']}'")
    return {**metadata, "attributes": {}, "codecs": _guarded_codecs(metadata["codecs"], chunks, dtype)}


def sharded_chunks(metadata: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Returns the shape of the chunks in the shards; None if shards are decoded as a whole, or there are none."""
    codecs = metadata["codecs"]
    if len(codecs) != 1 or _name(codecs[0]) != "sharding_indexed":
        return None
    return tuple(int(n) for n in codecs[0]["configuration"]["chunk_shape"])


def _guarded_codecs(codecs: Sequence[Any], chunks: Sequence[int], dtype: np.dtype[Any]) -> list[Any]:
    names = [_name(codec) for codec in codecs]
    widening = _MAX_WIDENING if _FILTERS.difference({"bytes", "crc32c", "transpose"}).intersection(names) else 1
    limit = widening * math.prod(chunks) * dtype.itemsize + _CHECK_SUMS
    guarded: list[Any] = []
    for name, codec in zip(names, codecs, strict=True):
        config = {} if isinstance(codec, str) else codec.get("configuration", {})
        if name == "sharding_indexed":
            inner, index = config["codecs"], [_name(each) for each in config["index_codecs"]]
            if "sharding_indexed" in map(_name, inner) or not {"bytes", "crc32c"}.issuperset(index):
                raise _unsupported("has shards of shards, or a compressed index of its shards")
            config = {**config, "codecs": _guarded_codecs(inner, config["chunk_shape"], dtype)}
            guarded.append({"name": name, "configuration": config})
        elif name in COMPRESSORS:
            guarded.append({"name": BOUNDED, "configuration": {"codec": {**config, "id": name}, "limit": limit}})
        else:
            _check_filter(name, config)
            guarded.append(codec)
    return guarded


def _name(codec: Any) -> str:
    """Returns the name of a codec of version 3, without the prefix of numcodecs."""
    return str(codec if isinstance(codec, str) else codec["name"]).removeprefix("numcodecs.")


def _check_filter(name: Any, config: Mapping[str, Any]) -> None:
    if name not in _FILTERS | COMPRESSORS:
        raise _unsupported(f"has the filter '{name}'")
    for key in _DTYPES_OF_FILTERS:
        if config.get(key) is not None and np.dtype(str(config[key])).kind not in "biuf":
            raise _unsupported(f"has the filter '{name}' with the {key} {config[key]!r}")


def _check_image(config: Mapping[str, Any]) -> None:
    if options := [name for name in _IMAGE_OPTIONS if config.get(name)]:
        raise _unsupported(f"is compressed by '{config['id']}' with the option '{options[0]}'")
    import_extra("imagecodecs", "umi")


def _unsupported(problem: str) -> UnsupportedColumnError:
    known = ", ".join(sorted({*COMPRESSORS, *IMAGES}))
    return UnsupportedColumnError(
        f"{problem}, which is not supported",
        hint=f"write the array again with one of {known}; or leave it out with --columns (columns=[...])",
    )
