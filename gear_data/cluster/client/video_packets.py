"""Packets of video files that other nodes read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from gear_data.cluster.client.shard_client import ShardClient
from gear_data.cluster.protocol import MAX_SPANS, MESSAGE_BYTES
from gear_data.errors import CorruptShardError
from gear_data.video.packet_bytes import ByteRange, PacketBytes

#: Requests at once.
_REQUESTS = 4


class NodePackets:
    """`PacketBytes` of the nodes that serve a dataset.

    Files in a node's memory are read by RDMA, if the transport allows it. The others are sent by Arrow Flight. Each of
    those is read from the node that sent bytes of it before. So nodes that hold different files are asked once.

    Args:
        client: reads from the nodes.
    """

    def __init__(self, client: ShardClient) -> None:
        self._client = client
        #: Number of a file -> the number of the node that sent bytes of it.
        self._sources: dict[int, int] = {}

    def read(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Returns the bytes of each range.

        Raises:
            NodeUnreachableError, NodeRefusedError, CorruptShardError, DatasetReplacedError, DeviceError: no node
                returns them.
        """
        pieces = [_pieces(each) for each in ranges]
        wanted = dict.fromkeys(piece for of_range in pieces for piece in of_range)
        data = {piece: memoryview(b"") for piece in wanted if piece[1] == piece[2]}
        data |= self._client.held_videos.read(wanted.keys() - data.keys())
        by_source = defaultdict[int, list[ByteRange]](list)
        for piece in (piece for piece in wanted if piece not in data):
            by_source[self._sources.get(piece[0], piece[0])].append(piece)
        groups = [group for of_source in by_source.values() for group in _groups(of_source)]
        with ThreadPoolExecutor(min(_REQUESTS, max(1, len(groups))), "gear-video") as threads:
            for found in threads.map(self._fetch, groups):
                data.update(found)
        return [
            data[of_range[0]] if len(of_range) == 1 else memoryview(b"".join(data[piece] for piece in of_range))
            for of_range in pieces
        ]

    def _fetch(self, group: Sequence[ByteRange]) -> dict[ByteRange, memoryview]:
        first, files = group[0][0], {file for file, _, _ in group}
        try:
            answer, source = self._client.video_bytes(group, self._sources.get(first, first))
        except CorruptShardError:
            if len(files) == 1:
                raise
            # No node has all the files.
            found: dict[ByteRange, memoryview] = {}
            for file in sorted(files):
                found.update(self._fetch([piece for piece in group if piece[0] == file]))
            return found
        self._sources.update(dict.fromkeys(files, source))
        return dict(zip(group, _cut(group, answer), strict=True))


class LocalOrNodePackets:
    """`PacketBytes` of this node's files.

    Files that are missing here are read from other nodes.

    Args:
        local: reads this node's files.
        nodes: reads from the other nodes.
    """

    def __init__(self, local: PacketBytes, nodes: PacketBytes) -> None:
        self._local, self._nodes = local, nodes
        #: Numbers of the files that are missing here.
        self._missing: set[int] = set()

    def read(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Returns the bytes of each range. Raises the errors of `NodePackets.read`."""
        found: list[memoryview | None] = self._read_local(ranges)
        elsewhere = [number for number, data in enumerate(found) if data is None]
        if elsewhere:
            for number, data in zip(elsewhere, self._nodes.read([ranges[each] for each in elsewhere]), strict=True):
                found[number] = data
        return [data for data in found if data is not None]

    def _read_local(self, ranges: Sequence[ByteRange]) -> list[memoryview | None]:
        """Returns the bytes of each range; None for a file that is missing here."""
        if not any(file in self._missing for file, _, _ in ranges):
            try:
                return [*self._local.read(ranges)]
            except CorruptShardError:
                if len({file for file, _, _ in ranges}) == 1:
                    self._missing.add(ranges[0][0])
                    return [None] * len(ranges)
        found: list[memoryview | None] = [None] * len(ranges)
        for file in {file for file, _, _ in ranges} - self._missing:
            numbers = [number for number, each in enumerate(ranges) if each[0] == file]
            for number, data in zip(numbers, self._read_local([ranges[each] for each in numbers]), strict=True):
                found[number] = data
        return found


def _pieces(wanted: ByteRange) -> list[ByteRange]:
    """Returns a range in pieces that each fit in a message; at least one piece."""
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
