"""A time limit for code that must not wait for ever."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def no_hang(seconds: int = 60) -> Iterator[None]:
    """Fails if the block takes longer, even inside a system call."""

    def stop(number: int, frame: object) -> None:
        raise AssertionError(f"still waiting after {seconds} s")

    earlier = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, earlier)


def _socket(path: Path) -> None:
    # The path of a socket has at most 108 bytes.
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


#: Word in the error -> function that makes such a file.
SPECIAL_FILES: dict[str, Callable[[Path], None]] = {
    "FIFO": lambda path: os.mkfifo(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
    "socket": _socket,
}
