"""NaN and infinite values: the episodes that have them, and the error that names them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.progress import pluralize, progress_bar
from gear_data.dataset.core import DatasetCore
from gear_data.dataset.episode_blocks import BLOCK_BYTES, block_ranges
from gear_data.dataset.steps.runs import adjacent_runs
from gear_data.errors import NonFiniteError
from gear_data.schema import ColumnSpec
from gear_data.selection.windows import Int64Array
from gear_data.stacking import ColumnPart
from gear_data.storage.episode_block import offsets_of
from gear_data.storage.statistics import statistics_width

#: The most episodes that an error lists.
_LISTED = 10


def place_of(dataset: DatasetCore, first: int, lengths: Int64Array, row: int) -> tuple[int, int]:
    """Returns the id of an episode, and a step in it.

    Args:
        dataset: the dataset or view.
        first: the position of an episode.
        lengths: int64 [k], the steps of this episode and of those after it.
        row: the number of a step, counted from the first step of that episode.
    """
    offsets = offsets_of(lengths)
    place = int(np.searchsorted(offsets, row, side="right")) - 1
    ids = dataset.episode_ids
    return first + place if ids is None else int(ids[first + place]), row - int(offsets[place])


def refuse_non_finite(dataset: DatasetCore, part: ColumnSpec) -> None:
    """Checks that a column, or the part of it that is used, has only finite values wherever it has a value.

    The statistics say whether it does. Only if they left values out are the steps read, for the places. Steps that
    `filter_steps(..., mode="all")` excludes are in no window, and may have any value.

    Raises:
        NonFiniteError: a value is NaN or infinite. The error names the dataset, the column, the place and the episodes.
    """
    if part.video is not None or part.numpy_dtype.kind != "f":
        return
    whole, mask, steps = dataset.schema[part.name], dataset.schema.mask_of(part.name), dataset.num_steps
    if mask is not None:
        present = dataset.statistics[mask]
        steps = round(float(present.mean[0] * present.count[0]))
    counts = _used(part, dataset.statistics[part.name].count)
    if (counts == steps * (whole.size // statistics_width(whole))).all():
        return
    place, episodes = "", list[int]()
    with progress_bar(dataset.num_steps, "find NaN", "step", None) as bar:
        for first, last in block_ranges(dataset.lengths, whole.row_bytes, BLOCK_BYTES):
            lengths = dataset.lengths[first:last]
            bad = _is_bad(dataset, part, mask, first, last)
            if not place and bad.any():
                episode, step = place_of(dataset, first, lengths, int(bad.argmax()))
                place = f"step {step} of episode {episode}"
            positions = first + np.flatnonzero(np.logical_or.reduceat(bad, offsets_of(lengths)[:-1]))
            episodes += (positions if dataset.episode_ids is None else dataset.episode_ids[positions]).tolist()
            bar.update(int(lengths.sum()))
    if episodes:
        name = part.name
        listed = f"ds.filter('episode_id not in ({', '.join(map(str, episodes))})')"
        raise NonFiniteError(
            f"{place} has NaN or infinity, which normalised batches would have, too; {len(episodes)} of "
            f"{pluralize(len(dataset), 'episode')} have such values",
            file=str(dataset.path),
            column=name,
            hint=(f"leave the episodes out: {listed}; or " if len(episodes) <= _LISTED else "")
            + "give normalize= a mapping of the column to (mean, std), such as those of the finite values: "
            f"(ds.statistics[{name!r}].mean, ds.statistics[{name!r}].std)",
        )


def _is_bad(dataset: DatasetCore, part: ColumnSpec, mask: str | None, first: int, last: int) -> npt.NDArray[np.bool_]:
    """Returns whether each step of some episodes has a used value that is not finite."""
    values = dataset.steps(part.name, first, last)
    bad: npt.NDArray[np.bool_] = ~np.isfinite(_used(part, values.reshape(len(values), -1).T)).all(axis=0)
    if mask is not None:
        bad &= dataset.steps(mask, first, last).astype(np.bool_)
    if dataset.step_mask is not None and dataset.step_mask_mode == "all":
        rows = dataset.view.rows
        begins = dataset.store.offsets[:-1][first:last] if rows is None else dataset.store.offsets[rows[first:last]]
        offsets = offsets_of(dataset.lengths[first:last])
        for begin, end, step in adjacent_runs(begins, np.diff(offsets)):
            run = slice(int(offsets[begin]), int(offsets[end]))
            bad[run] &= dataset.step_mask.flags(step, step + run.stop - run.start)
    return bad


def _used(part: ColumnSpec, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the rows of the elements that a part has; of a column with one set of statistics, this row."""
    if isinstance(part, ColumnPart) and len(values) == part.whole:
        return values[part.first : part.first + part.size]
    return values
