"""RdmaServer: a node's columns and videos, registered for remote reads by its clients."""

from __future__ import annotations

import ctypes
import errno
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import numpy.typing as npt

from gear_data.cluster.rdma.device import Region, open_device
from gear_data.cluster.rdma.messages import QueuePairEnd, queue_pair_response
from gear_data.cluster.rdma.queue_pair import QueuePair
from gear_data.cluster.server.shard_server import Response, ShardServer
from gear_data.cluster.server.video_memory import NO_VIDEOS, VideoMemory
from gear_data.cluster.transport_names import AUTO, VERBS, has_device
from gear_data.errors import DeviceError, HostMemoryError, InvalidArgumentError, MissingExtraError, NodeRefusedError
from gear_data.residency.available_memory import available_memory
from gear_data.selection.windows import Int64Array

#: Most queue pairs at once.
MAX_QUEUE_PAIRS = 4096
#: Timeout, in seconds, of READs that this end sends. It sends none, but the queue pair needs a value.
_TIMEOUT = 30.0

_log = logging.getLogger(__name__)


class RdmaServer:
    """Registered columns and video files of the served shards. Thread-safe.

    Every column of every shard is a separate region (a column of text or bytes is two: offsets and values), and so is
    every video file. So the device itself refuses reads outside of them. A client with a queue pair can read all
    regions until its stream ends, and can write nothing.

    Args:
        shards: shards in memory (residency `host`). Their video files are loaded into memory here.
        needs_videos: whether too little memory for the video files is an error. If not, they are left out.

    Raises:
        DeviceError, MissingExtraError: as `open_device`; or the memory cannot be registered.
        HostMemoryError: there is too little memory for the video files; or this kernel cannot register read-only
            memory, and there is too little for a copy.
        CorruptShardError: as `ShardServer.load_videos`.
    """

    def __init__(self, shards: ShardServer, *, needs_videos: bool) -> None:
        self._shards = shards
        self._device = open_device()
        self._available, self._lock = MAX_QUEUE_PAIRS, threading.Lock()
        self._regions: list[Region] = []
        #: Copies of memory that some regions are of.
        self._copies: list[npt.NDArray[np.uint8]] = []
        try:
            # Kept: it owns the memory.
            self._videos = _load_videos(shards, required=needs_videos)
            addresses, sizes = shards.column_memory()
            regions = self._register_all(
                np.concatenate([addresses.reshape(-1), self._videos.addresses]),
                np.concatenate([sizes.reshape(-1), self._videos.sizes]),
            )
        except BaseException:
            self.close()
            raise
        self._table = regions[: addresses.size].reshape(*addresses.shape, 2)
        self._video_table = np.column_stack([self._videos.files, regions[addresses.size :], self._videos.sizes])

    def _register_all(self, addresses: Int64Array, sizes: Int64Array) -> Int64Array:
        """Registers memory, and copies it first where that is necessary.

        Args:
            addresses, sizes: int64 [n], the memory. Size 0 stands for a missing buffer.

        Returns:
            int64 [n, 2], address and key; (0, 0) for a missing buffer.
        """
        try:
            return self._register(addresses, sizes)
        except DeviceError as error:
            # Before Linux 6.2 every region was mapped for writing, also one for reads only.
            if getattr(error.__cause__, "error_code", None) != errno.EFAULT:
                raise
        total = int(sizes.sum())
        available = available_memory()
        if total > available:
            raise HostMemoryError(
                f"before Linux 6.2, RDMA needs another copy: {total:,} bytes, and {available:,} are available",
                hint="use a newer kernel, serve fewer shards, or --transport flight",
            )
        _log.warning("before Linux 6.2, RDMA cannot register shared memory: copying %s bytes", f"{total:,}")
        copies = addresses.copy()
        for index in np.flatnonzero(sizes).tolist():
            size = int(sizes[index])
            copy = np.empty(size, np.uint8)
            ctypes.memmove(copy.ctypes.data, int(addresses[index]), size)
            copies[index] = copy.ctypes.data
            self._copies.append(copy)
        return self._register(copies, sizes)

    def _register(self, addresses: Int64Array, sizes: Int64Array) -> Int64Array:
        read = self._device.library.enums.IBV_ACCESS_REMOTE_READ
        table = np.zeros((len(addresses), 2), np.int64)
        for index in np.flatnonzero(sizes).tolist():
            region = self._device.register(int(addresses[index]), int(sizes[index]), read)
            self._regions.append(Region(region))
            table[index] = addresses[index], region.rkey
        return table

    @contextmanager
    def grant(self, clients: Sequence[QueuePairEnd]) -> Iterator[Response]:
        """Opens queue pairs for a client, as long as the body runs.

        Args:
            clients: the client's ends.

        Yields:
            The response to the client: this node's ends, the served shards, and the tables of memory; see `messages`.

        Raises:
            NodeRefusedError: there are too many queue pairs, or the client is on another kind of network.
            DeviceError: the device cannot create them.
        """
        with ExitStack() as stack:
            self._reserve(len(clients))
            stack.callback(self._reserve, -len(clients))
            ends = []
            for client in clients:
                pair = QueuePair(self._device, can_be_read=True)
                stack.callback(pair.close)
                pair.connect(client, _TIMEOUT)
                ends.append(pair.end)
            yield Response.of(queue_pair_response(ends, self._shards.shards, self._table, self._video_table))

    def _reserve(self, count: int) -> None:
        """Takes queue pairs from the available ones; a negative count returns them."""
        with self._lock:
            if count > self._available:
                used = MAX_QUEUE_PAIRS - self._available
                raise NodeRefusedError(
                    f"has {used:,} of at most {MAX_QUEUE_PAIRS:,} queue pairs open", hint="use transport='flight'"
                )
            self._available -= count

    def close(self) -> None:
        """Deregisters all memory, and closes the device."""
        for region in self._regions:
            region.close()
        self._regions.clear()
        self._copies.clear()
        self._device.close()


def open_rdma_server(shards: ShardServer, transport: str) -> RdmaServer | None:
    """Registers the shards for RDMA if the transport asks for it.

    `verbs` requires RDMA. `auto` uses it if there is a device, and the shards are in memory. Their video files are
    loaded into memory, too. If there is too little memory for the video files, `auto` leaves them out.

    Returns:
        None if RDMA is not used.

    Raises:
        InvalidArgumentError: `verbs`, and the shards are not in memory.
        DeviceError, MissingExtraError, HostMemoryError: `verbs`; as `RdmaServer`.
        CorruptShardError: as `RdmaServer`.
    """
    if transport == VERBS:
        if not shards.in_memory:
            raise InvalidArgumentError(
                "RDMA reads memory, and these shards are in files", hint="add --residency host, or --transport flight"
            )
        return RdmaServer(shards, needs_videos=True)
    if offers_rdma(transport, in_memory=shards.in_memory):
        try:
            return RdmaServer(shards, needs_videos=False)
        except (DeviceError, MissingExtraError, HostMemoryError) as error:
            _log.warning("RDMA is not used: %s", error)
    return None


def offers_rdma(transport: str, *, in_memory: bool) -> bool:
    """Returns whether `open_rdma_server` registers shards, which are in memory or in files.

    Raises:
        DeviceError: see `has_device`.
    """
    return in_memory and (transport == VERBS or (transport == AUTO and has_device()))


def _load_videos(shards: ShardServer, *, required: bool) -> VideoMemory:
    try:
        return shards.load_videos()
    except HostMemoryError as error:
        if required:
            raise
        _log.warning("videos are not read by RDMA: %s", error)
        return NO_VIDEOS
