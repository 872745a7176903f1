"""Groups of batches that one read collects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gear_data.selection.windows import Windows


def concatenated(windows: Sequence[Windows]) -> Windows:
    """Returns the windows of several batches of one dataset, one batch after another."""
    return Windows(
        np.concatenate([each.episode_id for each in windows]),
        np.concatenate([each.start for each in windows]),
        np.concatenate([each.length for each in windows]),
        source=windows[0].source,
    )


def are_alike(windows: Sequence[Windows]) -> bool:
    """Returns whether one read can collect these batches.

    The batches must be of one dataset, and have the same number of rows, and their windows are not packed. A short last
    batch is collected separately, because this rank may have another number of rows in it.
    """
    first, rows = windows[0].source, len(windows[0])
    return (
        isinstance(first, int)
        and windows[0].packing is None
        and all(isinstance(each.source, int) and each.source == first and len(each) == rows for each in windows)
    )
