"""Arrays of one `.npz` or HDF5 file, read in pieces behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.arrays.array_reader import ArrayReader
from gear_data.ingest.sources.arrays.numpy_files import open_npz
from gear_data.ingest.sources.hdf5.attributes import attribute_facts, plain_value
from gear_data.ingest.sources.hdf5.datasets import check_dataset
from gear_data.ingest.sources.hdf5.heap_checks import check_heaps
from gear_data.ingest.sources.hdf5.inventory import SCALAR, inventory, links_of, refuse_links
from gear_data.ingest.sources.hdf5.open_file import HDF5_SUFFIXES, open_hdf5, reading

NPZ_SUFFIX = ".npz"
SUFFIXES = (NPZ_SUFFIX, *HDF5_SUFFIXES)


@dataclass(frozen=True)
class BufferFile:
    """The arrays of an open file.

    Attributes:
        name: the name of the file.
        shapes: name -> shape, of arrays with at least one axis.
        dtypes: name -> dtype in native byte order, as text.
        scalars: name -> plain Python value.
        read: (name, first, last) -> the rows [first, last) of an array, in native byte order.
    """

    name: str
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    scalars: Mapping[str, Any]
    read: Callable[[str, int, int], npt.NDArray[Any]]


def declares_scalars(file: SourceFile, names: Collection[str]) -> bool:
    """Returns whether a file has entries of these names.

    This is faster than `open_buffer`, which visits every dataset of an HDF5 file.
    """
    if file.path.lower().endswith(NPZ_SUFFIX):
        return open_npz(file).keys() >= {*names}
    with open_hdf5(file) as opened, reading(file.name):
        return all(name in opened or name in opened.attrs for name in names)


@contextmanager
def open_buffer(file: SourceFile) -> Iterator[BufferFile]:
    """Opens a file for reading.

    Raises:
        CorruptSourceError: the file is damaged, or refers to other files.
        UnsupportedColumnError: an array is a link.
    """
    if file.path.lower().endswith(NPZ_SUFFIX):
        stored = open_npz(file)
        with ArrayReader() as reader:
            numbers = {name: array for name, array in stored.items() if array.shape == () and not array.dtype.hasobject}
            yield BufferFile(
                name=file.name,
                shapes={name: array.shape for name, array in stored.items() if array.shape},
                dtypes={name: _native(array.dtype) for name, array in stored.items()},
                scalars={
                    name: plain_value(reader.read(replace(array, shape=(1,)), 0, 1)[0])
                    for name, array in numbers.items()
                },
                read=lambda name, first, last: reader.read(stored[name], first, last),
            )
        return
    with open_hdf5(file) as opened:
        yield _hdf5_file(opened, file)


def _hdf5_file(opened: h5py.File, file: SourceFile) -> BufferFile:
    datasets, non_columns = inventory(opened, file.name)
    refuse_links(non_columns, links_of(non_columns), file.name)
    shapes = {}
    for name, dataset in datasets.items():
        with reading(file.name, name):
            shapes[name] = check_dataset(dataset.id, file, name)
    with reading(file.name):
        scalars, _ = attribute_facts(opened, ())
        for name in (name for name, kind in non_columns.items() if kind == SCALAR):
            if opened[name].dtype.kind in "biufOS":
                check_heaps(opened[name])
                scalars[name] = plain_value(opened[name][()])

    def read(name: str, first: int, last: int) -> npt.NDArray[Any]:
        with reading(file.name, name, first):
            values = np.asarray(datasets[name][first:last])
            return values.astype(values.dtype.newbyteorder("="), copy=False)

    dtypes = {name: _native(dataset.dtype) for name, dataset in datasets.items()}
    return BufferFile(file.name, shapes, dtypes, scalars, read)


def _native(dtype: np.dtype[Any]) -> str:
    return dtype.newbyteorder("=").name if dtype.kind in "biuf" else str(dtype)
