"""Checks of episodes' positions and ids."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from gear_data.errors import EmptySourceError, EpisodeIndexError, InvalidArgumentError
from gear_data.selection.windows import Int64Array


def check_position(position: Any, count: int) -> int:
    """Returns a position as an int from 0 to count - 1.

    A negative position counts from the end.

    Raises:
        EpisodeIndexError: the position is not in -count to count - 1.
        InvalidArgumentError: the position is a Boolean.
    """
    if isinstance(position, bool):
        raise InvalidArgumentError(f"an episode's position is an integer, not {position!r}")
    if not -count <= position < count:
        raise _outside(int(position), count)
    return int(position) % count


def check_positions(positions: Any, count: int) -> Int64Array:
    """Returns positions as int64 [k], ascending, from 0 to count - 1.

    Negative positions count from the end.

    Raises:
        EpisodeIndexError: a position is not in -count to count - 1.
        InvalidArgumentError: the positions are not a list of integers, or not ascending.
        EmptySourceError: there are no positions.
    """
    try:
        values = np.asarray(positions)
    except ValueError:
        raise _not_integers(positions) from None
    if values.ndim == 1 and not len(values):
        raise EmptySourceError("no episode was selected", hint="give at least one position")
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise _not_integers(positions)
    outside = (values < -count) | (values >= count)
    if outside.any():
        raise _outside(int(values[np.argmax(outside)]), count)
    checked = values.astype(np.int64) % count
    falling = np.flatnonzero(checked[1:] <= checked[:-1])
    if len(falling):
        first, second = checked[falling[0] : falling[0] + 2].tolist()
        raise InvalidArgumentError(
            f"positions must ascend without repeats, but {second} comes after {first}",
            hint="a view keeps the order of its dataset: select(sorted(set(positions)))",
        )
    return checked


def check_range(first: int, last: int, count: int) -> None:
    """Checks that positions first to last - 1 are episodes of a dataset or view.

    Args:
        first: position of the first episode.
        last: position after the last episode.
        count: number of episodes of the dataset or view.

    Raises:
        EpisodeIndexError: they are not.
    """
    if not 0 <= first <= last <= count:
        raise EpisodeIndexError(
            f"positions {first} to {last} are not a range of episodes: positions are 0 to {count}",
            hint="the last position is exclusive, and negative positions are not supported",
        )


def row_of_id(index: Any, ids: Int64Array | None, rows: Int64Array | None, count: int) -> int:
    """Returns the row of an episode in the store.

    Args:
        index: the id.
        ids: int64 [n], ascending: the ids of all episodes of the store; None: 0 to n - 1.
        rows: int64 [k], ascending: the rows of a view's episodes; None for the whole dataset.
        count: n.

    Raises:
        EpisodeIndexError: the dataset or view has no such episode.
        InvalidArgumentError: the id is not an integer.
    """
    try:
        index = operator.index(index)  # also of tensors
    except TypeError as error:
        raise InvalidArgumentError(f"an episode's id is an integer, not {index!r}") from error
    row = index if ids is None else int(np.searchsorted(ids, index))
    if not 0 <= row < count or (ids is not None and ids[row] != index):
        last = count - 1 if ids is None else int(ids[-1])
        left = "" if ids is None else "; some have left the dataset"
        raise EpisodeIndexError(f"no episode has id {index}: ids are 0 to {last}{left}")
    if rows is not None:
        position = int(np.searchsorted(rows, row))
        if position == len(rows) or rows[position] != row:
            raise EpisodeIndexError(
                f"episode {index} is not among the {len(rows):,} of this view",
                hint="episodes keep their ids in a view; ds.episodes['episode_id'] lists them",
            )
    return int(row)


def _outside(position: int, count: int) -> EpisodeIndexError:
    return EpisodeIndexError(f"no episode at position {position}: positions are 0 to {count - 1}")


def _not_integers(positions: Any) -> InvalidArgumentError:
    text = repr(positions)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return InvalidArgumentError(
        f"expected an integer, a slice or a list of integers, not {shown}",
        hint="for a Boolean mask, pass numpy.flatnonzero(mask); for a condition, use filter",
    )
