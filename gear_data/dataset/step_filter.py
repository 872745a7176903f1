"""Step filters: the steps at which an expression over step columns holds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gear_data.common.progress import progress_bar
from gear_data.dataset import filters
from gear_data.dataset.episode_blocks import BLOCK_BYTES, block_ranges
from gear_data.dataset.store import DatasetStore
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
    names = filters.step_columns(expression)
    for name in names:
        store.schema.index(name)  # refuses cameras
    lengths, first_steps = store.lengths[ids], store.offsets[ids]
    step_bytes = sum(_step_bytes(store, name) for name in names)

    def flags() -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
        with progress_bar(int(lengths.sum()), "filter steps", "step", None) as bar:
            for first, last in block_ranges(lengths, step_bytes, BLOCK_BYTES):
                block = ids[first:last]
                frame = filters.step_frame({name: _column(store, name, block) for name in names})
                found = filters.true_rows(frame, expression)
                filters.check_row_wise(frame, expression, found)
                bar.update(len(found))
                yield from _adjacent_runs(first_steps[first:last], lengths[first:last], found)

    mask = StepMask.from_blocks(store.manifest.steps, flags())
    if not mask.count:
        statistics = {name: store.statistics[name] for name in names if not store.schema[name].variable_length}
        ranges = {
            name: f"{np.fmin.reduce(item.min)} to {np.fmax.reduce(item.max)}" for name, item in statistics.items()
        }
        raise filters.empty_filter_error(expression, "step", ranges)
    return mask


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
