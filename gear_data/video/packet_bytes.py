"""PacketBytes: reads the bytes of packets, wherever the files are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa

from gear_data.common.fork_lock import fork_safe_lock
from gear_data.errors import CorruptShardError

#: (number of the file, first byte, last byte); the last byte is excluded.
ByteRange = tuple[int, int, int]
#: Files that a process maps at once. A process may have 65,530 mappings, and a dataset more files.
_FILES_MAPPED = 1024


class PacketBytes(Protocol):
    """Reads ranges of bytes of a dataset's video files. Thread-safe."""

    def read(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Returns the bytes of each range, in the order of the ranges.

        Raises:
            CorruptShardError: a file is missing, has another size, or ends before a range.
            RemoteError, ClusterError: the bytes cannot be fetched.
        """


@runtime_checkable
class FetchingPackets(PacketBytes, Protocol):
    """`PacketBytes` that fetches bytes over a network, and keeps them."""

    def fetch(self, ranges: Sequence[ByteRange], ahead: Callable[[], Iterable[Sequence[ByteRange]]]) -> None:
        """Fetches ranges that the next calls of `read` want.

        Args:
            ranges: ranges that are read now.
            ahead: returns the ranges of later reads, the next read first. They are fetched meanwhile, and after the
                call: as many as fit into a limit of bytes.

        Raises:
            CorruptShardError, RemoteError: a range that is read now cannot be fetched.
        """


class LocalPackets:
    """`PacketBytes` of files that this machine can map.

    A file is mapped at its first use.

    It is picklable if its functions are, and usable in a forked child.

    Args:
        map_file: returns the memory of a file, by number. Raises as `read`.
        check: called before a file is read. It raises CorruptShardError if the file was truncated since it was mapped.
    """

    def __init__(self, map_file: Callable[[int], pa.Buffer], check: Callable[[int], None]) -> None:
        self._map_file = map_file
        self._check = check
        self._lock = fork_safe_lock()
        #: The files used last are at the end.
        self._buffers: OrderedDict[int, pa.Buffer] = OrderedDict()

    def __reduce__(self) -> tuple[object, ...]:
        return (LocalPackets, (self._map_file, self._check))

    def read(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        return [self._slice(*each) for each in ranges]

    def _slice(self, file: int, first: int, last: int) -> memoryview:
        buffer = self._buffer(file)
        self._check(file)
        if not 0 <= first <= last <= buffer.size:
            raise CorruptShardError(
                f"bytes {first} to {last} of video file {file} are needed, and the file has {buffer.size} bytes",
                hint="run 'gear-data verify', then convert the source again",
            )
        # The slice keeps the mapping alive.
        return memoryview(buffer)[first:last]

    def _buffer(self, file: int) -> pa.Buffer:
        with self._lock:
            if file in self._buffers:
                self._buffers.move_to_end(file)
                return self._buffers[file]
        buffer = self._map_file(file)
        with self._lock:
            self._buffers[file] = buffer
            while len(self._buffers) > _FILES_MAPPED:
                self._buffers.popitem(last=False)
        return buffer
