"""Opening of HDF5 files, and typed errors for damaged ones."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from gear_data.common.extras import h5py
from gear_data.common.fork_lock import fork_safe_lock
from gear_data.errors import CorruptSourceError, errors_as
from gear_data.ingest.location import Location, SourceFile, placed

HDF5_SUFFIXES = (".hdf5", ".h5")
#: h5py maps errors of the C library to these classes. SystemError comes from its walk over a damaged group's links.
HDF5_ERRORS = (OSError, RuntimeError, LookupError, ValueError, TypeError, ArithmeticError, MemoryError, SystemError)


def hdf5_files(location: Location) -> tuple[SourceFile, ...]:
    """Returns the HDF5 files of a location, in natural order."""
    return location.with_suffix(*HDF5_SUFFIXES)


@contextmanager
def open_hdf5(file: SourceFile) -> Iterator[h5py.File]:
    """Opens a file for reading, and closes it after the block.

    Raises:
        CorruptSourceError: the file is empty, truncated, a Git-LFS pointer, or not HDF5.
    """
    file.check_readable()
    is_remote = file.filesystem is not None
    with _no_collection() if is_remote else nullcontext():
        with reading(file.name):
            opened = h5py.File(file.open() if is_remote else file.path, "r")
        with opened:
            yield opened


_collection_lock = fork_safe_lock()
#: For each block that is active, whether Python collected garbage before it.
_blocks: list[bool] = []


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keeps Python from collecting cycles of garbage in the block.

    h5py holds its lock while it waits for a read by fsspec's thread. A collection in this thread that frees an object
    of h5py would wait for the same lock, for ever.
    """
    with _collection_lock:
        _blocks.append(gc.isenabled() or any(_blocks))
        gc.disable()
    try:
        yield
    finally:
        with _collection_lock:
            if _blocks.pop() and not _blocks:
                gc.enable()


@contextmanager
def reading(file: str, column: str | None = None) -> Iterator[None]:
    """Converts the errors of h5py to CorruptSourceError, and says where errors of the block are, as `placed`."""
    hint = "the file may have been truncated: download it again"
    with (
        placed(file, column),
        errors_as(HDF5_ERRORS, lambda error: CorruptSourceError(f"cannot be read as HDF5: {error}", hint=hint)),
    ):
        yield
