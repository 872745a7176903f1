"""Minari's Arrow (and Parquet) layout: a folder an episode, `0/part-0.arrow` and `0/metadata.json`.

Layout: `minari/dataset/_storages/arrow_storage.py` (Minari 0.5). A table of an episode of T steps has T + 1 rows: all
observations, the final one last; infos, the one of the reset first; and the rest, whose last row is padding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import BadEpisodeError, CorruptSourceError, UnknownFormatError
from gear_data.ingest.findings.log import BAD_EPISODE_HINT, Finding, FindingLog
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.pipeline.columns import choose_columns
from gear_data.ingest.source import UNIT_BYTES, Format, SourceOptions, Unit
from gear_data.ingest.sources.json_files import read_json_object
from gear_data.ingest.sources.minari.arrow_tables import (
    INFOS,
    OBSERVATIONS,
    TableColumn,
    cast_table,
    read_table,
    reference_schema,
    table_columns,
)
from gear_data.ingest.sources.minari.metadata import METADATA, read_metadata
from gear_data.ingest.sources.tables.stream import read_ahead
from gear_data.ingest.sources.tables.to_numpy import IrregularRowsError, to_numpy
from gear_data.ingest.sources.tables.variable_length import to_variable
from gear_data.storage.block import EpisodeBlock, Position

#: A file of an episode: the dataset's folder, the episode's number.
_FILE = re.compile(r"((?:.*/)?)(\d{1,18})/[^/]+\.(?:arrow|parquet)")
_BLOCK_BYTES = 16 << 20
#: Facts of an episode that its place and its rows say again; so do those on its rewards.
_ID, _STEPS, _REWARDS = "id", "total_steps", "rewards_"


@dataclass(frozen=True)
class EpisodeFiles:
    """An episode's files: its tables in order, and its facts, if they are there."""

    number: int
    tables: tuple[SourceFile, ...]
    facts: SourceFile | None

    @property
    def name(self) -> str:
        return self.tables[0].name

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.tables)


def probe(location: Location) -> str | None:
    roots = _roots(location)
    if len(roots) != 1:
        return None
    (root,) = roots
    first = _episodes(location, root)[0]
    if location.file(f"{root}{METADATA}") is None or first.facts is None:
        return None
    return f"a Minari dataset, a folder an episode: it has {root}{METADATA} and {first.name}"


def _roots(location: Location) -> set[str]:
    """Folders that hold numbered folders of tables."""
    return {found[1] for file in location.files if (found := _FILE.fullmatch(file.name))}


def _episodes(location: Location, root: str) -> tuple[EpisodeFiles, ...]:
    """By number; `location.files` are sorted so that `part-2` is before `part-10`."""
    facts = {file.name: file for file in location.files if file.name.endswith(METADATA)}
    tables: dict[str, list[SourceFile]] = {}
    for file in location.files:
        if (found := _FILE.fullmatch(file.name)) and found[1] == root:
            tables.setdefault(found[2], []).append(file)
    episodes = [
        EpisodeFiles(int(folder), tuple(files), facts.get(f"{root}{folder}/{METADATA}"))
        for folder, files in tables.items()
    ]
    return tuple(sorted(episodes, key=lambda episode: (episode.number, episode.name)))


def open_(location: Location, options: SourceOptions) -> MinariArrowSource:
    roots = _roots(location)
    if len(roots) > 1:
        raise UnknownFormatError(
            f"holds several Minari datasets: {', '.join(sorted(roots))}", file=location.name, hint="give one of them"
        )
    root = next(iter(roots), "")
    metadata = location.file(f"{root}{METADATA}")
    if not roots or metadata is None:
        raise UnknownFormatError(f"no {METADATA} beside numbered folders of Arrow files", file=location.name)
    return MinariArrowSource(_episodes(location, root), metadata, options)


class MinariArrowSource:
    """An `EpisodeSource` over the folders of a Minari dataset. `Position.file` counts episodes."""

    rows_are_steps = False

    def __init__(self, episodes: tuple[EpisodeFiles, ...], metadata: SourceFile, options: SourceOptions) -> None:
        self.findings = FindingLog()
        self.resume_state: dict[str, Any] = {}
        self.num_rows = len(episodes)
        self._episodes = episodes
        self._skip_bad = options.skip_bad
        described = read_metadata(metadata)
        self.metadata: Mapping[str, Any] = described.facts
        described.note_counts(len(episodes), None, self.findings)
        numbers = [episode.number for episode in episodes]
        if len(gaps := [i for i, number in enumerate(numbers) if number != (numbers[i - 1] + 1 if i else 0)]):
            message = "the episodes' numbers do not count up from 0 by one; those there are read"
            self.findings.add(Finding("gapped-episodes", message, len(gaps), file=episodes[gaps[0]].name))
        first = episodes[0].tables[0]
        self._schema = reference_schema(read_table(first).schema)
        columns = {column.name: column for column in table_columns(self._schema, described.leaves, first.name)}
        chosen = choose_columns(columns, options)
        self._columns = {name: columns[source] for source, name in chosen.items()}
        self.columns = tuple(column.spec(name) for name, column in self._columns.items())

    def units(self) -> Sequence[Unit]:
        return tuple(
            Unit(Position(start, 0), sum(episode.bytes for episode in self._episodes[start:stop]))
            for start, stop in self._groups(0, len(self._episodes), UNIT_BYTES)
        )

    def _groups(self, start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
        """Runs of episodes of at least so many bytes in their files, but for the last."""
        total = 0
        for i in range(start, stop):
            total += self._episodes[i].bytes
            if total >= size or i == stop - 1:
                yield start, i + 1
                start, total = i + 1, 0

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        groups = self._groups(start.file, min(stop.file, len(self._episodes)), _BLOCK_BYTES)
        for position, group in read_ahead(self._read(first, last) for first, last in groups):
            yield self._block(position, group)

    def _read(self, first: int, last: int) -> tuple[int, list[_ReadEpisode]]:
        return first, [_ReadEpisode.read(files, self._schema) for files in self._episodes[first:last]]

    def _block(self, position: int, group: list[_ReadEpisode]) -> EpisodeBlock:
        count = len(group)
        while True:
            try:
                return self._assemble(position, group, count)
            except _BadEpisodesError as bad:
                if not self._skip_bad:
                    raise bad.error from None
                message = "an episode that cannot be read as one; skipped"
                name = group[bad.places[0]].files.name
                self.findings.add(Finding("bad-episode", message, len(bad.places), file=name))
                group = [episode for i, episode in enumerate(group) if i not in bad.places]

    def _assemble(self, position: int, group: list[_ReadEpisode], count: int) -> EpisodeBlock:
        """Builds a block. Raises _BadEpisodesError for bad episodes, before any finding is added."""
        reasons = {i: e.reason for i, e in enumerate(group) if e.reason is not None}
        if reasons:
            first = min(reasons)
            raise _BadEpisodesError(list(reasons), reasons[first], group[first])
        tables = pa.concat_tables([e.table for e in group] or [self._schema.empty_table()])
        rows = _RowMasks(np.array([e.table.num_rows for e in group], np.int64))
        columns: dict[str, npt.NDArray[Any]] = {}
        variable: dict[str, pa.Array] = {}
        finals: dict[str, npt.NDArray[Any]] = {}
        variable_finals: dict[str, pa.Array] = {}
        padded = np.zeros(len(group), np.bool_)
        for name, column in self._columns.items():
            steps = rows.after_first if column.path[0] == INFOS else rows.before_last
            is_final, is_padded = column.path[0] == OBSERVATIONS, column.path[0] not in (OBSERVATIONS, INFOS)
            array = column.of(tables)
            try:
                if column.variable_length:
                    variable[name] = _variable_at(steps, array, column.dtype)
                    if is_final:
                        variable_finals[name] = _variable_at(~steps, array, column.dtype)
                    if is_padded:
                        last_values = array.take(pa.array(rows.last)).to_pylist()
                        padded |= np.array([bool(value) for value in last_values], np.bool_)
                    continue
                values = to_numpy(array, column.stored).reshape(len(array), *column.shape)
            except IrregularRowsError as error:
                raise _irregular(error, group, rows, column) from None
            columns[name], last = values[steps], values[rows.last]
            if is_final:
                finals[name] = last
            if is_padded:
                padded |= (last != 0).any(axis=tuple(range(1, last.ndim)))
        self._check_padding(group, padded)
        self._note_changes(group)
        return EpisodeBlock(
            position=Position(position, 0),
            lengths=rows.counts - 1,
            columns=columns,
            sources=[episode.files.name for episode in group],
            rows=np.zeros(len(group), np.int64),
            has_final=np.full(len(group), bool(finals or variable_finals)),
            finals=finals,
            metadata=_facts(group),
            variable=variable,
            variable_finals=variable_finals,
            source_rows=count,
        )

    def _check_padding(self, group: list[_ReadEpisode], padded: npt.NDArray[np.bool_]) -> None:
        """Last rows that are not padding. One that the episode's metadata counts is a step without what followed."""
        bad = [i for i in np.flatnonzero(padded).tolist() if group[i].facts.get(_STEPS) == group[i].table.num_rows]
        if bad:
            reason = "has no final observation: the last row should be padding, and is a step"
            raise _BadEpisodesError(bad, reason, group[bad[0]], row=group[bad[0]].table.num_rows - 1)
        if padded.any():
            first = group[int(np.argmax(padded))].files.name
            message = "the last row of actions, rewards and flags is padding, and holds values; left out"
            self.findings.add(Finding("padding-not-zero", message, int(padded.sum()), file=first))
        for key, found in ((_STEPS, [e.table.num_rows - 1 for e in group]), (_ID, [e.files.number for e in group])):
            wrong = [e for e, value in zip(group, found, strict=True) if e.facts.get(key, value) != value]
            if wrong:
                message = f"an episode's {key} is not that of its folder and rows; those count"
                name = wrong[0].files.name
                self.findings.add(Finding("metadata-disagrees", message, len(wrong), file=name, column=key))

    def _note_changes(self, group: list[_ReadEpisode]) -> None:
        if not group:
            return
        first = group[0].files.name
        for column in self._columns.values():
            if column.path[0] == INFOS:
                message = "the first of T + 1 values belongs to the reset, not to a step; left out"
                self.findings.add(Finding("reset-info-left-out", message, len(group), first, column=column.name))
        for episode in group:
            for name in episode.cast:
                message = "numbers of another type than in the first episode; the same ones are kept as that"
                self.findings.add(Finding("dtype-differs", message, file=episode.files.name, column=name))


@dataclass(frozen=True)
class _ReadEpisode:
    """An episode as it was read.

    Attributes:
        files: where it was read from.
        table: a row more than steps.
        facts: what its `metadata.json` says.
        cast: columns whose numbers had another type than in the first episode.
        reason: why it is no episode of the dataset, if it is none.
    """

    files: EpisodeFiles
    table: pa.Table
    facts: Mapping[str, Any]
    cast: tuple[str, ...]
    reason: str | None

    @staticmethod
    def read(files: EpisodeFiles, schema: pa.Schema) -> _ReadEpisode:
        tables = [read_table(file) for file in files.tables]
        for file, table in zip(files.tables[1:], tables[1:], strict=True):
            if table.schema != tables[0].schema:
                raise CorruptSourceError(f"has other columns than {files.name}", file=file.name)
        table, cast, reason = cast_table(pa.concat_tables(tables), schema)
        if reason is None and table.num_rows < 2:
            reason = "has no steps"
        return _ReadEpisode(files, table, {} if files.facts is None else read_json_object(files.facts), cast, reason)


class _BadEpisodesError(Exception):
    """Some of a group of episodes are none: `places` in the group, and the error for the first."""

    def __init__(
        self, places: list[int], reason: str, first: _ReadEpisode, column: str | None = None, row: int | None = None
    ) -> None:
        super().__init__(reason)
        self.places = places
        self.error = BadEpisodeError(
            reason,
            file=first.files.name,
            column=column,
            row=row,
            hint=BAD_EPISODE_HINT,
        )


class _RowMasks:
    """Which rows of the tables of several episodes, one after another, are what. `counts`: int64 [n], rows of each."""

    def __init__(self, counts: npt.NDArray[np.int64]) -> None:
        self.counts = counts
        self.ends = np.cumsum(counts)
        self.last = self.ends - 1
        total = int(counts.sum())
        self.before_last = np.ones(total, np.bool_)
        self.before_last[self.last] = False
        self.after_first = np.ones(total, np.bool_)
        self.after_first[self.ends - counts] = False


def _variable_at(wanted: npt.NDArray[np.bool_], array: pa.Array, dtype: str) -> pa.Array:
    """The texts or bytes of the rows wanted; the others, such as padding, need not be any.

    Raises:
        IrregularRowsError: as `to_variable`; its rows are those of `array`.
    """
    try:
        return to_variable(array.filter(pa.array(wanted)), dtype)
    except IrregularRowsError as error:
        raise IrregularRowsError(np.flatnonzero(wanted)[error.rows], error.reason) from None


def _irregular(
    error: IrregularRowsError, group: list[_ReadEpisode], rows: _RowMasks, column: TableColumn
) -> _BadEpisodesError:
    places = np.searchsorted(rows.ends, error.rows, side="right")
    first = int(places[0])
    row = int(error.rows[0] - (rows.ends[first] - rows.counts[first]))
    return _BadEpisodesError(np.unique(places).tolist(), error.reason, group[first], column.name, row)


def _facts(group: list[_ReadEpisode]) -> dict[str, list[Any]]:
    """The episodes' own facts, as far as they are single values; the options of a reset as JSON text."""
    found = dict.fromkeys(name for episode in group for name in episode.facts)
    names = [name for name in found if name not in (_ID, _STEPS) and not name.startswith(_REWARDS)]
    return {name: [_fact(episode.facts.get(name)) for episode in group] for name in names}


def _fact(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)


FORMAT = Format(
    name="minari-arrow",
    probe=probe,
    open=open_,
    priority=48,
    suffixes=(".arrow", ".parquet"),
)
