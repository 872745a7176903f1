"""Blocks of whole episodes, for passes over all steps in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gear_data.selection.windows import Int64Array
from gear_data.storage.episode_block import offsets_of

#: Column bytes that a pass over a dataset's steps reads at once.
BLOCK_BYTES = 64 << 20


def block_ranges(lengths: Int64Array, step_bytes: int, block_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields (first, last): runs of whole episodes, `last` excluded.

    An episode larger than `block_bytes` is a separate run.

    Args:
        lengths: int64 [k], steps of each episode.
        step_bytes: bytes of one step.
        block_bytes: largest size of a run in bytes.
    """
    offsets = offsets_of(lengths)
    budget = max(1, block_bytes // max(1, step_bytes))
    first = 0
    while first < len(lengths):
        last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + budget, side="right")) - 1)
        yield first, last
        first = last
