"""Depth: the numbers of a depth video as metres or millimetres, and a target for its frames.

LeRobot 0.6 quantises depth to 12 bits (`quantize_depth` and `dequantize_depth` of `lerobot/datasets/depth_utils.py`,
commit 7427f31). A number has one value, so a table of 4096 values does what LeRobot computes for each pixel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError
from gear_data.schema import ColumnSpec, DepthFormat
from gear_data.video.decoding.decoder import Decoder, Picture
from gear_data.video.decoding.targets import FrameTarget, RgbFrames

#: Different numbers of a pixel: 12 bits.
NUMBERS = 1 << 12
_MILLIMETRES, _MOST_MILLIMETRES = 1000.0, 65535.0


@lru_cache
def depth_values(depth: DepthFormat) -> npt.NDArray[np.float32]:
    """Returns float32 [4096]: the depth of each number, as LeRobot's tensors have it.

    LeRobot computes in float32, in this order. torch's exponential is not always the nearest float32, and NumPy's has
    other errors. So torch computes it if it is installed. Otherwise it is the nearest float32. Then metres in
    logarithmic form differ from LeRobot's for one number in a hundred, by the last bit of the exponential.
    """
    first, last = depth.minimum, depth.maximum
    if depth.logarithmic:
        first, last = math.log(first + depth.shift), math.log(last + depth.shift)
    one = np.float32
    values = np.arange(NUMBERS, dtype=one) * one((last - first) / (NUMBERS - 1)) + one(first)
    if depth.logarithmic:
        values = _exponential(values) - one(depth.shift)
    values = values.clip(one(depth.minimum), one(depth.maximum))
    if depth.unit == "mm":
        values = np.rint(values * one(_MILLIMETRES)).clip(0, one(_MOST_MILLIMETRES))
    values.flags.writeable = False
    return values


def _exponential(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    try:
        import torch
    except ImportError:
        return np.exp(values.astype(np.float64)).astype(np.float32)
    result: npt.NDArray[np.float32] = torch.from_numpy(values).exp().numpy()
    return result


@dataclass(frozen=True, eq=False)
class DepthFrames:
    """Frames as depth. See `FrameTarget`.

    Attributes:
        frames: [m, H, W, 1] or [m, 1, H, W] of the dtype of `values`, C-contiguous.
        height, width: H and W.
        values: [4096], the value of each number.
    """

    frames: npt.NDArray[Any]
    height: int
    width: int
    values: npt.NDArray[Any]

    def check(self, sizes: set[tuple[int, int]]) -> None:
        if not sizes <= {(self.height, self.width)}:
            raise InvalidArgumentError(
                f"an array of {self.height} x {self.width} cannot hold depth of height and width {sorted(sizes)}",
                hint="leave the size out: depth is read as the file has it",
            )

    def write(self, decoder: Decoder, picture: Picture, rows: Sequence[int]) -> None:
        numbers = np.empty((self.height, self.width, 1), np.uint16)
        decoder.write(picture, numbers)
        depth = self.values[np.minimum(numbers, NUMBERS - 1)].reshape(self.frames.shape[1:])
        for row in rows:
            self.frames[row] = depth


def frame_target(camera: ColumnSpec, out: npt.NDArray[Any]) -> FrameTarget:
    """Returns the target of a camera's frames.

    Args:
        camera: the camera.
        out: [m, H, W, 3] of uint8, or of depth [m, H, W, 1] of float32; C-contiguous.
    """
    if camera.depth is None:
        return RgbFrames(out)
    return DepthFrames(out, out.shape[1], out.shape[2], depth_values(camera.depth))
