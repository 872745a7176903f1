"""Mappings of every kind that a process could register with CUDA."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_READ, _WRITE = mmap.PROT_READ, mmap.PROT_WRITE
#: F_ADD_SEALS and its seals: F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE.
_ADD_SEALS, _SIZE_SEALS, _WRITE_SEAL = 1033, 0x2 | 0x4, 0x8


@dataclass(frozen=True)
class Pages:
    """A mapping of this process.

    Attributes:
        array: uint8 [size], the mapped bytes; read-only if the mapping is.
    """

    array: np.ndarray

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)

    @property
    def size(self) -> int:
        return len(self.array)

    @property
    def writable(self) -> bool:
        return bool(self.array.flags.writeable)

    def protect(self) -> None:
        """Makes the pages read-only for this process.

        Raises:
            OSError: the kernel refuses.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(self.address), ctypes.c_size_t(self.size), _READ):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), "mprotect")


def _mapped(descriptor: int, size: int, flags: int, protection: int) -> Pages:
    return Pages(np.frombuffer(mmap.mmap(descriptor, size, flags=flags, prot=protection), np.uint8))


def _anonymous(contents: np.ndarray, flags: int) -> Pages:
    pages = _mapped(-1, len(contents), flags | mmap.MAP_ANONYMOUS, _READ | _WRITE)
    pages.array[:] = contents
    return pages


def _memfd(contents: np.ndarray, protection: int, seals: int) -> Pages:
    descriptor = os.memfd_create("probe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        _write(descriptor, contents)
        fcntl.fcntl(descriptor, _ADD_SEALS, seals)
        return _mapped(descriptor, len(contents), mmap.MAP_SHARED, protection)
    finally:
        os.close(descriptor)


def _file(contents: np.ndarray, protection: int) -> Pages:
    with tempfile.TemporaryFile() as file:
        _write(file.fileno(), contents)
        return _mapped(file.fileno(), len(contents), mmap.MAP_SHARED, protection)


def _write(descriptor: int, contents: np.ndarray) -> None:
    data = memoryview(contents)
    done = 0
    while done < len(data):
        done += os.write(descriptor, data[done:])


#: Kind -> a function that maps such pages with these contents (uint8, whole pages).
KINDS: dict[str, Callable[[np.ndarray], Pages]] = {
    "anonymous": lambda contents: _anonymous(contents, mmap.MAP_PRIVATE),
    "anonymous, shared": lambda contents: _anonymous(contents, mmap.MAP_SHARED),
    "memfd, shared, read-write": lambda contents: _memfd(contents, _READ | _WRITE, _SIZE_SEALS),
    "memfd, shared, read-only": lambda contents: _memfd(contents, _READ, _SIZE_SEALS),
    "memfd, write-sealed": lambda contents: _memfd(contents, _READ, _SIZE_SEALS | _WRITE_SEAL),
    "file, read-write": lambda contents: _file(contents, _READ | _WRITE),
    "file, read-only": lambda contents: _file(contents, _READ),
}
