"""Letterbox: frames that keep their proportions, between black bars.

As `resize_with_pad` of Physical-Intelligence/openpi (commit 15a9616, `openpi_client/image_tools.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from gear_data.kernels import cpu
from gear_data.video.decoding.decoder import Decoder, EncodedPacket, Picture
from gear_data.video.decoding.targets import FrameTarget
from gear_data.video.decoding.yuv import YuvConversion

Pixels = npt.NDArray[np.uint8]


def letterbox(pixels: Pixels, out: Pixels) -> None:
    """Scales an image, bilinearly and with antialiasing, and writes it into the middle of `out`; the rest is black.

    Args:
        pixels: uint8 [H, W, 3], C-contiguous.
        out: uint8 [new H, new W, 3].
    """
    height, width, channels = pixels.shape
    ratio = max(width / out.shape[1], height / out.shape[0])
    # openpi rounds down, also to nothing.
    rows, columns = max(1, int(height / ratio)), max(1, int(width / ratio))
    inner = np.empty((1, 1, 1, rows, columns * channels), np.uint8)
    cpu.images.augment(
        pixels.reshape(1, 1, 1, height, width * channels), channels, np.array([cpu.images.RESIZED_CROP]),
        np.array([[[0.0, 0.0, height, width]]]), np.array([[rows, columns]]), inner,
    )  # fmt: skip
    top, left = (out.shape[0] - rows) // 2, (out.shape[1] - columns) // 2
    out[...] = 0
    out[top : top + rows, left : left + columns] = inner.reshape(rows, columns, channels)


class LetterboxFrames:
    """Receives frames of any size between black bars. See `FrameTarget`.

    Args:
        target: receives them in its size.
    """

    def __init__(self, target: FrameTarget) -> None:
        self._target = target

    def check(self, sizes: set[tuple[int, int]]) -> None:
        pass

    def write(self, decoder: Decoder, picture: Picture, rows: Sequence[int]) -> None:
        self._target.write(_LetterboxDecoder(decoder), picture, rows)


class _LetterboxDecoder:
    """A decoder that writes frames between black bars."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def decode(self, packets: Sequence[EncodedPacket], since: int) -> Iterator[Picture]:
        return self._decoder.decode(packets, since)

    def write(self, picture: Picture, out: Pixels) -> None:
        if out.shape[:2] == (picture.height, picture.width):
            self._decoder.write(picture, out)
            return
        pixels = np.empty((picture.height, picture.width, 3), np.uint8)
        self._decoder.write(picture, pixels)
        letterbox(pixels, out)

    def write_planes(self, picture: Picture, out: Pixels) -> YuvConversion:
        return self._decoder.write_planes(picture, out)
