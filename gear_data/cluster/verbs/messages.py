"""What the two ends of a queue pair tell each other, over a stream of Arrow Flight and so behind its token and TLS.

The client opens the stream with what opens every stream (`protocol.opening`) and its own end under `queue_pair`. The
node answers with its end, as JSON, and where its columns are: int64 [shards, columns, 2], address and key, in the order
of the shards that it serves; 0, 0 for columns of variable length. It keeps its end as long as the stream is open.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.cluster.protocol import opening
from gear_data.cluster.verbs.ports import ETHERNET, INFINIBAND
from gear_data.errors import NodeRefusedError
from gear_data.selection.windows import Int64Array

_KEY = "queue_pair"
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
            ipaddress.IPv6Address(end.gid)
        except (ValueError, TypeError) as error:
            raise NodeRefusedError("a malformed end of a queue pair") from error
        return end


def wanting(dataset: str, end: QueuePairEnd) -> bytes:
    """What opens a stream that holds a queue pair."""
    return json.dumps({**json.loads(opening(dataset)), _KEY: asdict(end)}).encode()


def wanted(command: bytes) -> QueuePairEnd | None:
    """The client's end; None where an opening, which is one, wants no queue pair. Raises NodeRefusedError."""
    found = json.loads(command)
    return QueuePairEnd.from_json(found[_KEY]) if _KEY in found else None


def granting(end: QueuePairEnd, shards: Sequence[int], table: Int64Array) -> list[npt.NDArray[np.uint8]]:
    """The parts of a node's answer: its end, the shards that it serves, and their table."""
    text = np.frombuffer(json.dumps(asdict(end)).encode(), np.uint8)
    return [text, np.array(shards, np.int64).view(np.uint8), table.reshape(-1).view(np.uint8)]


def granted(parts: Sequence[npt.NDArray[np.uint8]], shards: int, columns: int) -> tuple[QueuePairEnd, Int64Array]:
    """The node's end, and int64 [shards, columns, 2] of all shards of the dataset; 0, 0 for what it does not serve.

    Raises:
        NodeRefusedError: a malformed answer.
    """
    if len(parts) != 3 or len(parts[1]) % 8 or len(parts[2]) != 2 * columns * len(parts[1]):
        raise NodeRefusedError("a malformed table of columns")
    try:
        end = QueuePairEnd.from_json(json.loads(parts[0].tobytes()))
    except (ValueError, RecursionError) as error:
        raise NodeRefusedError("a malformed end of a queue pair") from error
    served, found = parts[1].view(np.int64), parts[2].view(np.int64).reshape(-1, columns, 2)
    if ((served < 0) | (served >= shards)).any() or (found < 0).any() or (found[..., 1] >= 1 << 32).any():
        raise NodeRefusedError("a table of columns with impossible numbers")
    table = np.zeros((shards, columns, 2), np.int64)
    table[served] = found
    return end, table
