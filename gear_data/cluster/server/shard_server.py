"""What a node serves: rows of its shards, packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.cluster.protocol import (
    MAX_RESPONSE_BYTES,
    MESSAGE_BYTES,
    ColumnGroup,
    Request,
    dataset_identity,
    part_places,
)
from gear_data.collection.buffers import BufferPool
from gear_data.errors import InvalidArgumentError, NodeRefusedError
from gear_data.residency import open_shards
from gear_data.selection.windows import Int64Array
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.reader import ShardLease
from gear_data.storage.variable import OFFSET_BYTES, validated, value_bytes, value_offsets

_NOT_HERE = -1


@dataclass(frozen=True)
class Response:
    """What a request got.

    Attributes:
        sizes: int64 [parts], bytes of each.
        data: uint8: the parts, each at a multiple of 64 bytes.
    """

    sizes: Int64Array
    data: npt.NDArray[np.uint8]

    @staticmethod
    def of(parts: Sequence[npt.NDArray[np.uint8]]) -> Response:
        places, total = part_places([len(part) for part in parts])
        data = np.zeros(total, np.uint8)
        for place, part in zip(places, parts, strict=True):
            data[place : place + len(part)] = part
        return Response(np.array([len(part) for part in parts], np.int64), data)


class ShardServer:
    """Some shards of a dataset, for other nodes to read from. Safe to use from several threads.

    Args:
        files: the dataset's; of its shards only those that are served need be there.
        shards: their places in the manifest; None: all.
        residency: see `gear_data.open`.

    Attributes:
        in_memory: whether they are in this machine's memory, not in files.

    Raises:
        InvalidArgumentError: no such shard, or none at all.
        whatever opening a dataset raises.
    """

    def __init__(self, files: DatasetFiles, shards: Sequence[int] | None = None, residency: str = "mmap") -> None:
        # Bound here: importing at every request would cost time.
        from gear_data.kernels.cpu.packing import NO_SHARD, check_rows, find_shards, pack_rows

        self._no_shard, self._find_shards, self._check_rows, self._pack_rows = (
            NO_SHARD, find_shards, check_rows, pack_rows,
        )  # fmt: skip
        self.files = files
        self.manifest = files.manifest()
        self.dataset_identity = dataset_identity(self.manifest)
        count = len(self.manifest.shards)
        self.shards = tuple(range(count)) if shards is None else tuple(sorted(set(shards)))
        if not self.shards or not 0 <= self.shards[0] <= self.shards[-1] < count:
            raise InvalidArgumentError(
                f"the shards are 0 to {count - 1}; asked for were {shards}", hint="choose some of those"
            )
        entries = tuple(self.manifest.shards[shard] for shard in self.shards)
        served = {entry.entry.file for entry in entries}
        files.check(self.manifest, frozenset(shard.entry.file for shard in self.manifest.shards) - served)
        self._schema = self.manifest.schema
        self._stored = open_shards(residency, files, self._schema, entries)
        self.in_memory = residency != "mmap"
        self._steps = np.array([entry.steps for entry in entries], np.int64)
        self._here = np.full(count, _NOT_HERE, np.int64)
        self._here[list(self.shards)] = np.arange(len(self.shards))
        # Of text or bytes those of its offsets.
        self._row_bytes = np.array([OFFSET_BYTES if c.variable_length else c.row_bytes for c in self._schema], np.int64)
        self._pool = BufferPool(MESSAGE_BYTES, lambda _: None, reuse=True)
        # A request for nothing, as they come, has all compiled now: the first client would wait for it.
        nothing: Int64Array = np.empty(0, np.int64)
        self.answer(Request.from_bytes(Request(nothing, (ColumnGroup((0,), nothing, nothing),)).to_bytes()))

    def column_memory(self) -> tuple[Int64Array, Int64Array]:
        """int64 [shards, columns, 2] each: the addresses of every column's buffers, and their bytes. A column of fixed
        size has one, with its rows; one of variable length has its offsets in the first and its values in the second.
        Of what is not there both are 0.

        Raises:
            CorruptShardError: damaged offsets of a column of variable length.
        """
        addresses = np.zeros((len(self.shards), len(self._schema), 2), np.int64)
        sizes = np.zeros_like(addresses)
        addresses[..., 0] = self._stored.lease(range(len(self.shards))).addresses
        sizes[..., 0] = self._steps[:, None] * self._row_bytes
        for column in (index for index, spec in enumerate(self._schema) if spec.variable_length):
            for shard in range(len(self.shards)):
                buffers = self._stored.values(shard, column).buffers()[1:]
                addresses[shard, column] = [buffer.address for buffer in buffers]
                sizes[shard, column] = [buffer.size for buffer in buffers]
        return addresses, sizes

    def answer(self, request: Request) -> Response:
        """The rows that a request asks for.

        Raises:
            NodeRefusedError: a column or shard that is not served, rows that are not there, or too many.
            CorruptShardError: damaged text.
        """
        shards = self._checked(request)
        lease = self._lease(shards)
        sizes: list[int] = []
        # Columns of text or bytes: the numbers of their parts, and these.
        variable: list[tuple[int, npt.NDArray[np.generic]]] = []
        left = MAX_RESPONSE_BYTES
        for group in request.groups:
            rows = int(group.count.sum())
            for column in group.columns:
                if not self._schema.columns[column].variable_length:
                    sizes.append(rows * int(self._row_bytes[column]))
                    left -= sizes[-1]
                    continue
                for array in self._variable(shards, group, column, left):
                    variable.append((len(sizes), array))
                    sizes.append(array.nbytes)
                    left -= array.nbytes
        return self._packed(request, shards, lease, sizes, variable)

    def _lease(self, shards: Int64Array) -> ShardLease:
        if self._stored.all_mapped:
            return ShardLease(self._stored.addresses)
        return self._stored.lease(np.unique(shards).tolist())

    def _checked(self, request: Request) -> Int64Array:
        """int64 [N]: the place among the served shards of each span's."""
        for group in request.groups:
            for column in group.columns:
                if not 0 <= column < len(self._schema):
                    raise NodeRefusedError(f"there is no column {column}: they are 0 to {len(self._schema) - 1}")
        shards = np.empty_like(request.shard)
        problem = self._find_shards(request.shard, self._here, shards)
        if problem == self._no_shard:
            raise NodeRefusedError(f"the shards are 0 to {len(self._here) - 1}")
        if problem:
            raise NodeRefusedError(f"shard {int(shards[0])} is not served here")
        total = 0
        for group in request.groups:
            rows = int(self._check_rows(shards, group.first, group.count, self._steps))
            if rows < 0:
                raise NodeRefusedError("rows that its shard does not have")
            total += sum(rows * int(self._row_bytes[column]) for column in group.columns)
        if total > MAX_RESPONSE_BYTES:
            raise _too_large()
        return shards

    def _variable(
        self, shards: Int64Array, group: ColumnGroup, column: int, left: int
    ) -> tuple[Int64Array, npt.NDArray[np.uint8]]:
        """Offsets and values of the rows of a column of text or bytes; of at most `left` bytes."""
        spec = self._schema.columns[column]
        arrays = {shard: self._stored.values(shard, column) for shard in np.unique(shards).tolist()}
        slices = []
        for shard, first, count in zip(shards.tolist(), group.first.tolist(), group.count.tolist(), strict=True):
            file = self.manifest.shards[self.shards[shard]].entry.file
            slices.append(validated(arrays[shard].slice(first, count), file=file, column=spec.name))
            left -= slices[-1].nbytes
            if left < 0:
                raise _too_large()
        joined = pa.concat_arrays(slices) if slices else pa.array([], spec.arrow_type)
        places = value_offsets(joined)
        return places - places[0], value_bytes(joined)[int(places[0]) : int(places[-1])]

    def _packed(
        self,
        request: Request,
        shards: Int64Array,
        lease: ShardLease,
        sizes: list[int],
        variable: list[tuple[int, npt.NDArray[np.generic]]],
    ) -> Response:
        """The parts, of these sizes, one after another."""
        places, total = part_places(sizes)
        # Memory that is used again is in the cache, and faults no pages in.
        data = self._pool.lease()[0][:total] if total <= MESSAGE_BYTES else np.empty(total, np.uint8)
        for place, size, end in zip(places, sizes, [*places[1:], total], strict=True):
            # Between the parts would else be what an earlier answer left there.
            data[place + size : end] = 0
        for number, array in variable:
            data[places[number] : places[number] + sizes[number]] = array.view(np.uint8)
        targets = iter(data.ctypes.data + np.array(places, np.int64))
        for group in request.groups:
            columns, to = [], []
            for column in group.columns:
                target = next(targets)
                if not self._schema.columns[column].variable_length:
                    columns.append(column)
                    to.append(target)
                else:
                    next(targets)  # two parts
            arrays = np.array(columns, np.int64), np.array(to, np.int64)
            self._pack_rows(shards, group.first, group.count, lease.addresses, self._row_bytes, *arrays)
        return Response(np.array(sizes, np.int64), data)

    def file_piece(self, name: str, offset: int) -> bytes:
        """Bytes of the manifest (`manifest`) or of a table's file from an offset on, as many as are sent at once; none
        at its end.

        Raises:
            NodeRefusedError: there is no such file, or no such offset.
        """
        if offset < 0:
            raise NodeRefusedError(f"there is no byte {offset}")
        if name == "manifest":
            return self.manifest.to_text().encode()[offset : offset + MESSAGE_BYTES]
        entry = self.manifest.tables.get(name)
        if entry is None:
            raise NodeRefusedError(f"there is no table {name[:40]!r}")
        with self.files.local(entry) as path, path.open("rb") as file:
            file.seek(min(offset, entry.bytes))
            return file.read(MESSAGE_BYTES)


def _too_large() -> NodeRefusedError:
    return NodeRefusedError(f"asks for more than {MAX_RESPONSE_BYTES >> 20:,} MiB at once")
