"""YUV frames of 8 bits, and the arithmetic by which they become RGB.

A frame has H x W pixels, both even. It is H * W numbers of luma, then H * W / 4 of u, then as many of v. This is half
the bytes of RGB. FFmpeg's scaler converts them with rounded integers, so others can compute the same RGB.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

#: FFmpeg's names of the pixel formats of such frames. The second one has numbers of the full range.
PIXEL_FORMATS = ("yuv420p", "yuvj420p")
#: AVCOL_RANGE_JPEG: luma goes from 0 to 255, not from 16 to 235.
_FULL_RANGE = 2
#: AVCOL_SPC_* -> libswscale's factors of v in red, u in blue, u in green, v in green, in 1 / 65536.
_BT_601 = 104597, 132201, -25675, -53279
_FACTORS = {
    1: (117489, 138438, -13975, -34925),  # BT.709
    2: _BT_601,  # unspecified
    4: (104448, 132798, -24759, -53109),  # FCC
    5: _BT_601,
    6: _BT_601,
    7: (117579, 136230, -16907, -35559),  # SMPTE 240M
    9: (110013, 140363, -12277, -42626),  # BT.2020
}


class YuvConversion(NamedTuple):
    """The integers by which numbers y, u, v become RGB.

    First, Y = (8 * y - luma_offset) * luma >> 16, U = 8 * u - 1024 and V = 8 * v - 1024. Each u and v belongs to 2 x 2
    pixels. Then all colours are limited to 0 to 255:

        red = Y + (V * v_red >> 16)
        green = Y + (U * u_green >> 16) + (V * v_green >> 16)
        blue = Y + (U * u_blue >> 16)
    """

    luma_offset: int
    luma: int
    v_red: int
    u_blue: int
    u_green: int
    v_green: int


def yuv_bytes(height: int, width: int) -> int:
    """Returns the bytes of a frame."""
    return height * width * 3 // 2


def yuv_conversion(pixel_format: str, color_space: int, color_range: int) -> YuvConversion | None:
    """Returns the integers of a frame's conversion.

    Returns None if the frame is not YUV as this module describes it, or the colours are unknown to it.

    Args:
        pixel_format: FFmpeg's name.
        color_space, color_range: AVCOL_SPC_* and AVCOL_RANGE_* of the frame.
    """
    if pixel_format not in PIXEL_FORMATS or color_space not in _FACTORS:
        return None
    factors: tuple[int, ...] = _FACTORS[color_space]
    if color_range == _FULL_RANGE or pixel_format == "yuvj420p":
        luma_offset, luma = 0, 1 << 16
        factors = tuple(int(each * 224 / 255) for each in factors)
    else:
        luma_offset, luma = 8 * 16, (1 << 16) * 255 // 219
    v_red, u_blue, u_green, v_green = (each * 8192 + 32768 >> 16 for each in factors)
    return YuvConversion(luma_offset, luma * 8192 + 32768 >> 16, v_red, u_blue, u_green, v_green)


def to_rgb(planes: npt.NDArray[np.uint8], height: int, width: int, conversion: YuvConversion) -> npt.NDArray[np.uint8]:
    """Converts a frame, as FFmpeg's scaler does.

    Args:
        planes: uint8 [bytes], see `yuv_bytes`.
        height, width: of the frame.
        conversion: the integers.

    Returns:
        uint8 [H, W, 3].
    """
    size = height * width
    luma = 8 * planes[:size].reshape(height, width).astype(np.int32)
    luma = (luma - conversion.luma_offset) * conversion.luma >> 16
    chroma = 8 * planes[size:].reshape(2, height // 2, width // 2).astype(np.int32) - 1024
    u, v = chroma.repeat(2, axis=1).repeat(2, axis=2)
    red = luma + (v * conversion.v_red >> 16)
    green = luma + (u * conversion.u_green >> 16) + (v * conversion.v_green >> 16)
    blue = luma + (u * conversion.u_blue >> 16)
    rgb: npt.NDArray[np.uint8] = np.stack([red, green, blue], axis=-1).clip(0, 255).astype(np.uint8)
    return rgb
