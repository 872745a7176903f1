"""Places of pixels: rectangles that are cut out and scaled, and rotations."""

from __future__ import annotations

import numpy as np
from numba import njit

from gear_data.kernels.cpu.native import add_blended_4, blend_4

#: Pixels of a plane before an image, and before and behind it together. A rotation sets them to black.
BEFORE, BORDER = 1, 3
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def triangle(size, length):  # type: ignore[no-untyped-def]
    """Returns the filter that scales `size` pixels to `length`: bilinear, and wider if the result is smaller.

    Returns:
        starts: int64 [length], the first pixel for each new one.
        weights: float32 [taps, length], of the pixels from there on; zero for those that do not count; an even number.
    """
    scale = size / length
    support = max(scale, 1.0)
    taps = 2 * int(np.ceil(support))
    starts, weights = np.empty(length, np.int64), np.zeros((taps, length), np.float32)
    for i in range(length):
        center = (i + 0.5) * scale
        start = max(int(center - support + 0.5), 0)
        # A center that is rounded down has one pixel more than taps at times. The weight of the last one is zero.
        end = min(min(int(center + support + 0.5), size), start + taps)
        total = 0.0
        for pixel in range(start, end):
            total += max(0.0, 1 - abs(pixel + 0.5 - center) / support)
        starts[i] = max(0, min(start, size - taps))
        for pixel in range(start, end):
            weights[pixel - starts[i], i] = max(0.0, 1 - abs(pixel + 0.5 - center) / support) / total
    return starts, weights


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _add_rows(row, weight, other, other_weight, first, line):  # type: ignore[no-untyped-def]
    """Adds two rows to a line, times their weights, or sets the line to them if they are the first."""
    if first:
        for x in range(len(row)):
            line[x] = weight * np.float32(row[x]) + other_weight * np.float32(other[x])
    else:
        for x in range(len(row)):
            line[x] += weight * np.float32(row[x]) + other_weight * np.float32(other[x])


@njit(nogil=True)  # type: ignore[untyped-decorator]
def cut_row(image, size, corner, starts, weights, y, line):  # type: ignore[no-untyped-def]
    """Sets a line to row y of a rectangle that is cut out of an image and scaled in height.

    Args:
        image: [height, width * size], with `size` numbers of a pixel.
        corner: the first row, the first column and the width of the rectangle.
        starts, weights: the filter of the height, see `triangle`.
        line: float32 [width * size or more].
    """
    top, left, width = corner
    first, last, begin, end = top + starts[y], len(image) - 1, left * size, (left + width) * size
    for tap in range(0, len(weights), 2):
        row, other = image[min(first + tap, last), begin:end], image[min(first + tap + 1, last), begin:end]
        if tap == 0 or weights[tap, y] != _ZERO or weights[tap + 1, y] != _ZERO:
            _add_rows(row, weights[tap, y], other, weights[tap + 1, y], tap == 0, line)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def scale_line(line, starts, weights, out):  # type: ignore[no-untyped-def]
    """Sets `out` to a line that is scaled in width."""
    for tap in range(0, len(weights), 2):
        one, other = weights[tap], weights[tap + 1]
        if tap == 0:
            for x in range(len(out)):
                at = np.uint64(starts[x])
                out[x] = one[x] * line[at] + other[x] * line[at + np.uint64(1)]
        else:
            for x in range(len(out)):
                at = np.uint64(starts[x] + tap)
                out[x] += one[x] * line[at] + other[x] * line[at + np.uint64(1)]


@njit(nogil=True)  # type: ignore[untyped-decorator]
def scale_rgb(line, starts, weights, pixels):  # type: ignore[no-untyped-def]
    """Sets pixels, float32 [4 * width] with three numbers and an unused one each, to a line that is scaled in width."""
    target, source = pixels.ctypes.data, line.ctypes.data
    for tap in range(0, len(weights), 2):
        one, other = weights[tap], weights[tap + 1]
        if tap == 0:
            for x in range(len(starts)):
                blend_4(target + 16 * x, source + 12 * starts[x], 12, one[x], other[x])
        else:
            for x in range(len(starts)):
                add_blended_4(target + 16 * x, source + 12 * (starts[x] + tap), 12, one[x], other[x])


@njit(nogil=True)  # type: ignore[untyped-decorator]
def split_pixels(pixels, red, green, blue, unused):  # type: ignore[no-untyped-def]
    """Sets channels to the numbers of pixels, see `scale_rgb`.

    A loop that also copies the fourth numbers takes a third of the time: LLVM then loads whole vectors.
    """
    for x in range(len(red)):
        red[x] = pixels[4 * x]
        green[x] = pixels[4 * x + 1]
        blue[x] = pixels[4 * x + 2]
        unused[x] = pixels[4 * x + 3]


@njit(nogil=True)  # type: ignore[untyped-decorator]
def find_places(cosine, sine, y, height, width, stride, places, right, down):  # type: ignore[no-untyped-def]
    """Sets where row y of a rotated image comes from: the last three arguments are those of `blend_places`."""
    middle_x, middle_y = _HALF * np.float32(width - 1), _HALF * np.float32(height - 1)
    end_x, end_y = np.float32(width + 1), np.float32(height + 1)
    below = np.float32(y) - middle_y
    for x in range(width):
        beside = np.float32(x) - middle_x
        # From the pixel before the image. A place beyond the border is as black as the border.
        across = min(max(cosine * beside - sine * below + middle_x + _ONE, _ZERO), end_x)
        along = min(max(sine * beside + cosine * below + middle_y + _ONE, _ZERO), end_y)
        column, row = np.int32(across), np.int32(along)
        right[x], down[x] = across - np.float32(column), along - np.float32(row)
        places[x] = row * stride + column


@njit(nogil=True)  # type: ignore[untyped-decorator]
def blend_places(plane, stride, places, right, down, out):  # type: ignore[no-untyped-def]
    """Sets `out` to values between the pixels of a plane.

    Args:
        plane: float32 [rows * stride].
        stride: the distance of its rows.
        places: int32 [width or more], the upper left one of four pixels.
        right, down: float32 [width or more], the shares of the pixels right of it and below it.
        out: float32 [width].
    """
    for x in range(len(out)):
        above, below = np.uint64(places[x]), np.uint64(places[x] + stride)
        upper = plane[above] + right[x] * (plane[above + np.uint64(1)] - plane[above])
        lower = plane[below] + right[x] * (plane[below + np.uint64(1)] - plane[below])
        out[x] = upper + down[x] * (lower - upper)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def blacken_border(planes, height, width):  # type: ignore[no-untyped-def]
    """Sets the pixels around an image to zero."""
    planes[:, 0] = _ZERO
    planes[:, height + 1 : height + BORDER] = _ZERO
    planes[:, :, 0] = _ZERO
    planes[:, :, width + 1 : width + BORDER] = _ZERO
