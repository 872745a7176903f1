"""Opening of HDF5 files, and typed errors for damaged ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import h5py

from gear_data.errors import CorruptSourceError, GearError
from gear_data.ingest.location import Location, SourceFile

HDF5_SUFFIXES = (".hdf5", ".h5")
#: h5py maps errors of the C library to these classes. SystemError comes from its walk over a damaged group's links.
HDF5_ERRORS = (OSError, RuntimeError, LookupError, ValueError, TypeError, ArithmeticError, MemoryError, SystemError)


def hdf5_files(location: Location) -> tuple[SourceFile, ...]:
    """Returns the HDF5 files of a location, in natural order."""
    return location.with_suffix(*HDF5_SUFFIXES)


def open_hdf5(file: SourceFile) -> h5py.File:
    """Opens a file for reading.

    Raises:
        CorruptSourceError: the file is empty, truncated, a Git-LFS pointer, or not HDF5.
    """
    file.check_readable()
    with reading(file.name):
        return h5py.File(file.path if file.filesystem is None else file.open(), "r")


@contextmanager
def reading(file: str, column: str | None = None, row: int | None = None) -> Iterator[None]:
    """Converts the errors of h5py to CorruptSourceError.

    h5py raises nearly every builtin kind of error: the class depends on the error of the C library, and damaged types
    and texts fail in NumPy and in Python's codecs.
    """
    try:
        yield
    except GearError:
        raise
    except HDF5_ERRORS as error:
        raise CorruptSourceError(
            f"cannot be read as HDF5: {error}",
            file=file,
            column=column,
            row=row,
            hint="the file may have been truncated: download it again",
        ) from error
