"""Creation of HDF5 files."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from gear_data.common.extras import h5py
from gear_data.errors import StorageFullError

_Result = TypeVar("_Result")


class _Disk:
    """A file for HDF5 that keeps its first error and does not raise it.

    HDF5 may crash the process when a write fails. After the error, writes do nothing and reads give zeros.
    """

    def __init__(self, file: io.BufferedRandom) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: memoryview) -> int:
        return self._attempt(lambda: self._file.write(data), len(data))

    def readinto(self, buffer: memoryview) -> int:
        return self._attempt(lambda: self._file.readinto(buffer), len(buffer))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._attempt(lambda: self._file.seek(offset, whence), offset)

    def tell(self) -> int:
        return self._attempt(self._file.tell, 0)

    def truncate(self, size: int) -> int:
        return self._attempt(lambda: self._file.truncate(size), size)

    def flush(self) -> None:
        self._attempt(self._file.flush, None)

    def close(self) -> None:
        self._attempt(self._file.close, None)
        if not self._file.closed:  # a buffer could not be written, and Python tries again
            self._file.raw.close()

    def _attempt(self, call: Callable[[], _Result], otherwise: _Result) -> _Result:
        if self.error is None:
            try:
                return call()
            except OSError as error:
                self.error = error
        return otherwise


@contextmanager
def create_hdf5(path: Path, needed: int) -> Iterator[h5py.File]:
    """Creates an HDF5 file.

    Args:
        path: new file in an existing folder.
        needed: estimated size of the file in bytes, which must be free.

    Raises:
        StorageFullError: less space is free than needed.
        OSError: a write failed.
    """
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise StorageFullError(
            f"{needed:,} bytes are needed and {free:,} are free",
            file=str(path.parent),
            hint="free some space, or choose another disk",
        )
    disk = _Disk(path.open("w+b"))
    try:
        with h5py.File(path, "w", driver="fileobj", fileobj=disk) as file:
            yield file
    finally:
        disk.close()
        if disk.error is not None:  # HDF5 may have raised an error that follows from this one
            raise disk.error
