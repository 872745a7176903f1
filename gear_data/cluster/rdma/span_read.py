"""A piece of a request, read from a node's memory.

It takes two rounds where there is text: a value's place is known when its offsets have come.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gear_data.cluster.protocol import MAX_RESPONSE_BYTES, Request, part_places
from gear_data.cluster.rdma.connection import RdmaConnection
from gear_data.cluster.rdma.local_memory import LocalMemory, Memory
from gear_data.cluster.rdma.values import ValueSpans
from gear_data.cluster.rdma.work import Reads
from gear_data.errors import InvalidArgumentError, NodeRefusedError
from gear_data.selection.windows import Int64Array
from gear_data.storage.manifest import Manifest
from gear_data.storage.variable import OFFSET_BYTES

_NOTHING: npt.NDArray[np.uint8] = np.empty(0, np.uint8)


@dataclass(frozen=True)
class WriteTargets:
    """Where rows are to go, in place of being packed.

    Attributes:
        memory: that they go to.
        places: of each column of each group int64 [N], the address that the rows of each span go to; None: packed.
    """

    memory: Memory
    places: tuple[Int64Array | None, ...]


@dataclass(frozen=True)
class ReadContext:
    """What is read from, and to.

    Attributes:
        manifest: of the dataset.
        memory: that READs write to.
        largest: bytes of a READ at most.
    """

    manifest: Manifest
    memory: LocalMemory
    largest: int


class SpanRead:
    """What is being read of a request.

    Args:
        link: to the node; for nothing else at the same time.
        spans: int64 [n], which of the request's.
        targets: see `WriteTargets`.

    Attributes:
        parts: when all has come those of the answer (see `protocol`); empty where `targets` say where the rows are.

    Raises:
        NodeRefusedError: the node does not hold them.
        DeviceError: memory cannot be registered.
    """

    def __init__(
        self,
        source: ReadContext,
        link: RdmaConnection,
        request: Request,
        spans: Int64Array,
        targets: WriteTargets | None,
    ) -> None:
        self._source, self._link = source, link
        self.parts: list[npt.NDArray[np.uint8]] = []
        #: Columns of text or bytes: the place of the offsets among the parts, behind which the values are, and these.
        self._values: list[tuple[int, ValueSpans]] = []
        #: Where their values go.
        self._staged: list[npt.NDArray[np.uint8]] = []
        self._posted: tuple[int, ...] = ()
        self._reads = self._rows(request, spans, targets)

    def _rows(self, request: Request, spans: Int64Array, targets: WriteTargets | None) -> Reads:
        """The READs of rows of fixed size, and of offsets."""
        columns, shard = self._source.manifest.schema.columns, request.shard[spans]
        wanted = [(group, column) for group in request.groups for column in group.columns]
        places = [None] * len(wanted) if targets is None else targets.places
        sizes = [
            (group.count[spans] + (group.count[spans] > 0)) * OFFSET_BYTES
            if columns[column].variable_length
            else group.count[spans] * columns[column].row_bytes
            for group, column in wanted
        ]
        packed = [0 if place is not None else int(size.sum()) for place, size in zip(places, sizes, strict=True)]
        starts, total = part_places(packed)
        data, key = self._stage(total)
        found = []
        for (group, column), size, place, start, count in zip(wanted, sizes, places, starts, packed, strict=True):
            base, remote_key = self._link.table[shard, column, 0].T
            if not base[size > 0].all():
                raise NodeRefusedError("does not hold these shards any more")
            part, spec = data[start : start + count], columns[column]
            remote = base + group.first[spans] * (OFFSET_BYTES if spec.variable_length else spec.row_bytes)
            if place is None or targets is None:
                local, local_key = data.ctypes.data + start + np.cumsum(size) - size, key
            else:
                region = self._source.memory.region(targets.memory)
                local, local_key = place[spans] + region.shift, region.key
            if spec.variable_length:
                some = size > 0
                known = ValueSpans(column, shard[some], group.count[spans][some], part.view(np.int64))
                self._values.append((len(self.parts), known))
                self.parts += [_NOTHING, _NOTHING]
            else:
                self.parts.append(part)
            found.append((remote, remote_key, local, np.full(len(size), local_key), size))
        return Reads(*map(np.concatenate, zip(*found, strict=True))).merged(self._source.largest)

    def _stage(self, size: int) -> tuple[npt.NDArray[np.uint8], int]:
        return self._source.memory.stage(size) if size else (_NOTHING, 0)

    def post(self) -> None:
        """Posts what is known to be read. Raises as `RdmaConnection.post` does."""
        self._posted = self._link.post(self._reads)

    def advance(self) -> bool:
        """Whether all has come; what can be read only now is posted. Never waits.

        Raises:
            CorruptShardError: offsets that are not in order, or leave the values.
            InvalidArgumentError: values of more bytes than are read at once.
            DeviceError: memory cannot be registered.
        """
        if not self._link.has_done(self._posted):
            return False
        if self._values and not self._staged:
            self._reads = self._value_reads()
            self.post()
            if not self._link.has_done(self._posted):
                return False
        for (part, _), staged in zip(self._values, self._staged, strict=True):
            # Whoever keeps text must not keep a buffer of the pool.
            self.parts[part + 1] = staged.copy()
        self._staged = []
        return True

    def _value_reads(self) -> Reads:
        """The READs of the values whose offsets have come."""
        places = [(known, *known.places(self._source.manifest)) for _, known in self._values]
        sizes = [int(offsets[-1]) for *_, offsets in places]
        starts, total = part_places(sizes)
        if total > MAX_RESPONSE_BYTES:
            raise InvalidArgumentError(
                f"{total:,} bytes of text at once are more than a node is asked for",
                hint="choose a shorter context, or fewer columns",
            )
        data, key = self._stage(total)
        found = []
        for (part, _), (known, first, size, offsets), start, end in zip(
            self._values, places, starts, sizes, strict=True
        ):
            self.parts[part] = offsets.view(np.uint8)
            self._staged.append(data[start : start + end])
            base, remote_key = self._link.table[known.shard, known.column, 1].T
            if not base[size > 0].all():
                raise NodeRefusedError("does not hold these shards any more")
            local = data.ctypes.data + start + np.cumsum(size) - size
            found.append((base + first, remote_key, local, np.full(len(size), key), size))
        return Reads(*map(np.concatenate, zip(*found, strict=True))).merged(self._source.largest)
