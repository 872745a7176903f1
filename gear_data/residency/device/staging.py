"""Staging of rows that no kernel can read in place.

The rows are copied to memory that kernels read.
"""

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

#: Page size of GPU memory to which another device writes.
_GPU_PAGE = 64 << 10


class StagingBuffer:
    """Memory for the staged rows of a batch.

    It is pinned memory of this machine, or memory of the GPU.

    Args:
        size: bytes.
        on_device: whether the memory is the GPU's.

    Attributes:
        memory: the memory.
    """

    def __init__(self, size: int, *, on_device: bool = False) -> None:
        whole_pages = -(-size // _GPU_PAGE) * _GPU_PAGE
        self.memory = DeviceBuffer(whole_pages, _GPU_PAGE) if on_device else PinnedBuffer(size)
        self._used = 0

    def clear(self) -> None:
        """Frees all taken memory. No kernel may read it any more."""
        self._used = 0

    def take(self, size: int) -> int:
        """Returns the address of `size` bytes, a multiple of 256."""
        first, self._used = self._used, self._used + -(-size // ALIGNMENT) * ALIGNMENT
        return self.memory.address + first

    def put(self, data: npt.NDArray[np.uint8], sizes: Int64Array, addresses: Int64Array) -> None:
        """Copies packed pieces of data to their addresses in this buffer.

        Args:
            data: uint8, the pieces one after another.
            sizes: int64 [N], bytes of each piece.
            addresses: int64 [N], the address of each piece.
        """
        ends = np.cumsum(sizes)
        # Pieces whose addresses are contiguous are copied at once.
        begins = np.ones(len(sizes), np.bool_)
        begins[1:] = addresses[1:] != addresses[:-1] + sizes[:-1]
        runs = np.flatnonzero(begins)
        firsts, lasts = (ends - sizes)[runs], ends[np.append(runs, len(sizes))[1:] - 1]
        copies = list(
            zip(addresses[runs].tolist(), (data.ctypes.data + firsts).tolist(), (lasts - firsts).tolist(), strict=True)
        )
        if isinstance(self.memory, PinnedBuffer):
            for target, source, size in copies:
                ctypes.memmove(target, source, size)
            return
        runtime: Any = import_extra("cupy", "gpu").cuda.runtime
        with cuda_errors("copying to the device"):
            # Synchronous copies, because the caller uses the source again.
            for target, source, size in copies:
                runtime.memcpy(target, source, size, TO_DEVICE)
            # A copy from memory that is not pinned may end after the call, and the stream of the kernels does not wait
            # for the default stream: see "API synchronization behavior" of the CUDA runtime.
            runtime.streamSynchronize(0)


@dataclass(frozen=True)
class StagedRows:
    """Rows of one column for B windows, packed window after window.

    Attributes:
        column: the column's index in the schema.
        row_bytes: bytes of a row.
        shard, first, count: int64 [B], each window's shard, its first row there, and its number of rows.
        address: the address for the first window's first row.
    """

    column: int
    row_bytes: int
    shard: Int64Array
    first: Int64Array
    count: Int64Array
    address: int

    @property
    def sizes(self) -> Int64Array:
        """int64 [B], the bytes of each window."""
        return self.count * self.row_bytes

    @property
    def addresses(self) -> Int64Array:
        """int64 [B], the address for each window's first row."""
        sizes = self.sizes
        return self.address + np.cumsum(sizes) - sizes


class StagingReader(Protocol):
    """Reads a dataset for kernels that cannot read its columns in place.

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
        """Returns the final observations at an address that `final_address` returned."""

    def stages_on(self, device: int) -> bool:
        """Returns whether this reader can stage rows in the memory of a CUDA device."""

    def stage(self, rows: Sequence[StagedRows], staging: StagingBuffer) -> None:
        """Copies rows to their addresses in a staging buffer."""
