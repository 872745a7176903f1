"""Which rows of flat arrays are an episode: told by a split array, by lengths, by flags, or by a file each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import BadEpisodeError, UnknownFormatError, unknown_name
from gear_data.ingest.array_episodes import Episodes, Part
from gear_data.ingest.columns import END_FLAGS, choose_columns
from gear_data.ingest.findings import Finding
from gear_data.ingest.formats.step_rows import EPISODE_COLUMNS
from gear_data.ingest.names import DONES, canonical_name
from gear_data.ingest.numpy_files import ArrayReader, StoredArray
from gear_data.ingest.source import SourceOptions
from gear_data.storage.block import offsets_of

#: Points between episodes, as `np.split` takes them (`imitation`).
_INDICES = "indices"
#: One past each episode's last step.
_ENDS = "episode_ends"
_LENGTHS = ("lengths", "episode_lengths")
_NEXT = "next_observations"
#: DreamerV2 and V3 name a row's flags so: https://github.com/danijar/dreamerv3.
DREAMER_FLAGS = {"is_last": DONES, "is_terminal": "terminated"}
_FIRST = "is_first"
_SCAN_BYTES = 16 << 20

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Arrays:
    """A part's arrays, sorted out.

    Attributes:
        steps: canonical name -> array of a step column, or of a flag or fact by episode.
        sources: canonical name -> source name.
        split: source name -> array that says where episodes are and is no column.
        scalars: name -> array of shape ().
        findings: what was left out.
    """

    name: str
    steps: Mapping[str, StoredArray]
    sources: Mapping[str, str]
    split: Mapping[str, StoredArray]
    scalars: Mapping[str, StoredArray]
    findings: tuple[Finding, ...] = field(default=())

    @property
    def reference(self) -> str:
        """The column that says how many steps there are."""
        return next((n for n in ("actions", "rewards", *sorted(END_FLAGS)) if n in self.steps), next(iter(self.steps)))

    @property
    def rows(self) -> int:
        return len(self.steps[self.reference])


def array_part(
    name: str, size: int, arrays: Mapping[str, StoredArray], options: SourceOptions, *, alone: bool, seekable: bool
) -> Part:
    """The episodes in arrays of one place, by their names in the source. `alone`: the source is nothing else, so
    something in it must say where episodes end; else each place ends one.

    Raises:
        UnknownFormatError: nothing says where episodes are.
        BadEpisodeError: arrays whose lengths do not fit.
        UnknownNameError, UnsupportedColumnError, CorruptSourceError
    """
    found = _sort_out(name, arrays, options)
    if _FIRST in found.split:
        return _dreamer_part(found, size, options, seekable)
    if _INDICES in found.split:
        points = _all(found.split[_INDICES]).astype(np.int64)
        return _split_part(found, size, np.diff(points, prepend=0, append=found.rows), seekable)
    if _ENDS in found.split:
        return _split_part(found, size, np.diff(_all(found.split[_ENDS]).astype(np.int64), prepend=0), seekable)
    for source in _LENGTHS:
        if source in found.split:
            lengths = _all(found.split[source]).astype(np.int64)
            padded = len(lengths) == found.rows != int(lengths.sum())
            if padded:
                return _padded_part(found, size, lengths, seekable)
            return _split_part(found, size, lengths, seekable)
    return _flagged_part(found, size, options, alone, seekable)


def _sort_out(name: str, arrays: Mapping[str, StoredArray], options: SourceOptions) -> _Arrays:
    for wanted in (options.episode_column, options.step_column, options.end_column):
        if wanted is not None and wanted not in arrays:
            raise unknown_name("column", wanted, arrays)
    objects = [source for source, array in arrays.items() if array.dtype.hasobject]
    scalars = {source: array for source, array in arrays.items() if array.shape == () and source not in objects}
    split = {
        source: array
        for source, array in arrays.items()
        if array.dtype.kind in "biu" and len(array.shape) == 1 and source in (_INDICES, _ENDS, _FIRST, *_LENGTHS)
    }
    episode = options.episode_column or next((n for n in EPISODE_COLUMNS if n in arrays and n not in scalars), None)
    for column in (episode, options.step_column):
        if column is not None and column not in objects:
            split[column] = arrays[column]
    names = [source for source in arrays if source not in (*objects, *scalars, *split)]
    rename = dict(options.rename or {})
    if options.end_column is not None:
        rename[options.end_column] = DONES
    if _FIRST in split:
        rename = {source: _dreamer_name(source) for source in names} | rename
    if options.columns is not None:
        names_known = [*names, *objects]
        chosen = choose_columns(names_known, replace(options, rename=rename))
        objects = [source for source in objects if source in chosen]
        chosen = {source: column for source, column in chosen.items() if source in names}
    else:
        chosen = choose_columns(names, replace(options, rename=rename))
    if not chosen:
        raise UnknownFormatError("holds no array of steps", file=name, hint=f"its arrays: {', '.join(arrays)}")
    findings = tuple(
        Finding(
            "object-array-left-out",
            "an array of pickled Python objects; never loaded, left out",
            file=arrays[source].place,
            column=source,
        )
        for source in objects
    )
    steps = {column: arrays[source] for source, column in chosen.items()}
    sources = {column: source for source, column in chosen.items()}
    if _NEXT not in steps:  # It gives final observations, whatever columns were asked for.
        following = next((source for source in names if canonical_name(source) == _NEXT), None)
        if following is not None:
            steps[_NEXT], sources[_NEXT] = arrays[following], following
    return _Arrays(name, steps, sources, split, scalars, findings)


def _dreamer_name(source: str) -> str:
    """What is neither an action, a reward nor a flag comes from the environment with the observation."""
    known = {**DREAMER_FLAGS, "action": "actions", "reward": "rewards", "discount": "discount"}
    if source in known:
        return known[source]
    if source in ("observation", "obs"):
        return "observations"
    return f"infos.{source}" if source.startswith("log_") else f"observations.{source}"


def _all(array: StoredArray) -> npt.NDArray[Any]:
    with ArrayReader() as reader:
        return reader.read(array, 0, len(array))


def _facts(found: _Arrays, count: int) -> dict[str, list[Any]]:
    """Scalars stand for every episode of the part."""
    facts: dict[str, list[Any]] = {}
    with ArrayReader() as reader:
        for name, array in found.scalars.items():
            array.column_dtype(name)
            value = reader.read(replace(array, shape=(1,)), 0, 1)[0].item()
            facts[name] = [value] * count
    return facts


def _is_observation(name: str) -> bool:
    return name.split(".", 1)[0] == "observations"


def _misfit(found: _Arrays, name: str, expected: int) -> BadEpisodeError:
    rows = len(found.steps[name])
    return BadEpisodeError(
        f"has {rows} rows, where '{found.sources[found.reference]}' has {expected}",
        file=found.name,
        column=found.sources[name],
        row=min(rows, expected),
        hint="name the columns to keep with --columns (columns=[...])",
    )


def _split_part(found: _Arrays, size: int, lengths: Rows, seekable: bool) -> Part:
    """Flat steps, cut by known lengths; observations may have one row more an episode, the last one's."""
    rows, count = found.rows, len(lengths)
    bad = np.flatnonzero(lengths < 1)
    if len(bad) or int(lengths.sum()) != rows:
        reason = f"gives episode {bad[0]} {lengths[bad[0]]} steps" if len(bad) else f"gives {lengths.sum()} steps"
        raise BadEpisodeError(
            f"{reason}, where '{found.sources[found.reference]}' has {rows} rows in all",
            file=found.name,
            column=next(iter(found.split)),
            row=int(bad[0]) if len(bad) else None,
        )
    starts = offsets_of(lengths)[:-1]
    columns, flags, facts, wide = {}, {}, _facts(found, count), set()
    for name, array in found.steps.items():
        if name == _NEXT and len(array) == rows:
            continue
        if len(array) == rows:
            columns[name] = array
        elif len(array) == rows + count and _is_observation(name):
            columns[name] = array
            wide.add(name)
        elif len(array) == count and len(array.shape) == 1:
            if name not in END_FLAGS:
                facts[name] = _all(array).tolist()
            else:
                # imitation's `terminal` is the environment's done: it tells no time limit from a terminal state.
                flags[DONES if _INDICES in found.split else name] = _all(array).astype(np.bool_)
        else:
            raise _misfit(found, name, rows)
    sources = dict(found.sources)
    if DONES in flags and "terminated" in sources:
        sources[DONES] = sources["terminated"]
    episodes = Episodes(lengths, starts, starts + np.arange(count), facts, flags, found.findings)
    following = {} if wide else _following(found, columns)
    return Part(
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


def _padded_part(found: _Arrays, size: int, lengths: Rows, seekable: bool) -> Part:
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
    columns, facts, wide = {}, _facts(found, count), set()
    for name, array in found.steps.items():
        if len(array) != count:
            raise _misfit(found, name, count)
        if len(array.shape) == 1 and name not in END_FLAGS:
            facts[name] = _all(array).tolist()
            continue
        extra = _is_observation(name) and array.shape[1:2] == (longest + 1,)
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
    episodes = Episodes(lengths, numbers * longest, numbers * (longest + 1), facts, findings=found.findings)
    columns.pop(_NEXT, None)
    return Part(found.name, size, columns, found.sources, lambda: episodes, frozenset(wide), seekable=seekable)


def _following(found: _Arrays, columns: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    """`next_observations` gives the final ones, where it is like `observations`."""
    following, own = found.steps.get(_NEXT), columns.get("observations")
    if following is None or own is None:
        return {}
    if (following.column_dtype(_NEXT), following.row_shape) != (own.column_dtype("observations"), own.row_shape):
        raise BadEpisodeError(
            f"is {following.dtype} {following.row_shape}, where 'observations' is {own.dtype} {own.row_shape}",
            file=found.name,
            column=found.sources[_NEXT],
            hint="it gives final observations, which must be like the others; leave it out of the file",
        )
    return {"observations": following}


def _flagged_part(found: _Arrays, size: int, options: SourceOptions, alone: bool, seekable: bool) -> Part:
    """Flat steps, with flags, an episode column or a limit that says where episodes end, or one episode."""
    rows = found.rows
    columns = {name: array for name, array in found.steps.items() if name != _NEXT}
    wide = frozenset(n for n, array in columns.items() if _is_observation(n) and len(array) == rows + 1)
    for name, array in found.steps.items():
        if len(array) != rows and name not in wide:
            raise _misfit(found, name, rows)
    following = {} if wide else _following(found, columns)
    flags = [columns[name] for name in sorted(END_FLAGS & columns.keys())]
    told = (
        bool(found.split)
        or DONES in columns
        or "truncated" in columns
        or bool(following)
        or options.max_episode_steps is not None
    )
    if alone and not wide and not told:
        raise UnknownFormatError(
            "nothing says where episodes end: there is no truncation flag ('timeouts', 'truncated'), no 'dones', no "
            "'next_observations', and no 'indices', 'episode_ends' or 'episode_lengths'",
            file=found.name,
            hint="name a column with --end-column or --episode-column, or give --max-episode-steps",
        )

    def locate() -> Episodes:
        with ArrayReader() as reader:
            if wide:
                lengths = np.array([rows] if rows else [], np.int64)
            else:
                follows = following if "truncated" not in columns and DONES not in columns else {}
                ends = np.concatenate(
                    [
                        *(start + np.flatnonzero(part) for start, part in _ends(reader, found, flags, follows)),
                        np.array([rows - 1] if rows else [], np.int64),
                    ]
                )
                lengths = np.diff(np.unique(ends), prepend=-1)
        if options.max_episode_steps is not None:
            lengths = _limited(lengths, options.max_episode_steps)
        count = len(lengths)
        facts: dict[str, Any] = _facts(found, count)
        return Episodes(lengths, offsets_of(lengths)[:-1], facts=facts, findings=found.findings)

    return Part(found.name, size, columns, found.sources, locate, wide, following, seekable=seekable)


def _ends(
    reader: ArrayReader, found: _Arrays, flags: list[StoredArray], following: Mapping[str, StoredArray]
) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
    """(first row, bool [n]): whether each row is an episode's last, in bounded pieces."""
    watched = [*flags, *found.split.values(), *following.values()]
    step = max(1, _SCAN_BYTES // sum(array.row_bytes for array in watched)) if watched else max(1, found.rows)
    for start in range(0, found.rows, step):
        stop = min(found.rows, start + step)
        beyond = min(found.rows, stop + 1)
        ends = np.zeros(stop - start, np.bool_)
        for flag in flags:
            ends |= reader.read(flag, start, stop).reshape(-1).astype(np.bool_)
        for source, array in found.split.items():
            values = reader.read(array, start, beyond).reshape(-1)
            changes: Callable[[Any, Any], Any] = np.greater_equal if "step" in source else np.not_equal
            ends[: beyond - start - 1] |= changes(values[:-1], values[1:])
        for name, array in following.items():
            then = reader.read(array, start, beyond - 1)
            now = reader.read(found.steps[name], start + 1, beyond)
            same = (then == now) | ((then != then) & (now != now))  # NaN
            ends[: len(same)] |= ~same.reshape(len(same), -1).all(axis=1)
        yield start, ends


def _limited(lengths: Rows, limit: int) -> Rows:
    """Episodes longer than the limit cut into pieces of it."""
    pieces = -(-lengths // limit)
    result = np.full(int(pieces.sum()), limit, np.int64)
    result[np.cumsum(pieces) - 1] = lengths - (pieces - 1) * limit
    return result


def _dreamer_part(found: _Arrays, size: int, options: SourceOptions, seekable: bool) -> Part:
    """Rows of DreamerV2 and V3: a row is an observation with the reward that came with it, so rewards and flags belong
    to the step before. In V2 the action is the one that led to the observation, which is zero at the first."""
    rows = len(found.split[_FIRST])
    for name, array in found.steps.items():
        if len(array) != rows:
            raise _misfit(found, name, rows)
    starts = np.flatnonzero(_all(found.split[_FIRST]).astype(np.bool_)).astype(np.int64)
    findings = list(found.findings)
    if rows and (not len(starts) or starts[0]):
        starts = np.concatenate([[0], starts]).astype(np.int64)
        message = "the file begins inside an episode; the rest of it is read as an episode of its own"
        findings.append(Finding("episode-cut", message, file=found.name, row=0))
    lengths = np.diff(starts, append=rows) - 1
    empty = np.flatnonzero(lengths < 1)
    if len(empty):
        if not options.skip_bad:
            raise BadEpisodeError(
                "the episode has an observation and no step",
                file=found.name,
                column=_FIRST,
                row=int(starts[empty[0]]),
                hint="mend the source, or leave such episodes out with --on-bad-episode skip",
            )
        message = "an observation and no step; skipped"
        findings.append(Finding("bad-episode", message, len(empty), found.name, int(starts[empty[0]]), _FIRST))
        starts, lengths = np.delete(starts, empty), np.delete(lengths, empty)
    shifted = {name for name in found.steps if not _is_observation(name) and name != "actions"}
    actions = found.steps.get("actions")
    if actions is not None and actions.dtype.kind == "f" and not _at(actions, starts).any():
        shifted.add("actions")
    rewards = found.steps.get("rewards")
    if rewards is not None and (nonzero := np.flatnonzero(_at(rewards, starts))).size:
        raise BadEpisodeError(
            "is not zero with an episode's first observation, where no step has been taken yet",
            file=found.name,
            column=found.sources["rewards"],
            row=int(starts[nonzero[0]]),
            hint="rewards must come with the observation they led to; else convert copies without 'is_first'",
        )
    wide = frozenset(name for name in found.steps if _is_observation(name))
    episodes = Episodes(lengths, starts, facts=_facts(found, len(lengths)), findings=tuple(findings))
    return Part(
        name=found.name,
        bytes=size,
        arrays=found.steps,
        sources=found.sources,
        locate=lambda: episodes,
        wide=wide,
        shifted=frozenset(shifted),
        seekable=seekable,
    )


def _at(array: StoredArray, rows: Rows) -> npt.NDArray[Any]:
    """The values at some rows."""
    with ArrayReader() as reader:
        return np.array([reader.read(array, int(row), int(row) + 1)[0] for row in rows])
