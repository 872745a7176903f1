"""Gathering: copies scattered runs of bytes into contiguous memory."""

from __future__ import annotations

import numpy as np
from numba import njit

from gear_data.kernels.cpu.native import cached_njit, memcpy, memset, move_4, move_8, move_16, prefetch

#: A row of more bytes is copied by `memcpy`.
_LARGE_ROW = 256


@cached_njit
def gather(sources, sizes, target):  # type: ignore[no-untyped-def]
    """Copies runs of bytes one after another. The caller guarantees the addresses.

    Args:
        sources, sizes: int64 [N], the address and the bytes of each run.
        target: the address of the first copied run.
    """
    for i in range(len(sources)):
        # Runs are scattered: without prefetching, each begins with a wait for memory.
        if i + 4 < len(sources):
            for line in range(min((sizes[i + 4] + 63) // 64, 16)):
                prefetch(sources[i + 4] + 64 * line)
        memcpy(target, sources[i], np.uint64(sizes[i]))
        target += sizes[i]


#: A part of an array that is joined from several arrays of one buffer.
JOIN_PART = np.dtype(
    [
        ("source", np.int64),  # first byte of the part's array in the buffer
        ("size", np.int64),  # bytes of a step that are copied
        ("stride", np.int64),  # bytes of a step of the part
        ("target", np.int64),  # first byte of the part's first step in the joined array
        ("width", np.int64),  # bytes of a step of the joined array
        ("steps", np.int64),  # steps of a row
        ("zeros", np.int64),  # bytes of a step behind the part that are zero
    ]
)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _copy_step(target, source, size):  # type: ignore[no-untyped-def]
    """Copies a step of `size` bytes."""
    # Steps are small: a call of `memcpy` costs more than the copy. The last move may copy bytes twice.
    if size > _LARGE_ROW:
        memcpy(target, source, np.uint64(size))
    elif size >= 16:
        for at in range(0, size - 16, 16):
            move_16(target + at, source + at)
        move_16(target + size - 16, source + size - 16)
    elif size >= 8:
        move_8(target, source)
        move_8(target + size - 8, source + size - 8)
    elif size >= 4:
        move_4(target, source)
        move_4(target + size - 4, source + size - 4)
    else:
        memcpy(target, source, np.uint64(size))


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _copy_steps(target, width, source, stride, size, steps):  # type: ignore[no-untyped-def]
    """Copies `size` bytes of every `stride` bytes to every `width` bytes."""
    for _ in range(steps):
        _copy_step(target, source, size)
        source += stride
        target += width


@cached_njit
def join(memory, parts, rows, count):  # type: ignore[no-untyped-def]
    """Copies parts into the arrays that they make, side by side.

    Args:
        memory: the address of the buffer.
        parts: JOIN_PART [n].
        rows: int64 [B], the rows to copy; empty: the rows 0 to count - 1.
        count: number of rows.
    """
    for k in range(len(parts)):
        part = parts[k]
        size, stride, width, steps, zeros = part.size, part.stride, part.width, part.steps, part.zeros
        runs, run = (len(rows), steps) if len(rows) else (1, count * steps)
        for i in range(runs):
            first = rows[i] * steps if len(rows) else 0
            target = memory + part.target + first * width
            _copy_steps(target, width, memory + part.source + first * stride, stride, size, run)
            if zeros:
                for step in range(run):
                    memset(target + step * width + size, np.int32(0), np.uint64(zeros))


#: An array of listed steps of another array in the same buffer.
TAKE = np.dtype(
    [
        ("source", np.int64),  # first byte of the other array
        ("target", np.int64),  # first byte of the array
        ("size", np.int64),  # bytes of a step
        ("width", np.int64),  # steps of a row of the other array
        ("steps", np.int64),  # steps of a row of the array
    ]
)


@cached_njit
def take_steps(memory, takes, places, rows, count):  # type: ignore[no-untyped-def]
    """Copies listed steps into their arrays.

    Args:
        memory: the address of the buffer.
        takes: TAKE [k].
        places: int64, the listed steps of all arrays, one array after another.
        rows: int64 [B], the rows to copy; empty: the rows 0 to count - 1.
        count: number of rows.
    """
    first = 0
    for k in range(len(takes)):
        take = takes[k]
        size, width, steps = take.size, take.width, take.steps
        for i in range(count):
            row = rows[i] if len(rows) else i
            source = memory + take.source + row * width * size
            target = memory + take.target + row * steps * size
            for step in range(steps):
                _copy_step(target, source + places[first + step] * size, size)
                target += size
        first += steps


@cached_njit
def interpolate_steps(source, valid, places, weights, target):  # type: ignore[no-untyped-def]
    """Fills steps between listed steps and the steps after them: low + weight * (high - low), in float64.

    If one of the two is padding, the result is that one.

    Args:
        source: [B, width, elements].
        valid: bool [B, width], which steps are no padding.
        places: int64 [n], the lower steps.
        weights: float64 [n]; 0: the result is the lower step.
        target: [B, n, elements], of the dtype of `source`.
    """
    for row in range(len(source)):
        for step in range(len(places)):
            low, weight = places[step], weights[step]
            high = low + (weight > 0)
            if weight > 0 and valid[row, low] and valid[row, high]:
                for element in range(source.shape[2]):
                    value = np.float64(source[row, low, element])
                    target[row, step, element] = value + weight * (np.float64(source[row, high, element]) - value)
            else:
                own = high if valid[row, low] else low
                for element in range(source.shape[2]):
                    target[row, step, element] = source[row, own, element]


@cached_njit
def crop(images, tops, lefts, out):  # type: ignore[no-untyped-def]
    """Cuts one rectangle out of all images of a row.

    Outside an image its nearest pixel is repeated.

    Args:
        images: uint8 [B, n, height, width, bytes of a pixel].
        tops, lefts: int64 [B], the corner of each row's rectangle; negative: above or left of the images.
        out: uint8 [B, n, ...] with the height and width of the rectangle.
    """
    height, width, size = images.shape[2:]
    line, out_line = width * size, out.shape[3] * size
    source, target = images.ctypes.data, out.ctypes.data
    for row in range(images.shape[0]):
        top, left = tops[row], lefts[row]
        # The columns of `out` that lie inside the image are first to last - 1.
        first = min(max(0, -left), out.shape[3])
        last = max(first, min(out.shape[3], width - left))
        for image in range(images.shape[1]):
            begin = source + (row * images.shape[1] + image) * height * line
            for y in range(out.shape[2]):
                read = begin + min(max(y + top, 0), height - 1) * line
                write = target + ((row * out.shape[1] + image) * out.shape[2] + y) * out_line
                for x in range(first):
                    memcpy(write + x * size, read, np.uint64(size))
                memcpy(write + first * size, read + (first + left) * size, np.uint64((last - first) * size))
                for x in range(last, out.shape[3]):
                    memcpy(write + x * size, read + line - size, np.uint64(size))


@cached_njit
def channels_first(frames, sources, rows, table, target):  # type: ignore[no-untyped-def]
    """Writes frames [H, W, C] as values of a table, [C, H, W].

    Args:
        frames: uint8 [n, H * W, C].
        sources, rows: int64 [r]: row rows[i] of `target` holds the frame sources[i].
        table: [C, 256], the value of each number of a channel.
        target: [m, C, H * W], of the table's dtype.
    """
    pixels, channels = frames.shape[1:]
    for i in range(len(rows)):
        frame = frames[sources[i]]
        for channel in range(channels):
            values = target[rows[i], channel]
            for pixel in range(pixels):
                values[pixel] = table[channel, frame[pixel, channel]]
