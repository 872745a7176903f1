"""FrameTarget: the memory that receives decoded frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gear_data.errors import InvalidArgumentError
from gear_data.video.decoding.decoder import Decoder, Picture
from gear_data.video.decoding.yuv import yuv_bytes


class FrameTarget(Protocol):
    """Receives decoded frames. Threads write different rows at a time."""

    def check(self, sizes: set[tuple[int, int]]) -> None:
        """Checks that the memory can hold frames of some heights and widths.

        Raises:
            InvalidArgumentError: it cannot.
        """

    def write(self, decoder: Decoder, picture: Picture, rows: Sequence[int]) -> None:
        """Writes a frame to some rows, at least one."""


@dataclass(frozen=True, eq=False)
class RgbFrames:
    """Frames as RGB.

    Attributes:
        frames: uint8 [m, H, W, 3], C-contiguous.
    """

    frames: npt.NDArray[np.uint8]

    def check(self, sizes: set[tuple[int, int]]) -> None:
        out = self.frames
        shapes = {(len(out), *size, 3) for size in sizes}
        if out.dtype != np.uint8 or not out.flags.c_contiguous or not shapes <= {out.shape}:
            raise InvalidArgumentError(
                f"an array of {out.dtype} {out.shape} cannot hold frames of height and width {sorted(sizes)}",
                hint="pass a C-contiguous array of uint8 [n, height, width, 3], or set a size for all frames",
            )

    def write(self, decoder: Decoder, picture: Picture, rows: Sequence[int]) -> None:
        first, *others = rows
        decoder.write(picture, self.frames[first])
        for row in others:
            self.frames[row] = self.frames[first]


@dataclass(frozen=True, eq=False)
class YuvFrames:
    """Frames as YUV: see `gear_data.video.decoding.yuv`.

    A row may be longer than a frame.

    Attributes:
        planes: uint8 [m, bytes].
        conversions: int32 [m, 6], receives the `YuvConversion` of each frame.
    """

    planes: npt.NDArray[np.uint8]
    conversions: npt.NDArray[np.int32]

    def check(self, sizes: set[tuple[int, int]]) -> None:
        odd = [size for size in sizes if size[0] % 2 or size[1] % 2 or yuv_bytes(*size) > self.planes.shape[1]]
        if odd or len(sizes) > 1:
            raise InvalidArgumentError(
                f"rows of {self.planes.shape[1]} bytes cannot hold YUV of height and width {sorted(sizes)}",
                hint="pass rows of height * width * 3 / 2 bytes, for frames of one even height and width",
            )

    def write(self, decoder: Decoder, picture: Picture, rows: Sequence[int]) -> None:
        first, *others = rows
        used = self.planes[first, : yuv_bytes(picture.height, picture.width)]
        self.conversions[first] = decoder.write_planes(picture, used)
        for row in others:
            self.planes[row], self.conversions[row] = self.planes[first], self.conversions[first]
