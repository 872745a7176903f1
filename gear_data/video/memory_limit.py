"""Memory limit of processes in which FFmpeg reads untrusted files."""

from __future__ import annotations

import resource
from pathlib import Path

#: The sixth number: pages of data and stack. Only Linux has the file.
_USE = Path("/proc/self/statm")


def limit_memory(size: int) -> None:
    """Lets this process allocate only `size` bytes from now on, and write no core dump.

    Modules that the interpreter has loaded do not count: a CUDA build of torch alone takes gigabytes. macOS does not
    tell the use, and has no limit that counts it: there, memory is not limited.
    """
    if _USE.exists():
        used = int(_USE.read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (used + size, used + size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
