"""Frames through their operations, row by row."""

from __future__ import annotations

import numpy as np
from numba import njit

from gear_data.kernels.cpu.images.colours import add_gray, saturate, scale_values, turn_hues
from gear_data.kernels.cpu.images.geometry import (
    BEFORE,
    BORDER,
    blacken_border,
    blend_places,
    cut_row,
    find_places,
    scale_line,
    scale_rgb,
    split_pixels,
    triangle,
)
from gear_data.kernels.cpu.native import cached_njit

#: Operations, and their numbers.
RESIZED_CROP = 0  # top, left, height, width: a rectangle of the image, scaled to the size of the result
ROTATION = 1  # cosine and sine of an angle, counterclockwise
BRIGHTNESS = 2  # factor of the values
CONTRAST = 3  # factor of the distances from the mean of the gray image
SATURATION = 4  # factor of the distances from the gray image
HUE = 5  # turns of the colour circle
#: The most numbers of an operation.
NUMBERS = 4

_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _load(line, size, channel, out):  # type: ignore[no-untyped-def]
    """Sets `out` to one channel of a line of uint8."""
    if size == 1:
        for x in range(len(out)):
            out[x] = np.float32(line[x])
    else:
        for x in range(len(out)):
            out[x] = np.float32(line[x * size + channel])


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _load_rgb(line, red, green, blue):  # type: ignore[no-untyped-def]
    for x in range(len(red)):
        red[x] = np.float32(line[3 * x])
        green[x] = np.float32(line[3 * x + 1])
        blue[x] = np.float32(line[3 * x + 2])


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _rounded(value):  # type: ignore[no-untyped-def]
    return np.uint8(np.int32(value + _HALF))


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _store(values, size, channel, line):  # type: ignore[no-untyped-def]
    """Rounds one channel of a line."""
    if size == 1:
        for x in range(len(values)):
            line[x] = _rounded(values[x])
    else:
        for x in range(len(values)):
            line[x * size + channel] = _rounded(values[x])


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _store_rgb(red, green, blue, line):  # type: ignore[no-untyped-def]
    for x in range(len(red)):
        line[3 * x] = _rounded(red[x])
        line[3 * x + 1] = _rounded(green[x])
        line[3 * x + 2] = _rounded(blue[x])


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _pixels(planes, channel, y, width):  # type: ignore[no-untyped-def]
    """Returns a row of a channel, float32 [width]."""
    return planes[channel, BEFORE + y, BEFORE : BEFORE + width]


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _pass_end(kinds, first, has_mean):  # type: ignore[no-untyped-def]
    """Returns the operation before which a pass over the rows ends, from its first change of colour.

    A contrast needs the mean of all rows, so the pass before it ends there.
    """
    end = first
    while end < len(kinds) and kinds[end] >= BRIGHTNESS and (kinds[end] != CONTRAST or (end == first and has_mean)):
        end += 1
    return end


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _augment_frame(source, size, kinds, numbers, sizes, planes, out):  # type: ignore[no-untyped-def]
    """Applies operations to a frame, in as few passes over its rows as their order allows.

    Args:
        source, size, kinds, sizes: see `augment`; `source` is one frame.
        numbers: float64 [operations, NUMBERS].
        planes: float32 [2, channels, rows, stride], overwritten: an image, and the next one.
        out: uint8 [parts, new height, new width * size].
    """
    channels, stride = planes.shape[1], planes.shape[3]
    height, width = source.shape[1], source.shape[2] // size
    # A filter of few pixels reads beyond them, with weight zero.
    line = np.zeros(2 * max(source.shape[2], stride) + 2 * size, np.float32)
    sums, right, down = np.empty(stride, np.float32), np.empty(stride, np.float32), np.empty(stride, np.float32)
    places, mixed = np.empty(stride, np.int32), np.empty(4 * stride, np.float32)
    corner, (starts_y, weights_y), (starts_x, weights_x) = (0, 0, width), triangle(1, 1), triangle(1, 1)
    current, loaded, done, mean = 0, False, 0, _ZERO
    while done < len(kinds):
        # A pass makes the pixels of a new image, or takes them as they are. Then it changes their colours.
        cuts = kinds[done] == RESIZED_CROP and (loaded or size in (1, 3))
        turns = kinds[done] == ROTATION and loaded
        keeps = loaded and not cuts and not turns
        if cuts:
            place = numbers[done].astype(np.int64)
            before = BEFORE if loaded else 0
            corner = (place[0] + before, place[1] + before, place[3])
            height, width = sizes[done, 0], sizes[done, 1]
            starts_y, weights_y = triangle(place[2], height)
            starts_x, weights_x = triangle(place[3], width)
        elif turns:
            blacken_border(planes[current], height, width)
        first = done + int(cuts or turns)
        end = _pass_end(kinds, first, keeps)
        averages, stores = end < len(kinds) and kinds[end] == CONTRAST, end == len(kinds)
        image, target = planes[current], planes[current if keeps else 1 - current]
        cosine, sine = np.float32(numbers[done, 0]), np.float32(numbers[done, 1])
        sums[:] = _ZERO
        for y in range(height):
            # Rows that no later pass reads take turns in one place, which stays in the cache.
            at = 0 if stores and not keeps else y
            if cuts and not loaded and size == 3:
                cut_row(source[0], size, corner, starts_y, weights_y, y, line)
                scale_rgb(line, starts_x, weights_x, mixed)
                rows = _pixels(target, 0, at, width), _pixels(target, 1, at, width), _pixels(target, 2, at, width)
                split_pixels(mixed, rows[0], rows[1], rows[2], right)
            elif cuts:
                for channel in range(channels):
                    if loaded:
                        cut_row(image[channel], 1, corner, starts_y, weights_y, y, line)
                    else:
                        cut_row(source[channel], 1, corner, starts_y, weights_y, y, line)
                    scale_line(line, starts_x, weights_x, _pixels(target, channel, at, width))
            elif turns:
                find_places(cosine, sine, y, height, width, stride, places, right, down)
                for channel in range(channels):
                    plane = image[channel].reshape(-1)
                    blend_places(plane, stride, places, right, down, _pixels(target, channel, at, width))
            elif not loaded and size == 3:
                rows = _pixels(target, 0, at, width), _pixels(target, 1, at, width), _pixels(target, 2, at, width)
                _load_rgb(source[0, y], rows[0], rows[1], rows[2])
            elif not loaded:
                for channel in range(channels):
                    row = _pixels(target, channel, at, width)
                    _load(source[channel // size, y], size, channel % size, row)
            if end > first or averages:
                red, green = _pixels(target, 0, at, width), _pixels(target, 1, at, width)
                blue = _pixels(target, 2, at, width)
                for k in range(first, end):
                    factor = np.float32(numbers[k, 0])
                    if kinds[k] == SATURATION:
                        saturate(red, green, blue, factor)
                    elif kinds[k] == HUE:
                        turn_hues(red, green, blue, factor)
                    else:
                        offset = (_ONE - factor) * mean if kinds[k] == CONTRAST else _ZERO
                        scale_values(red, factor, offset)
                        scale_values(green, factor, offset)
                        scale_values(blue, factor, offset)
                if averages:
                    add_gray(red, green, blue, sums)
            if stores and size == 3:
                rows = _pixels(target, 0, at, width), _pixels(target, 1, at, width), _pixels(target, 2, at, width)
                _store_rgb(rows[0], rows[1], rows[2], out[0, y])
            elif stores:
                for channel in range(channels):
                    row = _pixels(target, channel, at, width)
                    _store(row, size, channel % size, out[channel // size, y])
        if averages:
            total = 0.0
            for x in range(width):
                total += sums[x]
            mean = np.float32(total / (height * width))
        current, loaded, done = current if keeps else 1 - current, True, end


@cached_njit
def augment(images, size, kinds, numbers, sizes, out):  # type: ignore[no-untyped-def]
    """Applies operations to images. All images of a row have the same.

    Args:
        images: uint8 [B, n, parts, height, width * size]: channels in `parts` planes, or together in each pixel.
        size: numbers of a pixel in a part. One of `parts` and `size` is one. Changes of colour need three channels.
        kinds: int64 [operations], the constants of this module, in the order in which they are applied.
        numbers: float64 [B, operations, NUMBERS], as the constants say.
        sizes: int64 [operations, 2], height and width of the images after each operation.
        out: uint8 [B, n, parts, new height, new width * size].
    """
    height, width = images.shape[3], images.shape[4] // size
    for k in range(len(kinds)):
        height, width = max(height, sizes[k, 0]), max(width, sizes[k, 1])
    planes = np.zeros((2, images.shape[2] * size, height + BORDER, width + BORDER), np.float32)
    for row in range(images.shape[0]):
        for image in range(images.shape[1]):
            _augment_frame(images[row, image], size, kinds, numbers[row], sizes, planes, out[row, image])
