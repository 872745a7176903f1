"""RdmaConnection: the queue pairs between one thread of a client and a node."""

from __future__ import annotations

import time

from gear_data.cluster.flight.client import Endpoint, Stream
from gear_data.cluster.rdma.device import Device
from gear_data.cluster.rdma.messages import parse_queue_pair_response
from gear_data.cluster.rdma.queue_pair import QueuePair
from gear_data.cluster.rdma.work_requests import Reads, WorkRequestList
from gear_data.errors import ClusterError


class RdmaConnection:
    """Queue pairs to a node, and the stream that keeps them open.

    Used by one thread at a time.

    Args:
        device: this machine's device.
        endpoint: the node; its options set the number of queue pairs.
        dataset: the dataset's `dataset_identity`.
        shards, columns: number of shards and columns of the dataset.
        seconds: time that connecting may take.

    Attributes:
        table: int64 [shards, columns, 2, 2], the columns in the node's memory; see `messages`.
        videos: int64 [videos, 4], the video files in the node's memory; see `messages`.

    Raises:
        NodeUnreachableError, NodeRefusedError: the node grants no queue pairs.
        DeviceError: this machine's device cannot create them.
    """

    def __init__(
        self, device: Device, endpoint: Endpoint, dataset: str, shards: int, columns: int, seconds: float
    ) -> None:
        deadline = time.monotonic() + seconds
        self.endpoint = endpoint
        #: See `client.fetch.Connection`.
        self.was_idle = False
        self._pairs: list[QueuePair] = []
        self._stream: Stream | None = None
        try:
            for _ in range(endpoint.options.queue_pairs):
                self._pairs.append(QueuePair(device, can_be_read=False))
            request = endpoint.handshake(dataset, queue_pairs=[pair.end for pair in self._pairs])
            self._stream = Stream(endpoint, request, seconds)
            response = self._stream.take(max(deadline - time.monotonic(), 1e-3))
            ends, self.table, self.videos = parse_queue_pair_response(response, len(self._pairs), shards, columns)
            for pair, end in zip(self._pairs, ends, strict=True):
                pair.connect(end, endpoint.timeout)
        except BaseException as error:
            self.abandon()
            if isinstance(error, ClusterError):
                error.file = endpoint.name
            raise

    def post(self, reads: Reads) -> tuple[int, ...]:
        """Posts READs, split over the queue pairs.

        Queue pairs hold back READs that the device cannot take yet.

        Returns:
            A ticket for `is_done`.

        Raises:
            As `QueuePair.poll`.
        """
        for pair, part in zip(self._pairs, reads.split(len(self._pairs)), strict=True):
            pair.post(WorkRequestList(part))
        return tuple(pair.posted for pair in self._pairs)

    def poll(self) -> bool:
        """Returns whether any READs completed since the last call. Never waits.

        Raises:
            As `QueuePair.poll`. All queue pairs are unusable then: close the connection before anything is read again.
        """
        some = False
        for pair in self._pairs:
            some = pair.poll() or some
        return some

    def is_done(self, ticket: tuple[int, ...]) -> bool:
        """Returns whether all READs of a `post`, and of those before it, are done."""
        return all(pair.done >= number for pair, number in zip(self._pairs, ticket, strict=True))

    def close(self) -> None:
        """Closes the connection. Its READs write nothing after this call."""
        for pair in self._pairs:
            pair.close()
        if self._stream is not None:
            self._stream.close()

    def abandon(self) -> None:
        """Closes the connection without waiting for the node."""
        if self._stream is not None:
            self._stream.cancel()
        self.close()
