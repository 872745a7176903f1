"""Reads episodes of a tree into blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from gear_data.errors import BadEpisodeError
from gear_data.ingest.findings.log import NO_STEPS, Finding, FindingLog
from gear_data.ingest.layout import Column, ColumnRole
from gear_data.ingest.location import placed
from gear_data.ingest.pipeline.episode_values import reset_info_left_out
from gear_data.ingest.sources.arrays.blocks import Fact, ReadEpisode
from gear_data.ingest.sources.arrays.step_arrays import EpisodeRanges, StepArrays
from gear_data.ingest.sources.tree.columns import TreeColumn, Values, check_matches, read_values
from gear_data.ingest.sources.tree.episodes import MAX_FACT_VALUES, EpisodePlace
from gear_data.ingest.sources.tree.view import GROUP, LINKS, Tree, TreeArray
from gear_data.schema import ColumnSpec

#: Most numbers of a fact that every episode must have in the same form.
MAX_ROW_VALUES = 1 << 16


@dataclass(frozen=True)
class TreeLayout:
    """The columns and facts of all episodes of a source.

    Attributes:
        columns: the columns.
        steps: the column whose rows are the steps.
        facts: attributes and arrays of one row that are facts. An episode may lack them.
        fact_types: name -> type of a fact, as in the first episode, by `type_of`.
        model: the name of the first episode, for messages.
        rows: arrays that are facts, of the same shape in every episode that has them.
        known: the names below the first episode. Other names of an episode are reported; None reports nothing, because
            the user chose the arrays.
        ignored: attributes that are no facts. The others that `facts` lacks are reported; None reports nothing.
        declared: the attribute that declares an episode's number of steps; None if there is none.
        flags: end flags that are given once per episode, if arrays hold all episodes.
    """

    columns: tuple[TreeColumn, ...]
    steps: Column
    facts: tuple[Column, ...]
    fact_types: Mapping[str, object]
    model: str
    rows: tuple[TreeColumn, ...] = ()
    known: frozenset[str] | None = None
    ignored: frozenset[str] | None = None
    declared: str | None = None
    flags: tuple[ColumnSpec, ...] = ()


def read_place(tree: Tree, place: EpisodePlace, layout: TreeLayout, findings: FindingLog) -> ReadEpisode:
    """Reads an episode that has its own arrays.

    Raises:
        BadEpisodeError: an array is missing, differs from the first episode's, or has the wrong number of rows.
        CorruptSourceError: an array is damaged.
    """
    with placed(tree.name), place.errors():
        return _OpenEpisode(tree, place, layout, findings).read()


@dataclass(frozen=True)
class _OpenEpisode:
    """An episode, and its arrays that have been opened."""

    tree: Tree
    place: EpisodePlace
    layout: TreeLayout
    findings: FindingLog
    arrays: dict[str, TreeArray] = field(default_factory=dict)

    def read(self) -> ReadEpisode:
        place, layout = self.place, self.layout
        self._check_contents()
        steps = self._array(layout.steps.path).rows - layout.steps.extra_rows
        if steps < 1:
            raise self._error(NO_STEPS, layout.steps.path)
        episode = ReadEpisode(place.number, steps)
        for column in layout.columns:
            self._read_column(column, episode)
        episode.facts = {**self._facts(steps), **{row.name: self._row(row) for row in layout.rows}}
        return episode

    def _check_contents(self) -> None:
        """Reports names that are not below the first episode. They are read only if the user does not name columns."""
        place, known = self.place, self.layout.known
        if place.rule.numbered and self._kind(place.key) != GROUP:
            name = place.key.rpartition("/")[2]
            raise BadEpisodeError(f"'{name}' is not a group of this file")
        if known is not None and (extra := sorted(self.tree.names(place.key) - known)):
            message = f"'{extra[0]}' is not in {self.layout.model}, so it is not a column; left out"
            self.findings.add(Finding("column-left-out", message, len(extra), self.tree.name, place.number))

    def _kind(self, path: str) -> str | None:
        parent, _, name = path.rpartition("/")
        return self.tree.children(parent).get(name)

    def _read_column(self, column: TreeColumn, episode: ReadEpisode) -> None:
        mapped, steps = column.mapped, episode.steps
        array = self._array(mapped.path)
        if array.finding is not None:
            self.findings.add(array.finding)
        extra = mapped.extra_rows
        if mapped.role == ColumnRole.INFOS and array.rows == steps + 1:
            extra = 1
            label = self.place.label(array.path)
            self.findings.add(reset_info_left_out(1, self.tree.name, episode.number, label))
        values = self._rows(column, mapped.path, steps + extra)
        if mapped.role == ColumnRole.WITH_FINAL:
            episode.finals[column.name] = values[steps:]
        elif extra:
            values = values[1:]
        elif mapped.next is not None:
            episode.finals[column.name] = self._rows(column, mapped.next, steps, start=steps - 1)
        episode.columns[column.name] = values[:steps]

    def _rows(self, column: TreeColumn, path: str, expected: int, start: int = 0) -> Values:
        """Reads the rows from `start` on of an array that must have `expected` rows."""
        array, place, file = self._array(path), self.place, self.tree.name
        check_matches(array, column, place.number, self.layout.model)
        if array.rows != expected:
            steps = self._array(self.layout.steps.path)
            message = f"has {array.rows} rows, where {expected} are expected: "
            raise self._error(f"{message}'{place.label(steps.path)}' has {steps.rows}", path)
        label = place.label(array.path)
        return read_values(array, column, start, expected, label, file, place.number, self.findings)

    def _array(self, column_path: str) -> TreeArray:
        path = self.place.path(column_path)
        if path not in self.arrays:
            array = self.tree.array(path)
            if array is None:
                is_link = self._kind(path) in LINKS
                found = "is a link to elsewhere, which is not followed" if is_link else "is missing"
                raise self._error(f"{found}; {self.layout.model} has it", column_path)
            self.arrays[path] = array
        return self.arrays[path]

    def _error(self, message: str, column_path: str) -> BadEpisodeError:
        return BadEpisodeError(message, column=self.place.path(column_path))

    def _row(self, fact: TreeColumn) -> Fact:
        """Returns a fact that is the row of an array, or its rows; None if the episode lacks the array."""
        path = self.place.path(fact.mapped.path)
        if self.tree.array(path) is None and self._kind(path) is None:
            return None
        is_list = fact.mapped.role == ColumnRole.ROWS
        rows = self._array(fact.mapped.path)
        if is_list and (count := math.prod(rows.shape)) > MAX_ROW_VALUES:
            message = f"holds {count} values, above the limit of {MAX_ROW_VALUES} for a fact"
            raise self._error(message, fact.mapped.path)
        values = self._rows(fact, fact.mapped.path, rows.rows if is_list else 1)
        if isinstance(values, pa.Array):
            found: list[Any] = values.to_pylist()
        else:
            found = values.tolist() if is_list or values.size > 1 else [values.item()]
        value: Fact = found if is_list else found[0]
        return value

    def _facts(self, steps: int) -> dict[str, Fact]:
        """Returns the facts that an episode may lack, of the types of the first episode's facts.

        The facts of a mapping are all reported if they are missing. Of a built-in format, all attributes are facts, and
        those that cannot be one are reported.
        """
        layout, place, name = self.layout, self.place, self.tree.name
        attributes: Mapping[str, Any] = {} if layout.ignored is None else self.tree.attributes(place.key)
        found = read_facts(self.tree, place, layout.facts, None if layout.ignored is None else attributes)
        declared = attributes.get(layout.declared or "")
        if declared is not None and declared != steps:
            message = f"'{layout.declared}' is {declared}, but there are {steps} steps; all are read"
            column = f"episode {layout.declared}"
            self.findings.add(Finding("metadata-disagrees", message, 1, name, place.number, column))
        facts: dict[str, Fact] = {}
        for fact in layout.facts:
            value, expected = found[fact.name], layout.fact_types.get(fact.name)
            value = float(value) if expected is float and type(value) is int else value
            facts[fact.name] = value if value is not None and type_of(value) == expected else None
        if layout.ignored is None:
            left_out = [key for key, value in facts.items() if value is None]
            message = "is missing, not one row, or of another type than in the first episode; left out"
        else:
            used = {fact.path[1:] for fact in layout.facts if facts[fact.name] is not None}
            left_out = [key for key in attributes if key not in used | layout.ignored]
            message = "an attribute that is not a number or a short text, or that the first episodes lack or have with "
            message += "another type; left out"
        for key in left_out:
            self.findings.add(Finding("fact-left-out", message, 1, name, place.number, key))
        return facts


def read_facts(
    tree: Tree, place: EpisodePlace, facts: Sequence[Column], attributes: Mapping[str, Any] | None = None
) -> dict[str, Fact]:
    """Reads the facts of an episode: name -> value.

    A value is None if its array is missing or has several rows.

    Args:
        tree: the tree.
        place: the episode.
        facts: the facts.
        attributes: the attributes of the episode; None reads them if a fact needs them.
    """
    if attributes is None:
        attributes = tree.attributes(place.key) if any(fact.path.startswith("@") for fact in facts) else {}
    found: dict[str, Fact] = {}
    for fact in facts:
        if fact.path.startswith("@"):
            found[fact.name] = attributes.get(fact.path[1:])
        else:
            array = tree.array(place.path(fact.path))
            found[fact.name] = None if array is None else fact_value(array)
    return found


def type_of(fact: Fact) -> object:
    """Returns the type of a fact.

    The type of a list includes its shape and the kind of its numbers.
    """
    if isinstance(fact, list):
        values = np.asarray(fact)
        return list, values.shape, values.dtype.kind
    return type(fact)


def fact_value(array: TreeArray) -> Fact:
    """Reads an array of one row: numbers, flags or a text.

    Returns None for another array. One number becomes a plain value, several a nested list.
    """
    size = math.prod(array.shape[1:])
    if (
        array.rows != 1
        or not 0 < size <= MAX_FACT_VALUES
        or not (array.kind or (array.dtype == "string" and size == 1))
    ):
        return None
    try:
        values = array.read(0, 1)
    except BadEpisodeError:  # a text that is not UTF-8
        return None
    if isinstance(values, pa.Array):
        return str(values[0].as_py())
    if values.dtype.kind == "u" and (values > np.iinfo(np.int64).max).any():
        return None
    found: Fact = values.reshape(-1)[0].item() if values.size == 1 else values[0].tolist()
    return found


@dataclass(frozen=True)
class FlatReader:
    """A reader of the rows of arrays that hold all episodes of a tree.

    It reads (path, column).

    Attributes:
        tree: the tree.
        model: the name of the first file, for messages.
        findings: receives the findings about the values.
        is_first: whether the reader reads the first episode of the tree, and reports what is about whole arrays.
        opened: path -> array, if it has been opened.
    """

    tree: Tree
    model: str
    findings: FindingLog
    is_first: bool
    opened: dict[str, TreeArray | None] = field(default_factory=dict)

    def read(self, array: tuple[str, TreeColumn], start: int, stop: int) -> Values:
        """Reads the rows [start, stop).

        Raises:
            BadEpisodeError: the array is missing, too short, or not as in the first file.
        """
        (path, column), name = array, self.tree.name
        is_new = path not in self.opened
        found = self.opened[path] = self.tree.array(path) if is_new else self.opened[path]
        if found is None or found.rows < stop:
            problem = f"is missing; {self.model} has it" if found is None else f"has only {found.rows} rows"
            raise BadEpisodeError(problem, column=path, row=start)
        if is_new:
            check_matches(found, column, start, self.model)
            if found.finding is not None and self.is_first:
                self.findings.add(found.finding)
        return read_values(found, column, start, stop, path, name, start, self.findings)


def flat_arrays(name: str, columns: Sequence[TreeColumn], episodes: EpisodeRanges) -> StepArrays:
    """Returns columns that hold all episodes, for a `FlatReader`."""
    return StepArrays(
        name=name,
        steps=int(episodes.lengths.sum()),
        arrays={column.name: (column.mapped.path, column) for column in columns},
        sources={column.name: column.mapped.path for column in columns},
        locate=lambda: episodes,
        final_row_columns=frozenset(column.name for column in columns if column.mapped.role == ColumnRole.WITH_FINAL),
        next_arrays={column.name: (column.mapped.next, column) for column in columns if column.mapped.next is not None},
        shifted=frozenset(column.name for column in columns if column.mapped.role == ColumnRole.AFTER_RESET),
        episode_flags=tuple(episodes.flags),
    )
