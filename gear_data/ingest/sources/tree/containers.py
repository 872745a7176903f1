"""The trees of a source.

They are its HDF5 files, NumPy archives, folder of `.npy` files, or Zarr stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial

from gear_data.errors import UnknownFormatError
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.sources.hdf5.open_file import HDF5_SUFFIXES
from gear_data.ingest.sources.tree import hdf5_view, numpy_view, zarr_view
from gear_data.ingest.sources.tree.view import Container, Tree
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
        "HDF5": tuple(_file(file, hdf5_view.open_tree) for file in location.with_suffix(*HDF5_SUFFIXES)),
        "npz": tuple(_file(file, numpy_view.open_archive) for file in location.with_suffix(_NPZ)),
        "npy": _npy_folder(location.name, location.with_suffix(_NPY)),
        "Zarr": tuple(_store(store) for store in find_stores(location)),
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


def _store(store: ZarrStore) -> Container:
    return Container(store.name, sum(size for _, size in store.sizes()), partial(zarr_view.open_store, store))


def _npy_folder(name: str, files: Sequence[SourceFile]) -> tuple[Container, ...]:
    if not files:
        return ()
    return (Container(name, sum(file.size for file in files), partial(numpy_view.open_folder, name, files)),)
