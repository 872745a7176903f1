"""Other generations of a dataset that grows, with the same filters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gear_data.dataset import filters
from gear_data.dataset.polars_threads import check_polars_threads
from gear_data.dataset.steps.masks import grown_mask
from gear_data.dataset.stores.store import DatasetStore
from gear_data.dataset.views import Filter, StepFilter, View
from gear_data.errors import InvalidArgumentError
from gear_data.selection.windows import Int64Array


def at_generation(store: DatasetStore, view: View, generation: int | None) -> tuple[DatasetStore, View] | None:
    """Returns a generation of a dataset, and a view of it; None if it is the same generation.

    Args:
        store, view: the dataset.
        generation: the number; None: the newest one.

    Raises:
        InvalidArgumentError: see `Dataset.refresh`.
        GenerationGoneError: the generation is not on disk.
        DatasetReplacedError: the dataset was replaced.
        ClusterError: nodes do not have the generation in time.
    """
    if view.made_by is None:
        raise InvalidArgumentError(
            "a view of positions (select, split, indexing, drop_outliers, drop_duplicates, on_bad_shard='skip') stays "
            "at its generation",
            hint="refresh the whole dataset, or a view made by filter; then select",
        )
    if store.residency == "tiered" and store.membership is not None:
        raise InvalidArgumentError(
            "a dataset that was placed, and whose shards the nodes of a run share, stays at its generation",
            hint="refresh the dataset, then call place",
        )
    new = store.at_generation(generation)
    if new is None:
        return None
    new.shard_statistics = store.shard_statistics.kept(new.manifest.shards)
    new.device_columns()
    return new, _view_of(store, view, new)


def _view_of(old: DatasetStore, view: View, new: DatasetStore) -> View:
    """Returns the view of another generation that the same filters make."""
    rules = [each.rule for each in view.made_by or () if isinstance(each, StepFilter)]
    rows: Int64Array | None = None
    for each in view.made_by or ():
        if isinstance(each, Filter):
            check_polars_threads()
            frame = new.episodes if rows is None else new.episodes[rows]
            parsed = filters.parse(each.expression, frame.columns)
            frame = filters.with_plain_text(frame, parsed)
            found = filters.true_rows(frame, parsed)
            if not found.any():
                raise filters.no_rows_error(frame, parsed, "episode")
            rows = np.flatnonzero(found) if rows is None else rows[found]
    if view.mask is None or not rules:
        return replace(view, rows=rows)
    old_rows, new_rows = (
        np.arange(store.manifest.episodes) if part is None else part for store, part in ((old, view.rows), (new, rows))
    )
    _, in_old, in_new = np.intersect1d(_ids(old, old_rows), _ids(new, new_rows), True, return_indices=True)
    added = np.delete(new_rows, in_new)
    mask = grown_mask(old, view.mask, new, (old_rows[in_old], new_rows[in_new], added), rules)
    return replace(view, rows=rows, mask=mask)


def _ids(store: DatasetStore, rows: Int64Array) -> Int64Array:
    return rows if store.ids is None else store.ids[rows]
