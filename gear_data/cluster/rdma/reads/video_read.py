"""VideoRead: ranges of bytes of video files, read from a node's memory."""

from __future__ import annotations

import numpy as np

from gear_data.cluster.rdma.connection import RdmaConnection
from gear_data.cluster.rdma.reads.read_context import ReadContext
from gear_data.cluster.rdma.work_requests import Reads
from gear_data.errors import NodeRefusedError
from gear_data.selection.windows import Int64Array


class VideoRead:
    """A read of ranges of bytes that is in progress.

    Args:
        context: see `ReadContext`.
        connection: connection to the node; used for nothing else at the same time.
        ranges: int64 [n, 3]: the number of a file, the first byte, and the byte after the last.

    Attributes:
        parts: one part: all ranges, one after another, once `advance` has returned True.

    Raises:
        NodeRefusedError: the node does not hold a file, or a file ends before a range.
        DeviceError: memory cannot be registered.
    """

    def __init__(self, context: ReadContext, connection: RdmaConnection, ranges: Int64Array) -> None:
        self._connection = connection
        self._ticket: tuple[int, ...] = ()
        file, first, last = ranges.T
        held = connection.videos
        row = np.searchsorted(held[:, 0], file)
        # A row past the end stands for a file that is not held, as the row of another file does.
        known = np.append(held[:, 0], -1)[row] == file
        if not known.all():
            raise NodeRefusedError(f"does not hold video file {int(file[np.argmin(known)])} in memory any more")
        _, address, remote_key, bytes_held = held[row].T
        if (last > bytes_held).any():
            at = int(np.argmax(last > bytes_held))
            raise NodeRefusedError(
                f"holds {int(bytes_held[at])} bytes of video file {int(file[at])}, and {int(last[at])} are needed"
            )
        size = last - first
        data, key = context.memory.stage(int(size.sum()))
        self.parts = [data]
        local = data.ctypes.data + np.cumsum(size) - size
        reads = Reads(address + first, remote_key, local, np.full(len(size), key), size)
        self._reads = reads.merged(context.max_read_bytes)

    def post(self) -> None:
        """Posts the READs.

        Raises:
            As `RdmaConnection.post`.
        """
        self._ticket = self._connection.post(self._reads)

    def advance(self) -> bool:
        """Returns whether everything has arrived. Never waits."""
        return self._connection.is_done(self._ticket)
