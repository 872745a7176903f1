"""Tests of reading Zarr arrays, which `zarr` itself writes and reads."""

from __future__ import annotations

import json
import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import imagecodecs.numcodecs
import numcodecs
import numpy as np
import numpy.typing as npt
import pytest
import zarr

from gear_data.errors import CorruptSourceError, MissingExtraError, UnsupportedColumnError
from gear_data.ingest.location import locate
from gear_data.ingest.sources.zarr import codecs
from gear_data.ingest.sources.zarr.array import ZarrArray, open_arrays, read_attributes
from gear_data.ingest.sources.zarr.reader import ZarrReader
from gear_data.ingest.sources.zarr.store import find_stores

_COMPRESSORS = {
    "none": None,
    "blosc": numcodecs.Blosc("zstd", 5, numcodecs.Blosc.BITSHUFFLE),
    "lz4": numcodecs.LZ4(),
    "zstd": numcodecs.Zstd(3),
    "gzip": numcodecs.GZip(),
    "zlib": numcodecs.Zlib(),
    "bz2": numcodecs.BZ2(),
    "lzma": numcodecs.LZMA(),
}
_ROWS = 37


def write(store: Any, **layout: Any) -> dict[str, npt.NDArray[Any]]:
    """Writes an array for each compressor, and returns path -> values."""
    rng = np.random.default_rng(0)
    group = zarr.open_group(store, mode="w", zarr_format=2, attributes={"robot": "ur5"})
    values = {}
    for name, compressor in _COMPRESSORS.items():
        array = rng.normal(size=(_ROWS, 5, 7)).astype(layout.get("dtype", "<f4"))
        options = {"chunks": (10, 5, 7), "dtype": array.dtype, **layout}
        created = group.create_array(f"data/{name}", shape=array.shape, compressors=compressor, **options)
        created[...] = array
        values[f"data/{name}"] = array
    return values


def opened(path: Path, under: str = "") -> dict[str, ZarrArray]:
    (store,) = find_stores(locate(path, None))
    return open_arrays(store, under)


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"chunks": (10, 3, 7), "dtype": ">f8"},
        {"chunks": (10, 3, 4), "order": "F"},
        {"chunks": (64, 2, 7), "chunk_key_encoding": {"name": "v2", "separator": "/"}},
    ],
)
def test_rows_are_those_of_zarr(layout: dict[str, Any], archive: bool, tmp_path: Path) -> None:
    path = tmp_path / ("a.zarr.zip" if archive else "a.zarr")
    store = zarr.storage.ZipStore(path, mode="w") if archive else path
    expected = write(store, **layout)
    if archive:
        store.close()
    arrays = opened(path, "data")
    assert arrays.keys() == expected.keys()
    read = zarr.open_group(zarr.storage.ZipStore(path, mode="r") if archive else path, mode="r")
    with ZarrReader() as reader:
        for name, values in expected.items():
            np.testing.assert_array_equal(read[name][...], values)
            pieces = [reader.read(arrays[name], i, min(i + 8, _ROWS)) for i in range(0, _ROWS, 8)]
            np.testing.assert_array_equal(np.concatenate(pieces), values, name)
            np.testing.assert_array_equal(reader.read(arrays[name], 12, 30), values[12:30], name)
            assert pieces[0].dtype == values.dtype.newbyteorder("=")
    assert read_attributes(find_stores(locate(path, None))[0]) == {"robot": "ur5"}


@pytest.mark.parametrize("name", ["Jpegxl", "Jpeg2k", "Jpegls", "Jpeg", "Png", "Webp"])
def test_images_are_those_of_zarr(name: str, tmp_path: Path) -> None:
    imagecodecs.numcodecs.register_codecs(verbose=False)
    y, x = np.mgrid[:24, :32]
    frames = np.stack([np.stack([x * 7 + t, y * 9, x + y + t], -1) % 256 for t in range(5)]).astype(np.uint8)
    compressor = getattr(imagecodecs.numcodecs, name)(level=50)
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    options: dict[str, Any] = {"shape": frames.shape, "chunks": (1, 24, 32, 3), "dtype": "u1"}
    group.create_array("a", **options, compressors=compressor)[...] = frames
    array = opened(tmp_path / "a.zarr")["a"]
    assert array.column_dtype("a") == "uint8"
    with ZarrReader() as reader:
        np.testing.assert_array_equal(reader.read(array, 1, 4), group["a"][1:4])
    changed = replace(array, config={**array.config, "keeporientation": True})
    with pytest.raises(UnsupportedColumnError, match="with the option 'keeporientation'"):
        changed.column_dtype("a")


def test_version_3_is_read(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(_ROWS, 5)).astype(np.float32)
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=3, attributes={"robot": "ur5"})
    for name, options in {
        "default": {},
        "blosc": {"compressors": zarr.codecs.BloscCodec()},
        "gzip": {"compressors": zarr.codecs.GzipCodec()},
        "plain": {"compressors": None},
        "big": {"serializer": zarr.codecs.BytesCodec(endian="big")},
        "dots": {"chunk_key_encoding": {"name": "default", "separator": "."}},
    }.items():
        group.create_array(f"data/{name}", shape=values.shape, chunks=(8, 3), dtype="f4", **options)[...] = values
    arrays = opened(tmp_path / "a.zarr")
    assert len(arrays) == 6
    with ZarrReader() as reader:
        for name, array in arrays.items():
            np.testing.assert_array_equal(reader.read(array, 3, 30), values[3:30], name)
    assert read_attributes(array.store) == {"robot": "ur5"}
    group.create_array("sharded", shape=values.shape, chunks=(8, 5), shards=(16, 5), dtype="f4")
    with pytest.raises(UnsupportedColumnError, match="sharding"):
        opened(tmp_path / "a.zarr")["sharded"].column_dtype("a")


def test_a_chunk_is_decompressed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.zarr")
    array = opened(tmp_path / "a.zarr")["data/blosc"]
    chunks: list[str] = []
    decode = codecs.decode_into

    def count(out: Any, data: Any, codec: Any, config: Any, place: str) -> None:
        chunks.append(place)
        decode(out, data, codec, config, place)

    monkeypatch.setattr("gear_data.ingest.sources.zarr.reader.decode_into", count)
    with ZarrReader() as reader:
        for i in range(0, _ROWS, 3):
            reader.read(array, i, min(i + 3, _ROWS))
    assert len(chunks) == len(set(chunks)) == 4


def test_missing_chunks_are_the_fill_value_and_are_reported(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    options: Any = {"shape": (20, 2), "chunks": (5, 2), "dtype": "f4"}
    group.create_array("a", **options, fill_value=7)[:5] = 1
    array = opened(tmp_path / "a.zarr")["a"]
    with ZarrReader() as reader:
        np.testing.assert_array_equal(reader.read(array, 0, 20), group["a"][...])
    finding = array.missing_finding()
    assert finding is not None
    assert (finding.code, finding.count, finding.column) == ("missing-chunks", 3, "a")
    metadata = json.loads((tmp_path / "a.zarr/a/.zarray").read_text())
    (tmp_path / "a.zarr/a/.zarray").write_text(json.dumps({**metadata, "fill_value": None}))
    with pytest.raises(CorruptSourceError, match="3 of 4 chunks are not in the store, and there is no fill value"):
        opened(tmp_path / "a.zarr")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"compressor": {"id": "pickle"}}, UnsupportedColumnError, "compressed by 'pickle', which is not supported"),
        ({"filters": [{"id": "delta", "dtype": "<f4"}]}, UnsupportedColumnError, "has filters"),
        ({"shape": [1 << 40, 2]}, CorruptSourceError, "claims 8796093022208 bytes"),
        ({"chunks": [1 << 40, 2]}, CorruptSourceError, "above the limit"),
        ({"chunks": [0, 2]}, CorruptSourceError, "has the shape"),
        ({"dimension_separator": {}}, CorruptSourceError, "has the separator {}"),
        ({"compressor": {"id": 3}}, CorruptSourceError, "and the codec 3"),
        ({"dtype": "<q4"}, CorruptSourceError, "does not describe a Zarr array"),
    ],
)
def test_bad_metadata(change: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    group.create_array("a", shape=(20, 2), chunks=(5, 2), dtype="f4")[...] = 1
    path = tmp_path / "a.zarr/a/.zarray"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(error, match=message):
        opened(tmp_path / "a.zarr")["a"].column_dtype("a")


@pytest.mark.parametrize("name", sorted(_COMPRESSORS))
def test_a_damaged_chunk_is_a_typed_error(name: str, tmp_path: Path) -> None:
    write(tmp_path / "a.zarr")
    chunk = tmp_path / f"a.zarr/data/{name}/1.0.0"
    data = chunk.read_bytes()
    for damaged in (b"", data[: len(data) // 2], data[:3], b"\0" * len(data) + b"\0"):
        chunk.write_bytes(damaged)
        array = opened(tmp_path / "a.zarr")[f"data/{name}"]
        with ZarrReader() as reader, pytest.raises(CorruptSourceError, match=r"1\.0\.0: "):
            reader.read(array, 8, 20)


@pytest.mark.parametrize(("name", "offset"), [("blosc", 4), ("lz4", 0)])
def test_a_claimed_size_allocates_nothing(name: str, offset: int, tmp_path: Path) -> None:
    write(tmp_path / "a.zarr")
    chunk = tmp_path / f"a.zarr/data/{name}/1.0.0"
    data = bytearray(chunk.read_bytes())
    struct.pack_into("<I", data, offset, 1 << 31)
    chunk.write_bytes(data)
    array = opened(tmp_path / "a.zarr")[f"data/{name}"]
    with ZarrReader() as reader, pytest.raises(CorruptSourceError, match="holds 2147483648 bytes of values"):
        reader.read(array, 8, 20)


def test_a_package_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.zarr")
    monkeypatch.setitem(sys.modules, "numcodecs", None)
    with pytest.raises(MissingExtraError, match=r"numcodecs cannot be imported(.|\n)*gear-data\[zarr\]"):
        opened(tmp_path / "a.zarr")["data/blosc"].column_dtype("blosc")


def test_stores_of_a_folder(tmp_path: Path) -> None:
    for name in ("one.zarr", "deep/two.zarr"):
        zarr.open_group(tmp_path / name, mode="w", zarr_format=2).create_array("a", shape=(2,), dtype="f4")[...] = 1
    with zarr.storage.ZipStore(tmp_path / "three.zarr.zip", mode="w") as store:
        zarr.open_group(store, mode="w", zarr_format=2)
    assert {store.name for store in find_stores(locate(tmp_path, None))} == {
        "one.zarr",
        "deep/two.zarr",
        "three.zarr.zip",
    }
