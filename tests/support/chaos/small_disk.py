"""Small file systems in memory, which fill up."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: The size that a file takes is a multiple of this.
PAGE = 4096

_CLONE_NEWNS = 0x00020000
_MS_REMOUNT, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 32, 16384, 1 << 18, 2


def own_mounts() -> str | None:
    """Gives this process mounts that no other process sees.

    Returns the reason if that is not allowed. The mounts end with the process.
    """
    try:
        _call("unshare", _CLONE_NEWNS)
        _call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    except OSError as error:
        return f"mounting is not allowed: {error.strerror}"
    return None


@contextmanager
def small_disk(folder: Path, pages: int) -> Iterator[None]:
    """Mounts a disk of a number of pages on a folder."""
    folder.mkdir(exist_ok=True)
    _call("mount", b"none", bytes(folder), b"tmpfs", 0, f"size={pages * PAGE}".encode())
    try:
        yield
    finally:
        _call("umount2", bytes(folder), _MNT_DETACH)


def enlarge(folder: Path) -> None:
    """Makes room on a small disk."""
    _call("mount", b"none", bytes(folder), b"tmpfs", _MS_REMOUNT, b"size=64m")


def _call(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
