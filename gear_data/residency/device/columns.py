"""Where a GPU finds the columns of a dataset."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.extras import import_extra
from gear_data.common.fork_lock import fork_safe_lock
from gear_data.errors import DeviceError, HostMemoryError, InvalidArgumentError
from gear_data.kernels.cuda.launcher import cuda_errors
from gear_data.residency.device.memory import PIECE_BYTES, DeviceBuffer, PinnedBuffer, RegisteredMemory, Uploader
from gear_data.residency.plan import TIERS, ResidencyPlan
from gear_data.residency.shards import Shards
from gear_data.schema import Schema
from gear_data.selection.windows import Int64Array
from gear_data.storage.reader import MappedShards, prefetch_pages

_log = logging.getLogger(__name__)
#: Where the columns of an extent begin: at multiples of what a thread loads at once.
_ALIGNMENT = 16
_ON_A_DEVICE = ("pinned", "device", "tiered")


@dataclass(frozen=True, eq=False)
class DeviceColumns:
    """Columns that kernels of this process read in place.

    Attributes:
        shard, first, last: int64 [extents]: rows first to last of a shard, ascending. No episode lies in two of them.
        addresses: int64 [extents, columns], where each column's row `first` is; 0: the device cannot read it there.
        device: the number of the device that has some of it in its own memory; None: any may read it.
        held: what keeps the memory.
        process: whose they are.
    """

    shard: Int64Array
    first: Int64Array
    last: Int64Array
    addresses: Int64Array
    device: int | None
    held: tuple[object, ...]
    process: int

    def overlaid(self, index: int, other: DeviceColumns) -> DeviceColumns:
        """With the one column of others in place of the one at `index`, or behind all."""
        mine = self.addresses
        addresses = np.concatenate([mine[:, :index], other.addresses, mine[:, index + 1 :]], axis=1)
        device = other.device if self.device is None else self.device
        held = (*self.held, *other.held)
        return DeviceColumns(self.shard, self.first, self.last, addresses, device, held, self.process)

    def check_process(self) -> None:
        """Raises DeviceError in a process that was forked off the one they are of."""
        if os.getpid() != self.process:
            raise DeviceError(
                f"the columns are in memory that process {self.process} shares with a GPU; a forked child cannot",
                hint="iterate in that process (the loader makes batches ahead without workers), or spawn instead",
            )


class DeviceCopy:
    """The columns of some shards, brought to where a GPU reads them when they are first asked for.

    Args:
        residency: `pinned`, `device` or `tiered`; with any other nothing is brought.
        schema: all columns of the shards.
        shards: them, in this machine's memory; for `pinned`, all in one mapping.
        steps: of each shard.
        plan: where each part goes; for `tiered`.
    """

    def __init__(
        self, residency: str, schema: Schema, shards: Shards, steps: Int64Array, plan: ResidencyPlan | None = None
    ) -> None:
        self._residency, self._schema, self._shards, self._steps, self._plan = residency, schema, shards, steps, plan
        self._columns: DeviceColumns | None = None
        self._lock = fork_safe_lock()

    def columns(self) -> DeviceColumns:
        """Raises:
        MissingExtraError: CuPy is not installed.
        DeviceError, DeviceMemoryError: there is no GPU, or it has too little memory.
        HostMemoryError: this machine has too little memory.
        """
        with self._lock:
            if self._columns is None:
                self._columns = self._make()
            return self._columns

    def _make(self) -> DeviceColumns:
        if self._residency in _ON_A_DEVICE:
            # Before anything is read: is there one?
            current_device()
        if self._plan is not None:
            return self._placed(self._plan.shard, self._plan.first, self._plan.last, self._tier(self._plan))
        count = len(self._steps)
        whole = np.arange(count), np.zeros(count, np.int64), self._steps
        tier = np.full((count, len(self._schema)), TIERS.index("disk"), np.uint8)
        if self._residency == "pinned" and isinstance(self._shards, MappedShards):
            try:
                memory = RegisteredMemory(self._shards.touch(0))
            except (DeviceError, HostMemoryError) as error:
                # Drivers speak of memory too where pages cannot be pinned for other reasons.
                _log.warning("%s; this process makes a pinned copy of its own", error.message)
            else:
                addresses = np.where(self._shards.addresses, self._shards.addresses + memory.shift, 0)
                return DeviceColumns(*whole, addresses, None, (memory,), os.getpid())
        if self._residency in _ON_A_DEVICE:
            fixed = [not column.variable_length for column in self._schema]
            tier[:, fixed] = TIERS.index(self._residency)
        return self._placed(*whole, tier)

    def _tier(self, plan: ResidencyPlan) -> npt.NDArray[np.uint8]:
        """uint8 [extents, columns]: that of each column here, by its name; what the plan does not know stays."""
        tier = np.full((len(plan.shard), len(self._schema)), TIERS.index("disk"), np.uint8)
        for number, name in enumerate(plan.columns):
            if name in self._schema:
                tier[:, self._schema.index(name)] = plan.tier[:, number]
        return tier

    def _placed(
        self, shard: Int64Array, first: Int64Array, last: Int64Array, tier: npt.NDArray[np.uint8]
    ) -> DeviceColumns:
        """Copies of what goes to a tier other than the disk."""
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
            # Column by column: the extents of one stand together.
            offsets = (np.cumsum(padded.T).reshape(padded.T.shape) - padded.T).T
            total = int(padded.sum())
            if name == "device":
                device = current_device()
                memory: DeviceBuffer | PinnedBuffer = DeviceBuffer(total)
            else:
                memory = PinnedBuffer(total)
            addresses[here] = memory.address + offsets[here]
            held.append(memory)
            parts = zip(*(values.tolist() for values in np.nonzero(here.T)), strict=True)
            rows = list(zip(shard.tolist(), first.tolist(), last.tolist(), strict=True))
            spans = ((column, *rows[extent], int(addresses[extent, column])) for column, extent in parts)
            self._fill(memory, spans)
        return DeviceColumns(shard, first, last, addresses, device, tuple(held), os.getpid())

    def _fill(self, memory: DeviceBuffer | PinnedBuffer, spans: Iterator[tuple[int, int, int, int, int]]) -> None:
        """spans: column, shard, first and last row, address."""
        pieces = (
            (piece, address + first)
            for column, shard, begin, end, address in spans
            for first, piece in _pieces(self._shards.column(shard, column, begin, end))
        )
        if isinstance(memory, PinnedBuffer):
            target = memory.array()
            for piece, address in pieces:
                target[address - memory.address :][: len(piece)] = piece
            return
        sender = Uploader()
        for piece, address in pieces:
            sender.send(piece, address)
        sender.finish()


def _pieces(values: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Where each piece of a contiguous array begins, and its bytes, which the system is asked to read at once."""
    data = values.reshape(-1).view(np.uint8)
    for first in range(0, len(data), PIECE_BYTES):
        piece = data[first : first + PIECE_BYTES]
        prefetch_pages(piece)
        yield first, piece


def find_extents(
    extents: tuple[Int64Array, Int64Array, Int64Array], shard: Int64Array, start: Int64Array, length: Int64Array
) -> Int64Array:
    """int64 [episodes]: the extent that each episode is in.

    Args:
        extents: int64 [extents] each: shard, first and last row, ascending.
        shard, start, length: int64 [episodes]: each episode's shard, the row there of its first step, its steps.

    Raises:
        InvalidArgumentError: one lies in none, or in several: they are of another dataset.
    """
    shards, first, last = extents
    stride = int(max(last.max(), (start + length).max())) + 1
    extent = np.searchsorted(shards * stride + first, shard * stride + start, side="right") - 1
    inside = (extent >= 0) & (shards[extent] == shard) & (start + length <= last[extent])
    if not inside.all():
        raise InvalidArgumentError(
            f"episode {int(np.argmin(inside))} lies in no extent of the plan", hint="make the plan of this dataset"
        )
    return extent.astype(np.int64, copy=False)


class PartialCopy:
    """Of shards of which only some are in this machine's memory; no device can read the others.

    Args:
        copy: of those that are here, each as a whole.
        here: their places among all, ascending.
        steps: int64 [shards], of all.
    """

    def __init__(self, copy: DeviceCopy, here: Sequence[int], steps: Int64Array) -> None:
        self._copy, self._here, self._steps = copy, list(here), steps

    def columns(self) -> DeviceColumns:
        """Raises as `DeviceCopy.columns` does."""
        found, count = self._copy.columns(), len(self._steps)
        addresses = np.zeros((count, found.addresses.shape[1]), np.int64)
        addresses[self._here] = found.addresses
        return replace(
            found, shard=np.arange(count), first=np.zeros(count, np.int64), last=self._steps, addresses=addresses
        )


class OverlayCopy:
    """Of one dataset with one column from elsewhere: see `OverlayShards`."""

    def __init__(self, copy: DeviceCopy | PartialCopy, index: int, other: DeviceCopy | PartialCopy) -> None:
        self._copy, self._index, self._other = copy, index, other

    def columns(self) -> DeviceColumns:
        """Raises as `DeviceCopy.columns` does."""
        return self._copy.columns().overlaid(self._index, self._other.columns())


def current_device() -> int:
    """The number of CUDA's current device.

    Raises:
        MissingExtraError: CuPy is not installed.
        DeviceError: there is none.
    """
    runtime = import_extra("cupy", "gpu").cuda.runtime
    with cuda_errors("the CUDA device"):
        return int(runtime.getDevice())
