"""Reads episodes of a tree into blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import BadEpisodeError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.mapping import AFTER_RESET, MappedColumn
from gear_data.ingest.sources.tree.columns import TreeColumn, Values, check_matches, column_values
from gear_data.ingest.sources.tree.episodes import EpisodePlace, FlatEpisodes
from gear_data.ingest.sources.tree.view import Tree, TreeArray
from gear_data.storage.episode_block import EpisodeBlock, Position

#: A fact about an episode: one value, a nested list of numbers, or None if the episode lacks it.
Fact = str | bool | int | float | list[Any] | None
#: Most numbers of a fact.
_MAX_FACT_VALUES = 1024


@dataclass(frozen=True)
class TreeLayout:
    """The columns and facts of all episodes of a source.

    Attributes:
        columns: the columns.
        steps: the column whose rows are the steps.
        facts: the facts of an episode that the mapping names.
        fact_types: name -> type of a fact, as in the first episode, by `type_of`.
        model: the name of the first episode, for messages.
    """

    columns: tuple[TreeColumn, ...]
    steps: TreeColumn
    facts: tuple[MappedColumn, ...]
    fact_types: Mapping[str, object]
    model: str


@dataclass
class PlacedEpisode:
    """An episode that was read.

    Attributes:
        number: the number of the episode.
        steps: the number of steps.
        columns: name -> the rows of the steps.
        finals: name -> one row, the final observation.
        facts: name -> a fact about the episode.
    """

    number: int
    steps: int
    facts: dict[str, Fact]
    columns: dict[str, Values] = field(default_factory=dict)
    finals: dict[str, Values] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for group in (self.columns, self.finals) for values in group.values())


def read_place(tree: Tree, place: EpisodePlace, layout: TreeLayout, findings: FindingLog) -> PlacedEpisode:
    """Reads an episode that has its own arrays.

    Raises:
        BadEpisodeError: an array is missing, differs from the first episode's, or has the wrong number of rows.
    """
    steps_array = _array(tree, place, layout.steps.mapped.path, layout.model)
    steps = steps_array.rows - layout.steps.extra_rows
    if steps < 1:
        raise BadEpisodeError("the episode has no steps", file=tree.name, column=steps_array.path, row=place.number)
    episode = PlacedEpisode(place.number, steps, _facts(tree, place, layout, findings))
    for column in layout.columns:
        is_steps = column is layout.steps
        array = steps_array if is_steps else _array(tree, place, column.mapped.path, layout.model)
        if array.finding is not None:
            findings.add(array.finding)
        expected = steps + column.extra_rows
        values = _rows(array, column, tree.name, place.number, layout, expected, steps_array, findings)
        if column.mapped.role == AFTER_RESET:
            values = values[1:]
        elif column.extra_rows:
            episode.finals[column.name] = values[steps:]
        elif column.mapped.next is not None:
            after = _array(tree, place, column.mapped.next, layout.model)
            found = _rows(after, column, tree.name, place.number, layout, steps, steps_array, findings)
            episode.finals[column.name] = found[steps - 1 :]
        episode.columns[column.name] = values[:steps]
    return episode


def _array(tree: Tree, place: EpisodePlace, column_path: str, model: str) -> TreeArray:
    path = place.path(column_path)
    array = tree.array(path)
    if array is None:
        raise BadEpisodeError(f"is missing; {model} has it", file=tree.name, column=path, row=place.number)
    return array


def _rows(
    array: TreeArray,
    column: TreeColumn,
    file: str,
    number: int,
    layout: TreeLayout,
    expected: int,
    steps_array: TreeArray,
    findings: FindingLog,
) -> Values:
    check_matches(array, column, file, number, layout.model)
    if array.rows != expected:
        raise BadEpisodeError(
            f"has {array.rows} rows, where {expected} are expected: '{steps_array.path}' has {steps_array.rows}",
            file=file,
            column=array.path,
            row=number,
        )
    return column_values(array.read(0, expected), array, column, file, number, findings)


def _facts(tree: Tree, place: EpisodePlace, layout: TreeLayout, findings: FindingLog) -> dict[str, Fact]:
    facts: dict[str, Fact] = dict.fromkeys(fact.name for fact in layout.facts)
    for name, value in read_facts(tree, place, layout.facts).items():
        expected = layout.fact_types.get(name)
        if expected is float and type(value) is int:
            value = float(value)
        if value is not None and type_of(value) == expected:
            facts[name] = value
        else:
            message = "is missing, not one row, or of another type than in the first episode; left out"
            findings.add(Finding("fact-left-out", message, 1, tree.name, place.number, name))
    return facts


def read_facts(tree: Tree, place: EpisodePlace, facts: Sequence[MappedColumn]) -> dict[str, Fact]:
    """Reads the facts of an episode: name -> value.

    A value is None if its array is missing or has several rows.
    """
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
        or not 0 < size <= _MAX_FACT_VALUES
        or not (array.kind or (array.dtype == "string" and size == 1))
    ):
        return None
    values = array.read(0, 1)
    if isinstance(values, pa.Array):
        return str(values[0].as_py())
    if values.dtype.kind == "u" and (values > np.iinfo(np.int64).max).any():
        return None
    found: Fact = values.reshape(-1)[0].item() if values.size == 1 else values[0].tolist()
    return found


def block_of(
    episodes: Sequence[PlacedEpisode], layout: TreeLayout, file: str, position: Position, rows: int
) -> EpisodeBlock:
    """Joins episodes of one file into a block.

    Args:
        episodes: the episodes.
        layout: their columns.
        file: the name of their file.
        position: the place of the first one.
        rows: the number of episodes that were read, with those that were skipped.
    """
    columns = {c.name: _join([e.columns[c.name] for e in episodes]) for c in layout.columns}
    finals = {c.name: _join([e.finals[c.name] for e in episodes]) for c in layout.columns if c.spec.has_final}
    return EpisodeBlock(
        position=position,
        lengths=np.array([episode.steps for episode in episodes], np.int64),
        sources=[file] * len(episodes),
        rows=np.array([episode.number for episode in episodes], np.int64),
        has_final=np.full(len(episodes), bool(finals)),
        metadata={fact.name: [episode.facts[fact.name] for episode in episodes] for fact in layout.facts},
        source_rows=rows,
        **_by_size(columns, "columns", "variable"),
        **_by_size(finals, "finals", "variable_finals"),
    )


def _by_size(values: Mapping[str, Values], fixed: str, variable: str) -> dict[str, Any]:
    """Divides columns by whether their values have a fixed size."""
    return {
        fixed: {name: found for name, found in values.items() if not isinstance(found, pa.Array)},
        variable: {name: found for name, found in values.items() if isinstance(found, pa.Array)},
    }


def _join(parts: Sequence[Values]) -> Values:
    if isinstance(parts[0], pa.Array):
        return pa.concat_arrays(parts)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def read_flat(
    name: str,
    array_of: Callable[[str], TreeArray | None],
    episodes: FlatEpisodes,
    layout: TreeLayout,
    position: Position,
    stop: int,
    findings: FindingLog,
) -> EpisodeBlock:
    """Reads the episodes [position.row, stop) of arrays that hold all episodes.

    Args:
        name: the name of the file.
        array_of: opens an array by its path.
        episodes: the episodes of the file.
        layout: the columns.
        position: the first episode.
        stop: the episode after the last.
        findings: receives the findings.
    """
    chosen = slice(position.row, stop)
    starts, lengths, indices = episodes.starts[chosen], episodes.lengths[chosen], episodes.indices[chosen]
    first, last = int(starts[0]), int(starts[-1] + lengths[-1])

    def rows_of(path: str, column: TreeColumn) -> Values:
        array = array_of(path)
        if array is None or array.rows < last:
            problem = f"is missing; {layout.model} has it" if array is None else f"has only {array.rows} rows"
            raise BadEpisodeError(problem, file=name, column=path, row=first)
        check_matches(array, column, name, first, layout.model)
        if array.finding is not None and position.row == 0:
            findings.add(array.finding)
        return column_values(array.read(first, last), array, column, name, first, findings)

    columns: dict[str, Values] = {}
    finals: dict[str, Values] = {}
    for column in layout.columns:
        columns[column.name] = rows_of(column.mapped.path, column)
        if column.mapped.next is not None:
            after, rows = rows_of(column.mapped.next, column), starts - first + lengths - 1
            finals[column.name] = after.take(pa.array(rows)) if isinstance(after, pa.Array) else after[rows]
    facts: dict[str, list[Any]] = {} if episodes.ids is None else {"episode": list(episodes.ids[chosen])}
    for fact in layout.facts:
        facts[fact.name] = _facts_of_rows(array_of(fact.path), fact, indices, name)
    return EpisodeBlock(
        position=position,
        lengths=lengths,
        sources=[name] * len(lengths),
        rows=starts,
        has_final=np.full(len(lengths), bool(finals)),
        metadata=facts,
        source_rows=int(lengths.sum()),
        **_by_size(columns, "columns", "variable"),
        **_by_size(finals, "finals", "variable_finals"),
    )


def _facts_of_rows(array: TreeArray | None, fact: MappedColumn, indices: npt.NDArray[np.int64], name: str) -> list[Any]:
    """Returns a fact of each episode, from an array with a row per episode."""
    first, stop = int(indices[0]), int(indices[-1]) + 1
    if array is None or array.rows < stop or not 0 < math.prod(array.shape[1:]) <= _MAX_FACT_VALUES or not array.shape:
        found = "is missing" if array is None else f"has shape {array.shape}"
        raise UnsupportedColumnError(
            f"{found}, where a fact needs a row per episode",
            file=name,
            column=fact.path,
            hint=f"correct columns.{fact.name} in the mapping, or leave it out",
        )
    if not array.kind and array.dtype != "string":
        raise UnsupportedColumnError(
            f"holds {array.dtype}, which is no fact about an episode",
            file=name,
            column=fact.path,
            hint=f"leave columns.{fact.name} out of the mapping",
        )
    values = array.read(first, stop)
    if isinstance(values, pa.Array):
        return list(values.take(pa.array(indices - first)).to_pylist())
    chosen = values[indices - first]
    return list((chosen.reshape(-1) if chosen.size == len(indices) else chosen).tolist())
