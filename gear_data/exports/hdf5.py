"""HDF5 files to write."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from gear_data.errors import StorageFullError


@contextmanager
def create_hdf5(path: Path, needed: int) -> Iterator[h5py.File]:
    """A new file. HDF5 may crash the process when the disk runs full under it, so room is looked for first.

    Args:
        path: in a folder that exists.
        needed: about how many bytes the file will have.

    Raises:
        StorageFullError: there is not so much room.
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
