"""YUV to values of RGB, channels first, by the arithmetic of `gear_data.video.decoding.yuv`."""

from __future__ import annotations

import numpy as np
from numba import njit

from gear_data.kernels.cpu.native import cached_njit

#: 1 / 8192: `YuvConversion` multiplies by 8 and shifts by 16 bits.
_SHIFT = np.float32(2**-13)
_ZERO, _MIDDLE, _MOST = np.float32(0), np.float32(128), np.float32(255)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _byte(value):  # type: ignore[no-untyped-def]
    value = value if value > _ZERO else _ZERO
    return np.uint8(value if value < _MOST else _MOST)


@cached_njit
def planes_to_values(planes, conversion, table, copied, target):  # type: ignore[no-untyped-def]
    """Converts a frame.

    All products are integers below 2^24, which float32 has exactly. So processors compute several at a time.

    Args:
        planes: uint8 [H * W * 3 / 2], see `gear_data.video.decoding.yuv`. H and W are even.
        conversion: int64 [6], a `YuvConversion`.
        table: [3, 256], the value of each number of a colour.
        copied: whether the values are the numbers.
        target: [3, H, W], of the table's dtype.
    """
    _, height, width = target.shape
    half, size = width // 2, height * width
    of_u, of_v = planes[size : size + size // 4], planes[size + size // 4 :]
    offset, factor = np.float32(conversion[0] // 8), np.float32(conversion[1]) * _SHIFT
    v_red, u_blue = np.float32(conversion[2]) * _SHIFT, np.float32(conversion[3]) * _SHIFT
    u_green, v_green = np.float32(conversion[4]) * _SHIFT, np.float32(conversion[5]) * _SHIFT
    red, green, blue = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(width, np.float32)
    numbers = np.empty((3, width), np.uint8)
    reds, greens, blues = numbers[0], numbers[1], numbers[2]
    for pair in range(height // 2):
        row_u, row_v = of_u[pair * half : (pair + 1) * half], of_v[pair * half : (pair + 1) * half]
        for x in range(half):
            u, v = np.float32(row_u[x]) - _MIDDLE, np.float32(row_v[x]) - _MIDDLE
            red[2 * x] = red[2 * x + 1] = np.floor(v * v_red)
            green[2 * x] = green[2 * x + 1] = np.floor(u * u_green) + np.floor(v * v_green)
            blue[2 * x] = blue[2 * x + 1] = np.floor(u * u_blue)
        for row in range(2 * pair, 2 * pair + 2):
            luma = planes[row * width : (row + 1) * width]
            for x in range(width):
                grey = np.floor((np.float32(luma[x]) - offset) * factor)
                reds[x] = _byte(grey + red[x])
                greens[x] = _byte(grey + green[x])
                blues[x] = _byte(grey + blue[x])
            for color in range(3):
                values, of_color = target[color, row], numbers[color]
                if copied:
                    for x in range(width):
                        values[x] = of_color[x]
                else:
                    for x in range(width):
                        values[x] = table[color, of_color[x]]
