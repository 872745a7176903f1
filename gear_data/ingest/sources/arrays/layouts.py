"""Layouts of arrays, and their conversion to step arrays.

Arrays are flat with boundaries, lengths or flags, padded, or in Dreamer's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import BadEpisodeError, UnknownFormatError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.ideas.next_observations import alike_pairs
from gear_data.ingest.location import Location
from gear_data.ingest.pipeline.columns import END_FLAGS, EPISODE_COLUMNS, SCALAR_COLUMNS, leave_out
from gear_data.ingest.pipeline.id_ranges import OTHER_ENDS, refuse_returning_ids
from gear_data.ingest.pipeline.names import DONES, canonical_name, is_observation, usual_name
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.arrays.axes import is_padded, refuse_equal_sizes, refuse_unclear_axes
from gear_data.ingest.sources.arrays.boundaries import (
    array_lengths,
    lengths_between,
    limit_lengths,
    truncated_at_limit,
)
from gear_data.ingest.sources.arrays.classify import (
    ENDS,
    FIRST,
    INDICES,
    LENGTHS,
    NEXT,
    STARTS,
    ClassifiedArrays,
    all_values,
    classify_arrays,
    flag_values,
    scalar_facts,
    values_at,
)
from gear_data.ingest.sources.arrays.dreamer import dreamer_arrays, first_rows
from gear_data.ingest.sources.arrays.first_rows import RowConvention
from gear_data.ingest.sources.arrays.numpy_files import StoredArray
from gear_data.ingest.sources.arrays.source import ArraySource
from gear_data.ingest.sources.arrays.step_arrays import EpisodeRanges, StepArrays
from gear_data.storage.episode_block import offsets_of

_OTHER_BOUNDARIES = (
    "correct this array; or leave it out with --columns (columns=[...]), and name a column of episode ids with "
    "--episode-column (episodes=EpisodeBoundaries(...))"
)


#: The options of formats of named arrays.
USES = frozenset({"episode_column", "step_column", "end_column", "max_episode_steps", "dtype"})


def holds_steps(
    name: str, names: Iterable[str], shapes: Mapping[str, tuple[int, ...]], location: Location, format_name: str
) -> bool:
    """Returns whether arrays hold steps, by their names.

    Args:
        name: the name of the file or folder.
        names: the names of all arrays.
        shapes: name -> shape of the arrays that are not damaged.
        location: the source.
        format_name: the format that reads the first axis as the steps.

    Raises:
        UnknownFormatError: their first axis may be something else than the steps.
    """
    usual = {usual_name(each, location.rename) for each in names}
    if "actions" not in usual and not usual & SCALAR_COLUMNS:
        return False
    refuse_unclear_axes(name, {location.rename.get(each, each): shape for each, shape in shapes.items()}, format_name)
    return True


def open_flat(
    places: Sequence[tuple[str, int, Callable[[], Mapping[str, StoredArray]]]],
    options: SourceOptions,
    *,
    seekable: bool = False,
) -> ArraySource:
    """Opens the named arrays of one or several files or folders.

    Args:
        places: of each file or folder the name, the size in bytes, and a function that opens its arrays.
        options: the user's options.
        seekable: whether reading may begin at any row at no cost.

    Raises:
        GearError: the errors of `build_step_arrays` about the first one, and of `ArraySource`.
    """

    def open_(i: int) -> StepArrays:
        name, _, arrays = places[i]
        found = build_step_arrays(name, arrays(), options, whole_source=len(places) == 1, is_first=i == 0)
        return replace(found, seekable=True) if seekable else found

    names, sizes, _ = zip(*places, strict=True)
    return ArraySource(names, sizes, open_, dtypes=options.tables.dtype)


def build_step_arrays(
    name: str,
    arrays: Mapping[str, StoredArray],
    options: SourceOptions,
    *,
    whole_source: bool,
    is_first: bool,
) -> StepArrays:
    """Builds the step arrays of one file or folder.

    Args:
        name: the name of the file or folder.
        arrays: source name -> array.
        options: the user's options.
        whole_source: whether the source has no other file or folder. If so, an array must say where episodes end; if
            not, each file or folder ends an episode.
        is_first: whether it is the first file or folder, which decides what the arrays of all mean. In another one, as
            many steps as elements of a step are a coincidence.

    Raises:
        UnknownFormatError: nothing says where episodes are.
        BadEpisodeError: the lengths of the arrays do not fit.
        UnknownNameError: an option names an array that does not exist.
        UnsupportedColumnError: an array has a dtype that no column has.
        CorruptSourceError: the file is damaged.
    """
    _refuse_unclear_terminals(arrays, options)
    classified = classify_arrays(name, arrays, options)
    if is_first:
        refuse_equal_sizes(classified, options)
    boundaries = classified.boundaries
    if classified.rows_are is RowConvention.STEPS:
        starts, cut = first_rows(classified, len(boundaries[FIRST]))
        found = replace(classified, findings=(*classified.findings, *cut))
        return _arrays_with_lengths(found, np.diff(starts, append=classified.rows))
    if classified.rows_are is not None:
        return dreamer_arrays(classified, options, arrays.get("discount"))
    if INDICES in boundaries:
        rows = all_values(boundaries[INDICES]).astype(np.int64)
        return _arrays_with_lengths(classified, lengths_between(np.append(rows, classified.rows)))
    if STARTS in boundaries:
        starts = _first_rows(all_values(boundaries[STARTS]), classified.rows)
        return _arrays_with_lengths(classified, lengths_between(np.append(starts[1:], classified.rows)))
    if ENDS in boundaries:
        rows = all_values(boundaries[ENDS]).astype(np.int64)
        return _arrays_with_lengths(classified, lengths_between(rows))
    for source in LENGTHS:
        if source in boundaries:
            lengths = all_values(boundaries[source]).astype(np.int64)
            shapes = {usual_name(name, options.rename): array.shape for name, array in arrays.items()}
            if is_padded(classified, shapes, lengths):
                return _padded_arrays(classified, lengths)
            return _arrays_with_lengths(classified, lengths)
    return _flagged_arrays(classified, options, whole_source)


def _first_rows(values: npt.NDArray[Any], rows: int) -> npt.NDArray[np.int64]:
    """Returns int64 [n], the first row of each episode: the values, or the rows at which a flag is true.

    Raises BadEpisodeError if the first episode does not begin with the first row.
    """
    is_flag = values.dtype == np.bool_ or (len(values) == rows > 1 and int(values.max()) <= 1)
    starts = np.flatnonzero(values) if is_flag else values.astype(np.int64)
    if not len(starts) or starts[0] != 0:
        raise BadEpisodeError(
            f"begins no episode at row 0, but at {starts[:1].tolist()}", column=STARTS, hint=_OTHER_BOUNDARIES
        )
    return starts


def _refuse_unclear_terminals(arrays: Mapping[str, StoredArray], options: SourceOptions) -> None:
    """Refuses `terminals` that may be D4RL's or OGBench's.

    OGBench marks the ends of trajectories at a time limit, often in a row that holds only the final observation. D4RL
    marks terminal steps. Rewards show that the row is a step, unless `masks` beside them mark the terminal states.
    Another array that says where episodes end settles the question, and so do the user's options.
    """
    names = {usual_name(source, options.rename) for source in arrays}
    ends = {"truncated", DONES, FIRST, INDICES, ENDS, STARTS, *LENGTHS, *EPISODE_COLUMNS}
    if "terminals" not in arrays or names & ends or options.episodes.given or "terminals" in (options.rename or {}):
        return
    has_final_row = "observations" in arrays and arrays["observations"].shape[:1] != arrays["terminals"].shape[:1]
    if "masks" in names or not (has_final_row or names & {"rewards", NEXT}):
        raise UnknownFormatError(
            "could mean two things: a terminal step, or the end of a trajectory at a time limit (OGBench)",
            column="terminals",
            hint="give --format ogbench for OGBench's files, or --end-column terminals "
            "(episodes=EpisodeBoundaries(end_column='terminals')) if these rows are steps",
        )


def _arrays_with_lengths(classified: ClassifiedArrays, lengths: npt.NDArray[np.int64]) -> StepArrays:
    """Builds flat arrays with known lengths.

    Observations may have T + 1 rows per episode.
    """
    rows, count = classified.rows, len(lengths)
    _check_lengths(classified, lengths)
    starts = offsets_of(lengths)[:-1]
    columns, flags, facts, with_final_row = {}, {}, scalar_facts(classified, count), set()
    for name, array in classified.steps.items():
        if len(array) == rows:
            columns[name] = array
        elif len(array) == rows + count and is_observation(name):
            columns[name] = array
            with_final_row.add(name)
        elif len(array) == count and len(array.shape) == 1:
            if name not in END_FLAGS:
                facts[name] = all_values(array).tolist()
            else:
                # The `terminal` of imitation is the environment's done flag: it is also set at a time limit.
                flag = DONES if INDICES in classified.boundaries else name
                flags[flag] = flag_values(array, count, classified.sources[name])
        else:
            raise classified.wrong_length(name, rows)
    source = classified.sources.get("terminated")
    sources = {DONES: source} if DONES in flags and source is not None else {}
    episodes = EpisodeRanges(lengths, starts, starts + np.arange(count), facts, flags, classified.findings)
    return classified.with_episodes(episodes, columns, with_final_row, flag_sources=sources)


def _check_lengths(classified: ClassifiedArrays, lengths: npt.NDArray[np.int64]) -> None:
    """Checks that the lengths are positive and add up to all rows.

    Raises BadEpisodeError otherwise.
    """
    rows = classified.rows
    # Lengths above `rows` are checked separately, because the sum of huge lengths can overflow.
    bad = np.flatnonzero((lengths < 1) | (lengths > rows))
    if len(bad) or int(lengths.sum()) != rows:
        problem = f"gives episode {bad[0]} {lengths[bad[0]]} steps" if len(bad) else f"gives {lengths.sum()} steps"
        raise BadEpisodeError(
            f"{problem}, where '{classified.sources[classified.reference]}' has {rows} rows in all",
            column=classified.boundary,
            row=int(bad[0]) if len(bad) else None,
            hint=_OTHER_BOUNDARIES,
        )


def _padded_arrays(classified: ClassifiedArrays, lengths: npt.NDArray[np.int64]) -> StepArrays:
    """Builds step arrays from padded arrays [episodes, max_steps, ...]."""
    count = len(lengths)
    reference = classified.steps[classified.reference]
    reference_source = classified.sources[classified.reference]
    if len(reference.shape) < 2 or not count or lengths.min() < 1 or lengths.max() > reference.shape[1]:
        raise BadEpisodeError(
            f"does not fit '{reference_source}' of shape {reference.shape}",
            column=classified.boundary,
            hint=_OTHER_BOUNDARIES,
        )
    max_steps = reference.shape[1]
    columns, facts, with_final_row = {}, scalar_facts(classified, count), set()
    for name, array in classified.steps.items():
        if len(array) != count:
            raise classified.wrong_length(name, count)
        if len(array.shape) == 1 and name not in END_FLAGS:
            facts[name] = all_values(array).tolist()
            continue
        has_final_row = is_observation(name) and array.shape[1:2] == (max_steps + 1,)
        if array.shape[1:2] != (max_steps,) and not has_final_row:
            raise BadEpisodeError(
                f"has shape {array.shape}, where '{reference_source}' has {reference.shape}",
                column=classified.sources[name],
                hint=leave_out(classified.sources[name]),
            )
        if has_final_row:
            with_final_row.add(name)
        if array.fortran:  # the file has no rows of steps: NumPy saves a transposed array so
            array = replace(array, values=all_values(array), fortran=False)
        columns[name] = replace(array, shape=(count * array.shape[1], *array.shape[2:]))
    numbers = np.arange(count, dtype=np.int64)
    episodes = EpisodeRanges(
        lengths, numbers * max_steps, numbers * (max_steps + 1), facts, findings=classified.findings
    )
    return classified.with_episodes(episodes, columns, with_final_row)


def _locate_flagged(
    classified: ClassifiedArrays,
    limit: int | None,
    scalar_flags: Mapping[str, str],
    *,
    one_episode: bool,
    ids_may_return: bool,
) -> EpisodeRanges:
    """Finds the episodes of flat arrays without lengths.

    Args:
        classified: the arrays.
        limit: maximum length of an episode, used if nothing else says where episodes end.
        scalar_flags: canonical name -> source name of an end flag of one value, which is about the last step of all.
        one_episode: whether all rows are one episode.
        ids_may_return: whether an id of an episode may return, because something else ends the episodes.
    """
    findings, columns, flags = classified.findings, classified.episode_columns, {}
    rows = classified.rows
    lengths = np.full(min(rows, 1), rows, np.int64) if one_episode else _flagged_lengths(classified)
    if limit is not None:
        lengths = limit_lengths(lengths, limit)
        message = f"nothing else says where episodes end; they end after {limit} steps"
        findings += (Finding("ends-by-length", message, file=classified.name),)
        flags["truncated"] = truncated_at_limit(classified.flags, np.cumsum(lengths) - 1, lengths == limit)
    starts, facts = offsets_of(lengths)[:-1], scalar_facts(classified, len(lengths))
    for name, source in scalar_flags.items():
        flags[name] = np.zeros(len(lengths), np.bool_)
        flags[name][-1:] = facts[source][-1:]
    for name in columns:
        facts[name] = values_at(classified.boundaries[name], starts).reshape(-1).tolist()
    if columns and not ids_may_return:
        ids, source = [facts[name] for name in columns], classified.sources[columns[0]]
        refuse_returning_ids(ids, starts.tolist(), source, OTHER_ENDS)
    return EpisodeRanges(lengths, starts, facts=facts, flags=flags, findings=findings)


def _flagged_lengths(classified: ClassifiedArrays) -> npt.NDArray[np.int64]:
    """Returns int64 [n]: the lengths by flags, ids, counters and jumps, before a limit applies."""
    has_truncation = bool({DONES, "truncated"} & classified.steps.keys())
    # Ids and step numbers come first: next observations may be of a later step, or of another goal.
    jumps = [] if has_truncation or classified.boundaries else _next_pairs(classified.steps)
    ids = [array for name, array in classified.boundaries.items() if name in classified.episode_columns]
    counters = [array for name, array in classified.boundaries.items() if name not in classified.episode_columns]
    return array_lengths(classified.rows, classified.flags, ids=ids, counters=counters, next_pairs=jumps)


def _flagged_arrays(classified: ClassifiedArrays, options: SourceOptions, whole_source: bool) -> StepArrays:
    """Builds step arrays from flat arrays without lengths.

    Episodes end by flags, an episode column, jumps or a limit; otherwise all rows are one episode.
    """
    columns = classified.steps
    final_row_columns = _final_row_columns(classified)
    if final_row_columns and (row := _first_inner_end(classified)) is not None:
        classified = _without_final_row(classified, row, options)
        final_row_columns = frozenset()
    marks = final_row_columns or classified.boundaries or _next_pairs(columns)
    has_ends = bool(marks or {DONES, "truncated"} & columns.keys())
    limit = None if has_ends else options.episodes.max_episode_steps
    if whole_source and not has_ends and limit is None:
        raise UnknownFormatError(
            "nothing says where episodes end: there is no truncation flag ('timeouts', 'truncated'), no 'dones', no "
            "'next_observations', and no 'indices', 'episode_starts', 'episode_ends' or "
            "'episode_lengths'",
            hint="name a column with --end-column or --episode-column, or give --max-episode-steps "
            "(episodes=EpisodeBoundaries(...))",
        )
    scalar_flags = _scalar_flags(classified)
    sources = {**classified.sources, **scalar_flags}
    return StepArrays(
        name=classified.name,
        steps=classified.rows,
        arrays=columns,
        sources=sources if limit is None else {**sources, "truncated": "truncated"},
        locate=partial(
            _locate_flagged,
            classified,
            limit,
            scalar_flags,
            one_episode=bool(final_row_columns),
            ids_may_return=options.episodes.end_column is not None,
        ),
        final_row_columns=final_row_columns,
        episode_flags=tuple(scalar_flags) if limit is None else ("truncated",),
    )


def _next_pairs(columns: Mapping[str, StoredArray]) -> list[tuple[StoredArray, StoredArray]]:
    """Returns columns of observations, and of the observations after each step, of the same shape."""
    pairs = alike_pairs({name: array.shape for name, array in columns.items()})
    return [(columns[before], columns[after]) for after, before in pairs.items()]


def _scalar_flags(classified: ClassifiedArrays) -> dict[str, str]:
    """Returns canonical name -> source name of end flags of one value. There are none beside flags of steps."""
    if classified.boundaries or classified.flags:
        return {}
    names = {
        canonical_name(source): source for source, array in classified.scalars.items() if array.dtype.kind in "biu"
    }
    return {name: source for name, source in names.items() if name in END_FLAGS}


def _first_inner_end(classified: ClassifiedArrays) -> int | None:
    """Returns the first row before the last step where an end flag is set, or None."""
    lengths = array_lengths(classified.rows, classified.flags)
    return int(lengths[0]) - 1 if len(lengths) > 1 else None


def _without_final_row(classified: ClassifiedArrays, row: int, options: SourceOptions) -> ClassifiedArrays:
    """Leaves out the observation after the last step of several episodes.

    Raises UnknownFormatError if the user named no end column: the rows may also be one episode.
    """
    if options.episodes.end_column is None:
        source = next(classified.sources[name] for name in sorted(END_FLAGS & classified.steps.keys()))
        raise UnknownFormatError(
            f"could mean two things: {classified.rows + 1} observations for {classified.rows} steps are one episode "
            "with its final observation, but an end flag is set before the last step, as in several episodes",
            column=source,
            row=row,
            hint=f"for several episodes give --end-column {source} "
            f"(episodes=EpisodeBoundaries(end_column={source!r})): the last observation is left out; for one episode "
            f"give the flag another name: --rename {source}=infos.{source}",
        )
    message = "one observation more than steps, in a file of several episodes; left out"
    finding = Finding("final-left-out", message, file=classified.name, row=classified.rows)
    return replace(classified, findings=(*classified.findings, finding))


def _final_row_columns(classified: ClassifiedArrays) -> frozenset[str]:
    """Returns the observations with one row more than there are steps.

    Raises BadEpisodeError if another array has not as many rows as there are steps.
    """
    rows = classified.rows
    found = frozenset(
        name for name, array in classified.steps.items() if is_observation(name) and len(array) == rows + 1
    )
    for name, array in classified.steps.items():
        if len(array) != rows and name not in found:
            raise classified.wrong_length(name, rows)
    return found
