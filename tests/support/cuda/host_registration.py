"""Registration of host memory as CUDA does it on x86 with a discrete GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

#: CUDA's error codes.
INVALID_VALUE, ALREADY_REGISTERED, NOT_REGISTERED, NOT_SUPPORTED = 1, 712, 713, 801
#: cudaDevAttrHostRegisterReadOnlySupported.
READ_ONLY_SUPPORTED = 113
#: cudaHostRegisterPortable, cudaHostRegisterMapped and cudaHostRegisterReadOnly.
PORTABLE, MAPPED, READ_ONLY = 1, 2, 8


class HostRegistration:
    """Registers memory of this process, or refuses.

    Args:
        error: makes CUDA's error of a code.

    Attributes:
        registered: address -> bytes of registered memory.
        attributes: the device's attributes by number; x86 has no read-only registration.
    """

    def __init__(self, error: Callable[[int], Exception]) -> None:
        self._error = error
        self.registered: dict[int, int] = {}
        self.attributes = {READ_ONLY_SUPPORTED: 0}

    def register(self, address: int, size: int, flags: int) -> None:
        read_only = bool(flags & READ_ONLY)
        if read_only and not self.attributes[READ_ONLY_SUPPORTED]:
            raise self._error(NOT_SUPPORTED)
        # The driver pins pages for writing, unless the device only reads them.
        if flags & ~(PORTABLE | MAPPED | READ_ONLY) or not _is_mapped(address, size, "r" if read_only else "rw"):
            raise self._error(INVALID_VALUE)
        if any(address < first + many and first < address + size for first, many in self.registered.items()):
            raise self._error(ALREADY_REGISTERED)
        self.registered[address] = size

    def unregister(self, address: int) -> None:
        if self.registered.pop(address, None) is None:
            raise self._error(NOT_REGISTERED)

    def __contains__(self, address: int) -> bool:
        return any(first <= address < first + size for first, size in self.registered.items())


def _is_mapped(address: int, size: int, access: str) -> bool:
    """Returns whether bytes are mapped with permissions such as `rw`."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split()
        first, last = (int(end, 16) for end in fields[0].split("-"))
        if first <= address < last and fields[1].startswith(access):
            size -= last - address
            address = last
    return size <= 0
