"""The trees of a source.

They are its HDF5 files, NumPy archives, folder of `.npy` files, or Zarr stores. A `/` in the name of a NumPy array
makes groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import UnknownFormatError
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.sources.arrays.blocks import strings
from gear_data.ingest.sources.arrays.numpy_files import ArrayReader, StoredArray, open_npy, open_npz
from gear_data.ingest.sources.hdf5.open_file import HDF5_SUFFIXES
from gear_data.ingest.sources.tree.hdf5_view import open_tree
from gear_data.ingest.sources.tree.view import Container, NamedArrays, Tree, TreeArray
from gear_data.ingest.sources.zarr.array import ZarrArray, ZarrReader, open_arrays, read_attributes
from gear_data.ingest.sources.zarr.store import ZarrStore, find_stores

_NPZ, _NPY = ".npz", ".npy"
SUFFIXES = (*HDF5_SUFFIXES, _NPZ, _NPY)


def containers(location: Location) -> tuple[Container, ...]:
    """Returns the trees of a source in natural order; none if it has no such files.

    Raises:
        UnknownFormatError: the source has trees of several kinds.
        CorruptSourceError: an archive is damaged.
    """
    found = {
        "HDF5": tuple(_file(file, open_tree) for file in location.with_suffix(*HDF5_SUFFIXES)),
        "npz": tuple(_file(file, open_archive) for file in location.with_suffix(_NPZ)),
        "npy": _npy_folder(location.name, location.with_suffix(_NPY)),
        "Zarr": tuple(
            Container(store.name, sum(size for _, size in store.sizes()), partial(_open_store, store))
            for store in find_stores(location)
        ),
    }
    kinds = {kind: trees for kind, trees in found.items() if trees}
    if len(kinds) > 1:
        shown = ", ".join(f"{len(trees)} {kind} ({trees[0].name})" for kind, trees in kinds.items())
        raise UnknownFormatError(
            f"holds files of several kinds: {shown}", file=location.name, hint="convert the files of one kind at a time"
        )
    return next(iter(kinds.values()), ())


def _file(file: SourceFile, open_: Callable[[SourceFile], AbstractContextManager[Tree]]) -> Container:
    return Container(file.name, file.size, partial(open_, file))


def _npy_folder(name: str, files: Sequence[SourceFile]) -> tuple[Container, ...]:
    if not files:
        return ()
    return (Container(name, sum(file.size for file in files), partial(_open_folder, name, files)),)


@contextmanager
def open_archive(file: SourceFile) -> Iterator[NamedArrays]:
    """Opens an `.npz` archive as a tree."""
    with ArrayReader() as reader:
        stored = _headers(file) if file.stamp else open_npz(file)
        arrays = {name.strip("/"): array for name, array in stored.items()}
        yield NamedArrays(file.name, {path: partial(_of_numpy, path, array, reader) for path, array in arrays.items()})


@contextmanager
def _open_folder(name: str, files: Sequence[SourceFile]) -> Iterator[NamedArrays]:
    """Opens `.npy` files as a tree. Their paths without the suffix are the names."""
    with ArrayReader() as reader:
        paths = {file.name[: -len(_NPY)]: file for file in files}
        yield NamedArrays(name, {path: partial(_of_numpy, path, file, reader) for path, file in paths.items()})


@contextmanager
def _open_store(store: ZarrStore) -> Iterator[NamedArrays]:
    """Opens a Zarr store as a tree."""
    with ZarrReader() as reader:
        arrays = open_arrays(store)
        attributes = {
            name: value for name, value in read_attributes(store).items() if isinstance(value, str | bool | int | float)
        }
        openers = {path: partial(_of_zarr, path, array, reader) for path, array in arrays.items() if path}
        yield NamedArrays(store.name, openers, attributes)


@lru_cache(maxsize=2)
def _headers(file: SourceFile) -> Mapping[str, StoredArray]:
    """Reads the headers of an archive.

    A conversion opens an archive several times, and an archive of numbered arrays has thousands of headers. The size
    and the stamp of the file are part of the key.
    """
    return open_npz(file)


def _of_numpy(path: str, stored: StoredArray | SourceFile, reader: ArrayReader) -> TreeArray:
    array = open_npy(stored) if isinstance(stored, SourceFile) else stored
    variable = "string" if array.is_text else "binary" if array.is_bytes else None
    rows = array if array.shape else replace(array, shape=(1,))
    dtype = variable or str(array.dtype.newbyteorder("="))
    return TreeArray(path, array.shape, dtype, partial(_read, rows, reader, variable is not None))


def _of_zarr(path: str, array: ZarrArray, reader: ZarrReader) -> TreeArray:
    dtype = "binary" if array.is_bytes else str(array.dtype.newbyteorder("="))
    if array.problem is not None:
        dtype = f"{dtype} that {array.problem.message}"
    return TreeArray(path, array.shape, dtype, partial(_read, array, reader, array.is_bytes), array.missing_finding())


def _read(
    array: StoredArray | ZarrArray, reader: Any, variable_length: bool, start: int, stop: int
) -> npt.NDArray[Any] | pa.Array:
    """Reads rows. The file, or a chunk that was read in part, stays open until the last row is read."""
    values = reader.read(array, start, stop)
    if array.shape and stop >= len(array):
        reader.release(array)
    return strings(values) if variable_length else values
