"""Internals of a dataset that loaders need: store, view and window anchors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gear_data.dataset.store import DatasetStore
from gear_data.selection.anchors import Anchors
from gear_data.selection.windows import Int64Array, WindowRule

if TYPE_CHECKING:
    from gear_data.dataset.dataset import Dataset
    from gear_data.dataset.views import View


def store_of(dataset: Dataset) -> DatasetStore:
    """Returns the store that a dataset and all its views share."""
    return dataset._store


def view_of(dataset: Dataset) -> View:
    """Returns the episodes and steps of the store that a dataset shows."""
    return dataset._view


def rows_of(dataset: Dataset) -> Int64Array | None:
    """Returns the rows of a dataset's episodes in its store, int64 [episodes], ascending; None: all.

    Windows name episodes by row. The ids of episodes are other numbers after an eviction.
    """
    return dataset._view.ids


def anchors_of(dataset: Dataset, rule: WindowRule, excluded: npt.NDArray[np.bool_] | None = None) -> Anchors:
    """Returns the anchors of a dataset or view: the steps that position windows.

    A step that a step filter excludes is not an anchor. `excluded`, bool [k], says in which episodes the last step is
    none; None: in no episode.

    Raises:
        InvalidArgumentError: no step is an anchor.
    """
    ids, mask, mode = rows_of(dataset), dataset.step_mask, dataset.step_mask_mode
    offsets = store_of(dataset).offsets
    first_steps = None if ids is None else offsets[ids]
    eligible = None if mask is None or mode is None else mask.anchors(offsets, rule, mode)
    return Anchors(
        dataset.lengths, dataset.offsets, ids, first_steps, rule, eligible, excluded, dataset.episode_ids
    )  # fmt: skip


def ends_without_state(dataset: Dataset, *, finals: bool) -> npt.NDArray[np.bool_]:
    """Returns the episodes that end without a next state, bool [k].

    They were cut off, and no state after their last step is stored.

    Args:
        finals: whether a stored final observation is such a state.
    """
    cut: npt.NDArray[np.bool_] = ~dataset.episode_table.column("terminated").to_numpy(zero_copy_only=False)
    if finals:
        has_final = np.zeros(len(store_of(dataset).lengths), np.bool_)
        has_final[store_of(dataset).finals[0]] = True
        ids = rows_of(dataset)
        cut &= ~(has_final if ids is None else has_final[ids])
    return cut
