"""Which rows of flat arrays are an episode: told by a split array, by lengths, by flags, or by a file each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gear_data.errors import BadEpisodeError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.pipeline.columns import END_FLAGS
from gear_data.ingest.pipeline.names import DONES
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.arrays.classify import (
    ENDS,
    FIRST,
    INDICES,
    LENGTHS,
    NEXT,
    ClassifiedArrays,
    all_values,
    classify_arrays,
    is_observation,
    misfit,
    scalar_facts,
    values_at,
)
from gear_data.ingest.sources.arrays.dreamer import dreamer_arrays
from gear_data.ingest.sources.arrays.numpy_files import ArrayReader, StoredArray
from gear_data.ingest.sources.arrays.source import EpisodeRanges, StepArrays
from gear_data.storage.block import offsets_of

_SCAN_BYTES = 16 << 20


def step_arrays(
    name: str, size: int, arrays: Mapping[str, StoredArray], options: SourceOptions, *, alone: bool, seekable: bool
) -> StepArrays:
    """The episodes in arrays of one place, by their names in the source. `alone`: the source is nothing else, so
    something in it must say where episodes end; else each place ends one.

    Raises:
        UnknownFormatError: nothing says where episodes are.
        BadEpisodeError: arrays whose lengths do not fit.
        UnknownNameError, UnsupportedColumnError, CorruptSourceError
    """
    found = classify_arrays(name, arrays, options)
    if FIRST in found.split:
        return dreamer_arrays(found, size, options, seekable)
    if INDICES in found.split:
        points = all_values(found.split[INDICES]).astype(np.int64)
        return _split_arrays_of(found, size, _differences(np.append(points, found.rows)), seekable)
    if ENDS in found.split:
        points = all_values(found.split[ENDS]).astype(np.int64)
        return _split_arrays_of(found, size, _differences(points), seekable)
    for source in LENGTHS:
        if source in found.split:
            lengths = all_values(found.split[source]).astype(np.int64)
            padded = len(lengths) == found.rows != int(lengths.sum())
            if padded:
                return _padded_arrays(found, size, lengths, seekable)
            return _split_arrays_of(found, size, lengths, seekable)
    return _flagged_arrays(found, size, options, alone, seekable)


def _differences(ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Lengths, from where each ends."""
    lengths = ends.astype(np.int64)
    lengths[1:] -= ends[:-1]
    return lengths


def _split_arrays_of(found: ClassifiedArrays, size: int, lengths: npt.NDArray[np.int64], seekable: bool) -> StepArrays:
    """Flat steps, cut by known lengths; observations may have one row more an episode, the last one's."""
    rows, count = found.rows, len(lengths)
    # More than all rows is checked for itself: sums of absurd lengths wrap around.
    bad = np.flatnonzero((lengths < 1) | (lengths > rows))
    if len(bad) or int(lengths.sum()) != rows:
        reason = f"gives episode {bad[0]} {lengths[bad[0]]} steps" if len(bad) else f"gives {lengths.sum()} steps"
        raise BadEpisodeError(
            f"{reason}, where '{found.sources[found.reference]}' has {rows} rows in all",
            file=found.name,
            column=next(iter(found.split)),
            row=int(bad[0]) if len(bad) else None,
        )
    starts = offsets_of(lengths)[:-1]
    columns, flags, facts, wide = {}, {}, scalar_facts(found, count), set()
    for name, array in found.steps.items():
        if name == NEXT and len(array) == rows and not found.keeps_next:
            continue
        if len(array) == rows:
            columns[name] = array
        elif len(array) == rows + count and is_observation(name):
            columns[name] = array
            wide.add(name)
        elif len(array) == count and len(array.shape) == 1:
            if name not in END_FLAGS:
                facts[name] = all_values(array).tolist()
            else:
                # imitation's `terminal` is the environment's done: it tells no time limit from a terminal state.
                flags[DONES if INDICES in found.split else name] = all_values(array).astype(np.bool_)
        else:
            raise misfit(found, name, rows)
    sources = dict(found.sources)
    if DONES in flags and "terminated" in sources:
        sources[DONES] = sources["terminated"]
    episodes = EpisodeRanges(lengths, starts, starts + np.arange(count), facts, flags, found.findings)
    following = {} if wide else _following(found, columns)
    return StepArrays(
        name=found.name,
        bytes=size,
        arrays=columns,
        sources=sources,
        locate=lambda: episodes,
        wide=frozenset(wide),
        following=following,
        flags=tuple(flags),
        seekable=seekable,
    )


def _padded_arrays(found: ClassifiedArrays, size: int, lengths: npt.NDArray[np.int64], seekable: bool) -> StepArrays:
    """[episodes, steps, ...], of which each episode has its length; the rest is padding."""
    count = len(lengths)
    reference = found.steps[found.reference]
    if len(reference.shape) < 2 or not count or lengths.min() < 1 or lengths.max() > reference.shape[1]:
        raise BadEpisodeError(
            f"does not fit '{found.sources[found.reference]}' of shape {reference.shape}",
            file=found.name,
            column=next(iter(found.split)),
        )
    longest = reference.shape[1]
    columns, facts, wide = {}, scalar_facts(found, count), set()
    for name, array in found.steps.items():
        if len(array) != count:
            raise misfit(found, name, count)
        if len(array.shape) == 1 and name not in END_FLAGS:
            facts[name] = all_values(array).tolist()
            continue
        extra = is_observation(name) and array.shape[1:2] == (longest + 1,)
        if array.shape[1:2] != (longest,) and not extra:
            raise BadEpisodeError(
                f"has shape {array.shape}, where '{found.sources[found.reference]}' has {reference.shape}",
                file=found.name,
                column=found.sources[name],
            )
        if extra:
            wide.add(name)
        columns[name] = replace(array, shape=(count * array.shape[1], *array.shape[2:]))
    numbers = np.arange(count, dtype=np.int64)
    episodes = EpisodeRanges(lengths, numbers * longest, numbers * (longest + 1), facts, findings=found.findings)
    if not found.keeps_next:
        columns.pop(NEXT, None)
    return StepArrays(found.name, size, columns, found.sources, lambda: episodes, frozenset(wide), seekable=seekable)


def _following(found: ClassifiedArrays, columns: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    """`next_observations` gives the final ones, where it is like `observations`."""
    following, own = found.steps.get(NEXT), columns.get("observations")
    if following is None or own is None:
        return {}
    if (following.column_dtype(NEXT), following.row_shape) != (own.column_dtype("observations"), own.row_shape):
        raise BadEpisodeError(
            f"is {following.dtype} {following.row_shape}, where 'observations' is {own.dtype} {own.row_shape}",
            file=found.name,
            column=found.sources[NEXT],
            hint="it gives final observations, which must be like the others; leave it out of the file",
        )
    return {"observations": following}


def _flagged_arrays(
    found: ClassifiedArrays, size: int, options: SourceOptions, alone: bool, seekable: bool
) -> StepArrays:
    """Flat steps, with flags, an episode column or a limit that says where episodes end, or one episode."""
    rows = found.rows
    columns = {name: array for name, array in found.steps.items() if name != NEXT or found.keeps_next}
    wide = frozenset(n for n, array in columns.items() if is_observation(n) and len(array) == rows + 1)
    for name, array in found.steps.items():
        if len(array) != rows and name not in wide:
            raise misfit(found, name, rows)
    following = {} if wide else _following(found, columns)
    flags = [columns[name] for name in sorted(END_FLAGS & columns.keys())]
    told = bool(wide or found.split or following or {DONES, "truncated"} & columns.keys())
    limit = None if told else options.max_episode_steps
    if alone and not told and limit is None:
        raise UnknownFormatError(
            "nothing says where episodes end: there is no truncation flag ('timeouts', 'truncated'), no 'dones', no "
            "'next_observations', and no 'indices', 'episode_ends' or 'episode_lengths'",
            file=found.name,
            hint="name a column with --end-column or --episode-column, or give --max-episode-steps",
        )
    by_jumps = {} if {DONES, "truncated"} & columns.keys() else following
    ids = [array for source, array in found.split.items() if source == found.episode_column]
    counters = [array for source, array in found.split.items() if source != found.episode_column]
    findings, sources = found.findings, dict(found.sources)
    if limit is not None:
        message = f"nothing else says where episodes end; they end after {limit} steps"
        findings = (*findings, Finding("ends-by-length", message, file=found.name))
        sources["truncated"] = "truncated"

    def locate() -> EpisodeRanges:
        if wide:
            lengths = np.array([rows] if rows else [], np.int64)
        else:
            lengths = scan_lengths(
                rows, flags, ids=ids, counters=counters, following=[(columns[n], then) for n, then in by_jumps.items()]
            )
        if limit is not None:
            lengths = _limited(lengths, limit)
        count = len(lengths)
        starts = offsets_of(lengths)[:-1]
        stopped = {} if limit is None else {"truncated": _stopped(flags, starts + lengths - 1, lengths == limit)}
        facts = scalar_facts(found, count)
        if found.episode_column is not None:
            facts[found.episode_column] = values_at(ids[0], starts).reshape(-1).tolist()
        return EpisodeRanges(lengths, starts, facts=facts, flags=stopped, findings=findings)

    return StepArrays(
        name=found.name,
        bytes=size,
        arrays=columns,
        sources=sources,
        locate=locate,
        wide=wide,
        following=following,
        flags=() if limit is None else ("truncated",),
        seekable=seekable,
    )


def scan_lengths(
    rows: int,
    flags: Sequence[StoredArray],
    *,
    ids: Sequence[StoredArray] = (),
    counters: Sequence[StoredArray] = (),
    following: Sequence[tuple[StoredArray, StoredArray]] = (),
) -> npt.NDArray[np.int64]:
    """int64 [n], the lengths of episodes in flat arrays of `rows` rows, which are read in bounded pieces.

    Args:
        flags: an episode ends where one is set.
        ids: another begins where one changes.
        counters: another begins where one does not grow.
        following: (observations, next observations): another begins where next[t] is not observations[t + 1].

    Raises:
        UnsupportedColumnError: a flag, an id or a counter that is not one number a step.
    """
    for array in (*flags, *ids, *counters):
        if array.dtype.kind not in "biuf" or math.prod(array.row_shape) != 1:
            raise UnsupportedColumnError(
                f"is to say where episodes end, and holds {array.dtype} {array.row_shape} a step, not one number",
                file=array.place,
                hint="give it another name with --rename, if it is something else",
            )
    watched = [*flags, *ids, *counters, *(then for _, then in following)]
    step = max(1, _SCAN_BYTES // max(1, sum(array.row_bytes for array in watched)))
    found = [np.array([rows - 1] if rows else [], np.int64)]
    with ArrayReader() as reader:
        for start in range(0, rows if watched else 0, step):
            stop = min(rows, start + step)
            beyond = min(rows, stop + 1)
            ends = np.zeros(stop - start, np.bool_)
            for flag in flags:
                ends |= reader.read(flag, start, stop).reshape(-1).astype(np.bool_)
            inner = ends[: beyond - start - 1]
            for array in ids:
                values = reader.read(array, start, beyond).reshape(-1)
                inner |= values[1:] != values[:-1]
            for array in counters:
                values = reader.read(array, start, beyond).reshape(-1)
                inner |= values[1:] <= values[:-1]
            for own, then in following:
                next_, now = reader.read(then, start, beyond - 1), reader.read(own, start + 1, beyond)
                same = (next_ == now) | ((next_ != next_) & (now != now))  # NaN
                inner |= ~same.all(axis=tuple(range(1, same.ndim)))
            found.append(start + np.flatnonzero(ends))
    return _differences(np.unique(np.concatenate(found)) + 1)


def _limited(lengths: npt.NDArray[np.int64], limit: int) -> npt.NDArray[np.int64]:
    """Episodes longer than the limit cut into pieces of it."""
    pieces = -(-lengths // limit)
    result = np.full(int(pieces.sum()), limit, np.int64)
    result[np.cumsum(pieces) - 1] = lengths - (pieces - 1) * limit
    return result


def _stopped(
    flags: Sequence[StoredArray], last: npt.NDArray[np.int64], longest: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """bool [n]: whether an episode was stopped by the limit: it is one of the longest, and none of the flags is set at
    its last row."""
    stopped = longest.copy()
    for flag in flags:
        stopped[longest] &= ~values_at(flag, last[longest]).reshape(-1).astype(np.bool_)
    return stopped
