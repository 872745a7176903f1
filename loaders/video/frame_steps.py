"""The steps of a camera that a batch of windows has.

These are the steps that the kernels collect of other columns (`gear_data.kernels.cpu.collect`).
"""

from __future__ import annotations

import numpy as np

from gear_data.collection.output import Output, Padding
from gear_data.selection.windows import Int64Array, Windows


def frame_steps(output: Output, windows: Windows, totals: Int64Array, hops: Int64Array) -> Int64Array:
    """Returns the step of each frame in its episode, int64 [B, width].

    -1 stands for padding that holds `fill`.

    Args:
        output: the output of a camera.
        windows: B windows.
        totals: int64 [B], steps of each window's episode.
        hops: int64 [B], steps to each window's next state, if the output has one; 0 without a next state.
    """
    span = output.span
    places = np.array(output.places, np.int64)
    start, shift = windows.start, output.shift
    if output.next_state is not None:
        start, shift = start + hops, 0
    # The valid steps are lowest to highest. An episode has no step after its last one: no frame is stored of it.
    if output.within_window:
        places = places - (span.width - windows.length[:, None] if output.pad_left else 0)
        lowest = start + shift
        highest = np.minimum(start + windows.length + shift, totals) - 1
        steps = lowest[:, None] + places
    else:
        first = start + span.first + shift
        lowest = np.maximum(first, shift)
        highest = np.minimum(first + span.width, totals) - 1
        steps = first[:, None] + places
    if output.next_state is not None:
        highest = np.where((hops > 0) & (start < totals), highest, -1)
    low, high = lowest[:, None], highest[:, None]
    inside = (steps >= low) & (steps <= high)
    if output.padding is Padding.FILL:
        return np.where(inside, steps, -1)
    outside = np.clip(steps, low, high) if output.padding is Padding.EDGE else low
    return np.where(inside, steps, np.where(low <= high, outside, -1))
