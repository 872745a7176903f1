"""NumPy archives, and folders of `.npy` files, as trees.

A `/` in the name of an array makes groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.arrays.array_reader import ArrayReader, strings
from gear_data.ingest.sources.arrays.numpy_files import StoredArray, open_npy, open_npz
from gear_data.ingest.sources.tree.view import NamedArrays, TreeArray

_NPY = ".npy"


@contextmanager
def open_archive(file: SourceFile) -> Iterator[NamedArrays]:
    """Opens an `.npz` archive as a tree."""
    with ArrayReader() as reader:
        stored = _headers(file) if file.stamp else open_npz(file)
        arrays = {name.strip("/"): array for name, array in stored.items()}
        yield NamedArrays(file.name, {path: partial(_opened, path, stored, reader) for path, stored in arrays.items()})


@contextmanager
def open_folder(name: str, files: Sequence[SourceFile]) -> Iterator[NamedArrays]:
    """Opens `.npy` files as a tree. Their paths without the suffix are the names."""
    with ArrayReader() as reader:
        paths = {file.name[: -len(_NPY)]: file for file in files}
        yield NamedArrays(name, {path: partial(_opened, path, file, reader) for path, file in paths.items()})


@lru_cache(maxsize=2)
def _headers(file: SourceFile) -> Mapping[str, StoredArray]:
    """Reads the headers of an archive.

    A conversion opens an archive several times, and an archive of numbered arrays has thousands of headers. The size
    and the stamp of the file are part of the key.
    """
    return open_npz(file)


def _opened(path: str, stored: StoredArray | SourceFile, reader: ArrayReader) -> TreeArray:
    array = open_npy(stored) if isinstance(stored, SourceFile) else stored
    variable = "string" if array.is_text else "binary" if array.is_bytes else None
    dtype = variable or str(array.dtype.newbyteorder("="))
    rows = array if array.shape else replace(array, shape=(1,))
    return TreeArray(path, array.shape, dtype, _Stored(rows, reader).read)


@dataclass(frozen=True)
class _Stored:
    """An array of a file or archive.

    It stays open until its last row is read.
    """

    array: StoredArray
    reader: ArrayReader

    def read(self, start: int, stop: int) -> npt.NDArray[Any] | pa.Array:
        values = self.reader.read(self.array, start, stop)
        if stop >= len(self.array):
            self.reader.release(self.array)
        return strings(values) if self.array.is_text or self.array.is_bytes else values
