"""Tables with one row per episode, in which every step column is a list.

The lists hold numbers, lists of numbers, texts or encoded files. `decision_transformer_gym_replay` and JAT on the
HuggingFace hub have this layout, and so has gear-data's own Parquet export. Scalar columns are facts about the episode
and go to the episode table. The observation after the last step is the value T + 1 of the observations, or in a column
`final_observations`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.ingest.findings.log import NO_STEPS, Finding, FindingLog
from gear_data.ingest.location import Location
from gear_data.ingest.pipeline.boundaries import check_step_order, step_numbers
from gear_data.ingest.pipeline.columns import choose_columns, resolve_structure_columns
from gear_data.ingest.pipeline.episode_values import reset_info_left_out
from gear_data.ingest.pipeline.names import is_observation
from gear_data.ingest.pipeline.previews import compare_files
from gear_data.ingest.source import Format, SourceOptions, Unit
from gear_data.ingest.sources.tables.episode_columns import (
    assign_roles,
    check_structure_options,
    infer_columns,
    marked_facts,
)
from gear_data.ingest.sources.tables.open import BESIDE_TABLES, TABLE_SUFFIXES, open_tables, require_tables
from gear_data.ingest.sources.tables.recognise import leave_out_columns, why_rows_are_episodes
from gear_data.ingest.sources.tables.stream import TablePart, TableStream, read_ahead
from gear_data.ingest.sources.tables.to_numpy import (
    BadRowsError,
    IrregularRowsError,
    column_values,
    list_lengths,
    null_rows,
    path_rows,
    paths_left_out,
    storage_array,
    to_numpy,
)
from gear_data.storage.episode_block import EpisodeBlock, Position, Values, offsets_of


def probe(location: Location) -> str | None:
    """Returns the reason if a row of the tables is an episode; otherwise None.

    Raises UnknownFormatError if a row may as well be a step.
    """
    tables = open_tables(location)
    return None if tables is None else why_rows_are_episodes(location, tables)


def open_(location: Location, options: SourceOptions) -> EpisodeRowSource:
    """Opens tables with one row per episode. Raises UnknownFormatError without tables."""
    return EpisodeRowSource(location, require_tables(location), options)


class EpisodeRowSource:
    """An `EpisodeSource` over tables with one row per episode."""

    rows_are_steps = False

    def __init__(self, location: Location, tables: TableStream, options: SourceOptions) -> None:
        self.findings = FindingLog()
        self.resume_state: dict[str, Any] = {}
        self.metadata: Mapping[str, Any] = {}
        self._tables = tables
        self._skip_bad = options.skip_bad
        types = {field.name: field.type for field in tables.schema}
        options = resolve_structure_columns(types, options)
        check_structure_options(types, options)
        names = leave_out_columns(tables.schema, location.name, options, self.findings)
        structure = {options.episodes.step_column} if options.episodes.step_column else set()
        chosen = choose_columns([name for name in names if name not in structure], options, structure=structure)
        marked = marked_facts(tables.schema)
        self._roles = assign_roles(chosen, types, marked, options.episodes.step_column)
        tables.select(self._roles.sources)
        self.columns = infer_columns(tables, types, self._roles, options)

    @property
    def num_rows(self) -> int | None:
        return self._tables.num_rows

    def units(self) -> Sequence[Unit]:
        units = [Unit(span.position, span.bytes) for span in self._tables.spans(None)]
        if not self._skip_bad:  # lists do not have their width in their type
            # Reading one row fetches a whole row group of a remote file, so its size is no reason.
            compare_files(self, [(each.name, each.size * (each.filesystem is None)) for each in self._tables.files])
        return units

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        position: Position | None = None
        rows_read = 0
        for part in read_ahead(self._tables.parts(start, stop)):
            # A part of only bad episodes makes no block; the next block then starts at that part.
            position, rows_read = position or part.position, rows_read + len(part.table)
            block = self._block(part)
            if block is not None:
                yield replace(block, position=position, source_rows=rows_read)
                position, rows_read = None, 0

    def _block(self, part: TablePart) -> EpisodeBlock | None:
        """Reads a part.

        Bad episodes are left out with a finding, or raise BadEpisodeError; None if all are bad.
        """
        table, rows, names = part.table, part.rows(), part.names()
        while len(table):
            try:
                return self._read(table, rows, names, part.position)
            except BadRowsError as bad:
                first = int(bad.rows[0])
                error = bad.about(table, names[first], int(rows[first]))
                self.findings.add_bad_episode(error, skip=self._skip_bad, count=len(bad.rows))
                keep = np.ones(len(table), np.bool_)
                keep[bad.rows] = False
                table, rows = table.filter(pa.array(keep)), rows[keep]
                names = [name for name, kept in zip(names, keep, strict=True) if kept]
        return None

    def _read(self, table: pa.Table, rows: npt.NDArray[np.int64], names: list[str], position: Position) -> EpisodeBlock:
        """Builds the block of all rows.

        Raises BadRowsError for bad episodes, before any finding is added.
        """
        lists = {source: storage_array(table.column(source)) for source in self._roles.lists}
        lengths, extra = self._lengths(lists)
        offsets = offsets_of(lengths)
        steps = {source: array.flatten() for source, array in lists.items()}
        ends = [_Ends.of_column(source, name, table) for source, name in self._roles.finals.items()]
        findings: list[Finding] = []
        for source, with_extra in extra.items():
            name, is_final = self._roles.steps[source], is_observation(self._roles.steps[source])
            steps[source], others = _split_extra(steps[source], lengths, with_extra, last=is_final)
            if is_final:
                ends.append(_Ends(source, name, with_extra, others))
            else:
                first = int(np.argmax(with_extra))
                findings.append(reset_info_left_out(int(with_extra.sum()), names[first], int(rows[first]), name))
        columns = self._read_flags(table, offsets)
        for source, spec in zip(self._roles.steps, self.columns, strict=False):
            try:
                columns[spec.name] = column_values(steps[source], spec)
            except IrregularRowsError as error:
                episodes = np.unique(np.searchsorted(offsets, error.rows, side="right") - 1)
                step = int(error.rows[0] - offsets[episodes[0]])
                raise BadRowsError(episodes, source, f"step {step} {error.reason}") from error
            if (paths := path_rows(steps[source])) is not None and paths.any():
                episode = int(np.searchsorted(offsets, np.argmax(paths), side="right")) - 1
                findings.append(paths_left_out(int(paths.sum()), names[episode], int(rows[episode]), source))
        has_final, finals = self._read_finals(ends, len(table))
        self.findings.extend(findings)
        block = EpisodeBlock(
            position=position,
            lengths=lengths,
            columns=columns,
            sources=names,
            rows=rows,
            has_final=has_final,
            finals=finals,
            metadata={name: _fact(name, table.column(source)) for source, name in self._roles.facts.items()},
        )
        order = self._roles.order
        if order is not None:
            numbers = step_numbers(steps[order])
            check_step_order(block, numbers, order, self.findings, from_zero=False)
        return block

    def _lengths(self, lists: Mapping[str, pa.Array]) -> tuple[npt.NDArray[np.int64], dict[str, npt.NDArray[np.bool_]]]:
        """Returns int64 [n], the steps of each episode; and source -> bool [n], the lists with a value more.

        Observations may have the final observation as their last value, and infos the info of the reset as their first.

        Raises BadRowsError for null, unequal or empty lists.
        """
        for source, array in lists.items():
            missing = null_rows(array)
            if len(missing):
                raise BadRowsError(missing, source, "is null")
        has_final = {spec.name for spec in self.columns if spec.has_final} - {*self._roles.finals.values()}
        reference = self._roles.counter if has_final else self._roles.reference
        lengths = list_lengths(lists[reference])
        extra = {}
        for source, array in lists.items():
            own_lengths, name = list_lengths(array), self._roles.steps.get(source, "")
            with_extra = own_lengths == lengths + 1
            if name in has_final or (name.startswith("infos") and with_extra.any()):
                extra[source] = with_extra
                own_lengths = own_lengths - with_extra
            differ = np.flatnonzero(own_lengths != lengths)
            if len(differ):
                first = differ[0]
                reason = f"has {own_lengths[first]} steps, where '{reference}' has {lengths[first]}"
                raise BadRowsError(differ.astype(np.int64), source, reason)
        empty = np.flatnonzero(lengths == 0)
        if len(empty):
            raise BadRowsError(empty.astype(np.int64), reference, NO_STEPS)
        return lengths, extra

    def _read_flags(self, table: pa.Table, offsets: npt.NDArray[np.int64]) -> dict[str, Values]:
        """Returns end flags of steps, of columns with one flag for each episode.

        Raises BadRowsError for nulls, and for values that are neither 0 nor 1.
        """
        columns: dict[str, Values] = {}
        for source, name in self._roles.flags.items():
            try:
                values = to_numpy(storage_array(table.column(source)), ())
            except IrregularRowsError as error:
                raise BadRowsError(error.rows, source, error.reason) from error
            wrong = np.flatnonzero((values != 0) & (values != 1))
            if len(wrong):
                raise BadRowsError(wrong.astype(np.int64), source, f"is {values[wrong[0]]}, and an end flag is 0 or 1")
            columns[name] = np.zeros(int(offsets[-1]), np.bool_)
            columns[name][offsets[1:] - 1] = values
        return columns

    def _read_finals(self, ends: Sequence[_Ends], count: int) -> tuple[npt.NDArray[np.bool_], dict[str, Values]]:
        """Reads the final observations of `count` episodes.

        Returns bool [n], the episodes that have final observations; and canonical name -> final observations.
        """
        has_final = np.zeros(count, np.bool_)
        finals: dict[str, Values] = {}
        specs = {spec.name: spec for spec in self.columns}
        for i, end in enumerate(ends):
            if i and (differ := np.flatnonzero(end.present != has_final)).size:
                reason = "has no final observation, but other columns have one"
                if end.source in self._roles.finals:
                    reason = "is null where other final observations are not"
                raise BadRowsError(differ.astype(np.int64), end.source, reason)
            has_final = end.present
            try:
                finals[end.name] = column_values(end.values, specs[end.name])
            except IrregularRowsError as error:
                raise BadRowsError(np.flatnonzero(end.present)[error.rows], end.source, error.reason) from error
        return has_final, finals


@dataclass(frozen=True)
class _Ends:
    """The final observations of one column.

    Attributes:
        source: the name of the column that holds them, in the source.
        name: the canonical name of the step column.
        present: bool [n], the episodes that have one.
        values: the final observations of these episodes.
    """

    source: str
    name: str
    present: npt.NDArray[np.bool_]
    values: pa.Array

    @staticmethod
    def of_column(source: str, name: str, table: pa.Table) -> _Ends:
        """Returns the final observations of a column with one, or null, for each episode."""
        array = storage_array(table.column(source))
        return _Ends(source, name, ~np.asarray(array.is_null()), array.drop_null())


def _fact(name: str, column: pa.ChunkedArray) -> Sequence[Any]:
    """Returns the values of a fact.

    Times of nanoseconds stay an array, because Python's times have microseconds. A task becomes text.
    """
    type_ = column.type
    is_time = pa.types.is_timestamp(type_) or pa.types.is_duration(type_) or pa.types.is_time64(type_)
    if is_time and type_.unit == "ns" and name != "task":
        array: Sequence[Any] = storage_array(column)
        return array
    values: Sequence[Any] = column.to_pylist()
    return values


def _split_extra(
    values: pa.Array, lengths: npt.NDArray[np.int64], extra: npt.NDArray[np.bool_], *, last: bool
) -> tuple[pa.Array, pa.Array]:
    """Splits the values of lists into steps, and the values that belong to no step.

    Args:
        values: the values of all lists.
        lengths: int64 [n], the steps of each episode.
        extra: bool [n], the episodes whose list has a value more.
        last: whether it is the last value of the list, or the first.
    """
    offsets = offsets_of(lengths + extra)
    at = (offsets[1:] - 1 if last else offsets[:-1])[extra]
    is_step = np.ones(int(offsets[-1]), np.bool_)
    is_step[at] = False
    return values.filter(pa.array(is_step)), values.take(pa.array(at))


FORMAT = Format(
    "episode-rows",
    probe,
    open_,
    uses=frozenset({"episode_column", "step_column", "end_column", "dtype", "fill_null", "header"}),
    suffixes=TABLE_SUFFIXES,
    beside=BESIDE_TABLES,
)
