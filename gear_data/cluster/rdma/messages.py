"""Messages that set up queue pairs.

They are sent over an Arrow Flight stream, and so protected by its token and TLS.

The client opens the stream with the usual handshake (`protocol.handshake`) and lists its queue pairs under
`queue_pairs`. The node answers with four parts:

1. its own ends of the queue pairs, in the same order, as JSON;
2. int64 [served], the shards that it serves;
3. int64 [served, columns, 2, 2], the address and the key of two buffers for each column of each served shard;
4. int64 [videos, 4], the number, address, key and bytes of each video file in its memory, by rising number.

A column of fixed size has its rows in the first buffer. A column of text or bytes has its int64 offsets in the first
buffer and its values in the second. (0, 0) stands for a buffer that is missing or empty. The node keeps its ends for
as long as the stream is open.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from gear_data.cluster.client.options import MAX_QUEUE_PAIRS
from gear_data.cluster.protocol import ONE_VERSION_HINT
from gear_data.common.typed_json import resolved
from gear_data.errors import NodeRefusedError
from gear_data.selection.windows import Int64Array

#: Numbers of a row of the table of video files.
_VIDEO_WORDS = 4
_MAX_INT64 = (1 << 63) - 1
_UInt24 = Annotated[int, Meta(ge=0, lt=1 << 24)]


@resolved
class QueuePairEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One end of a queue pair, as the other end must know it.

    Attributes:
        number, sequence: number of the queue pair, and of its first packet.
        link: kind of network; see `Port`.
        lid, gid: identifiers of its port; see `Port`.
        mtu: largest packet of the port, as `enum ibv_mtu` counts.
        reads: number of READs that it can have in flight.
    """

    number: _UInt24
    sequence: _UInt24
    link: Literal["Ethernet", "InfiniBand"]
    lid: Annotated[int, Meta(ge=0, lt=1 << 16)]
    gid: str
    mtu: Annotated[int, Meta(ge=1, lt=6)]
    reads: Annotated[int, Meta(ge=1, lt=256)]

    def __post_init__(self) -> None:
        # Decoding reports a ValueError of this method as a field of the wrong type.
        if ipaddress.IPv6Address(self.gid).scope_id is not None:
            raise ValueError("the gid must not have a scope")


_QueuePairEnds = Annotated[tuple[QueuePairEnd, ...], Meta(min_length=1, max_length=MAX_QUEUE_PAIRS)]


@resolved
class _QueuePairRequest(msgspec.Struct, frozen=True):
    """Field of a handshake that asks for queue pairs."""

    queue_pairs: _QueuePairEnds | msgspec.UnsetType = msgspec.UNSET


def parse_queue_pair_request(command: bytes) -> tuple[QueuePairEnd, ...] | None:
    """Returns the client's ends.

    Returns None for a handshake that does not ask for queue pairs.

    Raises:
        NodeRefusedError: the ends are malformed.
    """
    try:
        ends = msgspec.json.decode(command, type=_QueuePairRequest).queue_pairs
    except (ValueError, RecursionError) as error:
        raise NodeRefusedError(f"received malformed ends of queue pairs: {error}", hint=ONE_VERSION_HINT) from error
    return None if ends is msgspec.UNSET else ends


def queue_pair_response(
    ends: Sequence[QueuePairEnd], shards: Sequence[int], table: Int64Array, videos: Int64Array
) -> list[npt.NDArray[np.uint8]]:
    """Returns the parts of a node's response.

    They are its ends, the shards that it serves, their table, and the table of video files.
    """
    text = np.frombuffer(msgspec.json.encode(list(ends)), np.uint8)
    return [text, *(part.reshape(-1).view(np.uint8) for part in (np.array(shards, np.int64), table, videos))]


def parse_queue_pair_response(
    parts: Sequence[npt.NDArray[np.uint8]], pairs: int, shards: int, columns: int
) -> tuple[tuple[QueuePairEnd, ...], Int64Array, Int64Array]:
    """Checks a node's response.

    Args:
        parts: the parts of the response.
        pairs: number of queue pairs that were requested.
        shards, columns: number of shards and columns of the dataset.

    Returns:
        The node's ends; the table of all shards, int64 [shards, columns, 2, 2], with (0, 0) for shards that the node
        does not serve; and the table of video files, int64 [videos, 4].

    Raises:
        NodeRefusedError: the response is malformed.
    """
    if len(parts) != 4 or len(parts[1]) % 8 or len(parts[2]) != 4 * columns * len(parts[1]):
        raise NodeRefusedError("sent a malformed table of columns", hint=ONE_VERSION_HINT)
    if len(parts[3]) % (8 * _VIDEO_WORDS):
        raise NodeRefusedError("sent a malformed table of video files", hint=ONE_VERSION_HINT)
    try:
        ends = msgspec.json.decode(parts[0].tobytes(), type=_QueuePairEnds)
    except (ValueError, RecursionError) as error:
        raise NodeRefusedError(f"sent malformed ends of queue pairs: {error}", hint=ONE_VERSION_HINT) from error
    if len(ends) != pairs:
        raise NodeRefusedError(
            f"sent a malformed response: {len(ends)} ends for {pairs} queue pairs", hint=ONE_VERSION_HINT
        )
    served, found = parts[1].view(np.int64), parts[2].view(np.int64).reshape(-1, columns, 2, 2)
    if ((served < 0) | (served >= shards)).any() or (found < 0).any() or (found[..., 1] >= 1 << 32).any():
        raise NodeRefusedError("sent a table of columns with impossible numbers", hint=ONE_VERSION_HINT)
    table = np.zeros((shards, columns, 2, 2), np.int64)
    table[served] = found
    videos = parts[3].view(np.int64).reshape(-1, _VIDEO_WORDS)
    file, address, key, size = videos.T
    if (
        (videos < 0).any() or (np.diff(file) <= 0).any() or (size == 0).any() or (key >= 1 << 32).any()
        or (address > _MAX_INT64 - size).any()
    ):  # fmt: skip
        raise NodeRefusedError("sent a table of video files with impossible numbers", hint=ONE_VERSION_HINT)
    return ends, table, videos
