"""Tests of compressed chunks of HDF5 files, in every format that reads such files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import gear_data
from gear_data.errors import CorruptSourceError
from gear_data.ingest.location import locate
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


def _actions(file: h5py.File) -> str:
    """Returns the path of the last dataset of actions."""
    found = []
    file.visititems(lambda path, item: found.append(path) if "action" in path and hasattr(item, "shape") else None)
    return str(found[-1])


def shorten(file: h5py.File, path: str, filters: Any) -> None:
    """Writes a dataset again, as one chunk that is intact, and holds one row less than it should."""
    values = file[path][...]
    del file[path]
    short = file.create_dataset("short", data=values[:-1], chunks=values[:-1].shape, **filters)
    whole = file.create_dataset(path, shape=values.shape, dtype=values.dtype, chunks=values.shape, **filters)
    file.flush()
    origin = (0,) * values.ndim
    mask, packed = short.id.read_direct_chunk(origin)
    whole.id.write_direct_chunk(origin, packed, mask)
    del file["short"]


@pytest.mark.parametrize("filters", _FILTERS, ids=["gzip", "checksum"])
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


@pytest.mark.parametrize("text", [b"abcd", "abcd"])
def test_text_behind_such_a_chunk_is_an_error(text: Any, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dtype = h5py.string_dtype() if isinstance(text, str) else None
        file.create_dataset("text", data=[text] * 9, dtype=dtype)
        packed = {"chunks": (9,), "compression": "gzip"}
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


@pytest.mark.parametrize("filters", [*_FILTERS, {"compression": "lzf"}, {"shuffle": True}, {}], ids=str)
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
