"""Step filters: the steps at which an expression over step columns holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gear_data.common.progress import progress_bar
from gear_data.dataset import filters
from gear_data.dataset.episode_blocks import BLOCK_BYTES, block_ranges
from gear_data.dataset.stores.store import DatasetStore
from gear_data.dataset.views import View
from gear_data.errors import EmptySourceError, InvalidArgumentError, unknown_name
from gear_data.selection.step_mask import MODES, StepMask
from gear_data.selection.windows import Int64Array
from gear_data.storage.episode_block import offsets_of

if TYPE_CHECKING:
    import polars as pl


def combined_mask(store: DatasetStore, ids: Int64Array, view: View, expression: pl.Expr | str, mode: str) -> StepMask:
    """Returns the steps that satisfy an expression and earlier filters.

    Args:
        store: store of the dataset.
        ids: the episodes to read, int64 [k], ascending.
        view: the view to filter.
        expression, mode: see `Dataset.filter_steps`.

    Raises:
        UnknownNameError: a column or the mode does not exist. The error lists the known names.
        InvalidArgumentError: the expression is invalid, or an earlier step filter has another mode.
        EmptySourceError: no step satisfies the filters.
    """
    if mode not in MODES:
        raise unknown_name("mode", mode, MODES)
    if view.mode not in (None, mode):
        raise InvalidArgumentError(
            f"this view filters steps with mode={view.mode!r}, not {mode!r}", hint=f"use mode={view.mode!r}"
        )
    parsed = filters.parse(expression, store.schema.names)
    mask = satisfying_steps(store, ids, parsed)
    if view.mask is None:
        return mask
    mask = mask & view.mask
    if not mask.count:
        raise EmptySourceError(
            f"no step satisfies {parsed} and the earlier step filters", hint="relax one of the filters"
        )
    return mask


def satisfying_steps(store: DatasetStore, ids: Int64Array, expression: pl.Expr) -> StepMask:
    """Returns the mask of the steps at which an expression holds.

    The mask covers the whole dataset. Steps of episodes that are not in `ids` have bit 0.

    Args:
        store: store of the dataset.
        ids: the episodes to read, int64 [k], ascending.
        expression: expression over step columns.

    Raises:
        InvalidArgumentError: the expression names no column, is not Boolean, or depends on more than one step.
        UnsupportedColumnError: the expression names a camera, or a column that Polars cannot hold.
        EmptySourceError: no step satisfies the expression.
    """
    mask = StepMask.from_blocks(store.manifest.steps, _flags(store, ids, expression))
    if not mask.count:
        names = filters.step_columns(expression)
        statistics = {name: store.statistics[name] for name in names if not store.schema[name].variable_length}
        ranges = {
            name: f"{np.fmin.reduce(item.min)} to {np.fmax.reduce(item.max)}" for name, item in statistics.items()
        }
        raise filters.empty_filter_error(expression, "step", ranges)
    return mask


def grown_mask(
    old: DatasetStore, mask: StepMask, new: DatasetStore, rows: tuple[Int64Array, Int64Array, Int64Array],
    expressions: Sequence[pl.Expr | str],
) -> StepMask:  # fmt: skip
    """Returns a mask of steps for another generation of a dataset.

    Args:
        old: store of the generation that the mask belongs to.
        mask: the steps that satisfy the expressions.
        new: store of the other generation.
        rows: int64 [k], ascending, three times: rows of episodes in `old`, and their rows in `new`; and the rows of
            `new` that are evaluated.
        expressions: the filters of steps.

    Raises:
        EmptySourceError: no step satisfies the expressions.
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
        for expression in expressions:
            parsed = filters.parse(expression, new.schema.names)
            each = StepMask.from_blocks(new.manifest.steps, _flags(new, added, parsed))
            found &= each.flags(0, each.num_steps)
        flags |= found
    if not flags.any():
        raise EmptySourceError("no step satisfies the filters any more", hint="open the dataset again, and filter it")
    return StepMask.from_blocks(len(flags), [(0, flags)])


def _flags(store: DatasetStore, ids: Int64Array, expression: pl.Expr) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    """Yields runs of steps: the first step, and whether the expression holds at each."""
    names = filters.step_columns(expression)
    for name in names:
        store.schema.index(name)  # refuses cameras
    lengths, first_steps = store.lengths[ids], store.offsets[ids]
    step_bytes = sum(_step_bytes(store, name) for name in names)
    with progress_bar(int(lengths.sum()), "filter steps", "step", None) as bar:
        for first, last in block_ranges(lengths, step_bytes, BLOCK_BYTES):
            block = ids[first:last]
            frame = filters.step_frame({name: _column(store, name, block) for name in names})
            found = filters.true_rows(frame, expression)
            filters.check_row_wise(frame, expression, found)
            bar.update(len(found))
            yield from _adjacent_runs(first_steps[first:last], lengths[first:last], found)


def _step_bytes(store: DatasetStore, name: str) -> int:
    """Returns the bytes of one step of a column; the average if the steps vary."""
    spec = store.schema[name]
    if not spec.variable_length:
        return spec.row_bytes
    return sum(shard.variable[name].bytes for shard in store.manifest.shards) // store.manifest.steps


def _column(store: DatasetStore, name: str, ids: Int64Array) -> Any:
    """Returns a column's steps as NumPy or Arrow values, without Python objects."""
    return store.values(name, ids) if store.schema[name].variable_length else store.steps(name, ids)


def _adjacent_runs(
    first_steps: Int64Array, lengths: Int64Array, values: npt.NDArray[np.bool_]
) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    """Yields (first step, values) of each run of adjacent episodes.

    Episodes are adjacent if they follow each other in the whole dataset.
    """
    offsets = offsets_of(lengths)
    breaks = np.flatnonzero(first_steps[1:] != first_steps[:-1] + lengths[:-1]) + 1
    for begin, end in pairwise([0, *breaks.tolist(), len(first_steps)]):
        yield int(first_steps[begin]), values[offsets[begin] : offsets[end]]
