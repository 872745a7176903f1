"""Minari Arrow and Parquet: one folder per episode.

The first episode's files are `0/part-0.arrow` and `0/metadata.json`.

Layout: `minari/dataset/_storages/arrow_storage.py` (Minari 0.5). The table of an episode of T steps has T + 1 rows.
The last row of the observations is the final observation, and the first row of the infos belongs to the reset. In all
other columns the last row is padding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeGuard

import pyarrow as pa

from gear_data.errors import BadEpisodeError, CorruptSourceError, UnknownFormatError
from gear_data.ingest.findings.log import BAD_EPISODE_HINT, NO_STEPS, Finding, FindingLog
from gear_data.ingest.location import Location, SourceFile, holds_several, placed
from gear_data.ingest.pipeline.columns import choose_columns
from gear_data.ingest.pipeline.episode_values import reset_info_left_out
from gear_data.ingest.source import UNIT_BYTES, Format, SourceOptions, Unit
from gear_data.ingest.sources.arrays.blocks import Fact, ReadEpisode, block_of
from gear_data.ingest.sources.json_files import read_json_object
from gear_data.ingest.sources.minari.episode_table import (
    INFOS,
    OBSERVATIONS,
    EpisodeFiles,
    Reader,
    TableColumn,
    cast_table,
    read_table,
    reference_schema,
    table_columns,
)
from gear_data.ingest.sources.minari.metadata import METADATA, read_metadata
from gear_data.ingest.sources.tables.stream import read_ahead
from gear_data.ingest.sources.tables.to_numpy import IrregularRowsError
from gear_data.storage.episode_block import EpisodeBlock, Position

#: A table file. Groups: the dataset's folder, the episode's number.
_FILE = re.compile(r"((?:.*/)?)(\d{1,18})/[^/]+\.(?:arrow|parquet)")
_BLOCK_BYTES = 16 << 20
#: Facts that repeat an episode's number and length, and the prefix of statistics of its rewards.
_ID, _STEPS, _REWARDS = "id", "total_steps", "rewards_"


def probe(location: Location) -> str | None:
    """Returns the reason if the folders are one Minari dataset; otherwise None."""
    roots = _roots(location)
    if len(roots) != 1:
        return None
    (root,) = roots
    first = _episodes(location, root)[0]
    if location.file(f"{root}{METADATA}") is None or first.facts is None:
        return None
    return f"a Minari dataset with one folder per episode: it has {root}{METADATA} and {first.name}"


def _roots(location: Location) -> set[str]:
    """Returns the folders that hold numbered folders of tables."""
    return {match[1] for file in location.files if (match := _FILE.fullmatch(file.name))}


def _episodes(location: Location, root: str) -> tuple[EpisodeFiles, ...]:
    """Lists the episodes by number.

    `location.files` is sorted so that `part-2` comes before `part-10`.
    """
    facts = {file.name: file for file in location.files if file.name.endswith(METADATA)}
    tables: dict[str, list[SourceFile]] = {}
    for file in location.files:
        if (match := _FILE.fullmatch(file.name)) and match[1] == root:
            tables.setdefault(match[2], []).append(file)
    episodes = [
        EpisodeFiles(int(folder), tuple(files), facts.get(f"{root}{folder}/{METADATA}"))
        for folder, files in tables.items()
    ]
    return tuple(sorted(episodes, key=lambda episode: (episode.number, episode.name)))


def open_(location: Location, options: SourceOptions) -> MinariArrowSource:
    """Opens a Minari dataset. Raises UnknownFormatError for none or several datasets."""
    roots = _roots(location)
    if len(roots) > 1:
        raise holds_several("Minari datasets", sorted(roots), "convert one of them")
    root = next(iter(roots), "")
    metadata = location.file(f"{root}{METADATA}")
    if not roots or metadata is None:
        raise UnknownFormatError(
            f"has no {METADATA} next to numbered folders of Arrow files", hint="leave --format out"
        )
    return MinariArrowSource(_episodes(location, root), metadata, options)


class MinariArrowSource:
    """An `EpisodeSource` over the folders of a Minari dataset.

    `Position.file` is an episode's index.
    """

    rows_are_steps = False

    def __init__(self, episodes: tuple[EpisodeFiles, ...], metadata: SourceFile, options: SourceOptions) -> None:
        self.findings = FindingLog()
        self.resume_state: dict[str, Any] = {}
        self.num_rows = len(episodes)
        self._episodes = episodes
        self._skip_bad = options.skip_bad
        minari = read_metadata(metadata)
        self.metadata: Mapping[str, Any] = minari.facts
        minari.check_counts(len(episodes), None, self.findings)
        self._check_numbers()
        first = episodes[0].tables[0]
        self._schema = reference_schema(read_table(first)[0].schema)
        with placed(first.name):
            columns = {column.name: column for column in table_columns(self._schema, minari.shapes)}
        chosen = choose_columns(columns, options)
        self._columns = {name: columns[source] for source, name in chosen.items()}
        self.columns = tuple(column.spec(name) for name, column in self._columns.items())

    def _check_numbers(self) -> None:
        """Adds a finding if the episodes' numbers are not 0, 1, 2, ...

        Raises CorruptSourceError if two have the same number.
        """
        for episode, following in pairwise(self._episodes):
            if episode.number == following.number:
                raise CorruptSourceError(
                    f"has the same number as the folder of {following.name}",
                    file=episode.name.rpartition("/")[0],
                    hint="rename one of the two folders",
                )
        numbers = [episode.number for episode in self._episodes]
        gaps = [i for i, number in enumerate(numbers) if number != (numbers[i - 1] + 1 if i else 0)]
        if gaps:
            message = "the episodes' numbers do not count up from 0 by one; the existing episodes are read"
            self.findings.add(Finding("gapped-episodes", message, len(gaps), file=self._episodes[gaps[0]].name))

    def units(self) -> Sequence[Unit]:
        return tuple(
            Unit(Position(start, 0), sum(episode.bytes for episode in self._episodes[start:stop]))
            for start, stop in self._groups(0, len(self._episodes), UNIT_BYTES)
        )

    def _groups(self, start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
        """Yields runs [first, last) of episodes whose files have at least `size` bytes.

        The last run may have less.
        """
        total = 0
        for i in range(start, stop):
            total += self._episodes[i].bytes
            if total >= size or i == stop - 1:
                yield start, i + 1
                start, total = i + 1, 0

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        groups = self._groups(start.file, min(stop.file, len(self._episodes)), _BLOCK_BYTES)
        position: Position | None = None
        count = 0
        for first, group in read_ahead((a, self._read(self._episodes[a:b])) for a, b in groups):
            # A group of only bad episodes makes no block; the next block then starts at that group.
            position, count = position or Position(first, 0), count + len(group)
            good = [each for each in group if self._is_good(each)]
            self._note(good)
            if good:
                block = block_of([each.read for each in good], self.columns, "", position, count)
                yield replace(block, sources=[each.files.name for each in good])
                position, count = None, 0

    def _read(self, group: Sequence[EpisodeFiles]) -> list[ArrowEpisode | BadEpisodeError]:
        """Reads episodes. Their columns are converted together, unless a row cannot be."""
        opened = [_opened(files, self._schema) for files in group]
        tables = [each.table for each in opened if isinstance(each, ArrowEpisode)]
        readers: dict[str, Reader] = {}
        with suppress(IrregularRowsError):
            table = pa.concat_tables([self._schema.empty_table(), *tables])
            readers = {name: column.reader(column.extract(table)) for name, column in self._columns.items()}
        start = 0
        for i, each in enumerate(opened):
            if isinstance(each, ArrowEpisode):
                try:
                    each.read_columns(self._columns, readers, start)
                except BadEpisodeError as error:
                    opened[i] = error
                start += each.table.num_rows
        return opened

    def _is_good(self, episode: ArrowEpisode | BadEpisodeError) -> TypeGuard[ArrowEpisode]:
        """Adds a finding for a bad episode, or raises its error."""
        if isinstance(episode, ArrowEpisode):
            return True
        self.findings.add_bad_episode(episode, skip=self._skip_bad)
        return False

    def _note(self, group: list[ArrowEpisode]) -> None:
        """Adds findings about episodes that were read."""
        if not group:
            return
        padded = [episode.files.name for episode in group if episode.has_values_in_padding]
        if padded:
            message = "the last row of actions, rewards and flags is padding, but holds values; left out"
            self.findings.add(Finding("padding-not-zero", message, len(padded), file=padded[0]))
        for key, expected in (
            (_STEPS, [episode.read.steps for episode in group]),
            (_ID, [episode.files.number for episode in group]),
        ):
            wrong = [e for e, value in zip(group, expected, strict=True) if e.declared.get(key, value) != value]
            if wrong:
                message = f"an episode's {key} differs from its folder and rows, which are used"
                name = wrong[0].files.name
                self.findings.add(Finding("metadata-disagrees", message, len(wrong), file=name, column=key))
        for column in self._columns.values():
            if column.path[0] == INFOS:
                self.findings.add(reset_info_left_out(len(group), group[0].files.name, None, column.name))
        for episode in group:
            for name in episode.others:
                message = "not a column of Minari; left out: put it into 'infos'"
                self.findings.add(Finding("column-left-out", message, file=episode.files.name, column=name))
            for name in episode.cast:
                message = "numbers of another type than in the first episode; cast to that type, no value changes"
                self.findings.add(Finding("dtype-differs", message, file=episode.files.name, column=name))


@dataclass
class ArrowEpisode:
    """An episode.

    Attributes:
        files: the files of the episode.
        table: its T + 1 rows.
        read: its steps, final observation and facts.
        declared: the contents of its `metadata.json`.
        others: names of the columns that Minari does not have.
        cast: names of the columns whose numbers had another type than in the first episode.
        has_values_in_padding: whether the last row of a padded column is not zero or empty.
    """

    files: EpisodeFiles
    table: pa.Table
    read: ReadEpisode
    declared: Mapping[str, Any]
    others: tuple[str, ...]
    cast: tuple[str, ...]
    has_values_in_padding: bool = False

    def read_columns(self, columns: Mapping[str, TableColumn], readers: Mapping[str, Reader], start: int) -> None:
        """Reads the columns.

        Args:
            columns: canonical name -> column to read.
            readers: readers of the tables of several episodes; empty if some of their rows cannot be read.
            start: the first row of this episode in `readers`.

        Raises:
            BadEpisodeError: a row cannot be read, or the final observation is missing.
        """
        start, steps = start if readers else 0, self.read.steps
        for name, column in columns.items():
            outer = column.path[0]
            try:
                rows = readers[name] if readers else column.reader(column.extract(self.table))
                first = start + (outer == INFOS)
                self.read.columns[name] = rows(first, first + steps)
                if outer == OBSERVATIONS:
                    self.read.finals[name] = rows(start + steps, start + steps + 1)
                elif outer != INFOS and column.variable_length:
                    self.has_values_in_padding |= bool(column.extract(self.table)[steps].as_py())
                elif outer != INFOS:
                    self.has_values_in_padding |= bool(rows(start + steps, start + steps + 1).any())
            except IrregularRowsError as error:
                place: dict[str, Any] = {"column": column.name, "row": int(error.rows[0]) - start}
                raise BadEpisodeError(error.reason, file=self.files.name, **place, hint=BAD_EPISODE_HINT) from None
        if self.has_values_in_padding and self.declared.get(_STEPS) == steps + 1:
            reason = "has no final observation: the last row should be padding, but is a step"
            raise BadEpisodeError(reason, file=self.files.name, row=steps, hint=BAD_EPISODE_HINT)


def _opened(files: EpisodeFiles, schema: pa.Schema) -> ArrowEpisode | BadEpisodeError:
    """Reads the files of an episode, and casts its table to the schema.

    Returns:
        The episode without its columns; or an error if the table does not fit the schema, or has no steps.

    Raises:
        CorruptSourceError: a file cannot be read.
    """
    tables, names = zip(*map(read_table, files.tables), strict=True)
    for file, table in zip(files.tables[1:], tables[1:], strict=True):
        if table.schema != tables[0].schema:
            raise CorruptSourceError(
                f"its columns differ from the columns of {files.name}",
                file=file.name,
                hint="download the episode's folder again",
            )
    declared = {} if files.facts is None else read_json_object(files.facts)
    table, cast, reason = cast_table(pa.concat_tables(tables), schema)
    if reason is not None or table.num_rows < 2:
        return BadEpisodeError(reason or NO_STEPS, file=files.name, hint=BAD_EPISODE_HINT)
    # An episode's metadata repeats its number and length, and has statistics of its rewards.
    facts: dict[str, Fact] = {
        name: value if value is None or isinstance(value, str | int | float) else json.dumps(value)
        for name, value in declared.items()
        if name not in (_ID, _STEPS) and not name.startswith(_REWARDS)
    }
    return ArrowEpisode(files, table, ReadEpisode(0, table.num_rows - 1, facts=facts), declared, names[0], cast)


FORMAT = Format(
    "minari-arrow", probe, open_, suffixes=(".arrow", ".parquet"), beside=r"(.*/)?(namespace_)?metadata\.json"
)
