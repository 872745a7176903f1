"""Arrays and scalars of one `.npz` or HDF5 file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.hdf5.flat_file import flat_file, root_scalars
from gear_data.ingest.sources.hdf5.open_file import HDF5_SUFFIXES
from gear_data.ingest.sources.tree.hdf5_view import hdf5_tree
from gear_data.ingest.sources.tree.numpy_view import open_archive
from gear_data.ingest.sources.tree.view import Container, NamedArrays, Tree, TreeArray

NPZ_SUFFIX = ".npz"
SUFFIXES = (NPZ_SUFFIX, *HDF5_SUFFIXES)


@dataclass(frozen=True)
class BufferFile:
    """The contents of an open file.

    Attributes:
        name: the name of the file.
        arrays: name -> array with at least one axis, in the order of the file.
        scalars: name -> plain Python value; None for a value that is no fact.
    """

    name: str
    arrays: Mapping[str, TreeArray]
    scalars: Mapping[str, Any]


def buffer_container(file: SourceFile) -> Container:
    """Returns a file that can be opened as a tree."""
    if file.path.lower().endswith(NPZ_SUFFIX):
        return Container(file.name, file.size, partial(open_archive, file))
    return hdf5_tree(file)


def read_buffer(tree: Tree) -> BufferFile:
    """Opens the arrays of a file.

    Raises:
        CorruptSourceError: the file is damaged, or refers to other files.
        UnsupportedColumnError: an array is a link.
    """
    file = flat_file(tree)
    paths = tree.arrays if isinstance(tree, NamedArrays) else file.kinds
    arrays = {path: file.array(path, tree.name) for path in paths}
    scalars = root_scalars(tree, [array for array in arrays.values() if not array.shape])
    return BufferFile(tree.name, {path: array for path, array in arrays.items() if array.shape}, scalars)
