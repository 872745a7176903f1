"""Tables with a row an episode: every step column a list: of numbers, of lists of them, of texts, of encoded files.

The layout of `decision_transformer_gym_replay` and JAT on the HuggingFace hub, and of our own Parquet export.
Scalar columns are facts about the episode and go to the episode table; `final_observations` columns hold one
step, the observation after the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import (
    BadEpisodeError,
    EmptySourceError,
    InvalidArgumentError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from gear_data.ingest.findings.log import BAD_EPISODE_HINT, Finding, FindingLog
from gear_data.ingest.location import Location
from gear_data.ingest.pipeline.columns import SCALAR_COLUMNS, choose_columns, resolve_structure_columns
from gear_data.ingest.pipeline.names import canonical_name
from gear_data.ingest.pipeline.step_order import check_step_order, step_numbers
from gear_data.ingest.source import Format, SourceOptions, Unit
from gear_data.ingest.sources.tables.null_columns import leave_out_null_columns
from gear_data.ingest.sources.tables.stream import TablePart, TableStream, open_tables, read_ahead, require_tables
from gear_data.ingest.sources.tables.to_numpy import (
    BadRowsError,
    IrregularRowsError,
    inner_shape,
    is_list,
    leaf_dtype,
    list_depth,
    list_lengths,
    null_rows,
    storage_array,
    to_numpy,
)
from gear_data.ingest.sources.tables.variable_length import path_rows, paths_left_out, to_variable, variable_dtype
from gear_data.schema import VARIABLE_TYPES, ColumnSpec
from gear_data.storage.block import EpisodeBlock, Position, offsets_of

_FINAL = "final_"
_FINAL_OBSERVATION = "final_observations"
_HEAD_ROWS = 64


def probe(location: Location) -> str | None:
    tables = open_tables(location)
    if tables is None:
        return None
    for field in tables.schema:
        name, depth = canonical_name(field.name), list_depth(field.type)
        if name in SCALAR_COLUMNS and depth:
            return f"a row is an episode: '{field.name}' is a list"
    for field in tables.schema:
        if list_depth(field.type) >= 2 and not any(
            canonical_name(other.name) in SCALAR_COLUMNS for other in tables.schema
        ):
            return f"a row is an episode: '{field.name}' is a list of lists"
    return None


def open_(location: Location, options: SourceOptions) -> EpisodeRowSource:
    return EpisodeRowSource(location, require_tables(location), options)


class EpisodeRowSource:
    """An `EpisodeSource` over tables with a row an episode."""

    rows_are_steps = False

    def __init__(self, location: Location, tables: TableStream, options: SourceOptions) -> None:
        self.findings = FindingLog()
        self.resume_state: dict[str, Any] = {}
        self.metadata: Mapping[str, Any] = {}
        self._tables = tables
        self._options = options
        self._location = location
        types = {field.name: field.type for field in tables.schema}
        options = resolve_structure_columns(types, options)
        if options.episode_column is not None:
            raise InvalidArgumentError(
                "a row is an episode here: no column tells them apart",
                file=location.name,
                column=options.episode_column,
                hint="leave --episode-column out, or read rows as steps with --format step-rows",
            )
        if options.end_column is not None and not is_list(types[options.end_column]):
            raise UnsupportedColumnError(
                f"holds {types[options.end_column]}, where the steps of an episode are marked by a list",
                file=location.name,
                column=options.end_column,
                hint="leave --end-column out",
            )
        self._order = options.step_column
        if self._order is not None and not _is_integers(types[self._order]):
            raise UnsupportedColumnError(
                f"holds {types[self._order]}, where the steps of an episode are numbered by a list of integers",
                file=location.name,
                column=self._order,
                hint="leave --step-column out",
            )
        names = leave_out_null_columns(tables.schema, location.name, options, self.findings)
        chosen = choose_columns([name for name in names if name != self._order], options)
        lists = {source: name for source, name in chosen.items() if is_list(types[source])}
        # `final_observations` beside `observations`; a `final_reward` without a `reward` is a column like others. What
        # comes after a list of numbers is one number, and that of others than observations is a fact.
        by_name = {name: source for source, name in lists.items()}
        self._finals = {
            source: name.removeprefix(_FINAL)
            for source, name in chosen.items()
            if name.startswith(_FINAL)
            and (steps := by_name.get(name.removeprefix(_FINAL))) is not None
            and (source in lists or (name.startswith(_FINAL_OBSERVATION) and _is_number(types[source], types[steps])))
        }
        self._steps = {source: name for source, name in lists.items() if source not in self._finals}
        self._facts = {s: n for s, n in chosen.items() if s not in self._steps and s not in self._finals}
        if not self._steps:
            raise UnknownFormatError("no column is a list of steps", file=location.name)
        for source in self._facts:
            if pa.types.is_nested(types[source]) or _is_bytes(types[source]):
                raise UnsupportedColumnError(
                    f"holds {types[source]}", file=location.name, column=source, hint="leave it out with --columns"
                )
        # Lengths are compared with this one's.
        self._reference = next((s for s, n in self._steps.items() if n == "observations"), next(iter(self._steps)))
        order = [self._order] if self._order is not None else []
        tables.select([*self._steps, *self._finals, *self._facts, *order])
        self.columns = self._infer_columns(types)

    def _infer_columns(self, types: Mapping[str, pa.DataType]) -> tuple[ColumnSpec, ...]:
        dtypes = {s: self._step_dtype(types[s].value_type, s) for s in self._steps}
        dtypes |= {s: leaf_dtype(types[s], file=self._location.name, column=s) for s in self._finals}
        for source, name in self._finals.items():
            steps = next(step for step, known in self._steps.items() if known == name)
            if dtypes[source] != dtypes[steps]:
                raise UnsupportedColumnError(
                    f"holds {dtypes[source]}, where '{steps}' holds {dtypes[steps]}",
                    file=self._location.name,
                    column=source,
                    hint="cast one of the two to the dtype of the other, or leave this one out with --columns",
                )
        head = self._tables.head(_HEAD_ROWS)
        if head is None:
            raise EmptySourceError("the source holds no episode", file=self._location.name)
        specs = []
        for source, name in self._steps.items():
            known_as = None if source == name else source
            if dtypes[source] in VARIABLE_TYPES:
                specs.append(ColumnSpec(name, dtypes[source], source=known_as))
                continue
            steps = storage_array(head.column(source)).flatten()
            if len(steps) == 0 and self._options.skip_bad is False:
                # The first rows are empty episodes; let the reader name the first of them.
                shape: tuple[int, ...] = (1,) * list_depth(steps.type)
            else:
                shape = inner_shape(steps)
            if name in SCALAR_COLUMNS and shape == (1,):
                shape = ()
            if 0 in shape:
                raise EmptySourceError(
                    f"no step with values in the first {len(head)} rows", file=self._location.name, column=source
                )
            specs.append(ColumnSpec(name, dtypes[source], shape, False, known_as, name in self._finals.values()))
        return tuple(specs)

    def _step_dtype(self, type_: pa.DataType, source: str) -> str:
        dtype = variable_dtype(type_, self._steps[source])
        return dtype or leaf_dtype(type_, file=self._location.name, column=source)

    @property
    def num_rows(self) -> int | None:
        return self._tables.num_rows

    def units(self) -> Sequence[Unit]:
        return [Unit(span.position, span.bytes) for span in self._tables.spans(None)]

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        position: Position | None = None
        used = 0
        for part in read_ahead(self._tables.parts(start, stop)):
            # A part of bad episodes alone makes no block: the next one then starts where that part did.
            position, used = position or part.position, used + len(part.table)
            block = self._block(part)
            if block is not None:
                yield replace(block, position=position, source_rows=used)
                position, used = None, 0

    def _block(self, part: TablePart) -> EpisodeBlock | None:
        table, rows, names = part.table, part.rows(), part.names()
        while len(table):
            try:
                return self._read(table, rows, names, part.position)
            except BadRowsError as bad:
                first = int(bad.rows[0])
                file, row = names[first], int(rows[first])
                if not self._options.skip_bad:
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
        sources = [*self._steps, self._order] if self._order is not None else [*self._steps]
        lists = {source: storage_array(table.column(source)) for source in sources}
        lengths = self._lengths(lists)
        offsets = offsets_of(lengths)
        columns, variable = {}, {}
        noted: list[Finding] = []
        for source, spec in zip(self._steps, self.columns, strict=True):
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
                noted.append(paths_left_out(int(paths.sum()), names[episode], int(rows[episode]), source))
        has_final, finals = self._read_finals(table)
        for finding in noted:
            self.findings.add(finding)
        block = EpisodeBlock(
            position=position,
            lengths=lengths,
            columns=columns,
            sources=names,
            rows=rows,
            has_final=has_final,
            finals=finals,
            metadata={name: table.column(source).to_pylist() for source, name in self._facts.items()},
            variable=variable,
        )
        if self._order is not None:
            numbers = step_numbers(lists[self._order].flatten())
            check_step_order(block, numbers, self._order, self.findings, from_zero=False, rows_are_steps=False)
        return block

    def _lengths(self, lists: Mapping[str, pa.Array]) -> npt.NDArray[np.int64]:
        for source, array in lists.items():
            missing = null_rows(array)
            if len(missing):
                raise BadRowsError(missing, source, "is null")
        lengths = list_lengths(lists[self._reference])
        for source, array in lists.items():
            own = list_lengths(array)
            differ = np.flatnonzero(own != lengths)
            if len(differ):
                first = differ[0]
                reason = f"has {own[first]} steps, where '{self._reference}' has {lengths[first]}"
                raise BadRowsError(differ.astype(np.int64), source, reason)
        empty = np.flatnonzero(lengths == 0)
        if len(empty):
            raise BadRowsError(empty.astype(np.int64), self._reference, "the episode has no steps")
        return lengths

    def _read_finals(self, table: pa.Table) -> tuple[npt.NDArray[np.bool_], dict[str, npt.NDArray[Any]]]:
        has_final = np.zeros(len(table), np.bool_)
        finals = {}
        shapes = {spec.name: spec.shape for spec in self.columns}
        for i, (source, name) in enumerate(self._finals.items()):
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


def _is_number(type_: pa.DataType, steps: pa.DataType) -> bool:
    """Whether a type is that of the numbers in lists of another."""
    return bool(type_ == steps.value_type and pa.types.is_primitive(type_))


def _is_integers(type_: pa.DataType) -> bool:
    return is_list(type_) and bool(pa.types.is_integer(type_.value_type))


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_))


FORMAT = Format(
    name="episode-rows",
    probe=probe,
    open=open_,
    priority=30,
    uses=frozenset({"episode_column", "step_column", "end_column"}),
    suffixes=(".parquet",),
)
