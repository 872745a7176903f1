"""Duplicates: episodes that repeat an earlier episode, exactly or nearly.

Two episodes are nearly equal in some columns if they have the same length, and at each step each element of these
columns differs by at most the tolerance. NaN equals NaN, and an infinity equals itself. A value that is not there
(`gear_data.schema.mask_column`) equals only another one, and an episode without any value is no duplicate. An episode
is a duplicate if it is nearly equal to an earlier episode that is no duplicate. So a chain of episodes, of which only
neighbours are nearly equal, is not one group: its result depends on the order, which is the order of the dataset.

Not all pairs are compared. Each episode has features: means of its first step, of its last step, and of all steps, over
groups of elements. If all elements differ by at most the tolerance, so do the features. Episodes are hashed by their
length and two features, on a grid whose cells have the size of the tolerance. An episode is compared with those of the
adjacent cells whose other features are near (fixed-radius near neighbours; Bentley, Stanat and Williams, 1977).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.progress import progress_bar
from gear_data.dataset.core import DatasetCore
from gear_data.dataset.episode_blocks import BLOCK_BYTES, block_ranges
from gear_data.dataset.stores.store import DatasetStore
from gear_data.errors import InvalidArgumentError, UnsupportedColumnError
from gear_data.selection.windows import Int64Array
from gear_data.storage.episode_block import offsets_of

Float64Array = npt.NDArray[np.float64]

#: Most groups of elements of a column that have features.
_GROUPS = 16
#: Number of features that hash an episode. Each one triples the number of cells that are searched.
_HASHED = 2
#: Rounding of sums, as a part of the largest feature.
_ROUNDING = 1e-9


def without_duplicates(dataset: DatasetCore, names: Sequence[str] | None, tolerance: float) -> Int64Array:
    """Returns the positions of episodes that do not repeat an earlier one, ascending.

    Args:
        dataset: the dataset or view.
        names: the columns to compare; None: the contents, exactly.
        tolerance: see `Dataset.drop_duplicates`.

    Raises:
        InvalidArgumentError: there is a tolerance without columns. See `near_originals` for other errors.
    """
    if names is None and tolerance:
        raise InvalidArgumentError(
            f"tolerance={tolerance!r} needs columns to compare", hint="such as ['observations', 'actions']"
        )
    if names is None:
        originals = exact_originals(dataset.episode_table.column("content"))
    else:
        rows = np.arange(len(dataset)) if dataset.view.rows is None else dataset.view.rows
        originals = near_originals(dataset.store, rows, names, tolerance)
    return np.flatnonzero(originals == np.arange(len(dataset)))


def exact_originals(contents: pa.ChunkedArray) -> Int64Array:
    """Returns the first episode with the same content, int64 [episodes].

    Args:
        contents: the content hash of each episode.
    """
    codes = contents.combine_chunks().dictionary_encode().indices.to_numpy()
    first = np.unique(codes, return_index=True)[1]
    originals: Int64Array = first[codes]
    return originals


def near_originals(store: DatasetStore, ids: Int64Array, names: Sequence[str], tolerance: float) -> Int64Array:
    """Returns the earlier episode that each one repeats nearly, int64 [episodes]; its own position if there is none.

    Args:
        store: the dataset.
        ids: int64 [k], the episodes.
        names: the columns to compare.
        tolerance: largest difference of an element, at least 0.

    Raises:
        UnknownNameError: a column does not exist. The error lists the columns.
        UnsupportedColumnError: a column has text or bytes, or is a camera.
        InvalidArgumentError: there are no columns, or the tolerance is not a finite number of at least 0.
    """
    if not names:
        raise InvalidArgumentError("no columns to compare", hint="name some, such as ['observations', 'actions']")
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
        raise InvalidArgumentError(f"the tolerance must be a finite number of at least 0, not {tolerance!r}")
    for name in names:
        spec = store.schema[name]
        if spec.variable_length:
            raise UnsupportedColumnError(
                "has values of any length, and is compared only exactly", column=name, hint="name columns of numbers"
            )
        if spec.video is not None:
            hint = "name other columns, or convert with --videos frames"
            raise UnsupportedColumnError("is a camera, and is compared only exactly", column=name, hint=hint)
    lengths = store.lengths[ids]
    masks = [store.schema.mask_of(name) for name in names]
    compared = [(name, tolerance) for name in names] + [(mask, 0.0) for mask in masks if mask is not None]
    features = np.concatenate([_features(store, ids, lengths, name) for name in names], axis=1)
    has_values = _have_values(store, ids, lengths, masks)
    room = tolerance + _ROUNDING * float(np.abs(features).max(initial=0.0))
    widest = np.argsort(-np.ptp(features, axis=0), kind="stable")[:_HASHED]
    cells = np.floor(features[:, widest] / (room or 1.0))
    originals = np.arange(len(ids))
    kept: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    with progress_bar(len(ids), "compare", "episode", None) as bar:
        for position, (length, cell) in enumerate(zip(lengths.tolist(), cells.tolist(), strict=True)):
            bar.update(1)
            if not has_values[position]:
                continue
            around = product(*((each - 1, each, each + 1) for each in cell))
            candidates = [other for place in around for other in kept.get((length, *place), ())]
            near = np.abs(features[candidates] - features[position]).max(axis=1, initial=0.0) <= room
            for other in sorted(np.array(candidates, np.int64)[near].tolist()):
                pair = ids[[other, position]]
                if all(_nearly_equal(*_episodes(store, name, pair), most) for name, most in compared):
                    originals[position] = other
                    break
            else:
                kept[(length, *cell)].append(position)
    return originals


def _have_values(
    store: DatasetStore, ids: Int64Array, lengths: Int64Array, masks: Sequence[str | None]
) -> npt.NDArray[np.bool_]:
    """Returns the episodes that have a value of some column, bool [episodes].

    Args:
        store, ids, lengths: the episodes.
        masks: the mask of each column; None: it has all values.
    """
    if None in masks:
        return np.ones(len(ids), np.bool_)
    # The last feature is the share of the steps with a value.
    found = [_features(store, ids, lengths, mask)[:, -1] > 0 for mask in masks if mask is not None]
    some: npt.NDArray[np.bool_] = np.logical_or.reduce(found)
    return some


def _features(store: DatasetStore, ids: Int64Array, lengths: Int64Array, name: str) -> Float64Array:
    """Returns the features of a column, float64 [episodes, features]. Values that are not finite count as 0."""
    spec = store.schema[name]
    size = max(1, int(np.prod(spec.shape, dtype=np.int64)))
    groups = np.unique(np.linspace(0, size, min(size, _GROUPS) + 1).astype(np.int64))
    parts = []
    with progress_bar(int(lengths.sum()), f"read {name}", "step", None) as bar:
        for first, last in block_ranges(lengths, 8 * size, BLOCK_BYTES):
            block = ids[first:last]
            values = np.asarray(store.steps(name, block)).reshape(-1, size).astype(np.float64)
            values = np.where(np.isfinite(values), values, 0.0)
            means = np.add.reduceat(values, groups[:-1], axis=1) / np.diff(groups)
            offsets = offsets_of(lengths[first:last])
            every = np.add.reduceat(means, offsets[:-1], axis=0) / lengths[first:last, None]
            parts.append(np.concatenate([means[offsets[:-1]], means[offsets[1:] - 1], every], axis=1))
            bar.update(int(lengths[first:last].sum()))
    return np.concatenate(parts)


def _episodes(store: DatasetStore, name: str, ids: Int64Array) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    first, second = (store.steps(name, ids[i : i + 1]) for i in (0, 1))
    return first, second


def _nearly_equal(first: npt.NDArray[Any], second: npt.NDArray[Any], tolerance: float) -> bool:
    """Returns whether two arrays of one shape and dtype differ by at most the tolerance."""
    if first.dtype.kind in "iub":
        # Exact for 64 bits, too: the difference of the larger and the smaller value fits the unsigned type.
        larger, smaller = np.maximum(first, second), np.minimum(first, second)
        unsigned = np.dtype(f"u{first.dtype.itemsize}")
        return bool((larger.view(unsigned) - smaller.view(unsigned) <= tolerance).all())
    wide = (each.astype(np.float64) for each in (first, second))
    old, new = wide
    with np.errstate(invalid="ignore"):
        near = (np.abs(old - new) <= tolerance) | (old == new) | (np.isnan(old) & np.isnan(new))
    return bool(near.all())
