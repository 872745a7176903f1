"""The steps at which an expression over step columns holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gear_data.common.progress import progress_bar
from gear_data.dataset import filters
from gear_data.dataset.episode_blocks import BLOCK_BYTES, block_ranges
from gear_data.dataset.steps.runs import flags_in_runs
from gear_data.dataset.stores.store import DatasetStore
from gear_data.dataset.views import StepRule
from gear_data.errors import EmptySourceError
from gear_data.selection.windows import Int64Array

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Satisfying(StepRule):
    """The steps that satisfy an expression. A `StepRule`.

    Attributes:
        expression: see `Dataset.filter_steps`.
    """

    expression: pl.Expr | str

    def __str__(self) -> str:
        return f"{self.expression}"

    def flags(self, store: DatasetStore, ids: Int64Array) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
        """Yields runs of steps: see `StepRule`.

        Raises:
            UnknownNameError: a column does not exist. The error lists the known columns.
            InvalidArgumentError: the expression names no column, is not Boolean, or depends on more than one step.
            UnsupportedColumnError: the expression names a camera, or a column that Polars cannot hold.
        """
        expression = filters.parse(self.expression, store.schema.names)
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
                yield from flags_in_runs(first_steps[first:last], lengths[first:last], found)

    def nothing_left(self, store: DatasetStore) -> EmptySourceError:
        """Returns the error if no step satisfies the expression. Its hint has the ranges of the columns."""
        expression = filters.parse(self.expression, store.schema.names)
        names = filters.step_columns(expression)
        statistics = {name: store.statistics[name] for name in names if not store.schema[name].variable_length}
        ranges = {
            name: f"{np.fmin.reduce(item.min)} to {np.fmax.reduce(item.max)}" for name, item in statistics.items()
        }
        return filters.empty_filter_error(expression, "step", ranges)


def _step_bytes(store: DatasetStore, name: str) -> int:
    """Returns the bytes of one step of a column; the average if the steps vary."""
    spec = store.schema[name]
    if not spec.variable_length:
        return spec.row_bytes
    return sum(shard.variable[name].bytes for shard in store.manifest.shards) // store.manifest.steps


def _column(store: DatasetStore, name: str, ids: Int64Array) -> Any:
    """Returns a column's steps as NumPy or Arrow values, without Python objects."""
    return store.values(name, ids) if store.schema[name].variable_length else store.steps(name, ids)
