"""A part's arrays sorted out: step columns, what says where episodes are, single values, what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import BadEpisodeError, UnknownFormatError, unknown_name
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.pipeline.columns import END_FLAGS, EPISODE_COLUMNS, choose_columns
from gear_data.ingest.pipeline.names import DONES, canonical_name
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.arrays.numpy_files import ArrayReader, StoredArray

#: Points between episodes, as `np.split` takes them (`imitation`).
INDICES = "indices"
#: One past each episode's last step.
ENDS = "episode_ends"
LENGTHS = ("lengths", "episode_lengths")
#: True at an episode's first row, in DreamerV2 and V3: https://github.com/danijar/dreamerv3.
FIRST = "is_first"
NEXT = "next_observations"
_DREAMER_NAMES = {
    "is_last": DONES,
    "is_terminal": "terminated",
    "action": "actions",
    "reward": "rewards",
    "discount": "discount",
    "observation": "observations",
    "obs": "observations",
}


@dataclass(frozen=True)
class ClassifiedArrays:
    """A part's arrays, sorted out.

    Attributes:
        steps: canonical name -> array of a step column, or of a flag or fact by episode.
        sources: canonical name -> source name.
        split: source name -> array that says where episodes are and is no column.
        episode_column: the one of `split` that numbers episodes, if there is one.
        scalars: name -> array of shape ().
        keeps_next: whether `next_observations` is wanted as a column, beside giving the final ones.
        findings: what was left out.
    """

    name: str
    steps: Mapping[str, StoredArray]
    sources: Mapping[str, str]
    split: Mapping[str, StoredArray]
    episode_column: str | None
    scalars: Mapping[str, StoredArray]
    keeps_next: bool
    findings: tuple[Finding, ...]

    @property
    def reference(self) -> str:
        """The column that says how many steps there are."""
        return next((n for n in ("actions", "rewards", *sorted(END_FLAGS)) if n in self.steps), next(iter(self.steps)))

    @property
    def rows(self) -> int:
        return len(self.steps[self.reference])


def classify_arrays(name: str, arrays: Mapping[str, StoredArray], options: SourceOptions) -> ClassifiedArrays:
    for column in (options.episode_column, options.step_column, options.end_column):
        if column is not None and column not in arrays:
            raise unknown_name("column", column, arrays)
    objects = [source for source, array in arrays.items() if array.dtype.hasobject]
    scalars = {source: array for source, array in arrays.items() if array.shape == () and source not in objects}
    rows = {source: array for source, array in arrays.items() if source not in objects and source not in scalars}
    split, episode = _split_arrays(rows, options)
    names = [source for source in rows if source not in split]
    rename = dict(options.rename or {})
    if options.end_column is not None:
        rename[options.end_column] = DONES
    if FIRST in split:
        rename = {source: _dreamer_name(source) for source in names} | rename
    if options.columns is None:
        chosen = choose_columns(names, replace(options, rename=rename))
    else:
        wanted = choose_columns([*names, *objects, *scalars], replace(options, rename=rename))
        chosen = {source: column for source, column in wanted.items() if source in names}
        objects = [source for source in objects if source in wanted]
        scalars = {source: array for source, array in scalars.items() if source in wanted}
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
    keeps_next = options.columns is not None and NEXT in steps
    if NEXT not in steps:  # It gives final observations, whatever columns were asked for.
        following = next((source for source in names if canonical_name(source) == NEXT), None)
        if following is not None:
            steps[NEXT], sources[NEXT] = arrays[following], following
    return ClassifiedArrays(name, steps, sources, split, episode, scalars, keeps_next, findings)


def _split_arrays(
    arrays: Mapping[str, StoredArray], options: SourceOptions
) -> tuple[dict[str, StoredArray], str | None]:
    """What the user names goes before what is known by its name, and that before an episode column."""
    asked = [name for name in (options.episode_column, options.step_column) if name is not None]
    if asked:
        return {name: arrays[name] for name in asked if name in arrays}, options.episode_column
    for name in (FIRST, INDICES, ENDS, *LENGTHS):
        array = arrays.get(name)
        if array is not None and array.dtype.kind in "biu" and len(array.shape) == 1:
            return {name: array}, None
    for name in EPISODE_COLUMNS:
        if name in arrays and arrays[name].dtype.kind in "iu":
            return {name: arrays[name]}, name
    return {}, None


def _dreamer_name(source: str) -> str:
    """What is neither an action, a reward nor a flag comes from the environment with the observation."""
    if source in _DREAMER_NAMES:
        return _DREAMER_NAMES[source]
    return f"infos.{source}" if source.startswith("log_") else f"observations.{source}"


def all_values(array: StoredArray) -> npt.NDArray[Any]:
    with ArrayReader() as reader:
        return reader.read(array, 0, len(array))


def scalar_facts(found: ClassifiedArrays, count: int) -> dict[str, list[Any]]:
    """Scalars stand for every episode of the part."""
    facts: dict[str, list[Any]] = {}
    with ArrayReader() as reader:
        for name, array in found.scalars.items():
            array.column_dtype(name)
            value = reader.read(replace(array, shape=(1,)), 0, 1)[0].item()
            facts[name] = [value] * count
    return facts


def is_observation(name: str) -> bool:
    return name.split(".", 1)[0] == "observations"


def misfit(found: ClassifiedArrays, name: str, expected: int) -> BadEpisodeError:
    rows = len(found.steps[name])
    return BadEpisodeError(
        f"has {rows} rows, where '{found.sources[found.reference]}' has {expected}",
        file=found.name,
        column=found.sources[name],
        row=min(rows, expected),
        hint="name the columns to keep with --columns (columns=[...])",
    )


def values_at(array: StoredArray, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """The values at some rows, [len(rows), *row_shape]; quickest if they are in order."""
    values = np.empty((len(rows), *array.row_shape), array.dtype.newbyteorder("="))
    with ArrayReader() as reader:
        for i, row in enumerate(rows.tolist()):
            values[i] = reader.read(array, row, row + 1)[0]
    return values
