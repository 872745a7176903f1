"""RdmaClient: this machine's RDMA device, and idle connections to nodes."""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass, field

from gear_data.cluster.flight.client import Endpoint
from gear_data.cluster.flight.grpc_fork import close_before_fork, process_ends
from gear_data.cluster.protocol import Request
from gear_data.cluster.rdma.connection import RdmaConnection
from gear_data.cluster.rdma.device import Device, open_device
from gear_data.cluster.rdma.local_memory import LocalMemory
from gear_data.cluster.rdma.reads.read_context import ReadContext
from gear_data.cluster.rdma.reads.span_read import SpanRead, WriteTargets
from gear_data.cluster.rdma.reads.video_read import VideoRead
from gear_data.selection.windows import Int64Array
from gear_data.storage.manifest import Manifest

#: Idle connections to one peer that are kept for the next batch.
_MAX_IDLE_CONNECTIONS = 8


@dataclass
class _OpenDevice:
    """The device, its registered memory, and idle connections by peer number."""

    device: Device
    memory: LocalMemory
    idle: dict[int, list[RdmaConnection]] = field(default_factory=dict)

    def close_idle(self) -> None:
        for connections in list(self.idle.values()):
            _abandon(connections)

    def close(self) -> None:
        self.close_idle()
        self.memory.close()
        self.device.close()


class RdmaClient:
    """RDMA connections to a dataset's nodes.

    Thread-safe, and usable before and after a fork; opens on first use.

    Args:
        manifest: the dataset's manifest.
        dataset: the dataset's `dataset_identity`.
    """

    def __init__(self, manifest: Manifest, dataset: str) -> None:
        self._manifest, self._dataset = manifest, dataset
        # A list, so that the finalizer needs no reference to this object. It holds one device, or none.
        self._open: list[_OpenDevice] = []
        self._opening = threading.Lock()
        close_before_fork(self)
        # Not at the end of the process: see `close_idle`.
        weakref.finalize(self, _close, self._open).atexit = False

    def open(self) -> _OpenDevice:
        """Opens the device, if it is not open.

        Raises:
            As `open_device`.
        """
        with self._opening:
            if not self._open:
                device = open_device()
                self._open.append(_OpenDevice(device, LocalMemory(device)))
            return self._open[0]

    def acquire(self, peer: int, endpoint: Endpoint, seconds: float) -> RdmaConnection:
        """Returns a connection to a peer, idle or new.

        The caller returns it with `release`, or closes it.

        Args:
            peer, endpoint: the peer.
            seconds: time that connecting may take.
        """
        opened = self.open()
        with suppress(IndexError):
            return opened.idle.setdefault(peer, []).pop()
        shards, columns = len(self._manifest.shards), len(self._manifest.schema)
        return RdmaConnection(opened.device, endpoint, self._dataset, shards, columns, seconds)

    def release(self, peer: int, connection: RdmaConnection) -> None:
        """Returns a connection whose READs are all done to the pool."""
        idle = self.open().idle[peer]
        connection.was_idle = True
        if len(idle) < _MAX_IDLE_CONNECTIONS:
            idle.append(connection)
        else:
            # The node need not answer: its memory can be read while its process hangs.
            connection.abandon()

    def close_idle_to(self, peer: int) -> None:
        """Closes the idle connections to a peer."""
        _abandon(self.open().idle[peer])

    def span_read(
        self, connection: RdmaConnection, request: Request, spans: Int64Array, targets: WriteTargets | None
    ) -> SpanRead:
        """Returns the read of some spans over a connection. Nothing is posted yet."""
        return SpanRead(self._context(), connection, request, spans, targets)

    def video_read(self, connection: RdmaConnection, ranges: Int64Array) -> VideoRead:
        """Returns the read of ranges of video files over a connection; see `VideoRead`. Nothing is posted yet."""
        return VideoRead(self._context(), connection, ranges)

    def _context(self) -> ReadContext:
        opened = self.open()
        return ReadContext(self._manifest, opened.memory, opened.device.max_read_bytes)

    def close_idle(self) -> None:
        """Closes all idle connections, and the device.

        When the process ends, the device stays open. Another thread may still read through it, and would use queue
        pairs and memory that are gone.
        """
        if process_ends():
            for opened in list(self._open):
                opened.close_idle()
        else:
            _close(self._open)


def _abandon(connections: list[RdmaConnection]) -> None:
    # Another thread may take the last one.
    with suppress(IndexError):
        while True:
            connections.pop().abandon()


def _close(opened: list[_OpenDevice]) -> None:
    while opened:
        opened.pop().close()
