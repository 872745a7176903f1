"""Tables with one row per episode, in which every step column is a list.

The lists hold numbers, lists of numbers, texts or encoded files. `decision_transformer_gym_replay` and JAT on the
HuggingFace hub have this layout, and so has gear-data's own Parquet export. Scalar columns are facts about the episode
and go to the episode table. `final_observations` columns hold the observation after the last step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import BadEpisodeError, UnknownFormatError
from gear_data.ingest.findings.log import BAD_EPISODE_HINT, Finding, FindingLog
from gear_data.ingest.location import Location, files_to_compare, separate_datasets_hint
from gear_data.ingest.pipeline.columns import SCALAR_COLUMNS, choose_columns, resolve_structure_columns
from gear_data.ingest.pipeline.names import canonical_name
from gear_data.ingest.pipeline.step_order import check_step_order, step_numbers
from gear_data.ingest.source import UNIT_BYTES, Format, SourceOptions, Unit
from gear_data.ingest.sources.tables.episode_columns import (
    assign_roles,
    check_structure_options,
    infer_columns,
    marked_facts,
)
from gear_data.ingest.sources.tables.left_out_columns import leave_out_columns
from gear_data.ingest.sources.tables.open import TABLE_SUFFIXES, open_tables, require_tables
from gear_data.ingest.sources.tables.stream import TablePart, TableStream, read_ahead
from gear_data.ingest.sources.tables.to_numpy import (
    BadRowsError,
    IrregularRowsError,
    list_depth,
    list_lengths,
    null_rows,
    storage_array,
    to_numpy,
)
from gear_data.ingest.sources.tables.variable_length import path_rows, paths_left_out, to_variable
from gear_data.storage.episode_block import EpisodeBlock, Position, offsets_of

#: Rows that are read to see whether lists have one value.
_HEAD_ROWS = 64


def probe(location: Location) -> str | None:
    """Returns the reason if a row of the tables is an episode; otherwise None.

    Raises UnknownFormatError if a row may as well be a step.
    """
    tables = open_tables(location)
    if tables is None:
        return None
    for field in tables.schema:
        name, depth = canonical_name(field.name), list_depth(field.type)
        if name in SCALAR_COLUMNS and depth:
            _refuse_lists_of_one(location, tables, field.name)
            return f"a row is an episode: '{field.name}' is a list"
    has_scalar_column = any(canonical_name(field.name) in SCALAR_COLUMNS for field in tables.schema)
    for field in tables.schema:
        if list_depth(field.type) >= 2 and not has_scalar_column:
            return f"a row is an episode: '{field.name}' is a list of lists"
    return None


def _refuse_lists_of_one(location: Location, tables: TableStream, column: str) -> None:
    """Refuses tables whose rewards or flags are lists of one value, beside vectors.

    A row may be a step, where the lists come from arrays [N, 1], or an episode of one step. A list of lists in another
    column shows that a row is an episode. Raises UnknownFormatError.
    """
    depths = [list_depth(field.type) for field in tables.schema if canonical_name(field.name) not in SCALAR_COLUMNS]
    if 1 not in depths or max(depths) > 1:
        return
    tables.select([column])
    head = tables.head(_HEAD_ROWS)
    if head is None or len(head) < 2 or (list_lengths(storage_array(head.column(column)).drop_null()) != 1).any():
        return
    raise UnknownFormatError(
        f"could mean two things: each of the first {len(head)} lists has one value, so a row may be a step or an "
        "episode of one step",
        file=location.name,
        column=column,
        hint="give --format step-rows or --format episode-rows",
    )


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
        check_structure_options(types, options, location.name)
        names = leave_out_columns(tables.schema, location.name, options, self.findings)
        structure = {options.episodes.step_column} if options.episodes.step_column else set()
        chosen = choose_columns([name for name in names if name not in structure], options, structure=structure)
        marked = marked_facts(tables.schema)
        self._roles = assign_roles(chosen, types, marked, options.episodes.step_column, location.name)
        tables.select(self._roles.sources)
        self.columns = infer_columns(tables, types, self._roles, options, location.name)

    @property
    def num_rows(self) -> int | None:
        return self._tables.num_rows

    def units(self) -> Sequence[Unit]:
        units = [Unit(span.position, span.bytes) for span in self._tables.spans(None)]
        if not self._skip_bad:
            self._compare_files()
        return units

    def _compare_files(self) -> None:
        """Reads the first episode of files that may belong to another dataset.

        Lists do not have their width in their type. If the episode does not fit, the conversion ends here, and not
        after it has read the files before.
        """
        findings, names = self.findings.to_json(), [file.name for file in self._tables.files]
        # Reading one row fetches a whole row group of a remote file, so its size is no reason.
        sizes = [file.size if file.filesystem is None else 0 for file in self._tables.files]
        for index in files_to_compare(names, sizes, UNIT_BYTES):
            first = next(self._tables.parts(Position(index, 0), Position(index, 1)), None)
            try:
                if first is not None:
                    self._block(first)
            except BadEpisodeError as error:
                error.hint = separate_datasets_hint(names, names[0], names[index]) or error.hint
                raise
        self.findings.restore(findings)  # the episodes will be read again

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
                file, row = names[first], int(rows[first])
                if not self._skip_bad:
                    raise BadEpisodeError(
                        bad.reason,
                        file=file,
                        column=bad.column,
                        row=row,
                        hint=BAD_EPISODE_HINT,
                    ) from None
                self.findings.add(
                    Finding("bad-episode", f"{bad.reason}; skipped", len(bad.rows), file, row, bad.column)
                )
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
        lengths = self._lengths(lists)
        offsets = offsets_of(lengths)
        columns, variable = {}, {}
        path_findings: list[Finding] = []
        for source, spec in zip(self._roles.steps, self.columns, strict=True):
            steps = lists[source].flatten()
            try:
                if spec.variable_length:
                    variable[spec.name] = to_variable(steps, spec.dtype)
                else:
                    values = to_numpy(steps, spec.shape or (1,) * list_depth(steps.type))
                    columns[spec.name] = values.reshape(len(values), *spec.shape)
            except IrregularRowsError as error:
                episodes = np.unique(np.searchsorted(offsets, error.rows, side="right") - 1)
                step = int(error.rows[0] - offsets[episodes[0]])
                raise BadRowsError(episodes, source, f"step {step} {error.reason}") from error
            if (paths := path_rows(steps)) is not None and paths.any():
                episode = int(np.searchsorted(offsets, np.argmax(paths), side="right")) - 1
                path_findings.append(paths_left_out(int(paths.sum()), names[episode], int(rows[episode]), source))
        has_final, finals = self._read_finals(table)
        for finding in path_findings:
            self.findings.add(finding)
        block = EpisodeBlock(
            position=position,
            lengths=lengths,
            columns=columns,
            sources=names,
            rows=rows,
            has_final=has_final,
            finals=finals,
            metadata={name: table.column(source).to_pylist() for source, name in self._roles.facts.items()},
            variable=variable,
        )
        order = self._roles.order
        if order is not None:
            numbers = step_numbers(lists[order].flatten())
            check_step_order(block, numbers, order, self.findings, from_zero=False, rows_are_steps=False)
        return block

    def _lengths(self, lists: Mapping[str, pa.Array]) -> npt.NDArray[np.int64]:
        """Returns int64 [n]: the steps of each episode.

        Raises BadRowsError for null, unequal or empty lists.
        """
        for source, array in lists.items():
            missing = null_rows(array)
            if len(missing):
                raise BadRowsError(missing, source, "is null")
        reference = self._roles.reference
        lengths = list_lengths(lists[reference])
        for source, array in lists.items():
            own_lengths = list_lengths(array)
            differ = np.flatnonzero(own_lengths != lengths)
            if len(differ):
                first = differ[0]
                reason = f"has {own_lengths[first]} steps, where '{reference}' has {lengths[first]}"
                raise BadRowsError(differ.astype(np.int64), source, reason)
        empty = np.flatnonzero(lengths == 0)
        if len(empty):
            raise BadRowsError(empty.astype(np.int64), reference, "the episode has no steps")
        return lengths

    def _read_finals(self, table: pa.Table) -> tuple[npt.NDArray[np.bool_], dict[str, npt.NDArray[Any]]]:
        """Reads the final observations.

        Returns bool [n], the episodes that have final observations; and canonical name -> final observations.
        """
        has_final = np.zeros(len(table), np.bool_)
        finals = {}
        shapes = {spec.name: spec.shape for spec in self.columns}
        for i, (source, name) in enumerate(self._roles.finals.items()):
            array = storage_array(table.column(source))
            present = ~np.asarray(array.is_null())
            if i and (differ := np.flatnonzero(present != has_final)).size:
                raise BadRowsError(differ.astype(np.int64), source, "is null where other final observations are not")
            has_final = present
            try:
                finals[name] = to_numpy(array.drop_null(), shapes[name])
            except IrregularRowsError as error:
                raise BadRowsError(np.flatnonzero(present)[error.rows], source, error.reason) from error
        return has_final, finals


FORMAT = Format(
    name="episode-rows",
    probe=probe,
    open=open_,
    priority=30,
    uses=frozenset({"episode_column", "step_column", "end_column"}),
    suffixes=TABLE_SUFFIXES,
)
