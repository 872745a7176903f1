"""Segments of anonymous shared memory.

A segment is sealed when it is complete. It vanishes with its last holder, even if that process is killed by SIGKILL.

Two kinds differ in one seal. No process can write a sealed segment. A registrable one has no write seal, because CUDA
registers only writable mappings on x86. Every process maps it read-only, and makes its mapping writable only while it
registers the mapping.

Why: docs/explanation/decisions/memory.md
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from gear_data.errors import GearError, HostMemoryError, errors_as, refuse_exhausted
from gear_data.residency.available_memory import available_memory

#: The header names the contents, which begin after it.
HEADER_BYTES = 4096
_REMEDY = "use residency='mmap', which makes no copy, or ds.place(ds.residency_plan(...)) with a smaller host_bytes"
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Segment:
    """The contents of a segment, and its seals.

    Attributes:
        key: a name for the contents; ASCII.
        size: bytes, including the header.
        registrable: whether CUDA can register a mapping: there is no write seal.
        name: the word for the contents in errors.
    """

    key: str
    size: int
    registrable: bool = False
    name: str = "columns"

    @property
    def header(self) -> bytes:
        return f"gear-data segment 1\n{self.key}\n".encode("ascii")

    @property
    def seals(self) -> int:
        # These seals fix the size. A segment without them is not complete.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        return seals if self.registrable else seals | fcntl.F_SEAL_WRITE

    def is_open_at(self, descriptor: int) -> bool:
        """Returns whether an open file is this segment, and complete."""
        try:
            sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & self.seals == self.seals
        except OSError:  # not a memfd
            return False
        header = os.pread(descriptor, len(self.header), 0)
        return sealed and os.fstat(descriptor).st_size == self.size and header == self.header


def create_segment(segment: Segment, fill: Callable[[int], None]) -> int:
    """Creates and fills a segment. Returns its file descriptor.

    Args:
        segment: its contents and seals.
        fill: writes the contents to a descriptor, from byte HEADER_BYTES on.

    Raises:
        HostMemoryError: there is too little memory, or the system has no sealed memory; `fill` was not called.
        OpenFilesError: this process can open no further file; `fill` was not called.
    """
    if not hasattr(os, "memfd_create"):
        raise HostMemoryError(f"{sys.platform} has no sealed memory, which residency='host' needs", hint=_REMEDY)
    with errors_as(OSError, _refused):
        available = available_memory()
        if segment.size > available:
            raise HostMemoryError(
                f"one copy of the {segment.name} takes {segment.size:,} bytes of memory, {available:,} are available",
                hint=_REMEDY,
            )
        descriptor = os.memfd_create(f"gear-data-{segment.key}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with errors_as(OSError, _refused):
            # Any user may write a memfd that reaches him, unless its mode says otherwise.
            os.fchmod(descriptor, 0o600)
            os.ftruncate(descriptor, segment.size)
            os.pwrite(descriptor, segment.header, 0)
        fill(descriptor)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, segment.seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _refused(error: Exception) -> GearError:
    """Returns the error of a segment that the system does not make or map.

    Raises:
        HostMemoryError, OpenFilesError: the process has reached a limit.
    """
    refuse_exhausted(error, "shared memory")
    return HostMemoryError(f"the system refuses shared memory: {error}", hint=_REMEDY)


def write(descriptor: int, data: memoryview, position: int, file: str | None = None) -> None:
    """Writes bytes to a segment that is being filled.

    Args:
        descriptor: the segment's descriptor.
        data: contiguous bytes.
        position: where the first byte goes.
        file: the file that the bytes come from, for the error.

    Raises:
        HostMemoryError: memory ran out.
    """
    while len(data):
        try:
            # `pwrite`, not a mapping: a write to a mapping without memory ends the process by a signal.
            written = os.pwrite(descriptor, data, position)
        except OSError as error:
            if error.errno not in (errno.ENOMEM, errno.ENOSPC):
                raise
            raise HostMemoryError("memory ran out while this file was loaded", file=file, hint=_REMEDY) from error
        data, position = data[written:], position + written


def map_segment(descriptor: int, segment: Segment) -> pa.Buffer:
    """Maps a segment as a read-only buffer.

    The buffer owns the descriptor: the descriptor stays open as long as the buffer lives.

    Raises:
        HostMemoryError, OpenFilesError: this process can have no further mapping, or open no further file.
    """
    # A mapping of a file that is open for writing can be made writable later: see `writable`.
    access = os.O_RDWR if segment.registrable else os.O_RDONLY
    try:
        with errors_as(OSError, _refused):
            # Opened again: before Linux 6.7, a descriptor that was opened for writing cannot map a sealed file as
            # shared, not even for reading.
            again = os.open(f"/proc/self/fd/{descriptor}", access | os.O_CLOEXEC)
            try:
                mapping = mmap.mmap(again, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
            finally:
                os.close(again)
    except BaseException:
        os.close(descriptor)
        raise
    # Other processes reach the segment through the descriptor: see `shared_memory_registry`.
    weakref.finalize(mapping, os.close, descriptor)
    return pa.py_buffer(mapping)


@contextmanager
def writable(buffer: pa.Buffer) -> Iterator[None]:
    """Makes the mapping of a registrable segment writable, and read-only at the end.

    Other mappings of the segment, in this process and in others, stay as they are.

    Raises:
        OSError: the kernel refuses.
    """
    _protect(buffer, mmap.PROT_READ | mmap.PROT_WRITE)
    try:
        yield
    finally:
        _protect(buffer, mmap.PROT_READ)


def _protect(buffer: pa.Buffer, protection: int) -> None:
    if _LIBC.mprotect(ctypes.c_void_p(buffer.address), ctypes.c_size_t(buffer.size), protection):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
