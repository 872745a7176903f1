"""Runs of consecutive Minari Arrow episodes, read and concatenated to columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import BadEpisodeError, CorruptSourceError
from gear_data.ingest.findings.log import BAD_EPISODE_HINT, NO_STEPS
from gear_data.ingest.location import SourceFile
from gear_data.ingest.sources.json_files import read_json_object
from gear_data.ingest.sources.minari.episode_table import INFOS, OBSERVATIONS, TableColumn, cast_table, read_table
from gear_data.ingest.sources.tables.to_numpy import IrregularRowsError, to_numpy
from gear_data.ingest.sources.tables.variable_length import to_variable


@dataclass(frozen=True)
class EpisodeFiles:
    """The files of one episode.

    Attributes:
        number: the number of the episode, from the name of its folder.
        tables: the files of its table, in order.
        facts: its `metadata.json`; None if there is none.
    """

    number: int
    tables: tuple[SourceFile, ...]
    facts: SourceFile | None

    @property
    def name(self) -> str:
        """Name of the first table, for messages."""
        return self.tables[0].name

    @property
    def bytes(self) -> int:
        """Size of all tables."""
        return sum(file.size for file in self.tables)


@dataclass(frozen=True)
class ArrowEpisode:
    """An episode that was read.

    Attributes:
        files: the files of the episode.
        table: the T + 1 rows of the episode.
        facts: the contents of its `metadata.json`.
        others: names of the columns that Minari does not have.
        cast: names of the columns whose numbers had another type than in the first episode.
        reason: why the episode is bad; None if it is good.
    """

    files: EpisodeFiles
    table: pa.Table
    facts: Mapping[str, Any]
    others: tuple[str, ...]
    cast: tuple[str, ...]
    reason: str | None

    @staticmethod
    def read(files: EpisodeFiles, schema: pa.Schema) -> ArrowEpisode:
        """Reads an episode's files, and casts its table to the schema."""
        tables, names = zip(*map(read_table, files.tables), strict=True)
        for file, table in zip(files.tables[1:], tables[1:], strict=True):
            if table.schema != tables[0].schema:
                raise CorruptSourceError(
                    f"its columns differ from the columns of {files.name}",
                    file=file.name,
                    hint="download the episode's folder again",
                )
        table, cast, reason = cast_table(pa.concat_tables(tables), schema)
        if reason is None and table.num_rows < 2:
            reason = NO_STEPS
        facts = {} if files.facts is None else read_json_object(files.facts)
        return ArrowEpisode(files, table, facts, names[0], cast, reason)


class BadEpisodesError(Exception):
    """Some episodes of a run are bad.

    `indices` are their indices in the run; `error` is the error for the first of them.
    """

    def __init__(
        self, indices: list[int], reason: str, first: ArrowEpisode, column: str | None = None, row: int | None = None
    ) -> None:
        super().__init__(reason)
        self.indices = indices
        self.error = BadEpisodeError(
            reason,
            file=first.files.name,
            column=column,
            row=row,
            hint=BAD_EPISODE_HINT,
        )


@dataclass
class EpisodeRun:
    """The columns of consecutive episodes, one episode after another.

    Attributes:
        lengths: int64 [episodes], steps of each episode.
        has_values_in_padding: bool [episodes], whether the last row of a padded column is not zero or empty.
        columns: name -> [steps, ...], columns of a fixed size.
        finals: name -> [episodes, ...], final observations.
        variable: name -> one text or bytes per step.
        variable_finals: name -> one text or bytes per episode, final observations.
    """

    lengths: npt.NDArray[np.int64]
    has_values_in_padding: npt.NDArray[np.bool_]
    columns: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    finals: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    variable: dict[str, pa.Array] = field(default_factory=dict)
    variable_finals: dict[str, pa.Array] = field(default_factory=dict)

    def add(self, name: str, column: TableColumn, array: pa.Array, masks: _RowMasks) -> None:
        """Adds a column, of which `array` has the rows of all episodes.

        Raises IrregularRowsError.
        """
        steps = masks.after_first if column.path[0] == INFOS else masks.before_last
        has_final, is_padded = column.path[0] == OBSERVATIONS, column.path[0] not in (OBSERVATIONS, INFOS)
        if column.variable_length:
            self.variable[name] = _variable_at(steps, array, column.dtype)
            if has_final:
                self.variable_finals[name] = _variable_at(~steps, array, column.dtype)
            if is_padded:
                last_values = array.take(pa.array(masks.last)).to_pylist()
                self.has_values_in_padding |= np.array([bool(value) for value in last_values], np.bool_)
            return
        values = to_numpy(array, column.stored_shape).reshape(len(array), *column.shape)
        self.columns[name], last = values[steps], values[masks.last]
        if has_final:
            self.finals[name] = last
        if is_padded:
            self.has_values_in_padding |= (last != 0).any(axis=tuple(range(1, last.ndim)))


def concatenate_episodes(
    episodes: Sequence[ArrowEpisode], columns: Mapping[str, TableColumn], schema: pa.Schema
) -> EpisodeRun:
    """Concatenates the columns of consecutive episodes.

    Args:
        episodes: the episodes of the run, possibly none.
        columns: canonical name -> column to read.
        schema: the schema of the tables.

    Raises:
        BadEpisodesError: some episodes are bad.
    """
    reasons = {i: episode.reason for i, episode in enumerate(episodes) if episode.reason is not None}
    if reasons:
        first = min(reasons)
        raise BadEpisodesError(list(reasons), reasons[first], episodes[first])
    table = pa.concat_tables([episode.table for episode in episodes] or [schema.empty_table()])
    masks = _RowMasks(np.array([episode.table.num_rows for episode in episodes], np.int64))
    run = EpisodeRun(masks.counts - 1, has_values_in_padding=np.zeros(len(episodes), np.bool_))
    for name, column in columns.items():
        try:
            run.add(name, column, column.extract(table), masks)
        except IrregularRowsError as error:
            raise _bad_episodes(error, episodes, masks, column) from None
    return run


class _RowMasks:
    """Selections of rows in the concatenated tables of n episodes.

    Attributes:
        counts: int64 [n], rows of each table.
        ends: int64 [n], the row after each table.
        last: int64 [n], the last row of each table.
        before_last: bool [rows], all rows except the last of each table.
        after_first: bool [rows], all rows except the first of each table.
    """

    def __init__(self, counts: npt.NDArray[np.int64]) -> None:
        self.counts = counts
        self.ends = np.cumsum(counts)
        self.last = self.ends - 1
        total = int(counts.sum())
        self.before_last = np.ones(total, np.bool_)
        self.before_last[self.last] = False
        self.after_first = np.ones(total, np.bool_)
        self.after_first[self.ends - counts] = False


def _variable_at(selected: npt.NDArray[np.bool_], array: pa.Array, dtype: str) -> pa.Array:
    """Returns the texts or bytes of the selected rows.

    Other rows, such as padding, are not checked.

    Raises:
        IrregularRowsError: as `to_variable`; its rows are rows of `array`.
    """
    try:
        return to_variable(array.filter(pa.array(selected)), dtype)
    except IrregularRowsError as error:
        raise IrregularRowsError(np.flatnonzero(selected)[error.rows], error.reason) from None


def _bad_episodes(
    error: IrregularRowsError, episodes: Sequence[ArrowEpisode], masks: _RowMasks, column: TableColumn
) -> BadEpisodesError:
    """Returns the error for the episodes that hold the irregular rows."""
    indices = np.searchsorted(masks.ends, error.rows, side="right")
    first = int(indices[0])
    row = int(error.rows[0] - (masks.ends[first] - masks.counts[first]))
    return BadEpisodesError(np.unique(indices).tolist(), error.reason, episodes[first], column.name, row)
