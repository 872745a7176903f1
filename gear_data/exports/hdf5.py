"""Creation of HDF5 files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from gear_data.errors import StorageFullError


@contextmanager
def create_hdf5(path: Path, needed: int) -> Iterator[h5py.File]:
    """Creates an HDF5 file after checking the free disk space.

    A full disk may crash the process inside HDF5.

    Args:
        path: new file in an existing folder.
        needed: estimated size of the file in bytes.

    Raises:
        StorageFullError: less space is free than needed.
    """
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise StorageFullError(
            f"{needed:,} bytes are needed and {free:,} are free",
            file=str(path.parent),
            hint="free some space, or choose another disk",
        )
    with h5py.File(path, "w") as file:
        yield file
