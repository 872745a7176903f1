"""Segments of anonymous shared memory.

A segment is sealed when it is complete. It vanishes with its last holder, even if that process is killed by SIGKILL.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Callable

import pyarrow as pa

from gear_data.errors import HostMemoryError
from gear_data.residency.available_memory import available_memory

#: The header names the contents, which begin after it.
HEADER_BYTES = 4096
#: These seals fix size and contents. A segment without them is not complete.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def create_segment(key: str, size: int, fill: Callable[[int], None]) -> int:
    """Creates and fills a segment. Returns its file descriptor.

    Args:
        key: a name for the contents; ASCII.
        size: bytes, including the header.
        fill: writes the contents to a descriptor, from byte HEADER_BYTES on.

    Raises:
        HostMemoryError: there is too little memory; `fill` was not called.
    """
    available = available_memory()
    if size > available:
        raise HostMemoryError(
            f"one copy of the columns takes {size:,} bytes of memory, {available:,} are available",
            hint="use residency='mmap', which makes no copy",
        )
    descriptor = os.memfd_create(f"gear-data-{key}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        os.pwrite(descriptor, _header(key), 0)
        fill(descriptor)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_segment(descriptor: int, key: str, size: int) -> bool:
    """Returns whether an open file is a complete segment with this key and size."""
    try:
        sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:  # not a memfd
        return False
    header = _header(key)
    return sealed and os.fstat(descriptor).st_size == size and os.pread(descriptor, len(header), 0) == header


def map_segment(descriptor: int) -> pa.Buffer:
    """Maps a segment as a read-only buffer.

    The buffer owns the descriptor: the descriptor stays open as long as the buffer lives.
    """
    try:
        # Opened again: before Linux 6.7, a descriptor that was opened for writing cannot map a sealed file as shared,
        # not even for reading.
        read_only = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            mapping = mmap.mmap(read_only, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        finally:
            os.close(read_only)
    except BaseException:
        os.close(descriptor)
        raise
    # Other processes reach the segment through the descriptor: see `shared_memory_registry`.
    weakref.finalize(mapping, os.close, descriptor)
    return pa.py_buffer(mapping)


def _header(key: str) -> bytes:
    return f"gear-data segment 1\n{key}\n".encode("ascii")
