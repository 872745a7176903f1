"""Finds the episodes of one tree, as a mapping says."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    GearError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.layout import Column, EndsAre, EpisodeRule, Kind, Layout, SplitRule
from gear_data.ingest.pipeline.id_ranges import SEVERAL_IDS, refuse_returning_ids
from gear_data.ingest.sources.arrays.step_arrays import EpisodeRanges
from gear_data.ingest.sources.tree.view import ARRAY, GROUP, Container, Tree, TreeArray, join, matching

#: Rows of ids and flags that are read at once.
_SCAN_ROWS = 1 << 20
#: Most numbers of a fact that a mapping names.
MAX_FACT_VALUES = 1024


@dataclass(frozen=True)
class EpisodePlace:
    """An episode that has its own arrays.

    Attributes:
        key: the group of the episode, or the number in the names of its datasets; "" for a whole file.
        rule: where the episodes are.
        number: the last number in the key, or the index of the episode, for messages and the episode table.
    """

    key: str
    rule: EpisodeRule
    number: int

    def path(self, column_path: str) -> str:
        """Returns the path of a column's array in the file."""
        if self.rule.kind == Kind.DATASETS:
            return column_path.replace("*", self.key)
        return f"{self.key}/{column_path}" if self.key else column_path

    def label(self, path: str) -> str:
        """Returns the name of an array for messages, given its path in the file.

        It is the path in the group if the number of the episode names the group.
        """
        return path.removeprefix(self.key).lstrip("/") if self.rule.numbered else path

    @contextmanager
    def labels(self) -> Iterator[None]:
        """Names the arrays of the episode in errors by `label`."""
        try:
            yield
        except GearError as error:
            error.column = None if error.column is None else self.label(error.column) or None
            raise

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Adds the number of the episode to errors about its arrays, as `labels`."""
        try:
            with self.labels():
                yield
        except GearError as error:
            error.row = self.number
            raise


def chosen_containers(
    found: Sequence[Container], mapping: Layout, split: SplitRule | None, source: str
) -> tuple[Container, ...]:
    """Returns the files that a mapping and a split name.

    Raises:
        UnknownFormatError: no file matches; or a file is in no split and does not match the glob of `files`.
    """
    patterns = [mapping.episodes.paths[0]] if mapping.episodes.kind == Kind.FILES else ["*"]
    kept = [item for item in found if _is_named(item.name, patterns[0])]
    if len(kept) < len(found):
        left = [item.name for item in found if item not in kept]
        raise UnknownFormatError(
            f"{len(left)} of {len(found)} files are not in the mapping: {', '.join(left[:10])}",
            file=source,
            hint=f"episodes.files is '{patterns[0]}': change it, or move the other files away",
        )
    if split is not None and split.files is not None:
        kept = [item for item in kept if _is_named(item.name, split.files)]
        if not kept:
            raise UnknownFormatError(
                f"no file matches splits.{split.name}.files, '{split.files}'",
                file=source,
                hint=f"the files are: {', '.join(item.name for item in found[:10])}",
            )
    return tuple(kept)


def _is_named(name: str, pattern: str) -> bool:
    """Returns whether a glob matches a file.

    A glob without '/' is compared with the name, another one with the path.
    """
    return fnmatchcase(name if "/" in pattern else PurePosixPath(name).name, pattern)


def find_places(tree: Tree, rule: EpisodeRule, split: SplitRule | None) -> list[EpisodePlace]:
    """Returns the episodes of a tree that have their own arrays.

    They are in the order of their numbers. With `numbered`, an episode may be something else than a group. If arrays
    hold all episodes, the whole tree stands for them.

    Raises:
        CorruptSourceError: the episodes are numbered, and two have the same number.
    """
    if rule.kind == Kind.FILES or rule.flat:
        return [EpisodePlace("", rule, 0)]
    if rule.numbered:
        return _numbered_places(tree, rule)
    if rule.kind == Kind.GROUPS:
        keys = matching(tree, rule.paths[0], GROUP)
        if split is not None and split.groups is not None:
            keys = [key for key in keys if fnmatchcase(key, split.groups)]
    else:
        head, tail = rule.paths[0].split("*")
        keys = [path[len(head) : len(path) - len(tail)] for path in matching(tree, rule.paths[0], ARRAY)]
        keys = [key for key in keys if key.isdecimal()]
    return [EpisodePlace(key, rule, _number(key, i)) for i, key in enumerate(keys)]


def _numbered_places(tree: Tree, rule: EpisodeRule) -> list[EpisodePlace]:
    parent, _, prefix = rule.paths[0].removesuffix("*").rpartition("/")
    pattern = re.compile(f"{re.escape(prefix)}([0-9]{{1,18}})")
    matches = [match for name in tree.children(parent) if (match := pattern.fullmatch(name))]
    found = sorted((int(match[1]), match[0]) for match in matches)
    for (number, name), (next_number, next_name) in pairwise(found):
        if number == next_number:
            raise CorruptSourceError(
                f"groups '{name}' and '{next_name}' have the same number",
                row=number,
                hint="rename one of the two groups",
            )
    return [EpisodePlace(join(parent, name), rule, number) for number, name in found]


def _number(key: str, index: int) -> int:
    digits = re.findall(r"[0-9]{1,18}", key)
    return int(digits[-1]) if digits else index


def find_flat(
    tree: Tree, rule: EpisodeRule, rows: int, facts: Sequence[Column] = (), *, skip_bad: bool
) -> EpisodeRanges:
    """Returns the episodes of a tree whose arrays hold all episodes.

    Args:
        tree: the tree.
        rule: where the episodes are: `ids` or `ends`.
        rows: the number of rows of the columns.
        facts: the facts, which are arrays with a row per episode.
        skip_bad: leave out an episode without a step. An error otherwise.

    Raises:
        CorruptSourceError: an array is missing, or holds something else than ids, ends or flags.
        BadEpisodeError: an id comes back, an end does not rise, or an episode has no step.
        UnsupportedColumnError: an array of facts has no row per episode, or holds no facts.
    """
    arrays = [_array_of(tree, path, rule) for path in rule.paths]
    findings: tuple[Finding, ...] = ()
    if rule.kind == Kind.IDS:
        episodes = _by_ids(arrays, rows)
        return replace(episodes, facts={**episodes.facts, **_facts(tree, facts, np.arange(len(episodes)))})
    if rule.ends_are in (EndsAre.FLAGS, EndsAre.STARTS):
        ends = np.unique(np.concatenate([_flagged(array, rows) for array in arrays]))
        if rule.ends_are == EndsAre.STARTS and len(ends) and ends[0]:
            message = "the file begins inside an episode; the rest of the episode is read as an episode"
            findings = (Finding("episode-cut", message, 1, tree.name, 0, rule.paths[0]),)
        ends = ends[ends > 0] if rule.ends_are == EndsAre.STARTS else ends + 1
        if rows and (not len(ends) or ends[-1] != rows):
            ends = np.append(ends, rows)  # the unfinished tail is an episode
    else:
        ends = _listed_ends(arrays[0], rows, rule.ends_are == EndsAre.INCLUSIVE)
    lengths = np.diff(ends, prepend=0)
    starts = ends - lengths
    empty = np.flatnonzero(lengths < 1)
    if len(empty) and (not skip_bad or (lengths < 0).any()):
        raise BadEpisodeError(
            f"ends at row {ends[empty[0]]}, not after row {starts[empty[0]]}, where the episode before it ends",
            column=rule.paths[0],
            row=int(empty[0]),
            hint="ends must rise; check ends_are (exclusive or inclusive)",
        )
    kept = np.flatnonzero(lengths >= 1)
    if len(empty):
        message = "an episode without a step; skipped"
        findings += (Finding("bad-episode", message, len(empty), tree.name, 0, rule.paths[0]),)
    return EpisodeRanges(lengths[kept], starts[kept], facts=_facts(tree, facts, kept), findings=findings)


def _array_of(tree: Tree, path: str, rule: EpisodeRule) -> TreeArray:
    array = tree.array(path)
    if array is None:
        raise CorruptSourceError(f"has no array '{path}', which episodes.{rule.kind} names", hint="correct the mapping")
    if len(array.shape) > 2 or (len(array.shape) == 2 and array.shape[1] != 1) or not array.shape:
        message = f"has shape {array.shape}, where episodes.{rule.kind} needs one value per row"
        raise _wrong(array, message, "name an array of one axis in the mapping")
    return array


def _wrong(array: TreeArray, message: str, hint: str = "correct the mapping") -> CorruptSourceError:
    return CorruptSourceError(message, column=array.path, hint=hint)


def _check_rows(array: TreeArray, rows: int) -> None:
    if array.rows != rows:
        message = f"has {array.rows} rows, but the columns have {rows}"
        raise _wrong(array, message, "it needs one value per step; correct the mapping")


def _pieces(array: TreeArray) -> Iterator[tuple[int, npt.NDArray[np.generic]]]:
    """Yields the first row and the values of pieces of an array, [n]."""
    for start in range(0, array.rows, _SCAN_ROWS):
        values = array.read(start, min(array.rows, start + _SCAN_ROWS))
        if isinstance(values, pa.Array):
            values = np.array(values.to_pylist(), object)
        yield start, values.reshape(-1)


def _by_ids(arrays: Sequence[TreeArray], rows: int) -> EpisodeRanges:
    """Returns the episodes that arrays of ids name together."""
    for array in arrays:
        _check_rows(array, rows)
        if array.dtype != "string" and array.kind not in ("i", "u"):
            raise _wrong(array, f"holds {array.dtype}, but ids are integers or text")
    starts: list[int] = []
    ids: list[list[int | str]] = [[] for _ in arrays]
    for pieces in zip(*map(_pieces, arrays), strict=True):
        first, columns = pieces[0][0], [values for _, values in pieces]
        is_new = np.logical_or.reduce([values[1:] != values[:-1] for values in columns])
        begins = not starts or any(values[0] != known[-1] for values, known in zip(columns, ids, strict=True))
        changes = np.flatnonzero(np.append(begins, is_new))
        starts += (first + changes).tolist()
        for known, values in zip(ids, columns, strict=True):
            known += values[changes].tolist()
    refuse_returning_ids(ids, starts, arrays[0].path, f"{SEVERAL_IDS}, or list them as ids in the mapping")
    first_rows = np.array(starts, np.int64)
    names = [array.path.replace("/", ".") for array in arrays] if len(arrays) > 1 else ["episode"]
    return EpisodeRanges(np.diff(first_rows, append=rows), first_rows, facts=dict(zip(names, ids, strict=True)))


def _flagged(array: TreeArray, rows: int) -> npt.NDArray[np.int64]:
    """Returns the rows at which a flag is set."""
    _check_rows(array, rows)
    found = [np.zeros(0, np.int64)]
    for first, values in _pieces(array):
        if not array.kind or ((values != 0) & (values != 1)).any():
            message = "holds values that are neither 0 nor 1, so they are no flags"
            raise _wrong(array, message, "correct episodes.ends or ends_are in the mapping")
        found.append(first + np.flatnonzero(values))
    return np.concatenate(found)


def _listed_ends(array: TreeArray, rows: int, inclusive: bool) -> npt.NDArray[np.int64]:
    """Returns the row after each episode, int64 [n]."""
    if array.kind not in ("i", "u"):
        raise _wrong(array, f"holds {array.dtype}, but ends are integers")
    pieces = [values.astype(np.int64) for _, values in _pieces(array)]
    ends = np.concatenate([np.zeros(0, np.int64), *pieces]) + int(inclusive)
    last = int(ends[-1]) if len(ends) else 0
    if last != rows:
        message = f"the last end is {last - int(inclusive)}, but the columns have {rows} rows"
        hint = "check ends_are: an exclusive end is the row after the episode, an inclusive end its last row"
        raise _wrong(array, message, hint)
    return ends


def _facts(tree: Tree, facts: Sequence[Column], indices: npt.NDArray[np.int64]) -> dict[str, list[Any]]:
    """Returns the facts of episodes, from arrays with a row per episode.

    `indices` are the rows of the episodes.
    """
    return {fact.name: _rows_of_fact(tree.array(fact.path), fact, indices) for fact in facts}


def _rows_of_fact(array: TreeArray | None, fact: Column, indices: npt.NDArray[np.int64]) -> list[Any]:
    stop = int(indices[-1]) + 1 if len(indices) else 0
    if array is None or array.rows < stop or not 0 < math.prod(array.shape[1:]) <= MAX_FACT_VALUES or not array.shape:
        found = "is missing" if array is None else f"has shape {array.shape}"
        raise UnsupportedColumnError(
            f"{found}, where a fact needs a row per episode",
            column=fact.path,
            hint=f"correct columns.{fact.name} in the mapping, or leave it out",
        )
    if not array.kind and array.dtype != "string":
        raise UnsupportedColumnError(
            f"holds {array.dtype}, which is no fact about an episode",
            column=fact.path,
            hint=f"leave columns.{fact.name} out of the mapping",
        )
    values = array.read(0, stop)
    if isinstance(values, pa.Array):
        return list(values.take(pa.array(indices)).to_pylist())
    chosen = values[indices]
    return list((chosen.reshape(-1) if chosen.size == len(indices) else chosen).tolist())
