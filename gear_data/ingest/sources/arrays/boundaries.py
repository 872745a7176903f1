"""Episode boundaries in flat arrays.

Flags, ids, counters, jumps between observations, or a stated length mark them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import BadEpisodeError, UnsupportedColumnError
from gear_data.ingest.findings.log import BAD_EPISODE_HINT, Finding
from gear_data.ingest.pipeline.episode_values import rows_differ
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.arrays.classify import values_at
from gear_data.ingest.sources.arrays.numpy_files import ArrayReader, StoredArray

_SCAN_BYTES = 16 << 20
#: Reads the rows [start, stop) of an array.
Rows = Callable[[int, int], npt.NDArray[Any]]


def _markers(reader: ArrayReader, rows: int, arrays: Sequence[StoredArray]) -> list[Rows]:
    """Returns functions that read flags, ids or counters of `rows` steps.

    Raises:
        BadEpisodeError: an id or counter has another number of rows.
        UnsupportedColumnError: an array is not one number per step.
    """
    for array in arrays:
        if len(array) != rows:
            raise BadEpisodeError(
                f"says where episodes begin, but has {len(array)} rows, where there are {rows} steps",
                file=array.place,
                row=min(rows, len(array)),
                hint="name another column with --episode-column (episodes=EpisodeBoundaries(...)), and leave this one "
                "out with --columns (columns=[...]); or correct it",
            )
        if array.dtype.kind not in "biuf" or math.prod(array.row_shape) != 1:
            raise UnsupportedColumnError(
                f"marks where episodes end, but holds {array.dtype} {array.row_shape} per step, not one number",
                file=array.place,
                hint="name another column with --episode-column, --step-column or --end-column; if it means something "
                "else, give it another name with --rename",
            )
    return [partial(reader.read, array) for array in arrays]


def array_lengths(
    rows: int,
    flags: Sequence[StoredArray],
    *,
    ids: Sequence[StoredArray] = (),
    counters: Sequence[StoredArray] = (),
    next_pairs: Sequence[tuple[StoredArray, StoredArray]] = (),
) -> npt.NDArray[np.int64]:
    """Finds the episodes in stored arrays, as `scan_lengths`. Raises the errors of `_markers`."""
    row_bytes = sum(array.row_bytes for array in (*flags, *ids, *counters, *(after for _, after in next_pairs)))
    with ArrayReader() as reader:
        return scan_lengths(
            rows,
            row_bytes,
            _markers(reader, rows, flags),
            ids=_markers(reader, rows, ids),
            counters=_markers(reader, rows, counters),
            next_pairs=[(partial(reader.read, array), partial(reader.read, after)) for array, after in next_pairs],
        )


def scan_lengths(
    rows: int,
    row_bytes: int,
    flags: Sequence[Rows],
    *,
    ids: Sequence[Rows] = (),
    counters: Sequence[Rows] = (),
    next_pairs: Sequence[tuple[Rows, Rows]] = (),
) -> npt.NDArray[np.int64]:
    """Finds the episodes in flat arrays, which are read in bounded pieces.

    Args:
        rows: the number of rows, the same in all arrays.
        row_bytes: the bytes of a row of all arrays.
        flags: an episode ends at a row where a flag is set.
        ids: an episode begins where an id changes.
        counters: an episode begins where a counter does not rise.
        next_pairs: (observations, next observations). An episode begins at t + 1 where next[t] differs from
            observations[t + 1].

    Returns:
        int64 [n], the lengths of the episodes.
    """
    step = max(1, _SCAN_BYTES // max(1, row_bytes))
    last_rows = []
    for start in range(0, rows if (*flags, *ids, *counters, *next_pairs) else 0, step):
        stop = min(rows, start + step)
        stop_after = min(rows, stop + 1)  # includes the row after the piece, if there is one
        ends = np.zeros(stop - start, np.bool_)
        for flag in flags:
            ends |= flag(start, stop).reshape(-1).astype(np.bool_)
        inner_ends = ends[: stop_after - start - 1]  # a view: the rows whose next row was read too
        for read in ids:
            values = read(start, stop_after).reshape(-1)
            inner_ends |= values[1:] != values[:-1]
        for read in counters:
            values = read(start, stop_after).reshape(-1)
            inner_ends |= values[1:] <= values[:-1]
        for read, read_next in next_pairs:
            inner_ends |= rows_differ(read_next(start, stop_after - 1), read(start + 1, stop_after))
        if stop == rows:
            ends[-1] = True
        last_rows.append(start + np.flatnonzero(ends))
    return lengths_between(np.concatenate(last_rows) + 1) if last_rows else np.array([rows] if rows else [], np.int64)


def lengths_between(ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns int64 [n], the lengths of consecutive episodes.

    `ends` has the row after each episode.
    """
    lengths = ends.astype(np.int64)
    lengths[1:] -= ends[:-1]
    return lengths


def limit_lengths(lengths: npt.NDArray[np.int64], limit: int) -> npt.NDArray[np.int64]:
    """Splits longer episodes into pieces of `limit` steps and a rest."""
    pieces = -(-lengths // limit)
    result = np.full(int(pieces.sum()), limit, np.int64)
    result[np.cumsum(pieces) - 1] = lengths - (pieces - 1) * limit
    return result


def truncated_at_limit(
    flags: Sequence[StoredArray], last_rows: npt.NDArray[np.int64], at_limit: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Returns bool [n]: the episodes that the limit truncated.

    Args:
        flags: end flags.
        last_rows: int64 [n], the last row of each episode.
        at_limit: bool [n], the episodes whose length is the limit. Those without a flag at the last row are truncated.
    """
    truncated = at_limit.copy()
    for flag in flags:
        truncated[at_limit] &= ~values_at(flag, last_rows[at_limit]).reshape(-1).astype(np.bool_)
    return truncated


def without_final_rows(
    name: str, column: str, starts: npt.NDArray[np.int64], rows: int, options: SourceOptions
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[Finding]]:
    """Counts the steps of episodes whose last row is only the final observation.

    Args:
        name: the name of the file, for messages.
        column: the array that says where episodes are, for messages.
        starts: int64 [n], the first row of each episode.
        rows: the number of rows, of which the last episode has the rest.
        options: the user's options.

    Returns:
        The first rows and the lengths of the episodes that have a step, and a finding about the others.

    Raises:
        BadEpisodeError: an episode has no step, and bad episodes are not skipped.
    """
    lengths = np.diff(starts, append=rows) - 1
    empty = np.flatnonzero(lengths < 1)
    if not len(empty):
        return starts, lengths, []
    first_row = int(starts[empty[0]])
    if not options.skip_bad:
        raise BadEpisodeError(
            "the episode has an observation, but no step", column=column, row=first_row, hint=BAD_EPISODE_HINT
        )
    finding = Finding("bad-episode", "an observation without a step; skipped", len(empty), name, first_row, column)
    return np.delete(starts, empty), np.delete(lengths, empty), [finding]
