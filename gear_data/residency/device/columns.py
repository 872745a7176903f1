"""The columns of a dataset in memory that a GPU reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from gear_data.common.extras import import_extra
from gear_data.common.fork_lock import fork_safe_lock
from gear_data.errors import DeviceError, InvalidArgumentError
from gear_data.kernels.cuda.launcher import cuda_errors
from gear_data.residency.device.memory import PIECE_BYTES, PinnedBuffer, Uploader
from gear_data.residency.device.registration import register
from gear_data.residency.device.shared_device_memory import shared_device_memory
from gear_data.residency.host import Contents
from gear_data.residency.plan import TIERS, ResidencyPlan
from gear_data.residency.shards import Shards
from gear_data.residency.shared_memory import HEADER_BYTES, Segment, write
from gear_data.residency.shared_memory_registry import shared_buffer
from gear_data.schema import Schema
from gear_data.selection.windows import Int64Array
from gear_data.storage.mapped_shards import MappedShards, prefetch_pages

#: Columns of an extent begin at multiples of this, the bytes that a thread loads at once.
_ALIGNMENT = 16
_ON_A_DEVICE = ("pinned", "device", "tiered")
#: Rows that are copied: (column, shard, first row, last row + 1, offset in the memory).
_Span = tuple[int, int, int, int, int]


@dataclass(frozen=True, eq=False)
class DeviceColumns:
    """Columns that kernels of this process read in place.

    An extent is a range of rows of a shard. No episode lies in two extents.

    Attributes:
        shard, first, last: int64 [extents], each extent's shard, first row, and last row + 1; ascending.
        addresses: int64 [extents, columns], the address of each column's row `first`; 0: the device cannot read it.
        device: the number of the device whose memory holds some of the columns; None: any device can read them.
        held: objects that own the memory.
        process: id of the process that the columns belong to.
    """

    shard: Int64Array
    first: Int64Array
    last: Int64Array
    addresses: Int64Array
    device: int | None
    held: tuple[object, ...]
    process: int

    def overlaid(self, index: int, other: DeviceColumns) -> DeviceColumns:
        """Returns these columns with the only column of `other` at `index`.

        The column replaces the one there, or is appended.
        """
        addresses = np.concatenate([self.addresses[:, :index], other.addresses, self.addresses[:, index + 1 :]], axis=1)
        device = other.device if self.device is None else self.device
        held = (*self.held, *other.held)
        return DeviceColumns(self.shard, self.first, self.last, addresses, device, held, self.process)

    def check_process(self) -> None:
        """Checks that this process owns the columns.

        Raises:
            DeviceError: this process was forked from the owner.
        """
        if os.getpid() != self.process:
            raise DeviceError(
                f"process {self.process} shares the columns with a GPU; a forked child cannot read them",
                hint="iterate in that process (the loader prefetches without workers), or use spawn instead of fork",
            )


class ColumnsCopy(Protocol):
    """Columns of shards, copied to memory that a GPU reads at the first use."""

    def columns(self) -> DeviceColumns:
        """Returns the columns: see `DeviceCopy.columns`."""


class DeviceCopy:
    """The columns of some shards, copied to memory that a GPU reads at the first use.

    Args:
        residency: `pinned`, `device` or `tiered`; any other residency copies nothing.
        schema: all columns of the shards.
        shards: the shards, in this machine's memory; for `pinned`, all in one mapping.
        steps: int64 [shards], steps of each shard.
        contents: the shards' contents.
        plan: the tier of each extent's columns, for `tiered`.
    """

    def __init__(
        self,
        residency: str,
        schema: Schema,
        shards: Shards,
        steps: Int64Array,
        contents: Contents,
        plan: ResidencyPlan | None = None,
    ) -> None:
        self._residency, self._schema, self._shards, self._steps, self._plan = residency, schema, shards, steps, plan
        self._contents = contents
        self._columns: DeviceColumns | None = None
        self._lock = fork_safe_lock()

    def columns(self) -> DeviceColumns:
        """Returns the columns. The first call copies or registers them.

        Raises:
            MissingExtraError: CuPy is not installed.
            DeviceError: there is no GPU, or CUDA does not register the memory.
            DeviceMemoryError: the GPU has too little memory.
            HostMemoryError: this machine has too little memory.
        """
        with self._lock:
            if self._columns is None:
                self._columns = self._make()
            return self._columns

    def _make(self) -> DeviceColumns:
        if self._residency in _ON_A_DEVICE:
            # Fails early if there is no GPU.
            current_device()
        if self._plan is not None:
            return self._placed(self._plan.shard, self._plan.first, self._plan.last, self._tier(self._plan))
        count = len(self._steps)
        whole = np.arange(count), np.zeros(count, np.int64), self._steps
        if self._residency == "pinned" and isinstance(self._shards, MappedShards):
            memory = register(self._shards.touch(0)[0])
            if memory is not None:
                addresses = np.where(self._shards.addresses, self._shards.addresses + memory.shift, 0)
                return DeviceColumns(*whole, addresses, None, (memory,), os.getpid())
        tier = np.full((count, len(self._schema)), TIERS.index("disk"), np.uint8)
        if self._residency in _ON_A_DEVICE:
            fixed = [not column.variable_length for column in self._schema]
            tier[:, fixed] = TIERS.index(self._residency)
        return self._placed(*whole, tier)

    def _tier(self, plan: ResidencyPlan) -> npt.NDArray[np.uint8]:
        """Returns the tier of each column, uint8 [extents, columns].

        Columns that are not in the plan stay on disk.
        """
        tier = np.full((len(plan.shard), len(self._schema)), TIERS.index("disk"), np.uint8)
        for number, name in enumerate(plan.columns):
            if name in self._schema:
                tier[:, self._schema.index(name)] = plan.tier[:, number]
        return tier

    def _placed(
        self, shard: Int64Array, first: Int64Array, last: Int64Array, tier: npt.NDArray[np.uint8]
    ) -> DeviceColumns:
        """Copies the columns of all tiers except the disk."""
        addresses = np.zeros(tier.shape, np.int64)
        row_bytes = np.array([0 if c.variable_length else c.row_bytes for c in self._schema], np.int64)
        sizes = (last - first)[:, None] * row_bytes
        held: list[object] = []
        device = None
        for name in ("device", "pinned"):
            here = tier == TIERS.index(name)
            if not here.any():
                continue
            padded = np.where(here, -(-sizes // _ALIGNMENT) * _ALIGNMENT, 0)
            # Column by column, so that the extents of a column are contiguous.
            offsets = (np.cumsum(padded.T).reshape(padded.T.shape) - padded.T).T
            parts = zip(*(values.tolist() for values in np.nonzero(here.T)), strict=True)
            rows = list(zip(shard.tolist(), first.tolist(), last.tolist(), strict=True))
            spans = [(column, *rows[extent], int(offsets[extent, column])) for column, extent in parts]
            total = int(padded.sum())
            if name == "device":
                device = current_device()
                memory, address = self._on_device(total, spans)
            elif self._plan is None:
                memory, address = self._pinned(total, spans)
            else:
                memory, address = self._shared(total, spans)
            addresses[here] = address + offsets[here]
            held.append(memory)
        return DeviceColumns(shard, first, last, addresses, device, tuple(held), os.getpid())

    def _on_device(self, total: int, spans: list[_Span]) -> tuple[object, int]:
        """Copies spans to memory of the device that processes with equal columns share.

        Returns (the memory, its address).
        """

        def fill(address: int) -> None:
            uploader = Uploader(min(PIECE_BYTES, total))
            for offset, piece in self._pieces(spans):
                uploader.send(piece, address + offset)
            uploader.finish()

        memory = shared_device_memory(self._key("device", spans), total, current_device(), fill)
        return memory, memory.address

    def _pinned(self, total: int, spans: list[_Span]) -> tuple[object, int]:
        """Copies spans to this process's pinned memory.

        Returns (the memory, its address).
        """
        memory = PinnedBuffer(total)
        target = memory.array()
        for offset, piece in self._pieces(spans):
            target[offset:][: len(piece)] = piece
        return memory, memory.address

    def _shared(self, total: int, spans: list[_Span]) -> tuple[object, int]:
        """Copies spans to pinned memory that processes with equal plans share.

        Returns (the memory, its address on the device).
        """

        def fill(descriptor: int) -> None:
            for offset, piece in self._pieces(spans):
                write(descriptor, piece.data, HEADER_BYTES + offset)

        key = self._key("tiered", spans)
        buffer = shared_buffer(Segment(key, HEADER_BYTES + total, registrable=True), fill)
        memory = register(buffer)
        if memory is None:
            del buffer
            return self._pinned(total, spans)
        return memory, buffer.address + memory.shift + HEADER_BYTES

    def _key(self, tier: str, spans: list[_Span]) -> str:
        """Returns a key of the bytes of spans, and of their places."""
        digest = xxhash.xxh3_128(self._contents.key().encode())
        digest.update(np.array(spans, np.int64).tobytes())
        return f"{tier}.{digest.hexdigest()}"

    def _pieces(self, spans: list[_Span]) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """Yields (offset, bytes) of the pieces of spans."""
        for column, shard, begin, end, offset in spans:
            for first, piece in _pieces(self._shards.column(shard, column, begin, end)):
                yield offset + first, piece


def _pieces(values: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Yields (first byte, bytes) of each piece of a contiguous array.

    The pages of a piece are prefetched.
    """
    data = values.reshape(-1).view(np.uint8)
    for first in range(0, len(data), PIECE_BYTES):
        piece = data[first : first + PIECE_BYTES]
        prefetch_pages(piece)
        yield first, piece


def find_extents(
    extents: tuple[Int64Array, Int64Array, Int64Array], shard: Int64Array, start: Int64Array, length: Int64Array
) -> Int64Array:
    """Finds the extent of each episode, int64 [episodes].

    Args:
        extents: (shard, first row, last row + 1), int64 [extents] each, ascending.
        shard, start, length: int64 [episodes], each episode's shard, the row there of its first step, and its steps.

    Raises:
        InvalidArgumentError: an episode lies in no extent or in several, so the extents are of another dataset.
    """
    shards, first, last = extents
    stride = int(max(last.max(), (start + length).max())) + 1
    extent = np.searchsorted(shards * stride + first, shard * stride + start, side="right") - 1
    inside = (extent >= 0) & (shards[extent] == shard) & (start + length <= last[extent])
    if not inside.all():
        raise InvalidArgumentError(
            f"episode {int(np.argmin(inside))} lies in no extent of the plan",
            hint="plan with this dataset's residency_plan",
        )
    return extent.astype(np.int64, copy=False)


class PartialCopy:
    """The columns of shards of which only some are in this machine's memory.

    No device can read the others.

    Args:
        copy: the columns of the shards that are here, each as a whole.
        here: the indices of these shards among all, ascending.
        steps: int64 [shards], steps of every shard.
    """

    def __init__(self, copy: ColumnsCopy, here: Sequence[int], steps: Int64Array) -> None:
        self._copy, self._here, self._steps = copy, list(here), steps

    def columns(self) -> DeviceColumns:
        """See `DeviceCopy.columns`."""
        columns, count = self._copy.columns(), len(self._steps)
        addresses = np.zeros((count, columns.addresses.shape[1]), np.int64)
        addresses[self._here] = columns.addresses
        return replace(
            columns, shard=np.arange(count), first=np.zeros(count, np.int64), last=self._steps, addresses=addresses
        )


class OverlayCopy:
    """The columns of an `OverlayShards`: one column comes from other shards."""

    def __init__(self, copy: ColumnsCopy, index: int, other: ColumnsCopy) -> None:
        self._copy, self._index, self._other = copy, index, other

    def columns(self) -> DeviceColumns:
        """See `DeviceCopy.columns`."""
        return self._copy.columns().overlaid(self._index, self._other.columns())


def current_device() -> int:
    """Returns the number of CUDA's current device.

    Raises:
        MissingExtraError: CuPy is not installed.
        DeviceError: there is no device.
    """
    runtime = import_extra("cupy", "gpu").cuda.runtime
    with cuda_errors("the CUDA device"):
        return int(runtime.getDevice())
