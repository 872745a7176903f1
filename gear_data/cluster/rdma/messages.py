"""Messages that set up queue pairs, sent over an Arrow Flight stream and so behind its token and TLS.

The client opens the stream with the usual handshake (`protocol.handshake`) and lists its queue pairs under
`queue_pairs`. The node answers with three parts:

1. its own ends of the queue pairs, in the same order, as JSON;
2. int64 [served], the shards that it serves;
3. int64 [served, columns, 2, 2], the address and the key of two buffers for each column of each served shard.

A column of fixed size has its rows in the first buffer. A column of text or bytes has its int64 offsets in the first
buffer and its values in the second. (0, 0) stands for a buffer that is missing or empty. The node keeps its ends for
as long as the stream is open.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.cluster.addresses import MOST_QUEUE_PAIRS
from gear_data.cluster.protocol import handshake
from gear_data.cluster.rdma.ports import ETHERNET, INFINIBAND
from gear_data.errors import NodeRefusedError
from gear_data.selection.windows import Int64Array

_KEY = "queue_pairs"
_LARGEST = {"number": 1 << 24, "sequence": 1 << 24, "lid": 1 << 16, "mtu": 6, "reads": 256}
_SMALLEST = {"mtu": 1, "reads": 1}


@dataclass(frozen=True)
class QueuePairEnd:
    """One end of a queue pair, as the other must know it.

    Attributes:
        number, sequence: the queue pair's number and its first packet's.
        link: `Ethernet` or `InfiniBand`.
        lid, gid: of its port; see `Port`.
        mtu: the port's largest packet, as `enum ibv_mtu` counts.
        reads: how many READs it can have under way.
    """

    number: int
    sequence: int
    link: str
    lid: int
    gid: str
    mtu: int
    reads: int

    @staticmethod
    def from_json(found: Any) -> QueuePairEnd:
        """Raises NodeRefusedError for what is none."""
        try:
            end = QueuePairEnd(**found)
            for name, largest in _LARGEST.items():
                value = getattr(end, name)
                if type(value) is not int or not _SMALLEST.get(name, 0) <= value < largest:
                    raise ValueError(name)
            if end.link not in (ETHERNET, INFINIBAND) or not isinstance(end.gid, str):
                raise ValueError("link")
            if ipaddress.IPv6Address(end.gid).scope_id is not None:
                raise ValueError("gid")
        except (ValueError, TypeError) as error:
            raise NodeRefusedError("a malformed end of a queue pair") from error
        return end


def _ends(found: Any) -> tuple[QueuePairEnd, ...]:
    if not isinstance(found, list) or not 1 <= len(found) <= MOST_QUEUE_PAIRS:
        raise NodeRefusedError(f"not 1 to {MOST_QUEUE_PAIRS} ends of queue pairs: malformed")
    return tuple(map(QueuePairEnd.from_json, found))


def queue_pair_request(dataset: str, ends: Sequence[QueuePairEnd]) -> bytes:
    """What opens a stream that holds queue pairs."""
    return json.dumps({**json.loads(handshake(dataset)), _KEY: [asdict(end) for end in ends]}).encode()


def parse_queue_pair_request(command: bytes) -> tuple[QueuePairEnd, ...] | None:
    """The client's ends; None where an opening, which is one, wants no queue pairs. Raises NodeRefusedError."""
    found = json.loads(command)
    return _ends(found[_KEY]) if _KEY in found else None


def queue_pair_response(
    ends: Sequence[QueuePairEnd], shards: Sequence[int], table: Int64Array
) -> list[npt.NDArray[np.uint8]]:
    """The parts of a node's answer: its ends, the shards that it serves, and their table."""
    text = np.frombuffer(json.dumps([asdict(end) for end in ends]).encode(), np.uint8)
    return [text, np.array(shards, np.int64).view(np.uint8), table.reshape(-1).view(np.uint8)]


def parse_queue_pair_response(
    parts: Sequence[npt.NDArray[np.uint8]], pairs: int, shards: int, columns: int
) -> tuple[tuple[QueuePairEnd, ...], Int64Array]:
    """The node's ends, and int64 [shards, columns, 2, 2] of all shards of the dataset; 0, 0 for what it does not serve.

    Args:
        pairs: how many were wanted.

    Raises:
        NodeRefusedError: a malformed answer.
    """
    if len(parts) != 3 or len(parts[1]) % 8 or len(parts[2]) != 4 * columns * len(parts[1]):
        raise NodeRefusedError("a malformed table of columns")
    try:
        ends = _ends(json.loads(parts[0].tobytes()))
    except (ValueError, RecursionError) as error:
        raise NodeRefusedError("a malformed end of a queue pair") from error
    if len(ends) != pairs:
        raise NodeRefusedError(f"{len(ends)} ends of {pairs} queue pairs: malformed")
    served, found = parts[1].view(np.int64), parts[2].view(np.int64).reshape(-1, columns, 2, 2)
    if ((served < 0) | (served >= shards)).any() or (found < 0).any() or (found[..., 1] >= 1 << 32).any():
        raise NodeRefusedError("a table of columns with impossible numbers")
    table = np.zeros((shards, columns, 2, 2), np.int64)
    table[served] = found
    return ends, table
