"""Masks of the steps that windows may use: of views, of later generations, and of saved datasets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gear_data.dataset.steps.runs import adjacent_runs
from gear_data.dataset.stores.store import DatasetStore
from gear_data.dataset.views import StepFilter, StepRule, View
from gear_data.errors import EmptySourceError, InvalidArgumentError, unknown_name
from gear_data.selection.step_mask import MODES, StepMask
from gear_data.selection.windows import Int64Array
from gear_data.storage.episode_block import offsets_of
from gear_data.storage.episode_tables import StepFlags, read_step_flags
from gear_data.storage.manifest import STEP_MASK


def check_mode(view: View, mode: str) -> None:
    """Checks the mode of a further filter of steps.

    Raises:
        UnknownNameError: the mode does not exist.
        InvalidArgumentError: an earlier filter has another mode.
    """
    if mode not in MODES:
        raise unknown_name("mode", mode, MODES)
    if view.mode not in (None, mode):
        raise InvalidArgumentError(
            f"this view filters steps with mode={view.mode!r}, not {mode!r}", hint=f"use mode={view.mode!r}"
        )


def filtered(store: DatasetStore, ids: Int64Array, view: View, rule: StepRule, mode: str) -> View:
    """Returns the view with one more filter of steps. `check_mode` has checked the mode.

    Args:
        store: store of the dataset.
        ids: int64 [k], ascending: the rows of the view's episodes.
        view: the view to filter.
        rule: the steps that stay.
        mode: see `Dataset.filter_steps`.

    Raises:
        EmptySourceError: no step satisfies the rule and the earlier filters.
        GearError: see the rule.
    """
    mask = StepMask.from_blocks(store.manifest.steps, rule.flags(store, ids))
    if not mask.count:
        raise rule.nothing_left(store)
    if view.mask is not None:
        mask = mask & view.mask
        if not mask.count:
            raise EmptySourceError(
                f"no step satisfies {rule} and the earlier step filters", hint="relax one of the filters"
            )
    before = int(store.lengths[ids].sum()) if view.mask is None else kept_steps(store, ids, view.mask)
    left_out = before - kept_steps(store, ids, mask)
    history = (*view.history, f"{rule}, mode {mode}: {left_out:,} of {before:,} steps left out")
    return replace(view.filtered_by(StepFilter(rule)), mask=mask, mode=mode, history=history)


def kept_steps(store: DatasetStore, ids: Int64Array, mask: StepMask) -> int:
    """Returns the number of steps of some episodes that a mask has."""
    return int(mask.counts(store.offsets[ids], store.lengths[ids]).sum())


def grown_mask(
    old: DatasetStore, mask: StepMask, new: DatasetStore, rows: tuple[Int64Array, Int64Array, Int64Array],
    rules: Sequence[StepRule],
) -> StepMask:  # fmt: skip
    """Returns a mask of steps for another generation of a dataset.

    Args:
        old: store of the generation that the mask belongs to.
        mask: the steps that satisfy the rules.
        new: store of the other generation.
        rows: int64 [k], ascending, three times: rows of episodes in `old`, and their rows in `new`; and the rows of
            `new` that are evaluated.
        rules: the filters of steps.

    Raises:
        EmptySourceError: no step satisfies the rules.
    """
    kept_old, kept_new, added = rows
    flags = np.zeros(new.manifest.steps, np.bool_)
    known = mask.flags(0, mask.num_steps)
    lengths = old.lengths[kept_old]
    within = np.arange(int(lengths.sum())) - np.repeat(offsets_of(lengths)[:-1], lengths)
    flags[np.repeat(new.offsets[kept_new], lengths) + within] = known[
        np.repeat(old.offsets[kept_old], lengths) + within
    ]
    if len(added):
        found = np.ones(new.manifest.steps, np.bool_)
        for rule in rules:
            each = StepMask.from_blocks(new.manifest.steps, rule.flags(new, added))
            found &= each.flags(0, each.num_steps)
        flags |= found
    if not flags.any():
        raise EmptySourceError("no step satisfies the filters any more", hint="open the dataset again, and filter it")
    return StepMask.from_blocks(len(flags), [(0, flags)])


def whole_view(store: DatasetStore) -> View:
    """Returns the view of all episodes, with the filter of steps that the dataset was saved with."""
    entry = store.manifest.tables.get(STEP_MASK)
    if entry is None:
        return View()
    with store.files.local(entry) as path:
        found = read_step_flags(path, store.manifest)
    return View(mask=StepMask(store.manifest.steps, found.words), mode=found.mode)


def saved_flags(store: DatasetStore, ids: Int64Array, view: View) -> StepFlags | None:
    """Returns the filter of steps of a view, for a dataset that has only these episodes; None without a filter.

    Raises:
        EmptySourceError: the filters leave out every step of these episodes.
    """
    if view.mask is None or view.mode is None:
        return None
    mask, lengths = view.mask, store.lengths[ids]
    if not kept_steps(store, ids, mask):
        raise EmptySourceError(
            "the step filters leave out every step of these episodes", hint="save other episodes, or relax a filter"
        )
    offsets = offsets_of(lengths)
    blocks = (
        (int(offsets[begin]), mask.flags(first, first + int(offsets[end] - offsets[begin])))
        for begin, end, first in adjacent_runs(store.offsets[ids], lengths)
    )
    return StepFlags(StepMask.from_blocks(int(offsets[-1]), blocks).words, view.mode)
