"""A node's columns as its peers may read them: registered once, for that alone."""

from __future__ import annotations

import ctypes
import errno
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from gear_data.cluster.rdma.device import open_device
from gear_data.cluster.rdma.messages import QueuePairEnd, queue_pair_response
from gear_data.cluster.rdma.queue_pair import QueuePair
from gear_data.cluster.rdma.transport import AUTO, VERBS, has_device
from gear_data.cluster.server.shard_server import Response, ShardServer
from gear_data.errors import DeviceError, HostMemoryError, InvalidArgumentError, MissingExtraError, NodeRefusedError
from gear_data.residency.available_memory import available_memory
from gear_data.selection.windows import Int64Array

#: Queue pairs at once.
_MOST = 4096
#: Seconds that a READ of this end would take at most; it sends none.
_LIMIT = 30.0

_log = logging.getLogger(__name__)


class RdmaServer:
    """The columns of what is served. Safe to use from several threads.

    Every column of every shard is a region of its own (of text and bytes the offsets are one, and the values another),
    so that the device itself refuses what is outside of them. Who is granted a queue pair can read all of them until
    its stream ends, and write nothing.

    Args:
        served: shards in memory (residency `host`).

    Raises:
        DeviceError, MissingExtraError: see `open_device`; or the memory cannot be registered.
        HostMemoryError: this kernel registers no memory that is read-only, and there is too little for a copy.
    """

    def __init__(self, served: ShardServer) -> None:
        self._served = served
        self._device = open_device()
        self._left, self._lock = _MOST, threading.Lock()
        #: Regions, and the memory that they are of.
        self._held: list[Any] = []
        try:
            self._table = self._register_all(*served.column_memory())
        except BaseException:
            self.close()
            raise

    def _register_all(self, addresses: Int64Array, sizes: Int64Array) -> Int64Array:
        """int64 [shards, columns, 2, 2]: see `messages`."""
        try:
            return self._registered(addresses, sizes)
        except DeviceError as error:
            # Before Linux 6.2 a region was always mapped for writing first, whatever it was to be used for.
            if getattr(error.__cause__, "error_code", None) != errno.EFAULT:
                raise
        total = int(sizes.sum())
        if total > available_memory():
            raise HostMemoryError(
                f"before Linux 6.2 a copy of the columns is needed for RDMA: {total:,} bytes more",
                hint="use a newer kernel, serve fewer shards, or --transport flight",
            )
        _log.warning("before Linux 6.2 shared memory cannot be registered: %s bytes are copied for RDMA", f"{total:,}")
        copies = addresses.copy()
        for place in map(tuple, np.argwhere(sizes).tolist()):
            size = int(sizes[place])
            copy = np.empty(size, np.uint8)
            ctypes.memmove(copy.ctypes.data, int(addresses[place]), size)
            copies[place] = copy.ctypes.data
            self._held.append(copy)
        return self._registered(copies, sizes)

    def _registered(self, addresses: Int64Array, sizes: Int64Array) -> Int64Array:
        read = self._device.library.enums.IBV_ACCESS_REMOTE_READ
        table = np.zeros((*addresses.shape, 2), np.int64)
        for place in map(tuple, np.argwhere(sizes).tolist()):
            region = self._device.register(int(addresses[place]), int(sizes[place]), read)
            self._held.append(region)
            table[place] = addresses[place], region.rkey
        return table

    @contextmanager
    def grant(self, clients: Sequence[QueuePairEnd]) -> Iterator[Response]:
        """Queue pairs for a client's ends, as long as the body runs, and what is answered: these ends, the places of
        the served shards, and the table; see `messages`.

        Raises:
            NodeRefusedError: there are too many, or the client is on another kind of network.
            DeviceError: the device has none left.
        """
        with ExitStack() as stack:
            self._take(len(clients))
            stack.callback(self._take, -len(clients))
            ends = []
            for client in clients:
                pair = QueuePair(self._device, answers=True)
                stack.callback(pair.close)
                pair.connect(client, _LIMIT)
                ends.append(pair.end)
            yield Response.of(queue_pair_response(ends, self._served.shards, self._table))

    def _take(self, count: int) -> None:
        with self._lock:
            if count > self._left:
                raise NodeRefusedError(f"has {_MOST - self._left:,} queue pairs already", hint="use transport='flight'")
            self._left -= count

    def close(self) -> None:
        """Withdraws everything."""
        for region in self._held:
            if not isinstance(region, np.ndarray):
                region.close()
        self._held.clear()
        self._device.close()


def open_rdma_server(served: ShardServer, transport: str) -> RdmaServer | None:
    """What `--transport` asks for; `auto` takes RDMA where there is a device, and the shards are in memory.

    Raises:
        InvalidArgumentError: `verbs`, and the shards are not in memory.
        whatever `RdmaServer` raises, where `verbs` was asked for.
    """
    if transport == VERBS:
        if not served.in_memory:
            raise InvalidArgumentError(
                "RDMA reads memory, and these shards are in files", hint="add --residency host, or --transport flight"
            )
        return RdmaServer(served)
    if transport == AUTO and served.in_memory and has_device():
        try:
            return RdmaServer(served)
        except (DeviceError, MissingExtraError, HostMemoryError) as error:
            _log.warning("no RDMA: %s", error)
    return None
