"""Files opened for reading only if they are regular files.

Opening a FIFO may wait for ever, and a device may never end.
"""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

#: Size limit of manifest.json and of other JSON files of a dataset. A manifest of 10^5 shards with 50 columns has
#: 0.2 GB.
JSON_BYTES = 1 << 30

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a regular file for reading. Follows symbolic links, and never waits.

    Raises:
        OSError: the file cannot be opened, or is not a regular file.
    """
    # Looked at before opening, because opening changes some devices, and after, because the file may be replaced.
    _check_regular(os.stat(path))
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    try:
        _check_regular(os.fstat(file.fileno()))
    except OSError:
        file.close()
        raise
    return file


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """Returns the bytes of a regular file.

    Raises:
        OSError: the file cannot be read, is not a regular file, or has more than `limit` bytes.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(f"it has {size} bytes, more than the limit of {limit}")
        return file.read(size)


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(f"it is {_KINDS.get(stat.S_IFMT(status.st_mode), 'a special file')}, not a regular file")
