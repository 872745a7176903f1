"""Segments of anonymous shared memory: sealed, and gone with the last process that holds them, SIGKILL included."""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from collections.abc import Callable

import pyarrow as pa

from gear_data.errors import HostMemoryError
from gear_data.residency.available_memory import available_memory

#: What is stored begins here; before it stands what the segment holds.
HEADER_BYTES = 4096
#: Neither size nor contents can change any more. Set when all is in place: a segment without them is half-done.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def create_segment(key: str, size: int, fill: Callable[[int], None]) -> int:
    """A new segment's file descriptor.

    Args:
        key: names what it holds; ASCII.
        size: bytes, the header included.
        fill: writes to the descriptor it is given, from byte HEADER_BYTES on.

    Raises:
        HostMemoryError: there is too little memory; nothing was filled then.
    """
    available = available_memory()
    if size > available:
        raise HostMemoryError(
            f"one copy of the columns takes {size:,} bytes of memory, {available:,} are available",
            hint="use residency='mmap', which needs no memory of its own",
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
    """Whether an open file is a finished segment of this key and size."""
    try:
        sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:  # no memory file
        return False
    header = _header(key)
    return sealed and os.fstat(descriptor).st_size == size and os.pread(descriptor, len(header), 0) == header


def map_segment(descriptor: int) -> pa.Buffer:
    """A segment as a read-only buffer. The descriptor is now the buffer's, and stays open as long as it lives."""
    try:
        # Opened anew: before Linux 6.7 what is sealed is not shared by a descriptor that was opened for writing, though
        # it be for reading.
        read_only = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            mapping = mmap.mmap(read_only, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        finally:
            os.close(read_only)
    except BaseException:
        os.close(descriptor)
        raise
    # Other processes reach the segment through the descriptor: see `registry`.
    weakref.finalize(mapping, os.close, descriptor)
    return pa.py_buffer(mapping)


def _header(key: str) -> bytes:
    return f"gear-data segment 1\n{key}\n".encode("ascii")
