"""The memory that is still available to this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

#: Files of control groups, version 2 and 1, as a container sees its own group: limit, use, statistics, and the prefix
#: of the statistics' names for file pages. File pages count as used, but the kernel frees them when memory is needed.
_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", ""),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
        "total_",
    ),
)


def available_memory() -> int:
    """Returns the bytes that can be used without swapping.

    This is the machine's `MemAvailable`, or less if a control group's limit is lower. Where the system does not tell,
    as on macOS, it is half of the machine's memory.
    """
    return min([_machine(), *_groups()])


def _machine() -> int:
    try:
        return _fields("/proc/meminfo")["MemAvailable:"] << 10
    except FileNotFoundError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _groups() -> Iterator[int]:
    for limit, used, statistics, prefix in _GROUPS:
        try:
            room = int(Path(limit).read_text()) - int(Path(used).read_text())
            files = _fields(statistics)
            yield room + files[f"{prefix}inactive_file"] + files[f"{prefix}active_file"]
        except (OSError, ValueError, KeyError):
            # There is no such group, or it has no limit ("max").
            continue


def _fields(path: str) -> dict[str, int]:
    lines = (line.split() for line in Path(path).read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines}
