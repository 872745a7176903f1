"""What a node serves: rows of its shards, packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.buffers import BufferPool
from gear_data.cluster.protocol import (
    MAX_ANSWER_BYTES,
    MESSAGE_BYTES,
    Group,
    Request,
    identity,
    part_places,
)
from gear_data.errors import InvalidArgumentError, NodeRefusedError
from gear_data.residency import open_shards
from gear_data.selection.windows import Int64Array
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.variable import checked, value_bytes, value_offsets

_NOT_HERE = -1


@dataclass(frozen=True)
class Answer:
    """What a request got.

    Attributes:
        sizes: int64 [parts], bytes of each.
        data: uint8: the parts, each at a multiple of 64 bytes.
    """

    sizes: Int64Array
    data: npt.NDArray[np.uint8]


class ServedShards:
    """Some shards of a dataset, for other nodes to read from. Safe to use from several threads.

    Args:
        files: the dataset's; of its shards only those that are served need be there.
        shards: their places in the manifest; None: all.
        residency: see `gear_data.open`.

    Raises:
        InvalidArgumentError: no such shard, or none at all.
        whatever opening a dataset raises.
    """

    def __init__(self, files: DatasetFiles, shards: Sequence[int] | None = None, residency: str = "mmap") -> None:
        self.files = files
        self.manifest = files.manifest()
        self.identity = identity(self.manifest)
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
        self._steps = np.array([entry.steps for entry in entries], np.int64)
        self._here = np.full(count, _NOT_HERE, np.int64)
        self._here[list(self.shards)] = np.arange(len(self.shards))
        self._pool = BufferPool(MESSAGE_BYTES, np.zeros(1, np.int64), reuse=True)

    def answer(self, request: Request) -> Answer:
        """The rows that a request asks for.

        Raises:
            NodeRefusedError: a column or shard that is not served, rows that are not there, or too many.
            CorruptShardError: damaged text.
        """
        shards = self._checked(request)
        wanted = np.any([group.count > 0 for group in request.groups], axis=0)
        lease = self._stored.lease(np.unique(shards[wanted]).tolist())
        # Addresses and sizes of the runs of each part, and what must live till they are copied.
        parts: list[tuple[Int64Array, Int64Array]] = []
        held: list[object] = [lease]
        left = MAX_ANSWER_BYTES
        for group in request.groups:
            for column in group.columns:
                spec = self._schema.columns[column]
                if spec.variable_length:
                    arrays = self._variable(shards, group, column, left)
                    held.append(arrays)
                    runs = [_whole(array) for array in arrays]
                else:
                    filled = group.count > 0
                    sources = lease.addresses[shards[filled], column] + group.first[filled] * spec.row_bytes
                    runs = [(sources, group.count[filled] * spec.row_bytes)]
                left -= sum(int(sizes.sum()) for _, sizes in runs)
                parts += runs
        return self._packed(parts, held)

    def _checked(self, request: Request) -> Int64Array:
        """int64 [N]: the place among the served shards of each span's."""
        for group in request.groups:
            for column in group.columns:
                if not 0 <= column < len(self._schema):
                    raise NodeRefusedError(f"there is no column {column}: they are 0 to {len(self._schema) - 1}")
        named = request.shard
        if ((named < 0) | (named >= len(self._here))).any():
            raise NodeRefusedError(f"the shards are 0 to {len(self._here) - 1}")
        shards = self._here[named]
        if (shards == _NOT_HERE).any():
            raise NodeRefusedError(f"shard {int(named[shards == _NOT_HERE][0])} is not served here")
        steps = self._steps[shards]
        total = 0
        for group in request.groups:
            # Not first + count, which may overflow.
            inside = (group.first >= 0) & (group.count >= 0) & (group.first <= steps)
            if not (inside & (group.count <= steps - np.where(inside, group.first, 0))).all():
                raise NodeRefusedError("rows that its shard does not have")
            rows = sum(group.count.tolist())
            fixed = [self._schema.columns[c] for c in group.columns if not self._schema.columns[c].variable_length]
            total += rows * sum(spec.row_bytes for spec in fixed) + 8 * rows * (len(group.columns) - len(fixed))
        if total > MAX_ANSWER_BYTES:
            raise _too_large()
        return shards

    def _variable(
        self, shards: Int64Array, group: Group, column: int, left: int
    ) -> tuple[Int64Array, npt.NDArray[np.uint8]]:
        """Offsets and values of the rows of a column of text or bytes; of at most `left` bytes."""
        spec = self._schema.columns[column]
        arrays = {shard: self._stored.values(shard, column) for shard in np.unique(shards).tolist()}
        slices = []
        for shard, first, count in zip(shards.tolist(), group.first.tolist(), group.count.tolist(), strict=True):
            file = self.manifest.shards[self.shards[shard]].entry.file
            slices.append(checked(arrays[shard].slice(first, count), file=file, column=spec.name))
            left -= slices[-1].nbytes
            if left < 0:
                raise _too_large()
        joined = pa.concat_arrays(slices) if slices else pa.array([], spec.arrow_type)
        places = value_offsets(joined)
        return places - places[0], value_bytes(joined)[int(places[0]) : int(places[-1])]

    def _packed(self, parts: list[tuple[Int64Array, Int64Array]], held: list[object]) -> Answer:
        """The runs of each part one after another; `held` keeps them where they are."""
        from gear_data.kernels.gather import gather

        sizes = [int(lengths.sum()) for _, lengths in parts]
        places, total = part_places(sizes)
        # Memory that is used again is in the cache, and faults no pages in.
        data = self._pool.lease()[0][:total] if total <= MESSAGE_BYTES else np.empty(total, np.uint8)
        for (sources, lengths), place, size, end in zip(parts, places, sizes, [*places[1:], total], strict=True):
            gather(sources, lengths, data.ctypes.data + place)
            # Between the parts would else be what an earlier answer left there.
            data[place + size : end] = 0
        held.clear()
        return Answer(np.array(sizes, np.int64), data)

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


def _whole(array: npt.NDArray[np.generic]) -> tuple[Int64Array, Int64Array]:
    """An array as one run."""
    return np.array([array.ctypes.data], np.int64), np.array([array.nbytes], np.int64)


def _too_large() -> NodeRefusedError:
    return NodeRefusedError(f"asks for more than {MAX_ANSWER_BYTES >> 20:,} MiB at once")
