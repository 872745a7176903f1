"""Packets of video files that other nodes read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from gear_data.cluster.client.shard_client import ShardClient
from gear_data.cluster.protocol import MAX_SPANS, MESSAGE_BYTES
from gear_data.errors import CorruptShardError
from gear_data.video.packet_bytes import ByteRange, PacketBytes

#: Requests at once.
_REQUESTS = 4


class NodePackets:
    """`PacketBytes` of the nodes that serve a dataset. They are sent by Arrow Flight.

    Args:
        client: reads from the nodes.
    """

    def __init__(self, client: ShardClient) -> None:
        self._client = client

    def read(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Returns the bytes of each range.

        Raises:
            NodeUnreachableError, NodeRefusedError, CorruptShardError, DatasetReplacedError: no node returns them.
        """
        pieces = [_pieces(each) for each in ranges]
        groups = list(_groups([piece for of_range in pieces for piece in of_range]))
        with ThreadPoolExecutor(min(_REQUESTS, max(1, len(groups))), "gear-video") as threads:
            answers = threads.map(lambda group: self._client.video_bytes(group, group[0][0]), groups)
            data = iter([part for group, answer in zip(groups, answers, strict=True) for part in _cut(group, answer)])
        found = []
        for of_range in pieces:
            parts = [next(data) for _ in of_range]
            found.append(parts[0] if len(parts) == 1 else memoryview(b"".join(parts)))
        return found


class LocalOrNodePackets:
    """`PacketBytes` of this node's files. Files that are missing here are read from other nodes.

    Args:
        local: reads this node's files.
        nodes: reads from the other nodes.
    """

    def __init__(self, local: PacketBytes, nodes: PacketBytes) -> None:
        self._local, self._nodes = local, nodes

    def read(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Returns the bytes of each range. Raises the errors of `NodePackets.read`."""
        try:
            return self._local.read(ranges)
        except CorruptShardError:
            return self._nodes.read(ranges)


def _pieces(wanted: ByteRange) -> list[ByteRange]:
    """Returns a range in pieces that each fit in a message; one piece for an empty range."""
    file, first, last = wanted
    starts = range(first, max(last, first + 1), MESSAGE_BYTES)
    return [(file, start, min(start + MESSAGE_BYTES, last)) for start in starts]


def _groups(ranges: Sequence[ByteRange]) -> Iterator[list[ByteRange]]:
    """Yields consecutive ranges whose bytes fit in a message."""
    group: list[ByteRange] = []
    size = 0
    for file, first, last in ranges:
        if group and (size + last - first > MESSAGE_BYTES or len(group) == MAX_SPANS):
            yield group
            group, size = [], 0
        group.append((file, first, last))
        size += last - first
    if group:
        yield group


def _cut(group: Sequence[ByteRange], data: bytes) -> Iterator[memoryview]:
    at = 0
    for _, first, last in group:
        yield memoryview(data)[at : at + last - first]
        at += last - first
