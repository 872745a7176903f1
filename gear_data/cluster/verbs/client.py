"""Rows of other nodes' shards, read by RDMA READ."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gear_data.cluster.flight_client import Endpoint, Stream
from gear_data.cluster.lane import Lane
from gear_data.cluster.protocol import Piece, Request, part_places
from gear_data.cluster.verbs.buffers import LocalMemory
from gear_data.cluster.verbs.device import Device, open_device
from gear_data.cluster.verbs.messages import granted, wanting
from gear_data.cluster.verbs.queue_pair import QueuePair
from gear_data.cluster.verbs.work import Chain, Reads
from gear_data.cluster.waiting import close_before_fork
from gear_data.errors import ClusterError, NodeRefusedError, NodeUnreachableError
from gear_data.schema import Schema
from gear_data.selection.windows import Int64Array

#: Queue pairs to one node that are kept for the next batch.
_IDLE_LINKS = 8
#: Seconds for which a completion is polled for without a pause, and of a pause.
_BUSY, _PAUSE = 100e-6, 50e-6
_NOTHING: npt.NDArray[np.uint8] = np.empty(0, np.uint8)


@dataclass(frozen=True)
class Targets:
    """Where rows are to go, in place of being packed.

    Attributes:
        memory: that they go to.
        places: of each part of the answer int64 [N], the address that the rows of each span go to; None: packed.
    """

    memory: npt.NDArray[np.uint8]
    places: tuple[Int64Array | None, ...]


class Link:
    """A queue pair to a node, and the stream that keeps it. For one thread at a time.

    Raises:
        NodeUnreachableError, NodeRefusedError: the node gives none.
        DeviceError: this machine's device gives none.
    """

    def __init__(self, device: Device, endpoint: Endpoint, dataset: str, shards: int, columns: int) -> None:
        self.endpoint = endpoint
        #: Used before, and not since: the node may have gone meanwhile.
        self.kept = False
        self.pair = QueuePair(device, answers=False)
        self._stream: Stream | None = None
        try:
            self._stream = Stream(endpoint, wanting(dataset, self.pair.end))
            end, self.table = granted(self._stream.take(), shards, columns)
            self.pair.connect(end, endpoint.timeout)
        except BaseException as error:
            self.abandon()
            if isinstance(error, ClusterError):
                error.file = endpoint.name
            raise

    def close(self) -> None:
        """Ends it. Nothing is written any more to where its READs went."""
        self.pair.close()
        if self._stream is not None:
            self._stream.close()

    def abandon(self) -> None:
        """Ends it, and does not wait for a node that may be gone."""
        if self._stream is not None:
            self._stream.cancel_late()
        self.close()


@dataclass
class _Open:
    """What is open in this process.

    Attributes:
        links: of each node, by its number, those that are idle.
    """

    device: Device
    memory: LocalMemory
    links: dict[int, list[Link]] = field(default_factory=dict)

    def close(self) -> None:
        for links in self.links.values():
            while links:
                links.pop().close()
        self.memory.close()
        self.device.close()


class RemoteMemory:
    """The memory of a dataset's nodes. Safe to use from several threads, before and after a fork; opens what it needs
    when it needs it.

    Args:
        schema: of the dataset.
        shards: how many it has.
        dataset: its `identity`.
    """

    def __init__(self, schema: Schema, shards: int, dataset: str) -> None:
        self._columns = schema.columns
        self._shards, self._dataset = shards, dataset
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

    def has_all(self, request: Request) -> bool:
        """Whether it can be read so: of text and bytes nobody knows yet where they are."""
        return not any(self._columns[c].variable_length for group in request.groups for c in group.columns)

    def link(self, number: int, endpoint: Endpoint) -> Link:
        """A queue pair to a node: an idle one, or a new one. To be given back with `keep`, or closed."""
        now = self.open()
        with suppress(IndexError):
            return now.links.setdefault(number, []).pop()
        return Link(now.device, endpoint, self._dataset, self._shards, len(self._columns))

    def keep(self, number: int, link: Link) -> None:
        """Gives back a queue pair all of whose READs are done."""
        idle = self.open().links[number]
        link.kept = True
        if len(idle) < _IDLE_LINKS:
            idle.append(link)
        else:
            link.close()

    def end_kept(self, number: int) -> None:
        """Ends the idle queue pairs to a node."""
        idle = self.open().links[number]
        with suppress(IndexError):
            while True:
                idle.pop().abandon()

    def reads(
        self, link: Link, request: Request, spans: Int64Array, targets: Targets | None
    ) -> tuple[Reads, list[npt.NDArray[np.uint8]]]:
        """The READs of some spans, and where each part of the answer will be; empty where `targets` say it.

        Raises:
            NodeRefusedError: the node does not hold them.
            DeviceError: memory cannot be registered.
        """
        now, shard = self.open(), request.shard[spans]
        wanted = [(group, column) for group in request.groups for column in group.columns]
        sizes = [group.count[spans] * self._columns[column].row_bytes for group, column in wanted]
        places = [None] * len(wanted) if targets is None else targets.places
        packed = [0 if place is not None else int(size.sum()) for place, size in zip(places, sizes, strict=True)]
        starts, total = part_places(packed)
        data, key = now.memory.stage(total) if total else (_NOTHING, 0)
        columns, parts = [], list[npt.NDArray[np.uint8]]()
        for (group, column), size, place, start, count in zip(wanted, sizes, places, starts, packed, strict=True):
            base, remote_key = link.table[shard, column].T
            if not base[size > 0].all():
                raise NodeRefusedError("does not hold these shards any more")
            remote = base + group.first[spans] * self._columns[column].row_bytes
            if place is None or targets is None:
                local, local_key = data.ctypes.data + start + np.cumsum(size) - size, key
            else:
                local, local_key = place[spans], now.memory.key(targets.memory)
            parts.append(data[start : start + count])
            columns.append((remote, remote_key, local, np.full(len(size), local_key), size))
        return Reads(*map(np.concatenate, zip(*columns, strict=True))).merged(now.device.largest), parts

    def close_idle(self) -> None:
        _close(self._open)


def _close(opened: list[_Open]) -> None:
    while opened:
        opened.pop().close()


class ReadLane(Lane[Link, list[npt.NDArray[np.uint8]]]):
    """A lane of which is noted where the parts of each answer will be. Posts all READs at once: the queue pair holds
    back what the device does not take yet.

    Args:
        memory: the nodes'.
        number, endpoint: of the node.
        request: what is wanted of all nodes.
        pieces: numbers of spans, those of each piece.
        targets: see `Targets`.
    """

    def __init__(
        self,
        memory: RemoteMemory,
        number: int,
        endpoint: Endpoint,
        request: Request,
        pieces: Sequence[Int64Array],
        targets: Targets | None,
    ) -> None:
        super().__init__(number, endpoint.name, pieces)
        self._memory, self._endpoint, self._request = memory, endpoint, request
        self._targets = targets
        self._last = 0.0

    def _open(self) -> Link:
        return self._memory.link(self.number, self._endpoint)

    def _send(self, link: Link) -> None:
        if self._waiting:
            self._last = time.monotonic()
        while self._waiting:
            reads, parts = self._memory.reads(link, self._request, self._waiting[0], self._targets)
            self._posted.append((self._waiting.popleft(), parts))
            link.pair.post(Chain(reads))

    def _receive(self, link: Link) -> None:
        some = link.pair.poll()
        while len(self._posted) > link.pair.chains:
            self.done.append(Piece(*self._posted.popleft(), self._targets is not None))
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

    def _keep(self, link: Link) -> None:
        self._memory.keep(self.number, link)

    def _end(self, link: Link) -> None:
        link.abandon()

    def _end_kept(self) -> None:
        self._memory.end_kept(self.number)
