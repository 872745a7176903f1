"""The queue pairs between a client's thread and a node."""

from __future__ import annotations

from gear_data.cluster.flight.client import Endpoint, Stream
from gear_data.cluster.rdma.device import Device
from gear_data.cluster.rdma.messages import parse_queue_pair_response, queue_pair_request
from gear_data.cluster.rdma.queue_pair import QueuePair
from gear_data.cluster.rdma.work import Reads, WorkRequestList
from gear_data.errors import ClusterError


class RdmaConnection:
    """Queue pairs to a node, as many as `endpoint.access` says, and the stream that keeps them. For one thread at a
    time.

    Args:
        shards, columns: how many the dataset has.

    Attributes:
        table: int64 [shards, columns, 2, 2]; see `messages`.

    Raises:
        NodeUnreachableError, NodeRefusedError: the node gives none.
        DeviceError: this machine's device gives none.
    """

    def __init__(self, device: Device, endpoint: Endpoint, dataset: str, shards: int, columns: int) -> None:
        self.endpoint = endpoint
        #: Used before, and not since: the node may have gone meanwhile.
        self.kept = False
        self._pairs: list[QueuePair] = []
        self._stream: Stream | None = None
        try:
            for _ in range(endpoint.access.queue_pairs):
                self._pairs.append(QueuePair(device, answers=False))
            self._stream = Stream(endpoint, queue_pair_request(dataset, [pair.end for pair in self._pairs]))
            ends, self.table = parse_queue_pair_response(self._stream.take(), len(self._pairs), shards, columns)
            for pair, end in zip(self._pairs, ends, strict=True):
                pair.connect(end, endpoint.timeout)
        except BaseException as error:
            self.abandon()
            if isinstance(error, ClusterError):
                error.file = endpoint.name
            raise

    def post(self, reads: Reads) -> tuple[int, ...]:
        """Posts READs, dealt over the queue pairs, which hold back what the device does not take yet; gives what
        `has_done` takes. Raises as `QueuePair.poll` does."""
        for pair, part in zip(self._pairs, reads.dealt(len(self._pairs)), strict=True):
            pair.post(WorkRequestList(part))
        return tuple(pair.posted for pair in self._pairs)

    def poll(self) -> bool:
        """Whether any READs were done since the last call; never waits. Raises as `QueuePair.poll` does: the others
        are of no use then either, and all are to be ended before anything is read again."""
        some = False
        for pair in self._pairs:
            some = pair.poll() or some
        return some

    def has_done(self, posted: tuple[int, ...]) -> bool:
        """Whether all READs are done that were posted when `post` gave this."""
        return all(pair.done >= number for pair, number in zip(self._pairs, posted, strict=True))

    def close(self) -> None:
        """Ends it. Nothing is written any more to where its READs went."""
        for pair in self._pairs:
            pair.close()
        if self._stream is not None:
            self._stream.close()

    def abandon(self) -> None:
        """Ends it, and does not wait for a node that may be gone."""
        if self._stream is not None:
            self._stream.cancel_late()
        self.close()
