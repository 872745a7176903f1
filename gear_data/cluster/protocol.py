"""What nodes say to each other: requests for rows of shards, what a node says of itself, and errors.

A request is int64 words in the machine's order, little-endian on all that are supported:

    groups G, spans N
    G times: columns C, then C places in the schema
    N times: shard
    G times: N first rows, then N numbers of rows

Span i asks, of every group's columns, for so many rows of its shard. The answer is packed: group by group and column by
column the rows of all spans one after another, every part at a multiple of `ALIGNMENT` bytes. Of a column of fixed size
there is one part; of text or bytes there are two: int64 offsets, one more than rows, from 0; and the values.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from gear_data.errors import NodeRefusedError
from gear_data.schema import Schema
from gear_data.selection.windows import Int64Array
from gear_data.storage.manifest import Manifest

#: Of all that is said here. Nodes of other versions refuse each other.
VERSION = 2

#: Of the parts of an answer.
ALIGNMENT = 64

#: Most of a request: larger ones are refused unread.
MAX_SPANS, MAX_COLUMNS = 1 << 16, 1 << 10
#: Most bytes of an answer.
MAX_RESPONSE_BYTES = 1 << 30
#: Bytes of an answer that are sent at once.
MESSAGE_BYTES = 8 << 20

#: Of all that is streamed: bytes.
STREAM_SCHEMA = pa.schema([pa.field("bytes", pa.uint8(), nullable=False)])


@dataclass(frozen=True)
class ColumnGroup:
    """Rows of some columns.

    Attributes:
        columns: their places in the schema.
        first, count: int64 [N], of each span the first row in its shard, and how many.
    """

    columns: tuple[int, ...]
    first: Int64Array
    count: Int64Array


@dataclass(frozen=True)
class Request:
    """Spans of N places in shards.

    Attributes:
        shard: int64 [N].
        groups: what is wanted of each span.
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
        """Raises NodeRefusedError for what is no request, before anything is made of the sizes it claims."""
        if len(data) % 8 or len(data) < 16:
            raise _malformed(f"{len(data)} bytes are no words")
        words = np.frombuffer(data, np.int64)
        groups, spans = int(words[0]), int(words[1])
        if not (1 <= groups <= MAX_COLUMNS and 0 <= spans <= MAX_SPANS):
            raise _malformed(f"{groups} groups of {spans} spans")
        columns, place = [], 2
        for _ in range(groups):
            count = int(words[place]) if place < len(words) else 0
            if not 1 <= count <= MAX_COLUMNS or place + 1 + count > len(words):
                raise _malformed(f"a group of {count} columns")
            columns.append(tuple(words[place + 1 : place + 1 + count].tolist()))
            place += 1 + count
        if sum(map(len, columns)) > MAX_COLUMNS or len(words) != place + spans * (1 + 2 * groups):
            raise _malformed("its length is not that of its spans")
        rows = words[place:].reshape(1 + 2 * groups, spans)
        return Request(
            rows[0], tuple(ColumnGroup(names, rows[1 + 2 * i], rows[2 + 2 * i]) for i, names in enumerate(columns))
        )

    def part_sizes(self, schema: Schema) -> list[int]:
        """Bytes of each part of the answer, of columns of fixed size alone."""
        return [
            int(group.count.sum()) * schema.columns[column].row_bytes
            for group in self.groups
            for column in group.columns
        ]


@dataclass(frozen=True)
class FetchedSpans:
    """What came back for some spans.

    Attributes:
        spans: int64 [n], their numbers in the request.
        parts: as this module says, for these spans alone.
        placed: whether the rows went to the targets that were given; a part that had some is empty then.
    """

    spans: Int64Array
    parts: list[npt.NDArray[np.uint8]]
    placed: bool = False


def _malformed(reason: str) -> NodeRefusedError:
    return NodeRefusedError(f"a malformed request: {reason}")


def part_places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where parts of these sizes begin in an answer, and the bytes of all."""
    places, end = [], 0
    for size in sizes:
        places.append(end)
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return places, end


def dataset_identity(manifest: Manifest) -> str:
    """Names the contents of a dataset and how they are divided into shards. Nodes that do not agree on it must not read
    from each other: what one asks for would be other rows of the other."""
    known = [
        manifest.fingerprint,
        manifest.schema.to_json(),
        manifest.tables["episodes"].checksum,
        [[shard.entry.checksum, shard.steps] for shard in manifest.shards],
    ]
    return str(xxhash.xxh3_128(json.dumps(known).encode()).hexdigest())


def handshake(dataset: str, *, checksum: bool = False) -> bytes:
    """What opens every stream.

    Args:
        dataset: its `dataset_identity`.
        checksum: whether answers are to come with their `checksum`, behind their sizes.
    """
    known = {"version": VERSION, "byteorder": sys.byteorder, "dataset": dataset}
    return json.dumps({**known, "checksum": True} if checksum else known).encode()


def wants_checksum(data: bytes) -> bool:
    """Of an opening that `check_handshake` has let pass."""
    return json.loads(data).get("checksum") is True


def response_checksum(data: npt.NDArray[np.uint8]) -> int:
    """xxh3-64, as an int64."""
    return int(np.uint64(xxhash.xxh3_64_intdigest(data.data)).astype(np.int64))


def check_handshake(data: bytes, dataset: str) -> None:
    """Raises NodeRefusedError for a client of another version or dataset."""
    try:
        found = json.loads(data)
        version, order, name = found["version"], found["byteorder"], found["dataset"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise NodeRefusedError("a malformed opening of a stream") from error
    if version != VERSION or order != sys.byteorder:
        raise NodeRefusedError(
            f"speaks version {VERSION} ({sys.byteorder}-endian), not {str(version)[:20]} ({str(order)[:20]}-endian)",
            hint="use one version of gear-data on all nodes",
        )
    if name != dataset:
        raise NodeRefusedError(
            "serves another dataset, or another conversion of it", hint="restart it with the dataset of the others"
        )


def byte_batch(values: npt.NDArray[np.uint8]) -> pa.RecordBatch:
    """Bytes as they are streamed, without copying."""
    array = pa.Array.from_buffers(pa.uint8(), len(values), [None, pa.py_buffer(values)], null_count=0)
    return pa.RecordBatch.from_arrays([array], schema=STREAM_SCHEMA)
