"""SpanRead: spans of a request, read from a node's memory.

Columns of text or bytes take two rounds of READs: the values can be read once their offsets have arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gear_data.cluster.protocol import MAX_RESPONSE_BYTES, Request, part_offsets
from gear_data.cluster.rdma.connection import RdmaConnection
from gear_data.cluster.rdma.local_memory import Memory
from gear_data.cluster.rdma.reads.read_context import ReadContext
from gear_data.cluster.rdma.reads.variable_ranges import ValueSpans
from gear_data.cluster.rdma.work_requests import Reads
from gear_data.errors import InvalidArgumentError, NodeRefusedError
from gear_data.selection.windows import Int64Array
from gear_data.storage.variable_columns import OFFSET_BYTES

_NOTHING: npt.NDArray[np.uint8] = np.empty(0, np.uint8)


@dataclass(frozen=True)
class WriteTargets:
    """Memory that rows are written to directly.

    Other rows are packed into a response.

    Attributes:
        memory: memory that holds all targets.
        addresses: for each column of each group int64 [N], the address of the rows of each span; None: packed.
    """

    memory: Memory
    addresses: tuple[Int64Array | None, ...]


class SpanRead:
    """A read of spans that is in progress.

    Args:
        context: see `ReadContext`.
        connection: connection to the node; used for nothing else at the same time.
        request: the whole request.
        spans: int64 [n], positions of the spans in the request.
        targets: see `WriteTargets`.

    Attributes:
        parts: the parts of the response, once `advance` has returned True; see `protocol`. The part of a column with
            targets is empty.

    Raises:
        NodeRefusedError: the node does not hold the shards.
        DeviceError: memory cannot be registered.
    """

    def __init__(
        self,
        context: ReadContext,
        connection: RdmaConnection,
        request: Request,
        spans: Int64Array,
        targets: WriteTargets | None,
    ) -> None:
        self._context, self._connection = context, connection
        self.parts: list[npt.NDArray[np.uint8]] = []
        #: For each column of text or bytes, the position of its offsets among the parts, and its spans. The values are
        #: the next part.
        self._values: list[tuple[int, ValueSpans]] = []
        #: The staging memory of their values.
        self._staged: list[npt.NDArray[np.uint8]] = []
        self._ticket: tuple[int, ...] = ()
        self._reads = self._row_reads(request, spans, targets)

    def _row_reads(self, request: Request, spans: Int64Array, targets: WriteTargets | None) -> Reads:
        """Returns the READs of rows of fixed size, and of offsets."""
        columns, shard = self._context.manifest.schema.columns, request.shard[spans]
        requested = [(group, column) for group in request.groups for column in group.columns]
        addresses = [None] * len(requested) if targets is None else targets.addresses
        sizes = [
            (group.count[spans] + (group.count[spans] > 0)) * OFFSET_BYTES
            if columns[column].variable_length
            else group.count[spans] * columns[column].row_bytes
            for group, column in requested
        ]
        packed = [0 if target is not None else int(size.sum()) for target, size in zip(addresses, sizes, strict=True)]
        starts, total = part_offsets(packed)
        data, key = self._stage(total)
        reads = []
        for (group, column), size, target, start, count in zip(
            requested, sizes, addresses, starts, packed, strict=True
        ):
            base, remote_key = self._connection.table[shard, column, 0].T
            if not base[size > 0].all():
                raise _no_shards()
            part, spec = data[start : start + count], columns[column]
            remote = base + group.first[spans] * (OFFSET_BYTES if spec.variable_length else spec.row_bytes)
            if target is None or targets is None:
                local, local_key = data.ctypes.data + start + np.cumsum(size) - size, key
            else:
                region = self._context.memory.region(targets.memory)
                local, local_key = target[spans] + region.address_offset, region.key
            if spec.variable_length:
                some = size > 0
                known = ValueSpans(column, shard[some], group.count[spans][some], part.view(np.int64))
                self._values.append((len(self.parts), known))
                self.parts += [_NOTHING, _NOTHING]
            else:
                self.parts.append(part)
            reads.append((remote, remote_key, local, np.full(len(size), local_key), size))
        return Reads(*map(np.concatenate, zip(*reads, strict=True))).merged(self._context.max_read_bytes)

    def _stage(self, size: int) -> tuple[npt.NDArray[np.uint8], int]:
        return self._context.memory.stage(size) if size else (_NOTHING, 0)

    def post(self) -> None:
        """Posts the READs that are known by now.

        Raises:
            As `RdmaConnection.post`.
        """
        self._ticket = self._connection.post(self._reads)

    def advance(self) -> bool:
        """Returns whether everything has arrived.

        Posts the READs of values once their offsets are here. Never waits.

        Raises:
            CorruptShardError: offsets are not ascending, or point outside the values.
            InvalidArgumentError: the values have more bytes than one response may have.
            DeviceError: memory cannot be registered.
        """
        if not self._connection.is_done(self._ticket):
            return False
        if self._values and not self._staged:
            self._reads = self._value_reads()
            self.post()
            if not self._connection.is_done(self._ticket):
                return False
        for (part, _), staged in zip(self._values, self._staged, strict=True):
            # Copied: text that the caller keeps must not keep a buffer of the pool.
            self.parts[part + 1] = staged.copy()
        self._staged = []
        return True

    def _value_reads(self) -> Reads:
        """Returns the READs of the values whose offsets have arrived."""
        located = [(known, *known.locate(self._context.manifest)) for _, known in self._values]
        sizes = [int(offsets[-1]) for *_, offsets in located]
        starts, total = part_offsets(sizes)
        if total > MAX_RESPONSE_BYTES:
            raise InvalidArgumentError(
                f"{total:,} bytes of text in one batch are more than the limit of {MAX_RESPONSE_BYTES:,}",
                hint="choose a shorter context, or fewer columns",
            )
        data, key = self._stage(total)
        reads = []
        for (part, _), (known, first, size, offsets), start, end in zip(
            self._values, located, starts, sizes, strict=True
        ):
            self.parts[part] = offsets.view(np.uint8)
            self._staged.append(data[start : start + end])
            base, remote_key = self._connection.table[known.shard, known.column, 1].T
            if not base[size > 0].all():
                raise _no_shards()
            local = data.ctypes.data + start + np.cumsum(size) - size
            reads.append((base + first, remote_key, local, np.full(len(size), key), size))
        return Reads(*map(np.concatenate, zip(*reads, strict=True))).merged(self._context.max_read_bytes)


def _no_shards() -> NodeRefusedError:
    return NodeRefusedError("does not hold these shards any more")
