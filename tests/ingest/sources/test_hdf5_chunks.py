"""Tests of compressed chunks of HDF5 files, in every format that reads such files."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import gear_data
from gear_data.errors import CorruptSourceError
from gear_data.ingest.location import locate
from gear_data.ingest.sources.hdf5 import lzf
from gear_data.ingest.sources.tree.hdf5_view import hdf5_trees
from tests.support.source_makers import MAKERS

#: Makers of HDF5 files.
_MAKERS = (
    "d4rl",
    "minari",
    "robomimic",
    "robomimic-isaac-lab",
    "robomimic-libero",
    "d3rlpy",
    "act",
    "stable-baselines3",
    "tree",
    "tree-ends",
)
_FILTERS = ({"compression": "gzip"}, {"compression": "gzip", "shuffle": True, "fletcher32": True})
_LZF = {"compression": "lzf"}


def _actions(file: h5py.File) -> str:
    """Returns the path of the last dataset of actions."""
    found = []
    file.visititems(lambda path, item: found.append(path) if "action" in path and hasattr(item, "shape") else None)
    return str(found[-1])


def runs(data: bytes) -> bytes:
    """Returns an LZF stream that holds data as it is."""
    parts = [data[i : i + 32] for i in range(0, len(data), 32)]
    return b"".join(bytes([len(part) - 1]) + part for part in parts)


def shorten(file: h5py.File, path: str, filters: Any) -> None:
    """Writes a dataset again, as one chunk that is intact, and holds one row less than it should."""
    values = file[path][...]
    del file[path]
    short = file.create_dataset("short", data=values[:-1], chunks=values[:-1].shape, **filters)
    whole = file.create_dataset(path, shape=values.shape, dtype=values.dtype, chunks=values.shape, **filters)
    file.flush()
    origin = (0,) * values.ndim
    # h5py leaves out LZF where it gains nothing.
    mask, packed = (0, runs(values[:-1].tobytes())) if filters == _LZF else short.id.read_direct_chunk(origin)
    whole.id.write_direct_chunk(origin, packed, mask)
    del file["short"]


@pytest.mark.parametrize("filters", [*_FILTERS, _LZF], ids=["gzip", "checksum", "lzf"])
@pytest.mark.parametrize("name", _MAKERS)
def test_a_chunk_that_unpacks_to_fewer_bytes_is_an_error(name: str, filters: Any, sources: Any, tmp_path: Path) -> None:
    """libhdf5 would read other memory as values."""
    MAKERS[name](tmp_path / "s", [rollout for rollout in sources.make_rollouts(4) if len(rollout) > 1])
    path = sorted([*tmp_path.rglob("*.hdf5"), *tmp_path.rglob("*.h5")])[-1]
    with h5py.File(path, "r+") as file:
        column = _actions(file)
        shorten(file, column, filters)
    with pytest.raises(CorruptSourceError, match=r"a chunk of \d+ bytes, at its row 0, unpacks to \d+") as error:
        gear_data.convert(tmp_path / "s", tmp_path / "d", progress=False)
    assert Path(str(error.value.file)).name == path.name
    assert str(error.value.column).split("/")[-1] == column.split("/")[-1]


@pytest.mark.parametrize("compression", ["gzip", "lzf"])
@pytest.mark.parametrize("text", [b"abcd", "abcd"])
def test_text_behind_such_a_chunk_is_an_error(text: Any, compression: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dtype = h5py.string_dtype() if isinstance(text, str) else None
        file.create_dataset("text", data=[text] * 9, dtype=dtype)
        packed = {"chunks": (9,), "compression": compression}
        short = file.create_dataset("short", data=[text] * 8, dtype=dtype, **packed | {"chunks": (8,)})
        whole = file.create_dataset("whole", shape=(9,), dtype=short.dtype, **packed)
        file.flush()
        whole.id.write_direct_chunk((0,), short.id.read_direct_chunk((0,))[1])
    (container,) = hdf5_trees(locate(str(tmp_path), None))
    with container.open() as tree:
        array = tree.array("whole")
        assert array is not None
        with pytest.raises(CorruptSourceError, match="unpacks to"):
            array.read(2, 5)


@pytest.mark.parametrize("filters", [*_FILTERS, _LZF, _LZF | _FILTERS[1] | _LZF, {"shuffle": True}, {}], ids=str)
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "|b1", "|S3", "24 bits"])
def test_rows_are_those_that_h5py_reads(dtype: str, filters: Any, tmp_path: Path) -> None:
    """Reads runs of rows, of chunks that do not divide the shape, and of some that were never written."""
    rng = np.random.default_rng(3)
    stored = h5py.h5t.STD_I32BE.copy() if dtype == "24 bits" else h5py.h5t.py_create(np.dtype(dtype), logical=True)
    if dtype == "24 bits":
        stored.set_precision(24)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i, (shape, chunk) in enumerate(
            (((23,), (5,)), ((23, 7), (6, 2)), ((9, 4, 5), (1, 3, 5)), ((8, 3), (8, 3)))
        ):
            values = np.arange(1, math.prod(shape) + 1).reshape(shape).astype(np.dtype(h5py.Datatype(stored).dtype))
            for name, rows in (("whole", shape[0]), ("gap", shape[0] // 2)):
                dataset = file.create_dataset(f"{name}{i}", shape, h5py.Datatype(stored), chunks=chunk, **filters)
                dataset[:rows] = values[:rows]
        expected = {name: dataset[...] for name, dataset in file.items()}
    (container,) = hdf5_trees(locate(str(tmp_path), None))
    with container.open() as tree:
        for name, values in expected.items():
            array = tree.array(name)
            assert array is not None
            for start, stop in [(0, len(values)), *np.sort(rng.integers(0, len(values) + 1, (20, 2)), axis=1).tolist()]:
                found = array.read(start, stop)
                plain = [text.decode() for text in values[start:stop].ravel()] if dtype == "|S3" else None
                if start < stop and plain is not None:
                    assert found.to_pylist() == plain
                elif start < stop:
                    np.testing.assert_array_equal(found, values[start:stop])


@contextmanager
def limited_memory(more: int) -> Iterator[None]:
    """Lets this process map at most some bytes more than it has mapped."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def zeros(count: int) -> bytes:
    """Returns an LZF stream of at least `count` bytes of 0: one, and runs of 264 that repeat it."""
    return b"\0\0" + b"\xe0\xff\0" * -(-count // 264)


#: Chunks of 4,096 bytes: their LZF stream, and how many bytes it has. A damaged stream has none.
_STREAMS = {
    "a bomb": (zeros(1 << 30), 4101),
    "too long": (runs(bytes(4097)), 4097),
    "too short": (runs(bytes(4095)), 4095),
    "a run before the beginning": (b"\0a\x20\x01" + runs(bytes(4092)), 0),
    "no end of a run": (runs(bytes(4096))[:-1], 0),
    "no distance": (zeros(4096)[:-1], 0),
    "no length": (zeros(4096) + b"\xe0", 4101),
    "no length, and no more": (runs(bytes(4000)) + b"\xe0", 0),
}


@pytest.mark.parametrize("name", _STREAMS)
def test_an_lzf_chunk_that_does_not_unpack_to_its_elements_is_an_error(name: str, tmp_path: Path) -> None:
    """libhdf5 would unpack the bomb of 12 MB to 1 GiB, and fill short chunks with other memory."""
    stream, unpacked = _STREAMS[name]
    lzf.unpack(b"", 1)  # compiles
    with h5py.File(tmp_path / "a.h5", "w") as file:
        values = file.create_dataset("group/values", (2048,), np.float32, chunks=(1024,), **_LZF)
        values.id.write_direct_chunk((0,), runs(bytes(4096)))
        values.id.write_direct_chunk((1024,), stream)
    (container,) = hdf5_trees(locate(str(tmp_path), None))
    with container.open() as tree:
        array = tree.array("group/values")
        assert array is not None
        assert not array.read(0, 1024).any()
        with limited_memory(128 << 20), pytest.raises(CorruptSourceError) as error:
            array.read(1000, 1100)
    assert (error.value.file, error.value.column) == ("a.h5", "group/values")
    assert error.value.message == f"a chunk of 4096 bytes, at its row 1024, unpacks to {unpacked}"


def test_lzf_is_unpacked_as_h5py_unpacks_it(tmp_path: Path) -> None:
    """Runs that overlap themselves, that are near and far, short and long."""
    rng = np.random.default_rng(4)
    packed = 0
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for i in range(60):
            words = rng.integers(0, 256, (rng.integers(1, 40), rng.integers(1, 700)), dtype=np.uint8)
            values = np.concatenate(words[rng.integers(0, len(words), rng.integers(1, 60))])
            values[rng.random(len(values)) < rng.choice([0, 0.01, 0.2])] = 0
            data = file.create_dataset(f"{i}", data=values, chunks=values.shape, **_LZF)
            file.flush()
            mask, stream = data.id.read_direct_chunk((0,))
            if not mask:  # h5py packed it
                packed += 1
                assert lzf.unpack(stream, len(values) + 5) == values.tobytes()
                assert lzf.unpack(stream, len(values) // 2) == values[: len(values) // 2].tobytes()
    assert packed > 30


def test_datasets_that_were_packed_with_szip_are_refused(tmp_path: Path) -> None:
    """The SZIP library believes the settings in the file: wrong ones make it write other memory."""
    if not h5py.h5z.filter_avail(h5py.h5z.FILTER_SZIP):
        pytest.skip("this libhdf5 has no SZIP")
    steps = {"observations": np.ones((9, 3)), "actions": np.ones((9, 2)), "rewards": np.ones(9)}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, values in {**steps, "terminals": np.arange(9) == 8, "timeouts": np.zeros(9, bool)}.items():
            file[name] = values
        file.create_dataset("infos/packed", data=np.arange(9.0), compression="szip", chunks=(9,))
    with pytest.raises(CorruptSourceError, match=r"is packed with SZIP[^$]*create_dataset") as error:
        gear_data.convert(tmp_path / "a.h5", tmp_path / "d", progress=False)
    assert (Path(str(error.value.file)).name, error.value.column) == ("a.h5", "infos/packed")
    gear_data.convert(tmp_path / "a.h5", tmp_path / "d", columns=[*steps], progress=False)
