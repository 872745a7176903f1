"""Rows of other nodes' shards, read by RDMA READ."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from gear_data.cluster.client.fetch import Fetch
from gear_data.cluster.flight.client import Endpoint
from gear_data.cluster.flight.grpc_fork import close_before_fork
from gear_data.cluster.protocol import FetchedSpans, Request
from gear_data.cluster.rdma.connection import RdmaConnection
from gear_data.cluster.rdma.device import Device, open_device
from gear_data.cluster.rdma.local_memory import LocalMemory
from gear_data.cluster.rdma.span_read import ReadContext, SpanRead, WriteTargets
from gear_data.errors import NodeUnreachableError
from gear_data.selection.windows import Int64Array
from gear_data.storage.manifest import Manifest

#: Links to one node that are kept for the next batch.
_IDLE_LINKS = 8
#: Seconds for which a completion is polled for without a pause, and of a pause.
_BUSY, _PAUSE = 100e-6, 50e-6


@dataclass
class _Open:
    """What is open in this process.

    Attributes:
        links: of each node, by its number, those that are idle.
    """

    device: Device
    memory: LocalMemory
    links: dict[int, list[RdmaConnection]] = field(default_factory=dict)

    def close(self) -> None:
        for links in self.links.values():
            while links:
                links.pop().abandon()
        self.memory.close()
        self.device.close()


class RdmaClient:
    """The memory of a dataset's nodes. Safe to use from several threads, before and after a fork; opens what it needs
    when it needs it.

    Args:
        manifest: of the dataset.
        dataset: its `dataset_identity`.
    """

    def __init__(self, manifest: Manifest, dataset: str) -> None:
        self._manifest, self._dataset = manifest, dataset
        # What is open must not know what it is closed with.
        self._open: list[_Open] = []
        self._opening = threading.Lock()
        close_before_fork(self)
        weakref.finalize(self, _close, self._open)

    def open(self) -> _Open:
        """The device. Raises as `open_device` does."""
        with self._opening:
            if not self._open:
                device = open_device()
                self._open.append(_Open(device, LocalMemory(device)))
            return self._open[0]

    def link(self, number: int, endpoint: Endpoint) -> RdmaConnection:
        """A link to a node: an idle one, or a new one. To be given back with `keep`, or closed."""
        now = self.open()
        with suppress(IndexError):
            return now.links.setdefault(number, []).pop()
        return RdmaConnection(
            now.device, endpoint, self._dataset, len(self._manifest.shards), len(self._manifest.schema)
        )

    def keep(self, number: int, link: RdmaConnection) -> None:
        """Gives back a link all of whose READs are done."""
        idle = self.open().links[number]
        link.kept = True
        if len(idle) < _IDLE_LINKS:
            idle.append(link)
        else:
            link.close()

    def end_kept(self, number: int) -> None:
        """Ends the idle links to a node."""
        idle = self.open().links[number]
        with suppress(IndexError):
            while True:
                idle.pop().abandon()

    def reading(
        self, link: RdmaConnection, request: Request, spans: Int64Array, targets: WriteTargets | None
    ) -> SpanRead:
        """What is to be read of some spans; see `SpanRead`."""
        now = self.open()
        return SpanRead(ReadContext(self._manifest, now.memory, now.device.largest), link, request, spans, targets)

    def close_idle(self) -> None:
        _close(self._open)


def _close(opened: list[_Open]) -> None:
    while opened:
        opened.pop().close()


class RdmaFetch(Fetch[RdmaConnection, SpanRead]):
    """A lane that reads the node's memory. Posts all READs at once: the link holds back what the device does not take
    yet.

    Args:
        memory: the nodes'.
        number, endpoint: of the node.
        request: what is wanted of all nodes.
        pieces: numbers of spans, those of each piece.
        targets: see `WriteTargets`.
    """

    def __init__(
        self,
        memory: RdmaClient,
        number: int,
        endpoint: Endpoint,
        request: Request,
        pieces: Sequence[Int64Array],
        targets: WriteTargets | None,
    ) -> None:
        super().__init__(number, endpoint.name, pieces)
        self._memory, self._endpoint, self._request = memory, endpoint, request
        self._targets = targets
        self._last = 0.0

    def _open(self) -> RdmaConnection:
        return self._memory.link(self.number, self._endpoint)

    def _send(self, link: RdmaConnection) -> None:
        if self._waiting:
            self._last = time.monotonic()
        while self._waiting:
            reading = self._memory.reading(link, self._request, self._waiting[0], self._targets)
            # Known before anything is under way: what it writes to must outlive the link.
            self._posted.append((self._waiting.popleft(), reading))
            reading.post()

    def _receive(self, link: RdmaConnection) -> None:
        some = link.poll()
        for _ in range(len(self._posted) if some else 0):
            spans, reading = self._posted[0]
            if reading.advance():
                self.done.append(FetchedSpans(spans, reading.parts, self._targets is not None))
                self._posted.popleft()
            else:
                self._posted.rotate(-1)
        if some:
            link.kept = False
            self._last = time.monotonic()
            return
        waited = time.monotonic() - self._last
        if waited > self._endpoint.timeout:
            # Not to be waited for a second time, through a new queue pair.
            link.kept = False
            raise NodeUnreachableError(f"did not answer within {self._endpoint.timeout:g} s")
        if waited > _BUSY:
            time.sleep(_PAUSE)

    def _keep(self, link: RdmaConnection) -> None:
        self._memory.keep(self.number, link)

    def _end(self, link: RdmaConnection) -> None:
        link.abandon()

    def _end_kept(self) -> None:
        self._memory.end_kept(self.number)
