"""Differences of rows: the relative arrays of a batch."""

from __future__ import annotations

import numpy as np
from numba import carray

from gear_data.kernels.cpu.native import cached_njit, call, memcpy, memset, pointer
from gear_data.kernels.cpu.padding import fill_rows
from gear_data.kernels.output_plan import PAD_FILL, PAD_FIRST

#: A relative array in a buffer.
RELATIVE = np.dtype(
    [
        ("target", np.int64),  # first byte of the array
        ("width", np.int64),  # bytes of a step, with the zeros behind its elements
        ("mask", np.int64),  # first byte of the mask, uint8 [rows, steps]
        ("size", np.int64),  # elements of the column that is subtracted
        ("delta", np.int64),  # 1: each valid step but the first is relative to the step before it
    ]
)

#: An array in the same buffer, float64: elements of the column [rows, steps, size], or of the one that is subtracted
#: [rows, size].
RELATIVE_PART = np.dtype(
    [
        ("source", np.int64),  # first byte
        ("size", np.int64),  # elements of a step
        ("first", np.int64),  # the first element's place in its column
        ("state", np.int64),  # 1: of the column that is subtracted
    ]
)


@cached_njit
def relate(memory, arrays, parts, elements, plan, rows, count):  # type: ignore[no-untyped-def]
    """Writes a relative array.

    Args:
        memory: the address of the buffer.
        arrays: RELATIVE [1].
        parts: RELATIVE_PART [n]. Padding of the column's steps repeats a valid step unless `plan` fills it.
        elements: int64 [elements], the element that is subtracted from each; -1: none.
        plan: OUTPUT_PLAN [1]: the steps, how differences are converted, and the padding.
        rows: int64 [B], the rows to write; empty: the rows 0 to count - 1.
        count: number of rows.
    """
    array, output = arrays[0], plan[0]
    steps, size, row_bytes = output.width, len(elements), output.out_bytes
    values, state = np.empty((steps, size)), np.empty(array.size)
    converted = np.empty(steps * row_bytes, np.uint8)
    for i in range(len(rows) if len(rows) else count):
        row = rows[i] if len(rows) else i
        for p in range(len(parts)):
            part = parts[p]
            if part.state:
                source = carray(pointer(memory + part.source + 8 * row * part.size), (part.size,), np.float64)
                state[part.first : part.first + part.size] = source
            else:
                address = memory + part.source + 8 * row * steps * part.size
                of_steps = carray(pointer(address), (steps, part.size), np.float64)
                values[:, part.first : part.first + part.size] = of_steps
        valid = carray(pointer(memory + array.mask + row * steps), (steps,), np.uint8)
        first = 0
        while first < steps and not valid[first]:
            first += 1
        # Backwards: the step before still has its own value.
        for step in range(steps - 1, -1, -1):
            for element in range(size):
                if elements[element] >= 0:
                    if array.delta and step > first:
                        values[step, element] -= values[step - 1, element]
                    else:
                        values[step, element] -= state[elements[element]]
        source_address = converted.ctypes.data
        call(output.write, (output, values.ctypes.data, source_address, steps, steps))
        for step in range(steps):
            target = memory + array.target + (row * steps + step) * array.width
            if valid[step] or (first < steps and output.padding != PAD_FILL):
                own = first if output.padding == PAD_FIRST and not valid[step] else step
                memcpy(target, source_address + own * row_bytes, np.uint64(row_bytes))
            else:
                fill_rows(target, 1, row_bytes, output.fill + step * row_bytes if output.fill else output.fill)
            if array.width > row_bytes:
                memset(target + row_bytes, np.int32(0), np.uint64(array.width - row_bytes))
