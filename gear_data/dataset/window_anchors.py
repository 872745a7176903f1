"""Anchors of a dataset or view: the steps that position its windows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gear_data.dataset.core import DatasetCore
from gear_data.selection.anchors import Anchors
from gear_data.selection.windows import WindowRule
from gear_data.storage.arrow_files import table_values


def anchors_of(dataset: DatasetCore, rule: WindowRule, excluded: npt.NDArray[np.bool_] | None = None) -> Anchors:
    """Returns the anchors of a dataset or view: the steps that position windows.

    A step that a step filter excludes is not an anchor. `excluded`, bool [k], says in which episodes the last step is
    none; None: in no episode.

    Raises:
        InvalidArgumentError: no step is an anchor.
    """
    rows, mask, mode = dataset.view.rows, dataset.view.mask, dataset.view.mode
    offsets = dataset.store.offsets
    first_steps = None if rows is None else offsets[rows]
    eligible = None if mask is None or mode is None else mask.anchors(offsets, rule, mode)
    return Anchors(
        dataset.lengths, dataset.offsets, rows, first_steps, rule, eligible, excluded, dataset.episode_ids
    )  # fmt: skip


def ends_without_state(dataset: DatasetCore, *, finals: bool) -> npt.NDArray[np.bool_]:
    """Returns the episodes that end without a next state, bool [k].

    They were cut off, and no state after their last step is stored.

    Args:
        finals: whether a stored final observation is such a state.
    """
    cut: npt.NDArray[np.bool_] = ~table_values(dataset.episode_table, "terminated")
    if finals:
        has_final = np.zeros(len(dataset.store.lengths), np.bool_)
        has_final[dataset.store.finals[0]] = True
        rows = dataset.view.rows
        cut &= ~(has_final if rows is None else has_final[rows])
    return cut
