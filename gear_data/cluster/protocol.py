"""Messages between clients and nodes: handshakes, requests, responses.

A request is a sequence of int64 words in the machine's byte order (little-endian on every supported machine):

    groups G, spans N
    G times: columns C, then C positions in the schema
    N times: shard
    G times: N first rows, then N row counts

For each group's columns, span i asks for a range of rows of its shard. The response is packed: group by group and
column by column, the rows of all spans one after another. Every part starts at a multiple of `ALIGNMENT` bytes. A
column of fixed size is one part. A column of text or bytes is two parts: int64 offsets (rows + 1, starting at 0) and
the values.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from gear_data.common.typed_json import resolved
from gear_data.errors import NodeRefusedError
from gear_data.selection.windows import Int64Array

#: Version of this protocol. Nodes of different versions refuse each other.
VERSION = 5

#: Alignment of the parts of a response, in bytes.
ALIGNMENT = 64

#: Largest request. A node refuses a larger one before it reads the rest.
MAX_SPANS, MAX_COLUMNS = 1 << 16, 1 << 10
#: Largest response, in bytes.
MAX_RESPONSE_BYTES = 1 << 30
#: Bytes of a response that are sent in one message.
MESSAGE_BYTES = 8 << 20

#: The header with the client's token: the one that Arrow Flight looks for.
TOKEN_HEADER = b"auth-token-bin"
#: Schema of everything that is streamed: bytes.
STREAM_SCHEMA = pa.schema([pa.field("bytes", pa.uint8(), nullable=False)])

ONE_VERSION_HINT = "use one version of gear-data on all nodes"


@dataclass(frozen=True)
class ColumnGroup:
    """Columns of which the same rows are requested.

    Attributes:
        columns: their positions in the schema.
        first, count: int64 [N], the first row and the number of rows of each span, in its shard.
    """

    columns: tuple[int, ...]
    first: Int64Array
    count: Int64Array


@dataclass(frozen=True)
class Request:
    """Rows of N spans of shards.

    Attributes:
        shard: int64 [N], the shard of each span.
        groups: the columns and rows that are requested of each span.
    """

    shard: Int64Array
    groups: tuple[ColumnGroup, ...]

    def to_bytes(self) -> bytes:
        words = [np.array([len(self.groups), len(self.shard)], np.int64)]
        words += [np.array([len(group.columns), *group.columns], np.int64) for group in self.groups]
        words.append(self.shard)
        words += [values for group in self.groups for values in (group.first, group.count)]
        return np.concatenate(words).tobytes()

    @staticmethod
    def from_bytes(data: bytes | memoryview) -> Request:
        """Parses a request. Sizes are checked before memory is allocated for them.

        Raises:
            NodeRefusedError: the bytes are not a request.
        """
        if len(data) % 8 or len(data) < 16:
            raise _malformed(f"{len(data)} bytes are not whole words")
        words = np.frombuffer(data, np.int64)
        groups, spans = int(words[0]), int(words[1])
        if not (1 <= groups <= MAX_COLUMNS and 0 <= spans <= MAX_SPANS):
            raise _malformed(f"{groups} groups of {spans} spans")
        columns, position = [], 2
        for _ in range(groups):
            count = int(words[position]) if position < len(words) else 0
            if not 1 <= count <= MAX_COLUMNS or position + 1 + count > len(words):
                raise _malformed(f"a group of {count} columns")
            columns.append(tuple(words[position + 1 : position + 1 + count].tolist()))
            position += 1 + count
        if sum(map(len, columns)) > MAX_COLUMNS or len(words) != position + spans * (1 + 2 * groups):
            raise _malformed(f"{len(words)} words do not fit {spans} spans")
        rows = words[position:].reshape(1 + 2 * groups, spans)
        return Request(
            rows[0], tuple(ColumnGroup(names, rows[1 + 2 * i], rows[2 + 2 * i]) for i, names in enumerate(columns))
        )


@dataclass(frozen=True)
class FetchedSpans:
    """The response for some spans of a request.

    Attributes:
        spans: int64 [n], their positions in the request.
        parts: the parts of the response for these spans only; see this module's docstring.
        is_direct: whether rows were written directly to the targets given. The part of a column with a target is then
            empty.
    """

    spans: Int64Array
    parts: list[npt.NDArray[np.uint8]]
    is_direct: bool = False


def _malformed(reason: str) -> NodeRefusedError:
    return NodeRefusedError(f"received a malformed request: {reason}", hint=ONE_VERSION_HINT)


def part_offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Returns the offset of each part in a response, and the total bytes."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return offsets, end


@resolved
class Handshake(msgspec.Struct, frozen=True, omit_defaults=True):
    """First message of every stream and every call. Further fields are allowed.

    Attributes:
        version: `VERSION` of the sender.
        byteorder: `sys.byteorder` of the sender.
        dataset: the dataset's `dataset_identity`; empty for a client that asks what the server has.
        checksum: whether the client asks for a checksum behind the sizes of each response.
        generation: the generation that the client reads; None: the newest one.
        shards: the shards that the client reads from this node of a training run; None: the server's own choice.
    """

    version: int
    byteorder: str
    dataset: str
    checksum: bool = False
    generation: Annotated[int, msgspec.Meta(ge=0)] | None = None
    shards: frozenset[Annotated[int, msgspec.Meta(ge=0)]] | None = None


def handshake(dataset: str, *, checksum: bool = False, **fields: Any) -> bytes:
    """Returns the bytes of a `Handshake`.

    Args:
        dataset: the dataset's `dataset_identity`.
        checksum: see `Handshake`.
        fields: further fields of this message, as JSON values.
    """
    known = msgspec.to_builtins(Handshake(VERSION, sys.byteorder, dataset, checksum))
    return msgspec.json.encode({**known, **fields})


def check_handshake(data: bytes) -> Handshake:
    """Parses a handshake.

    Raises:
        NodeRefusedError: it is malformed, or the sender has another version.
    """
    try:
        message = msgspec.json.decode(data, type=Handshake)
    except (ValueError, RecursionError) as error:
        raise NodeRefusedError("received a malformed handshake", hint=ONE_VERSION_HINT) from error
    if message.version != VERSION or message.byteorder != sys.byteorder:
        raise NodeRefusedError(
            f"speaks protocol version {VERSION} ({sys.byteorder}-endian), not version {message.version} "
            f"({message.byteorder[:20]}-endian)",
            hint=ONE_VERSION_HINT,
        )
    return message


def response_checksum(data: npt.NDArray[np.uint8]) -> int:
    """Returns the xxh3-64 hash of a response, as an int64."""
    return int(np.uint64(xxhash.xxh3_64_intdigest(data.data)).astype(np.int64))


def byte_batch(values: npt.NDArray[np.uint8]) -> pa.RecordBatch:
    """Returns bytes as a record batch of `STREAM_SCHEMA`, without copying them."""
    array = pa.Array.from_buffers(pa.uint8(), len(values), [None, pa.py_buffer(values)], null_count=0)
    return pa.RecordBatch.from_arrays([array], schema=STREAM_SCHEMA)
