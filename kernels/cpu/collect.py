"""The CPU collector: one serial `nogil` call fills every column of a batch.

Not `prange`: after it a forked child dies, and a busy core stalls it by milliseconds. Parallelism is across
batches, in prefetch threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, njit

from gear_data.kernels.cpu.native import memcpy, memset, pointer, prefetch

#: What is written to an output's valid rows.
KIND_COPY = 0  # the column's bytes
KIND_CONVERT = 1  # (value - mean) * scale of every element, computed in float64
KIND_TIMESTEP = 2  # step number in the episode, plus ORIGIN
KIND_CONSTANT = 3  # the template at VALID (masks)
KIND_DISCOUNTED = 4  # sum over j of the discount j * the value j steps later, as far as the episode goes

#: What is written to the other rows.
PAD_FILL = 0  # the template at FILL
PAD_EDGE = 1  # the nearest valid row
PAD_FIRST = 2  # the first valid row
PAD_RUN_ON = 3  # KIND_TIMESTEP: counting goes on

#: Fields of a plan's row; a plan is int64 [outputs, PLAN_FIELDS].
(
    KIND,
    COLUMN,  # index of the source column
    SOURCE_BYTES,  # bytes of a source row
    OUT_BYTES,  # bytes of an output row
    ELEMENTS,  # elements of a row, for KIND_CONVERT
    SOURCE_TYPE,  # index in SOURCE_TYPES
    OUT_TYPE,  # index in OUT_TYPES; for KIND_TIMESTEP, in TIMESTEP_TYPES
    FIRST,  # first step wanted, relative to the window's start
    WIDTH,  # rows of the output
    PAD_LEFT,  # 1: valid rows stand at the end; 0: each stands at its own step's place
    WITHIN,  # 1: steps outside the window are padding; 0: those outside the episode
    PADDING,  # PAD_...
    FILL,  # address of WIDTH padding rows; 0 for zero bytes
    VALID,  # address of WIDTH valid rows, for KIND_CONSTANT
    AFFINE,  # address of float64 mean[AFFINE_ROWS * ELEMENTS] and scale of the same size
    AFFINE_ROWS,  # rows that means and scales are repeated for, so that the loop over elements is long
    ORIGIN,  # number of an episode's first step, for KIND_TIMESTEP
    SHIFT,  # 1: each step's row is that of the next, the last one's the final observation; -1: that of the one before
    FINALS,  # address of the column's final observations; 0 if there are none
    DISCOUNTS,  # address of float64 discounts, for KIND_DISCOUNTED
    HORIZON,  # how many discounts
    LIKE,  # the first output whose windows have the same steps in the same places
    PLAN_FIELDS,
) = range(23)

SOURCE_TYPES = (
    "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32", "float64",
    "float16",
)  # fmt: skip
OUT_TYPES = ("float32", "float64", "float16", "bfloat16")
_FLOAT32, _FLOAT64, _FLOAT16, _BFLOAT16 = range(4)
TIMESTEP_TYPES = ("int64", "int32", "float32", "float64")


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _half(bits):  # type: ignore[no-untyped-def]
    """The value of a float16, which Numba does not compute with on CPUs, as float64."""
    exponent, fraction = (bits >> 10) & 31, np.float64(bits & 1023)
    if exponent == 31:
        value = np.inf if fraction == 0 else np.nan
    elif exponent == 0:
        value = fraction * 2.0**-24
    else:
        value = (1024.0 + fraction) * np.float64(1 << exponent) * 2.0**-25
    return -value if bits >> 15 else value


def _closure(name: str) -> Any:
    """`njit` for one of several functions that are made alike, under a name of its own.

    Numba names machine code by a function's qualified name and a number that every process counts from 1. Of two
    closures of one name that come from the cache, compiled by two processes, one would be taken for the other.
    """

    def decorate(function: Any) -> Any:
        function.__name__ = function.__qualname__ = name
        return njit(nogil=True)(function)

    return decorate


def _converter(source: str, out: str) -> Any:
    source_type, out_type = np.dtype("uint16" if source == "float16" else source).type, np.dtype(out).type
    source_bytes, out_bytes = np.dtype(source).itemsize, np.dtype(out).itemsize
    value = _half if source == "float16" else np.float64

    @_closure(f"convert_{source}_{out}")  # type: ignore[untyped-decorator]
    def convert(source_address, out_address, count, affine_address, period):  # type: ignore[no-untyped-def]
        mean = carray(pointer(affine_address), (period,), np.float64)
        scale = carray(pointer(affine_address + 8 * period), (period,), np.float64)
        # Views that begin where each round does: with an index that is a sum there would be no vector instructions.
        for first in range(0, count, period):
            length = min(period, count - first)
            values = carray(pointer(source_address + first * source_bytes), (length,), source_type)
            result = carray(pointer(out_address + first * out_bytes), (length,), out_type)
            for i in range(length):
                result[i] = out_type((value(values[i]) - mean[i]) * scale[i])

    return convert


def _dispatcher(out: str) -> Any:
    """The converter to `out` from the type that an index in SOURCE_TYPES names; Numba cannot index functions."""
    u8, u16, u32, u64, i8, i16, i32, i64, f32, f64, f16 = (_converter(name, out) for name in SOURCE_TYPES)

    @_closure(f"convert_any_{out}")  # type: ignore[untyped-decorator]
    def convert(kind, source, target, count, affine, period):  # type: ignore[no-untyped-def]
        if kind == 8:
            f32(source, target, count, affine, period)
        elif kind == 9:
            f64(source, target, count, affine, period)
        elif kind == 0:
            u8(source, target, count, affine, period)
        elif kind == 1:
            u16(source, target, count, affine, period)
        elif kind == 2:
            u32(source, target, count, affine, period)
        elif kind == 3:
            u64(source, target, count, affine, period)
        elif kind == 4:
            i8(source, target, count, affine, period)
        elif kind == 5:
            i16(source, target, count, affine, period)
        elif kind == 6:
            i32(source, target, count, affine, period)
        elif kind == 10:
            f16(source, target, count, affine, period)
        else:
            i64(source, target, count, affine, period)

    return convert


_convert_float32, _convert_float64 = _dispatcher("float32"), _dispatcher("float64")


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _bits_of_float16(bits):  # type: ignore[no-untyped-def]
    """Of a float32's bits those of the nearest float16, ties to even, as torch rounds."""
    sign, rest = (bits >> np.uint32(16)) & np.uint32(0x8000), bits & np.uint32(0x7FFFFFFF)
    if rest > np.uint32(0x7F800000):
        half = np.uint32(0x7E00)
    elif rest >= np.uint32(0x47800000):
        half = np.uint32(0x7C00)
    elif rest < np.uint32(0x38800000):
        # A subnormal float16 counts 2^-24: the implicit bit of the float32 is shifted in, and what falls out rounds.
        shift = np.uint32(126) - (rest >> np.uint32(23))
        if shift > np.uint32(25):
            half = np.uint32(0)
        else:
            whole = (rest & np.uint32(0x7FFFFF)) | np.uint32(0x800000)
            half = whole >> shift
            lost, middle = whole & ((np.uint32(1) << shift) - np.uint32(1)), np.uint32(1) << (shift - np.uint32(1))
            if lost > middle or (lost == middle and half & np.uint32(1)):
                half += np.uint32(1)
    else:
        half = (
            rest - np.uint32(0x38000000) + np.uint32(0xFFF) + ((rest >> np.uint32(13)) & np.uint32(1))
        ) >> np.uint32(13)
    return np.uint16(sign | half)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _bits_of_bfloat16(bits):  # type: ignore[no-untyped-def]
    """Of a float32's bits those of the nearest bfloat16, ties to even, as torch rounds."""
    if (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
        return np.uint16(0x7FC0)
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _halve(kind, source, target, count):  # type: ignore[no-untyped-def]
    """float32 numbers as float16 or bfloat16."""
    bits, result = carray(pointer(source), (count,), np.uint32), carray(pointer(target), (count,), np.uint16)
    if kind == _BFLOAT16:
        for i in range(count):
            result[i] = _bits_of_bfloat16(bits[i])
    else:
        for i in range(count):
            result[i] = _bits_of_float16(bits[i])


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _fill(out, rows, row_bytes, template):  # type: ignore[no-untyped-def]
    if rows > 0:
        if template == 0:
            memset(out, np.int32(0), np.uint64(rows * row_bytes))
        else:
            memcpy(out, template, np.uint64(rows * row_bytes))


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _repeat(out, rows, row_bytes, row):  # type: ignore[no-untyped-def]
    for i in range(rows):
        memcpy(out + i * row_bytes, row, np.uint64(row_bytes))


def _counter(dtype: str) -> Any:
    scalar = np.dtype(dtype).type

    @_closure(f"count_{dtype}")  # type: ignore[untyped-decorator]
    def count(out, rows, first):  # type: ignore[no-untyped-def]
        steps = carray(pointer(out), (rows,), scalar)
        for i in range(rows):
            steps[i] = scalar(first + i)

    return count


_count_int64, _count_int32, _count_float32, _count_float64 = (_counter(name) for name in TIMESTEP_TYPES)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _count(kind, out, rows, first):  # type: ignore[no-untyped-def]
    """Numbers of so many steps from `first` on."""
    if kind == 0:
        _count_int64(out, rows, first)
    elif kind == 1:
        _count_int32(out, rows, first)
    elif kind == 2:
        _count_float32(out, rows, first)
    else:
        _count_float64(out, rows, first)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _how(fields):  # type: ignore[no-untyped-def]
    """What `_write` must know of an output. Not as an array: one that is handed over counts who holds it, with a locked
    instruction, and that for every window took a fifth of all time."""
    return (
        fields[KIND], fields[OUT_BYTES], fields[SOURCE_BYTES], fields[ELEMENTS], fields[SOURCE_TYPE], fields[OUT_TYPE],
        fields[AFFINE], fields[AFFINE_ROWS],
    )  # fmt: skip


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _write(how, source, target, rows):  # type: ignore[no-untyped-def]
    """Rows of a column, copied or converted. What is to be copied may be in its place already."""
    writes, out_bytes, source_bytes, elements, kind, out, affine, affine_rows = how
    if writes == KIND_COPY:
        if source != target:
            memcpy(target, source, np.uint64(rows * out_bytes))
        return
    count, period = rows * elements, affine_rows * elements
    if out == _FLOAT32:
        _convert_float32(kind, source, target, count, affine, period)
    elif out == _FLOAT64:
        _convert_float64(kind, source, target, count, affine, period)
    else:
        # Through float32, a piece at a time that stays in the cache.
        item = source_bytes // elements
        piece = np.empty(period, np.float32)
        for first in range(0, count, period):
            length = min(period, count - first)
            _convert_float32(kind, source + first * item, piece.ctypes.data, length, affine, period)
            _halve(out, piece.ctypes.data, target + 2 * first, length)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _write_discounted(fields, source, target, rows, left):  # type: ignore[no-untyped-def]
    """Discounted sums of a column, element by element, over at most `left` source rows."""
    elements, horizon = fields[ELEMENTS], fields[HORIZON]
    discounts = carray(pointer(fields[DISCOUNTS]), (horizon,), np.float64)
    one, single, affine = np.empty(1, np.float64), np.empty(1, np.float32), np.array([0.0, 1.0])
    for row in range(rows):
        for i in range(elements):
            total = 0.0
            for j in range(min(horizon, left - row)):
                # One element to float64, whatever its type.
                place = source + (row + j) * fields[SOURCE_BYTES] + i * (fields[SOURCE_BYTES] // elements)
                _convert_float64(fields[SOURCE_TYPE], place, one.ctypes.data, 1, affine.ctypes.data, 1)
                total += discounts[j] * one[0]
            place = target + (row * elements + i) * (fields[OUT_BYTES] // elements)
            if fields[OUT_TYPE] == _FLOAT64:
                carray(pointer(place), (1,), np.float64)[0] = total
            else:
                single[0] = np.float32(total)
                if fields[OUT_TYPE] == _FLOAT32:
                    carray(pointer(place), (1,), np.float32)[0] = single[0]
                else:
                    _halve(fields[OUT_TYPE], single.ctypes.data, place, 1)


@njit(nogil=True)  # type: ignore[untyped-decorator]
def _place(fields, episode, start, length, total, finals, lows, counts, heads, ends):  # type: ignore[no-untyped-def]
    """Where the steps of each window's output are, int64 [B] each: see `collect`."""
    wanted, width, left, within = fields[FIRST], fields[WIDTH], fields[PAD_LEFT], fields[WITHIN]
    shift, has_finals = fields[SHIFT], fields[FINALS] != 0
    for b in range(len(episode)):
        first = start[b] + wanted
        if within:
            low, high = max(first, start[b]), min(first + width, start[b] + length[b])
        else:
            low, high = max(first, np.int64(0)), min(first + width, total[b])
        final, missing = np.int64(-1), np.int64(0)
        if shift > 0 and high == total[b] and high > low:
            if has_finals:
                final = finals[episode[b]]
            if final < 0:
                missing = np.int64(1)
        rows = max(high - low - missing, np.int64(0))
        if rows == 0:
            head = width
        elif left:
            # The place of a row that is missing stays: the others stand beside those of their own step.
            head = width - rows - missing
        else:
            head = low - first
        lows[b], counts[b], heads[b], ends[b] = low, rows, head, final


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def count_valid(episode, start, length, lengths, finals, plan, per, valid):  # type: ignore[no-untyped-def]
    """Fills `valid` as `collect`, whose arguments these are, does; writes nothing else."""
    count = len(episode)
    total = lengths[episode]
    valid[:] = 0
    lows, counts = np.empty(count, np.int64), np.empty(count, np.int64)
    heads, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    placed = np.int64(-1)
    for k in range(len(plan)):
        fields = plan[k]
        if fields[LIKE] != placed:
            placed = fields[LIKE]
            _place(fields, episode, start, length, total, finals, lows, counts, heads, ends)
        for b in range(count):
            valid[b // per] += counts[b] * fields[OUT_BYTES]


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def collect(episode, start, length, rows_of, shards, bases, lengths, finals, addresses, plan, outputs, per, valid):  # type: ignore[no-untyped-def]
    """Fills every output of a batch, or of several.

    Args:
        episode, start, length: int64 [B]: each window's episode, its first step there, its steps.
        rows_of: int64 [B]: the row of the batch each window goes to; empty: window b to row b.
        shards, bases, lengths: int64 [episodes]: each episode's shard, the row there of its first step, its steps.
        finals: int64 [episodes]: row of each episode's final observation, -1 without; empty: no episode has one.
        addresses: int64 [shards, columns], of each column's first byte. Every window's shard must be mapped.
        plan: int64 [outputs, PLAN_FIELDS].
        outputs: int64 [outputs], addresses of arrays [batch rows, WIDTH, OUT_BYTES].
        per, valid: int, and int64 [batches]: the bytes of valid rows are counted, for every `per` windows on their own.

    The caller answers for the addresses; nothing is checked here.
    """
    # Once a window, not once a window and output: a large episode table is not in the cache.
    count = len(episode)
    shard, base, total = shards[episode], bases[episode], lengths[episode]
    valid[:] = 0
    # Each window's first step, how many there are, and how many rows stand before them; and the row of its final
    # observation where that is its last. Outputs that follow each other mostly share them.
    lows, counts = np.empty(count, np.int64), np.empty(count, np.int64)
    heads, ends = np.empty(count, np.int64), np.empty(count, np.int64)
    placed = np.int64(-1)
    for k in range(len(plan)):
        fields = plan[k]
        kind, width, out_bytes, source_bytes = fields[KIND], fields[WIDTH], fields[OUT_BYTES], fields[SOURCE_BYTES]
        column, padding, fill, shift = fields[COLUMN], fields[PADDING], fields[FILL], fields[SHIFT]
        out_type, origin, ones, last_rows = fields[OUT_TYPE], fields[ORIGIN], fields[VALID], fields[FINALS]
        how = _how(fields)
        if fields[LIKE] != placed:
            placed = fields[LIKE]
            _place(fields, episode, start, length, total, finals, lows, counts, heads, ends)
        reads_column = kind in (KIND_COPY, KIND_CONVERT, KIND_DISCOUNTED)
        # Windows lie anywhere: without asking ahead every one of them begins with a wait for memory. Long rows are
        # left to the processor's own prefetching after their first kilobyte.
        lines = min((width * source_bytes + 63) // 64, 16) if reads_column else 0
        for b in range(count):
            ahead = b + 4
            if reads_column and ahead < count:
                line = addresses[shard[ahead], column] + (base[ahead] + start[ahead]) * source_bytes
                for i in range(lines):
                    prefetch(line + 64 * i)
            low, rows, head, final = lows[b], counts[b], heads[b], ends[b]
            out = outputs[k] + (rows_of[b] if len(rows_of) else b) * width * out_bytes
            target = out + head * out_bytes
            tail = width - head - rows
            if rows > 0:
                valid[b // per] += rows * out_bytes
                if reads_column:
                    source = addresses[shard[b], column] + (base[b] + low + shift) * source_bytes
                    if kind == KIND_DISCOUNTED:
                        _write_discounted(fields, source, target, rows, total[b] - low)
                    elif shift < 0 and low == 0:
                        _fill(target, 1, out_bytes, fill)
                        _write(how, source + source_bytes, target + out_bytes, rows - 1)
                    elif final < 0:
                        _write(how, source, target, rows)
                    else:
                        _write(how, source, target, rows - 1)
                        place = last_rows + final * source_bytes
                        _write(how, place, target + (rows - 1) * out_bytes, 1)
                elif kind == KIND_TIMESTEP:
                    _count(out_type, target, rows, low + origin)
                else:
                    memcpy(target, ones, np.uint64(rows * out_bytes))
            if padding == PAD_FILL or rows == 0:
                _fill(out, head, out_bytes, fill)
                _fill(target + rows * out_bytes, tail, out_bytes, fill)
            elif padding == PAD_RUN_ON:
                _count(out_type, out, head, low - head + origin)
                _count(out_type, target + rows * out_bytes, tail, low + rows + origin)
            else:
                _repeat(out, head, out_bytes, target)
                last = target if padding == PAD_FIRST else target + (rows - 1) * out_bytes
                _repeat(target + rows * out_bytes, tail, out_bytes, last)
