"""How much memory this process can still have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

#: Of control groups, version 2 and 1, as a container sees its own: limit, use, statistics, and the names in there of
#: what counts as used and is given back when it is needed: pages of files.
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
    """Bytes that can be used without swapping: the machine's `MemAvailable`, or less where a control group's limit is
    nearer."""
    return min([_machine(), *_groups()])


def _machine() -> int:
    return _fields("/proc/meminfo")["MemAvailable:"] << 10


def _groups() -> Iterator[int]:
    for limit, used, statistics, prefix in _GROUPS:
        try:
            room = int(Path(limit).read_text()) - int(Path(used).read_text())
            files = _fields(statistics)
            yield room + files[f"{prefix}inactive_file"] + files[f"{prefix}active_file"]
        except (OSError, ValueError, KeyError):
            # No such group, or no limit ("max").
            continue


def _fields(path: str) -> dict[str, int]:
    lines = (line.split() for line in Path(path).read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines}
