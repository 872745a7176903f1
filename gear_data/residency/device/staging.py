"""Rows of a batch that no kernel can read where they are, brought to where one can."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gear_data.collection.buffers import ALIGNMENT
from gear_data.common.extras import import_extra
from gear_data.kernels.cuda.launcher import cuda_errors
from gear_data.residency.device.memory import TO_DEVICE, DeviceBuffer, PinnedBuffer
from gear_data.selection.windows import Int64Array

#: Of memory of a GPU that another device writes to: whole pages of the GPU.
_GPU_PAGE = 64 << 10


class StagingBuffer:
    """Memory of this machine, pinned, or of the GPU.

    Args:
        size: bytes.
        on_device: whether it is the GPU's.

    Attributes:
        memory: it.
    """

    def __init__(self, size: int, *, on_device: bool = False) -> None:
        pages = -(-size // _GPU_PAGE) * _GPU_PAGE
        self.memory = DeviceBuffer(pages, _GPU_PAGE) if on_device else PinnedBuffer(size)
        self._used = 0

    def clear(self) -> None:
        """Once no kernel reads them any more."""
        self._used = 0

    def take(self, size: int) -> int:
        """The address of so many bytes, at a multiple of 256."""
        first, self._used = self._used, self._used + -(-size // ALIGNMENT) * ALIGNMENT
        return self.memory.address + first

    def put(self, data: npt.NDArray[np.uint8], sizes: Int64Array, places: Int64Array) -> None:
        """Copies pieces of these sizes, which lie one after another, each to its address here."""
        ends = np.cumsum(sizes)
        begins = np.ones(len(sizes), np.bool_)
        begins[1:] = places[1:] != places[:-1] + sizes[:-1]
        runs = np.flatnonzero(begins)
        firsts, lasts = (ends - sizes)[runs], ends[np.append(runs, len(sizes))[1:] - 1]
        copies = list(
            zip(places[runs].tolist(), (data.ctypes.data + firsts).tolist(), (lasts - firsts).tolist(), strict=True)
        )
        if isinstance(self.memory, PinnedBuffer):
            for target, source, size in copies:
                ctypes.memmove(target, source, size)
            return
        runtime: Any = import_extra("cupy", "gpu").cuda.runtime
        with cuda_errors("copying to the device"):
            # Not later: what it is copied from is used again.
            for target, source, size in copies:
                runtime.memcpy(target, source, size, TO_DEVICE)
            # Of memory that is not pinned a copy may end after the call, and kernels are in a stream that does not wait
            # for this one: "API synchronization behavior" of CUDA's runtime.
            runtime.streamSynchronize(0)


@dataclass(frozen=True)
class StagedRows:
    """Rows of a column for B windows, packed one window after another.

    Attributes:
        column: its place in the schema.
        row_bytes: of a row.
        shard, first, count: int64 [B], of each window its shard, the first row there, and how many.
        place: the address of the first row's place.
    """

    column: int
    row_bytes: int
    shard: Int64Array
    first: Int64Array
    count: Int64Array
    place: int

    @property
    def sizes(self) -> Int64Array:
        """int64 [B]: bytes of each window."""
        return self.count * self.row_bytes

    @property
    def places(self) -> Int64Array:
        """int64 [B]: the address of each window's first row."""
        sizes = self.sizes
        return self.place + np.cumsum(sizes) - sizes


class StagingReader(Protocol):
    """Reads a dataset for kernels that cannot.

    Attributes:
        shard, start, length: int64 [episodes], from the episode table.
        final_rows: see `ShardReader`.
    """

    @property
    def shard(self) -> Int64Array: ...

    @property
    def start(self) -> Int64Array: ...

    @property
    def length(self) -> Int64Array: ...

    @property
    def final_rows(self) -> Int64Array: ...

    def final_values(self, address: int) -> npt.NDArray[Any]:
        """The final observations at an address that `final_address` gave."""

    def stages_on(self, device: int) -> bool:
        """Whether it brings rows to the memory of a CUDA device too."""

    def stage(self, rows: Sequence[StagedRows], stage: StagingBuffer) -> None:
        """Brings rows to their places."""
