"""Tests of reading Zarr arrays, which `zarr` itself writes and reads."""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Callable
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
from gear_data.ingest.sources.arrays.blocks import strings
from gear_data.ingest.sources.zarr.array import ZarrArray, ZarrReader, open_arrays, read_attributes
from gear_data.ingest.sources.zarr.store import StoreReader, find_stores

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


def change_metadata(path: Path, change: Callable[[Any], object]) -> None:
    metadata = json.loads(path.read_text())
    change(metadata)
    path.write_text(json.dumps(metadata))


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
    change_metadata(tmp_path / "a.zarr/a/.zarray", lambda found: found["compressor"].update(keeporientation=True))
    with pytest.raises(UnsupportedColumnError, match="with the option 'keeporientation'"):
        opened(tmp_path / "a.zarr")["a"].column_dtype("a")


@pytest.mark.parametrize("compressor", _COMPRESSORS.values(), ids=_COMPRESSORS)
def test_byte_strings_are_those_of_zarr(compressor: Any, tmp_path: Path) -> None:
    """A chunk that the store does not have is the fill value: empty strings."""
    values = np.array([b"\xff" * (i % 9) + b"a" for i in range(_ROWS)], "S9")
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    created = group.create_array("a", shape=(_ROWS,), chunks=(10,), dtype="S9", compressors=compressor)
    created[:20] = values[:20]
    created[30:] = values[30:]
    array = opened(tmp_path / "a.zarr")["a"]
    assert array.column_dtype("a") == "binary"
    assert array.missing_finding() is not None
    with ZarrReader() as reader:
        read = strings(np.concatenate([reader.read(array, i, min(i + 8, _ROWS)) for i in range(0, _ROWS, 8)]))
    assert read.to_pylist() == created[:].tolist() == [*values[:20].tolist(), *[b""] * 10, *values[30:].tolist()]


def check_version_3(tmp_path: Path, values: npt.NDArray[Any], arrays: dict[str, dict[str, Any]]) -> None:
    """Writes arrays of version 3 with these options, and compares their rows with zarr's."""
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=3, attributes={"robot": "ur5"})
    for name, options in arrays.items():
        options = {"chunks": (8, 3), "dtype": values.dtype, **options}
        group.create_array(f"data/{name}", shape=values.shape, **options)[...] = values
    found = opened(tmp_path / "a.zarr")
    assert found.keys() == {f"data/{name}" for name in arrays}
    with ZarrReader() as reader:
        for name, array in found.items():
            expected = np.asarray(group[name])
            pieces = [reader.read(array, i, min(i + 9, _ROWS)) for i in range(0, _ROWS, 9)]
            np.testing.assert_array_equal(np.concatenate(pieces), expected, name)
            np.testing.assert_array_equal(reader.read(array, 3, 30), expected[3:30], name)
    assert read_attributes(array.store) == {"robot": "ur5"}


def test_version_3_is_read(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(_ROWS, 5)).astype(np.float32)
    check_version_3(
        tmp_path,
        values,
        {
            "default": {},
            "blosc": {"compressors": zarr.codecs.BloscCodec()},
            "gzip": {"compressors": zarr.codecs.GzipCodec()},
            "plain": {"compressors": None},
            "summed": {"compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]},
            "big": {"serializer": zarr.codecs.BytesCodec(endian="big")},
            "transposed": {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]},
            "dots": {"chunk_key_encoding": {"name": "default", "separator": "."}},
        },
    )


@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
def test_shards_are_read(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(_ROWS, 5)).astype(np.float32)
    shards = {"shards": (16, 6)}
    check_version_3(
        tmp_path,
        values,
        {
            "default": shards,
            "gzip": {**shards, "compressors": zarr.codecs.GzipCodec()},
            "plain": {**shards, "compressors": None},
            "index first": {"shards": {"shape": (16, 6), "index_location": "start"}},
            # The chunks of such shards cannot be read alone.
            "transposed": {
                "filters": [zarr.codecs.TransposeCodec(order=(1, 0))],
                "serializer": zarr.codecs.ShardingCodec(chunk_shape=(4, 4)),
                "chunks": (16, 16),
            },
        },
    )
    arrays = opened(tmp_path / "a.zarr")
    assert (arrays["data/default"].chunks, arrays["data/default"].files) == ((8, 3), (16, 6))
    assert arrays["data/transposed"].chunks == (16, 16)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr")
@pytest.mark.parametrize("version", [2, 3])
def test_filters_are_read(version: int, tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 100, size=(_ROWS, 5)).astype(np.float32)
    filters: Any = numcodecs if version == 2 else zarr.codecs.numcodecs
    chains = {
        "delta": [filters.Delta(dtype="<f4")],
        "scaled": [filters.FixedScaleOffset(offset=3, scale=2, dtype="<f4", astype="<i4")],
        "wide": [filters.AsType(encode_dtype="<f8", decode_dtype="<f4")],
        "rounded": [filters.Quantize(digits=1, dtype="<f4"), filters.BitRound(keepbits=5)],
    }
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=version)
    for name, chain in chains.items():
        options: Any = {"chunks": (8, 3), "dtype": "f4", "filters": chain}
        group.create_array(f"data/{name}", shape=values.shape, **options)[...] = values
    if version == 2:
        options = {"chunks": (8, 3), "filters": [numcodecs.Shuffle(4), numcodecs.CRC32(), numcodecs.Zlib()]}
        group.create_array("data/bytes", shape=values.shape, dtype="f4", **options)[...] = values
        options = {"chunks": (8, 3), "filters": [numcodecs.PackBits()]}
        group.create_array("data/bits", shape=values.shape, dtype="bool", **options)[...] = values > 50
    arrays = opened(tmp_path / "a.zarr")
    with ZarrReader() as reader:
        for name, array in arrays.items():
            assert array.column_dtype(name) in ("float32", "bool")
            np.testing.assert_array_equal(reader.read(array, 3, 30), np.asarray(group[name])[3:30], name)


def test_a_chunk_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.zarr")
    array = opened(tmp_path / "a.zarr")["data/blosc"]
    keys: list[str] = []
    read = StoreReader.read

    def count(reader: StoreReader, key: str, *part: Any) -> bytes | None:
        keys.append(key)
        return read(reader, key, *part)

    monkeypatch.setattr(StoreReader, "read", count)
    with ZarrReader() as reader:
        for i in range(0, _ROWS, 3):
            reader.read(array, i, min(i + 3, _ROWS))
    assert keys == [f"data/blosc/{i}.0.0" for i in range(4)]


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
        ({"filters": [{"id": "pickle"}]}, UnsupportedColumnError, "has the filter 'pickle', which is not supported"),
        (
            {"filters": [{"id": "astype", "encode_dtype": "<f4", "decode_dtype": "<U9999999"}]},
            UnsupportedColumnError,
            "has the filter 'astype' with the decode_dtype '<U9999999'",
        ),
        ({"shape": [1 << 40, 2]}, CorruptSourceError, "claims 8796093022208 bytes"),
        ({"chunks": [1 << 40, 2]}, CorruptSourceError, "above the limit"),
        ({"chunks": [0, 2]}, CorruptSourceError, "has the shape"),
        ({"dimension_separator": {}}, CorruptSourceError, "does not describe a Zarr array"),
        ({"compressor": {"id": []}}, CorruptSourceError, "does not describe a Zarr array"),
        ({"fill_value": "x"}, CorruptSourceError, "does not describe a Zarr array"),
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


@pytest.mark.parametrize("name", sorted(_COMPRESSORS.keys() - {"none"}))
def test_a_bomb_is_not_unpacked(name: str, tmp_path: Path) -> None:
    """A chunk of a small array decompresses to 32 MiB."""
    write(tmp_path / "a.zarr")
    (tmp_path / f"a.zarr/data/{name}/1.0.0").write_bytes(_COMPRESSORS[name].encode(bytes(32 << 20)))
    array = opened(tmp_path / "a.zarr")[f"data/{name}"]
    # Decompressors stop a byte above the limit, or are not called.
    held = 32 << 20 if name in ("blosc", "lz4") else 1401
    message = rf"1\.0\.0: .*holds {held} bytes of values, where a chunk has at most 1400"
    with ZarrReader() as reader, pytest.raises(CorruptSourceError, match=message):
        reader.read(array, 8, 20)


def test_a_bomb_in_a_shard_or_behind_filters_is_not_unpacked(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=3)
    options: Any = {"chunks": (1 << 20,), "shards": (1 << 20,), "compressors": zarr.codecs.GzipCodec(), "dtype": "u1"}
    group.create_array("shard", shape=(1 << 20,), **options, fill_value=1)[...] = 0

    def shrink(metadata: Any) -> None:
        metadata["shape"] = metadata["chunk_grid"]["configuration"]["chunk_shape"] = [8]
        metadata["codecs"][0]["configuration"]["chunk_shape"] = [8]

    change_metadata(tmp_path / "a.zarr/shard/zarr.json", shrink)
    group = zarr.open_group(tmp_path / "b.zarr", mode="w", zarr_format=2)
    group.create_array("bits", shape=(1 << 14,), chunks=(1 << 14,), dtype="u1", compressors=None, fill_value=1)[...] = 0
    bits = [{"id": "packbits"}] * 9  # 8 ** 9 bytes for each byte
    change_metadata(tmp_path / "b.zarr/bits/.zarray", lambda metadata: metadata.update(filters=bits))
    for array in (opened(tmp_path / "a.zarr")["shard"], opened(tmp_path / "b.zarr")["bits"]):
        with ZarrReader() as reader, pytest.raises(CorruptSourceError, match="bytes of values, where a chunk has"):
            reader.read(array, 0, 8)


def test_a_shard_that_is_cut_is_a_typed_error(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(_ROWS, 5)).astype(np.float32)
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=3)
    for where in ("start", "end"):
        shards: Any = {"shape": (16, 5), "index_location": where}
        group.create_array(where, shape=values.shape, chunks=(4, 5), shards=shards, dtype="f4")[...] = values
        shard = tmp_path / f"a.zarr/{where}/c/1/0"
        data = shard.read_bytes()
        for cut in (len(data) - 1, len(data) // 2, 80, 1, 0):
            shard.write_bytes(data[:cut])
            array = opened(tmp_path / "a.zarr")[where]
            with ZarrReader() as reader:
                np.testing.assert_array_equal(reader.read(array, 0, 16), values[:16])
                with pytest.raises(CorruptSourceError, match="c/1/0: "):
                    reader.read(array, 16, 32)
                with pytest.raises(CorruptSourceError, match="c/1/0: "):
                    reader.read(array, 29, 30)


def test_a_package_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.zarr")
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(MissingExtraError, match=r"zarr cannot be imported(.|\n)*gear-data\[zarr\]"):
        opened(tmp_path / "a.zarr")


@pytest.mark.processes
def test_a_forked_process_reads_too(tmp_path: Path) -> None:
    """zarr has a thread, which a fork does not copy."""
    expected = write(tmp_path / "a.zarr")["data/blosc"]
    array = opened(tmp_path / "a.zarr")["data/blosc"]
    with ZarrReader() as reader:
        reader.read(array, 0, 10)
        process = os.fork()
        if not process:
            same = np.array_equal(reader.read(array, 8, 30), expected[8:30])
            os._exit(0 if same else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
        np.testing.assert_array_equal(reader.read(array, 8, 30), expected[8:30])


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
