"""Launches of `frames.cu`: YUV frames to the arrays of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gear_data.kernels.cuda.launch_arguments import BLOCK, Launcher

#: How a frame of the batch is made: the place of its YUV among the given frames, or -1 for padding; and the integers of
#: `YuvConversion`. This is `Record` of `frames.cu`.
RECORD = np.dtype([("slot", np.int32), ("conversion", np.int32, 6), ("unused", np.int32)])
#: Bytes of a value -> the kernel.
_WITH_TABLE = {2: "gear_frames_2", 4: "gear_frames_4", 8: "gear_frames_8"}
#: Groups of 4 pixels that a thread converts at a time.
_GROUPS = 4


@dataclass(frozen=True)
class FrameArguments:
    """Frames to convert. Addresses are on the device.

    Attributes:
        planes: address of the frames as YUV, a multiple of 4.
        slot_bytes: distance of two of them, a multiple of 4.
        records: address of `RECORD` [frames], a multiple of 16.
        frames: number of frames of the batch.
        height, width: of a frame, even.
        fill: the bits of a number of padding.
    """

    planes: int
    slot_bytes: int
    records: int
    frames: int
    height: int
    width: int
    fill: int


def convert_frames(
    launcher: Launcher, target: int, frames: FrameArguments, table: int | None = None, itemsize: int = 1
) -> None:
    """Converts frames.

    Args:
        launcher: starts the kernel.
        target: address, a multiple of 16: uint8 [frames, H, W, 3], or with a table [frames, 3, H, W].
        frames: the frames.
        table: address of [256] values, one for each number; None: none.
        itemsize: bytes of a value: 2, 4 or 8.
    """
    work = (
        frames.fill, frames.planes, frames.records, frames.frames, frames.height, frames.width, frames.slot_bytes
    )  # fmt: skip
    pieces = frames.frames * -(-frames.height * frames.width // (4 * _GROUPS * BLOCK))
    if not pieces:
        return
    blocks = min(pieces, launcher.blocks)
    if table is None:
        launcher.launch("gear_frames", blocks, BLOCK, target, *work)
    else:
        launcher.launch(_WITH_TABLE[itemsize], blocks, BLOCK, target, table, *work)
