"""Zarr stores as trees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from gear_data.ingest.sources.arrays.array_reader import strings
from gear_data.ingest.sources.tree.view import NamedArrays, TreeArray
from gear_data.ingest.sources.zarr.array import ZarrArray, open_arrays, read_attributes
from gear_data.ingest.sources.zarr.reader import ZarrReader
from gear_data.ingest.sources.zarr.store import ZarrStore


@contextmanager
def open_store(store: ZarrStore) -> Iterator[NamedArrays]:
    """Opens a Zarr store as a tree."""
    with ZarrReader() as reader:
        arrays = open_arrays(store)
        attributes = {
            name: value for name, value in read_attributes(store).items() if isinstance(value, str | bool | int | float)
        }
        openers = {path: partial(_opened, path, array, reader) for path, array in arrays.items() if path}
        yield NamedArrays(store.name, openers, attributes)


def _opened(path: str, array: ZarrArray, reader: ZarrReader) -> TreeArray:
    dtype = "binary" if array.is_bytes else str(array.dtype.newbyteorder("="))
    if array.problem is not None:
        dtype = f"{dtype} that {array.problem.message}"
    return TreeArray(path, array.shape, dtype, _Stored(array, reader).read, array.missing_finding())


@dataclass(frozen=True)
class _Stored:
    """An array of a store.

    A chunk that was read in part stays in memory until the last row is read.
    """

    array: ZarrArray
    reader: ZarrReader

    def read(self, start: int, stop: int) -> npt.NDArray[Any] | pa.Array:
        self.array.check_readable(self.array.path)
        values = self.reader.read(self.array, start, stop)
        if self.array.shape and stop >= len(self.array):
            self.reader.release(self.array)
        return strings(values) if self.array.is_bytes else values
