"""Segments: which processes may write them, and when the kernel pins their pages."""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from gear_data.residency.shared_memory import HEADER_BYTES, Segment, create_segment, map_segment, writable

SIZE = HEADER_BYTES + 10_000
LIBC = ctypes.CDLL(None, use_errno=True)
#: System calls of x86-64 and arm64.
IO_URING_SETUP, IO_URING_REGISTER = 425, 427
REGISTER_BUFFERS = 0

Pin = Callable[[pa.Buffer], int]


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@pytest.fixture
def pin() -> Iterator[Pin]:
    """Pins pages for writing, as a driver does for a device. Returns errno, or 0.

    They stay pinned as long as the test runs. io_uring pins buffers by the kernel's function that GPU drivers use,
    `pin_user_pages`.
    """
    ring = LIBC.syscall(IO_URING_SETUP, 1, ctypes.create_string_buffer(120))
    if ring < 0:
        pytest.skip(f"there is no io_uring here: {os.strerror(ctypes.get_errno())}")

    def register(buffer: pa.Buffer) -> int:
        vector = _Vector(buffer.address, buffer.size)
        status = LIBC.syscall(IO_URING_REGISTER, ring, REGISTER_BUFFERS, ctypes.byref(vector), 1)
        return ctypes.get_errno() if status else 0

    yield register
    os.close(ring)


def segment(*, registrable: bool) -> tuple[int, Segment]:
    made = Segment("key", SIZE, registrable)
    return create_segment(made, lambda descriptor: os.pwrite(descriptor, b"columns", HEADER_BYTES) and None), made


def permissions(buffer: pa.Buffer) -> str:
    lines = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
    return next(line[1] for line in lines if int(line[0].split("-")[0], 16) == buffer.address)


def pinned_pages() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmPin:")) // mmap.PAGESIZE


def ends_by(signal_number: int, write: Callable[[], object]) -> bool:
    """Returns whether a process that writes ends by a signal."""
    child = os.fork()
    if not child:
        faulthandler.disable()
        write()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal_number


def test_pages_are_pinned_only_while_the_mapping_is_writable(pin: Pin) -> None:
    buffer = map_segment(*segment(registrable=True))
    assert pin(buffer) == errno.EFAULT
    before = pinned_pages()
    with writable(buffer):
        assert pin(buffer) == 0
    # The pages stay pinned, and the mapping is read-only again.
    assert permissions(buffer) == "r--s"
    assert pinned_pages() - before == -(-SIZE // mmap.PAGESIZE)
    assert bytes(buffer[HEADER_BYTES:][:7]) == b"columns"


def test_pages_of_a_sealed_segment_cannot_be_pinned(pin: Pin) -> None:
    buffer = map_segment(*segment(registrable=False))
    assert pin(buffer) == errno.EFAULT
    with pytest.raises(PermissionError), writable(buffer):
        pass
    assert permissions(buffer) == "r--s"


@pytest.mark.processes
def test_only_one_mapping_is_writable_and_only_for_a_while() -> None:
    descriptor, made = segment(registrable=True)
    first = map_segment(os.dup(descriptor), made)
    second = map_segment(descriptor, made)
    with writable(first):
        assert (permissions(first), permissions(second)) == ("rw-s", "r--s")
        assert ends_by(signal.SIGSEGV, lambda: ctypes.memset(second.address, 1, 1))
    assert ends_by(signal.SIGSEGV, lambda: ctypes.memset(first.address, 1, 1))
    with pytest.raises(RuntimeError), writable(first):
        raise RuntimeError
    assert permissions(first) == "r--s"


@pytest.mark.parametrize("registrable", [False, True])
def test_no_process_changes_the_size(registrable: bool) -> None:
    """A segment that shrinks would end its readers by SIGBUS.

    Other users cannot open the segment at all.
    """
    descriptor, made = segment(registrable=registrable)
    for size in (0, SIZE + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    assert os.fstat(descriptor).st_mode & 0o777 == 0o600
    assert made.is_open_at(descriptor)
    # A sealed segment is not taken for a registrable one, nor the other way round.
    assert not Segment("other", SIZE, registrable).is_open_at(descriptor)
    os.close(descriptor)
