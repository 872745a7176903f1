"""ShardServer: answers requests for rows of a node's shards with packed rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.cluster.protocol import (
    MAX_RESPONSE_BYTES,
    MESSAGE_BYTES,
    ColumnGroup,
    Request,
    part_offsets,
)
from gear_data.cluster.server.video_memory import VideoMemory, load_videos
from gear_data.collection.buffers import BufferPool
from gear_data.errors import CorruptShardError, GearError, InvalidArgumentError, NodeRefusedError, refuse_exhausted
from gear_data.kernels import cpu
from gear_data.residency import open_shards
from gear_data.selection.windows import Int64Array
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.identity import dataset_identity
from gear_data.storage.manifest import files_elsewhere
from gear_data.storage.mapped_shards import ShardLease
from gear_data.storage.variable_columns import OFFSET_BYTES, validated, value_bytes, value_offsets
from gear_data.storage.videos.stored_packets import read_video_index, stored_packets
from gear_data.video.index_tables import VideoIndex
from gear_data.video.packet_bytes import ByteRange, PacketBytes

_NOT_SERVED = -1


@dataclass(frozen=True)
class Response:
    """Response to a request.

    Attributes:
        sizes: int64 [parts], bytes of each part.
        data: uint8, the parts, each at a multiple of `protocol.ALIGNMENT` bytes.
    """

    sizes: Int64Array
    data: npt.NDArray[np.uint8]

    @staticmethod
    def of(parts: Sequence[npt.NDArray[np.uint8]]) -> Response:
        """Packs parts."""
        offsets, total = part_offsets([len(part) for part in parts])
        data = np.zeros(total, np.uint8)
        for offset, part in zip(offsets, parts, strict=True):
            data[offset : offset + len(part)] = part
        return Response(np.array([len(part) for part in parts], np.int64), data)


@dataclass(frozen=True)
class _VariablePart:
    """A part of a column of text or bytes: its position and its data."""

    position: int
    data: npt.NDArray[np.generic]


class ShardServer:
    """Some shards of a dataset, for other nodes to read. Thread-safe.

    Args:
        files: files of the dataset. Only the served shards must exist.
        shards: positions of the served shards in the manifest; None: all.
        residency: see `open_shards`.

    Attributes:
        files: see above.
        manifest: the dataset's manifest.
        identity: the dataset's `dataset_identity`.
        shards: positions of the served shards, ascending.
        in_memory: whether the shards are in this machine's memory, not in files.

    Raises:
        InvalidArgumentError: a shard does not exist, or the list is empty.
        GearError: the dataset cannot be opened.
    """

    def __init__(self, files: DatasetFiles, shards: Sequence[int] | None = None, residency: str = "mmap") -> None:
        # Loads the kernels here, so that no request waits for Numba.
        self._kernels = cpu.remote_rows
        self.files = files
        self.manifest = files.manifest()
        self.identity = dataset_identity(self.manifest)
        count = len(self.manifest.shards)
        self.shards = tuple(range(count)) if shards is None else tuple(sorted(set(shards)))
        if not self.shards or not 0 <= self.shards[0] <= self.shards[-1] < count:
            raise InvalidArgumentError(
                f"the shards are 0 to {count - 1}; {list(shards or [])} were requested", hint="choose some of those"
            )
        entries = tuple(self.manifest.shards[shard] for shard in self.shards)
        files.check(self.manifest, files_elsewhere(self.manifest, self.shards))
        self._schema = self.manifest.schema
        self._stored = open_shards(residency, files, self._schema, entries, grows=self.manifest.growth is not None)
        self.in_memory = residency != "mmap"
        self._steps = np.array([entry.steps for entry in entries], np.int64)
        #: int64 [all shards], the index of each shard among the served ones.
        self._index = np.full(count, _NOT_SERVED, np.int64)
        self._index[list(self.shards)] = np.arange(len(self.shards))
        #: Bytes of a row of each column; for text and bytes, the bytes of an offset.
        self._row_bytes = np.array([OFFSET_BYTES if c.variable_length else c.row_bytes for c in self._schema], np.int64)
        self._pool = BufferPool(MESSAGE_BYTES, lambda _: None, reuse=True)
        # An empty request, parsed as a client's would be, compiles the kernels now: the first client does not wait.
        nothing: Int64Array = np.empty(0, np.int64)
        self.answer(Request.from_bytes(Request(nothing, (ColumnGroup((0,), nothing, nothing),)).to_bytes()))

    def column_memory(self) -> tuple[Int64Array, Int64Array]:
        """Returns the addresses and sizes of all buffers.

        Both are int64 [shards, columns, 2].

        A column of fixed size has one buffer, its rows. A column of variable length has two: its offsets and its
        values. Address and size of a missing buffer are 0.

        Raises:
            CorruptShardError: offsets of a column of variable length are damaged.
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

    def load_videos(self) -> VideoMemory:
        """Copies the video files of the served shards to shared memory; see `video_memory.load_videos`."""
        return load_videos(self.files, self.manifest, self._videos[0], self.shards)

    def answer(self, request: Request) -> Response:
        """Returns the rows of a request.

        Raises:
            NodeRefusedError: a column, shard or row does not exist or is not served, or the response is too large.
            CorruptShardError: text is damaged, or a shard was truncated.
            DatasetReplacedError: the shards are files that were replaced before they were first read.
        """
        shards = self._check(request)
        lease = self._lease(shards)
        sizes: list[int] = []
        variable: list[_VariablePart] = []
        left = MAX_RESPONSE_BYTES
        for group in request.groups:
            rows = int(group.count.sum())
            for column in group.columns:
                if not self._schema.columns[column].variable_length:
                    sizes.append(rows * int(self._row_bytes[column]))
                    left -= sizes[-1]
                    continue
                for array in self._variable(shards, group, column, left):
                    variable.append(_VariablePart(len(sizes), array))
                    sizes.append(array.nbytes)
                    left -= array.nbytes
        return self._pack(request, shards, lease, sizes, variable)

    def _lease(self, shards: Int64Array) -> ShardLease:
        self._stored.check()
        if self._stored.all_mapped:
            return ShardLease(self._stored.addresses)
        return self._stored.lease(np.unique(shards).tolist())

    def _check(self, request: Request) -> Int64Array:
        """Checks a request, and returns the index of each span's shard.

        The result is int64 [N], indices among the served shards.

        Raises:
            NodeRefusedError: see `answer`.
        """
        for group in request.groups:
            for column in group.columns:
                if not 0 <= column < len(self._schema):
                    raise NodeRefusedError(f"has no column {column}; the columns are 0 to {len(self._schema) - 1}")
        shards = np.empty_like(request.shard)
        problem = self._kernels.find_shards(request.shard, self._index, shards)
        if problem == self._kernels.NO_SHARD:
            raise NodeRefusedError(
                f"received a request for an unknown shard; the shards are 0 to {len(self._index) - 1}"
            )
        if problem:
            raise NodeRefusedError(f"does not serve shard {int(shards[0])}")
        total = 0
        for group in request.groups:
            rows = int(self._kernels.check_rows(shards, group.first, group.count, self._steps))
            if rows < 0:
                raise NodeRefusedError("received a request for rows that the shard does not have")
            total += sum(rows * int(self._row_bytes[column]) for column in group.columns)
        if total > MAX_RESPONSE_BYTES:
            raise _too_large()
        return shards

    def _variable(
        self, shards: Int64Array, group: ColumnGroup, column: int, limit: int
    ) -> tuple[Int64Array, npt.NDArray[np.uint8]]:
        """Returns offsets and values of rows of a column of text or bytes.

        Both together have at most `limit` bytes.
        """
        spec = self._schema.columns[column]
        arrays = {shard: self._stored.values(shard, column) for shard in np.unique(shards).tolist()}
        slices = []
        for shard, first, count in zip(shards.tolist(), group.first.tolist(), group.count.tolist(), strict=True):
            file = self.manifest.shards[self.shards[shard]].entry.file
            slices.append(validated(arrays[shard].slice(first, count), file=file, column=spec.name))
            limit -= slices[-1].nbytes
            if limit < 0:
                raise _too_large()
        joined = pa.concat_arrays(slices) if slices else pa.array([], spec.arrow_type)
        offsets = value_offsets(joined)
        return offsets - offsets[0], value_bytes(joined)[int(offsets[0]) : int(offsets[-1])]

    def _pack(
        self,
        request: Request,
        shards: Int64Array,
        lease: ShardLease,
        sizes: list[int],
        variable: list[_VariablePart],
    ) -> Response:
        """Packs the parts, of these sizes, into a response."""
        offsets, total = part_offsets(sizes)
        # Reused memory is in the cache, and causes no page faults.
        data = self._pool.lease()[0][:total] if total <= MESSAGE_BYTES else np.empty(total, np.uint8)
        for offset, size, end in zip(offsets, sizes, [*offsets[1:], total], strict=True):
            # The padding between the parts must not hold bytes of an earlier response.
            data[offset + size : end] = 0
        for part in variable:
            first = offsets[part.position]
            data[first : first + sizes[part.position]] = part.data.view(np.uint8)
        targets = iter(data.ctypes.data + np.array(offsets, np.int64))
        for group in request.groups:
            columns, addresses = [], []
            for column in group.columns:
                address = next(targets)
                if not self._schema.columns[column].variable_length:
                    columns.append(column)
                    addresses.append(address)
                else:
                    next(targets)  # such a column has two parts
            arrays = np.array(columns, np.int64), np.array(addresses, np.int64)
            self._kernels.pack_rows(shards, group.first, group.count, lease.addresses, self._row_bytes, *arrays)
        return Response(np.array(sizes, np.int64), data)

    def file_chunk(self, name: str, offset: int) -> bytes:
        """Returns a chunk of the manifest or of a table's file.

        A chunk is at most one message; it is empty at the end of the file.

        Args:
            name: `manifest`, or the name of a table.
            offset: first byte of the chunk.

        Raises:
            NodeRefusedError: there is no such table, or the offset is negative.
            CorruptShardError: the table is missing or truncated, or cannot be read.
            OpenFilesError: the server can open no further file.
            DatasetReplacedError: the dataset was replaced.
        """
        if offset < 0:
            raise NodeRefusedError(f"received a request for byte {offset} of {name[:40]!r}; offsets start at 0")
        if name == "manifest":
            return self.manifest.to_text().encode()[offset : offset + MESSAGE_BYTES]
        entry = self.manifest.tables.get(name)
        if entry is None:
            raise NodeRefusedError(f"has no table {name[:40]!r}; the tables are {', '.join(self.manifest.tables)}")
        try:
            with self.files.local(entry) as path, path.open("rb") as file:
                file.seek(min(offset, entry.bytes))
                return file.read(MESSAGE_BYTES)
        except GearError:  # some are OSErrors
            raise
        except OSError as error:
            refuse_exhausted(error, self.files.name(entry))
            raise CorruptShardError(
                f"table {name!r} cannot be read: {error}", hint="restore it on that node"
            ) from error

    def video_bytes(self, ranges: Sequence[ByteRange]) -> bytes:
        """Returns ranges of bytes of the dataset's video files, one after another.

        Args:
            ranges: the number of a file, the first byte, and the byte after the last.

        Raises:
            NodeRefusedError: there is no such file or range, or all ranges have more bytes than a message.
            CorruptShardError: a file is missing or truncated, or a table of the videos is damaged.
            RemoteError: a file at a URL cannot be fetched.
            DatasetReplacedError: the dataset was replaced.
        """
        index, packets = self._videos
        for file, first, last in ranges:
            if not 0 <= file < len(index):
                raise NodeRefusedError(f"has no video file {file}; it has {len(index)}")
            if not 0 <= first <= last <= index.listed(file).size:
                raise NodeRefusedError(f"has no bytes {first} to {last} of video file {file}")
        if sum(last - first for _, first, last in ranges) > MESSAGE_BYTES:
            raise NodeRefusedError(f"received a request for more than {MESSAGE_BYTES >> 20} MiB of videos at once")
        return b"".join(packets.read(ranges))

    @cached_property
    def _videos(self) -> tuple[VideoIndex, PacketBytes]:
        """The index of the video files, and what reads them."""
        index = read_video_index(self.files, self.manifest)
        return index, stored_packets(self.files, index)


def _too_large() -> NodeRefusedError:
    return NodeRefusedError(
        f"received a request for more than {MAX_RESPONSE_BYTES >> 20:,} MiB at once", hint="request fewer rows"
    )
