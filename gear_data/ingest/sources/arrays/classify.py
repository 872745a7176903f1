"""Classification of arrays by role.

The roles are step columns, episode boundaries, scalars, and arrays that are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import BadEpisodeError, CorruptSourceError, InvalidArgumentError, UnknownFormatError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.pipeline.columns import (
    END_FLAGS,
    EPISODE_COLUMNS,
    ONE_VALUE,
    choose_columns,
    resolve_structure_columns,
)
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.arrays.first_rows import (
    RowConvention,
    convention_names,
    is_old_dreamer,
    row_convention,
)
from gear_data.ingest.sources.arrays.numpy_files import ArrayReader, StoredArray
from gear_data.ingest.sources.arrays.step_arrays import EpisodeRanges, StepArrays

#: Rows between episodes, as `np.split` takes them (`imitation`).
INDICES = "indices"
#: The row after each episode's last step.
ENDS = "episode_ends"
#: The first row of each episode, or a flag per row that is true there (Stable-Baselines2).
STARTS = "episode_starts"
LENGTHS = ("lengths", "episode_lengths")
#: True at an episode's first row. `gear_data.ingest.sources.arrays.first_rows` says what the rows are.
FIRST = "is_first"
#: Arrays that say where episodes are. The first one counts.
_BOUNDARIES = (FIRST, INDICES, ENDS, STARTS, *LENGTHS)
NEXT = "next_observations"
_NO_FLAG = "download the file again; if the array is no end flag, give it another name with --rename"


@dataclass(frozen=True)
class ClassifiedArrays:
    """The arrays of one file or folder, by role.

    Attributes:
        name: the name of the file or folder.
        steps: canonical name -> array of a step column, or of a flag or fact per episode.
        sources: canonical or usual name -> source name.
        boundaries: usual name -> array that says where episodes are and is not a column.
        episode_columns: usual names of the arrays in `boundaries` that hold episode ids.
        scalars: source name -> array of shape ().
        rows_are: the convention of the rows, if `is_first` or the names of early Dreamer files are there; else None.
        findings: about arrays that are left out.
    """

    name: str
    steps: Mapping[str, StoredArray]
    sources: Mapping[str, str]
    boundaries: Mapping[str, StoredArray]
    episode_columns: tuple[str, ...]
    scalars: Mapping[str, StoredArray]
    rows_are: RowConvention | None
    findings: tuple[Finding, ...]

    @cached_property
    def reference(self) -> str:
        """Canonical name of the column whose rows are the steps."""
        return next((n for n in ("actions", "rewards", *sorted(END_FLAGS)) if n in self.steps), next(iter(self.steps)))

    @property
    def rows(self) -> int:
        """Number of rows of the reference column."""
        return len(self.steps[self.reference])

    @property
    def flags(self) -> list[StoredArray]:
        """The end flags, which have a row per step."""
        return [self.steps[name] for name in sorted(END_FLAGS & self.steps.keys())]

    @property
    def boundary(self) -> str:
        """Source name of the first array of `boundaries`."""
        return self.sources[next(iter(self.boundaries))]

    def with_episodes(
        self,
        episodes: EpisodeRanges,
        arrays: Mapping[str, StoredArray],
        final_row_columns: Iterable[str] = (),
        *,
        shifted: frozenset[str] = frozenset(),
        flag_sources: Mapping[str, str] | None = None,
    ) -> StepArrays:
        """Returns step arrays whose episodes are known. `flag_sources` has the sources of flags that are no array."""
        return StepArrays(
            name=self.name,
            steps=int(episodes.lengths.sum()),
            arrays=arrays,
            sources={**self.sources, **(flag_sources or {})},
            locate=lambda: episodes,
            final_row_columns=frozenset(final_row_columns),
            shifted=shifted,
            episode_flags=tuple(episodes.flags),
        )

    def wrong_length(self, name: str, expected: int) -> BadEpisodeError:
        """Returns the error for a column that does not have the expected number of rows."""
        rows = len(self.steps[name])
        return BadEpisodeError(
            f"has {rows} rows, where '{self.sources[self.reference]}' has {expected}",
            column=self.sources[name],
            row=min(rows, expected),
            hint="name the columns to keep with --columns (columns=[...])",
        )


def classify_arrays(name: str, arrays: Mapping[str, StoredArray], options: SourceOptions) -> ClassifiedArrays:
    """Assigns a role to every array of a file or folder.

    Args:
        name: the name of the file or folder.
        arrays: source name -> array.
        options: the user's options.

    Raises:
        UnknownNameError: an option names an array that does not exist.
        UnknownFormatError: no array holds steps.
    """
    options = resolve_structure_columns(arrays, options)
    objects = [source for source, array in arrays.items() if array.dtype.hasobject]
    scalars = {source: array for source, array in arrays.items() if array.shape == () and source not in objects}
    with_rows = {source: array for source, array in arrays.items() if source not in objects and source not in scalars}
    found, episode_columns = _boundary_arrays(with_rows, options)
    names = [source for source in with_rows if source not in found.values()]
    boundaries = {name: arrays[source] for name, source in found.items()}
    rows_are = None
    if FIRST in boundaries:
        rows_are = row_convention(names, options.rename or {})
    elif not boundaries and is_old_dreamer(names):
        rows_are = RowConvention.DREAMER
    if rows_are is not None:
        options = replace(options, rename=convention_names(names, rows_are, options.rename or {}))
    if options.columns is None:
        chosen = choose_columns(names, options, structure=found.values())
    else:
        requested = choose_columns([*names, *objects, *scalars], options, structure=found.values())
        chosen = {source: column for source, column in requested.items() if source in names}
        objects = [source for source in objects if source in requested]
        scalars = {source: array for source, array in scalars.items() if source in requested}
    if not chosen:
        raise UnknownFormatError("holds no array of steps", hint=f"its arrays: {', '.join(arrays)}")
    findings = tuple(object_left_out(arrays[source], source) for source in objects)
    steps = {column: arrays[source] for source, column in chosen.items()}
    sources = found | {column: source for source, column in chosen.items()}
    return ClassifiedArrays(name, steps, sources, boundaries, episode_columns, scalars, rows_are, findings)


def object_left_out(array: StoredArray, source: str) -> Finding:
    """Returns the finding about an array of Python objects."""
    message = "an array of pickled Python objects, which are never loaded; left out"
    return Finding("object-array-left-out", message, file=array.place, column=source)


def _boundary_arrays(
    arrays: Mapping[str, StoredArray], options: SourceOptions
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Finds the arrays that say where episodes are.

    Arrays that the user names come first, then arrays with a known name, then an episode column.

    Returns:
        Usual name -> source name, and the usual names of the arrays of episode ids.

    Raises:
        InvalidArgumentError: the user names a scalar, or an array of Python objects.
    """
    rename = options.rename or {}
    ids, step_column = options.episodes.episode_columns, options.episodes.step_column
    if named := [*ids, *([step_column] if step_column is not None else [])]:
        if other := next((name for name in named if name not in arrays), None):
            raise InvalidArgumentError(
                "is one value, where episodes or steps need a value a step",
                column=other,
                hint="leave --episode-column and --step-column out: a value of a file is a fact of its episodes",
            )
        found = {rename.get(source, source): source for source in named if source in arrays}
        return found, tuple(rename.get(source, source) for source in ids)
    sources = {rename.get(source, source): source for source in arrays}
    for name in (*_BOUNDARIES, *EPISODE_COLUMNS):
        array = arrays[sources[name]] if name in sources else None
        if array is not None and is_boundary(name, array.dtype, array.row_shape):
            return {name: sources[name]}, (name,) if name in EPISODE_COLUMNS else ()
    return {}, ()


def is_boundary(name: str, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> bool:
    """Returns whether an array of this name says where episodes are, and is no column of steps."""
    if name in EPISODE_COLUMNS:
        return dtype.kind in "iu"
    return name in _BOUNDARIES and dtype.kind in "biu" and row_shape in ONE_VALUE


def all_values(array: StoredArray) -> npt.NDArray[Any]:
    """Reads a whole array. One of shape [n, 1] becomes [n]."""
    with ArrayReader() as reader:
        values = reader.read(array, 0, len(array))
    return values.reshape(-1) if array.row_shape in ONE_VALUE else values


def flag_values(array: StoredArray, rows: int, column: str, *, filled: int | None = None) -> npt.NDArray[np.bool_]:
    """Reads an array of `rows` flags, of which the first `filled` count: bool [filled], or [rows].

    Raises BadEpisodeError for another shape, and for any value but 0 and 1.
    """
    problem, row = f"{array.dtype} {array.shape}, not one flag for each of {rows} rows", None
    if array.shape in ((rows,), (rows, 1)) and array.dtype.kind in "biuf":
        values = all_values(array)[:filled]
        wrong = np.flatnonzero((values != 0) & (values != 1)).tolist()
        if not wrong:
            return values.astype(np.bool_)
        problem, row = f"{values[wrong[0]]}, but a flag must be 0 or 1", wrong[0]
    raise BadEpisodeError(f"holds {problem}", column=column, row=row, hint=_NO_FLAG)


def integer_values(array: StoredArray, axes: int) -> npt.NDArray[np.int64]:
    """Reads integers of at most `axes` axes; a scalar becomes [1]. Raises CorruptSourceError for others."""
    if array.dtype.kind not in "iu" or len(array.shape) > axes:
        raise CorruptSourceError(
            f"holds {array.dtype} {array.shape}, not integers", file=array.place, hint="restore the file"
        )
    return all_values(replace(array, shape=array.shape or (1,))).astype(np.int64)


def values_at(array: StoredArray, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Returns [len(rows), *row_shape]: the values at some rows.

    Rising rows are read fastest.
    """
    values = np.empty((len(rows), *array.row_shape), array.dtype.newbyteorder("="))
    with ArrayReader() as reader:
        for i, row in enumerate(rows.tolist()):
            values[i] = reader.read(array, row, row + 1)[0]
    return values


def scalar_facts(classified: ClassifiedArrays, count: int) -> dict[str, list[Any]]:
    """Returns the scalars as facts of `count` episodes.

    Each name has the same value for every episode.
    """
    facts: dict[str, list[Any]] = {}
    with ArrayReader() as reader:
        for name, array in classified.scalars.items():
            array.column_dtype(name)
            value = reader.read(replace(array, shape=(1,)), 0, 1)[0].item()
            facts[name] = [value] * count
    return facts
