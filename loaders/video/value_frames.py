"""ValueFrames: receives frames as numbers of the batch, channels first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.collection.output import Output, pixel_values
from gear_data.errors import InvalidArgumentError
from gear_data.kernels import cpu
from gear_data.schema import DepthFormat
from gear_data.video.decoding.decoder import Decoder, NoPlanesError, Picture
from gear_data.video.decoding.yuv import yuv_bytes
from gear_data.video.depth import DepthFrames, depth_values


class ValueFrames:
    """Receives frames as values [C, H, W] of the batch's dtype. See `FrameTarget`.

    The thread that decodes a frame also converts the frame, while its pixels are in the processor's cache.

    Args:
        output: the camera, with channels first.
        frames: [m, C, H, W] of the batch's dtype, C-contiguous.
    """

    def __init__(self, output: Output, frames: npt.NDArray[Any]) -> None:
        self._channels, self._height, self._width = output.shape
        table = pixel_values(output)
        bits = np.dtype(f"u{table.itemsize}")  # the kernel knows no bfloat16
        self._table = table.view(bits)
        self._copied = output.dtype == "uint8"
        self._values = frames.view(bits)
        # Whether frames may come as YUV: one conversion in place of two, and the same numbers.
        self._planar = self._channels == 3 and self._height % 2 == self._width % 2 == 0

    def check(self, sizes: set[tuple[int, int]]) -> None:
        if not sizes <= {(self._height, self._width)}:
            raise InvalidArgumentError(
                f"an array of {self._height} x {self._width} cannot hold frames of height and width {sorted(sizes)}",
                hint="set a size for all frames",
            )

    def write(self, decoder: Decoder, picture: Picture, rows: Sequence[int]) -> None:
        first, *others = rows
        if not self._write_planes(decoder, picture, self._values[first]):
            pixels = np.empty((self._height, self._width, self._channels), np.uint8)
            decoder.write(picture, pixels)
            place, values = np.zeros(1, np.int64), self._values[first].reshape(1, self._channels, -1)
            cpu.gather.channels_first(pixels.reshape(1, -1, self._channels), place, place, self._table, values)
        for row in others:
            self._values[row] = self._values[first]

    def _write_planes(self, decoder: Decoder, picture: Picture, values: npt.NDArray[Any]) -> bool:
        """Writes a frame from its YUV, and returns True; False: the decoder does not give it."""
        if not self._planar or (picture.height, picture.width) != (self._height, self._width):
            return False
        planes = np.empty(yuv_bytes(self._height, self._width), np.uint8)
        try:
            conversion = decoder.write_planes(picture, planes)
        except NoPlanesError:
            self._planar = False
            return False
        cpu.images.planes_to_values(planes, np.array(conversion), self._table, self._copied, values)
        return True


def depth_frames(output: Output, depth: DepthFormat, size: Sequence[int], frames: npt.NDArray[Any]) -> DepthFrames:
    """Returns the target of a camera's depth.

    Args:
        output: the camera.
        depth: the meaning of its numbers.
        size: (H, W).
        frames: [m, H, W, 1] or [m, 1, H, W] of the batch's dtype, C-contiguous.
    """
    values: npt.NDArray[Any] = depth_values(depth)
    if output.mean is not None and output.scale is not None:
        values = (values - output.mean) * output.scale
    return DepthFrames(frames, size[0], size[1], values.astype(output.dtype).astype(output.array_dtype))
