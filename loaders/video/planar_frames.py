"""PlanarFrames: a camera of a batch as YUV, until a GPU makes its array.

The memory is copied to the device as a whole: a table of values, a record for each frame of the batch, and the distinct
frames as YUV. Padding has a record only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.buffers import ALIGNMENT, Allocate, BufferPool
from gear_data.collection.output import CHANNELS_FIRST, Output, pixel_values
from gear_data.kernels.cuda.frames import RECORD
from gear_data.video.decoding.yuv import yuv_bytes


@dataclass(frozen=True, eq=False)
class PlanarFrames:
    """A camera of a batch as YUV.

    Attributes:
        output: the camera.
        rows: windows of the batch.
        memory: uint8 [bytes], leased. It begins with the `pixel_values` of a channel if the array has values.
        slots: number of distinct frames.
    """

    output: Output
    rows: int
    memory: npt.NDArray[np.uint8]
    slots: int

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of a frame."""
        return _size(self.output)

    @property
    def slot_bytes(self) -> int:
        """Distance of two frames."""
        return _slot_bytes(self.output)

    @property
    def records_at(self) -> int:
        """The place of the records in `memory`."""
        return _table_bytes(self.output)

    @property
    def planes_at(self) -> int:
        """The place of the frames in `memory`."""
        return self.records_at + _records_bytes(self.output, self.rows)

    @property
    def fill_bits(self) -> int:
        """The bits of a number of padding."""
        dtype = self.output.array_dtype
        return int(np.array(self.output.fill).astype(dtype).view(f"u{dtype.itemsize}"))

    @property
    def records(self) -> npt.NDArray[Any]:
        """`RECORD` [B * width], one for each frame of the batch."""
        return np.ndarray(self.rows * self.output.width, RECORD, self.memory, self.records_at)

    @property
    def planes(self) -> npt.NDArray[np.uint8]:
        """uint8 [slots, slot_bytes], the distinct frames."""
        return np.ndarray((self.slots, self.slot_bytes), np.uint8, self.memory, self.planes_at)


class PlanarPool:
    """Lends memory for a camera as YUV.

    Args:
        output: the camera.
        max_rows: the most windows of a batch.
        reuse, allocate: see `BufferPool`.
    """

    def __init__(self, output: Output, max_rows: int, *, reuse: bool, allocate: Allocate) -> None:
        self._output = output
        frames = max_rows * output.width * _slot_bytes(output)
        size = _table_bytes(output) + _records_bytes(output, max_rows) + frames
        self._pool = BufferPool(size, self._write_table, reuse=reuse, allocate=allocate)

    def _write_table(self, memory: npt.NDArray[np.uint8]) -> None:
        if self._output.camera == CHANNELS_FIRST:
            table = pixel_values(self._output)[0].view(np.uint8)
            memory[: len(table)] = table

    def lease(self, rows: int, slots: int) -> PlanarFrames:
        """Lends memory for the frames of a batch, all of which are padding at first.

        Args:
            rows: windows of the batch.
            slots: distinct frames, at most one for each frame of the batch.
        """
        memory, _ = self._pool.lease()
        frames = PlanarFrames(self._output, rows, memory, slots)
        frames.records["slot"] = -1
        # The unused rest is not copied to the device.
        return PlanarFrames(self._output, rows, memory[: frames.planes_at + slots * frames.slot_bytes], slots)


def _size(output: Output) -> tuple[int, int]:
    height, width = output.shape[1:] if output.camera == CHANNELS_FIRST else output.shape[:2]
    return height, width


def _slot_bytes(output: Output) -> int:
    return -(-yuv_bytes(*_size(output)) // 16) * 16


def _table_bytes(output: Output) -> int:
    # A multiple of `ALIGNMENT` for every dtype.
    return 256 * output.array_dtype.itemsize if output.camera == CHANNELS_FIRST else 0


def _records_bytes(output: Output, rows: int) -> int:
    return -(-rows * output.width * RECORD.itemsize // ALIGNMENT) * ALIGNMENT
