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
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import UnknownFormatError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import Location, SourceFile, holds_several, placed
from gear_data.ingest.pipeline.columns import choose_columns
from gear_data.ingest.source import UNIT_BYTES, Format, SourceOptions, Unit
from gear_data.ingest.sources.minari.episode_table import (
    INFOS,
    ArrowEpisode,
    BadEpisodesError,
    EpisodeFiles,
    concatenate_episodes,
    read_table,
    reference_schema,
    table_columns,
)
from gear_data.ingest.sources.minari.metadata import METADATA, read_metadata
from gear_data.ingest.sources.tables.stream import read_ahead
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
        """Adds a finding if the episodes' numbers are not 0, 1, 2, ..."""
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
        read = ((a, [ArrowEpisode.read(each, self._schema) for each in self._episodes[a:b]]) for a, b in groups)
        for position, group in read_ahead(read):
            yield self._block(position, group)

    def _block(self, position: int, group: list[ArrowEpisode]) -> EpisodeBlock:
        """Builds a block.

        Bad episodes are left out with a finding, or raise BadEpisodeError.
        """
        count = len(group)
        while True:
            try:
                return self._assemble(position, group, count)
            except BadEpisodesError as bad:
                if not self._skip_bad:
                    raise bad.error from None
                message = "an episode that cannot be read; skipped"
                name = group[bad.indices[0]].files.name
                self.findings.add(Finding("bad-episode", message, len(bad.indices), file=name))
                group = [episode for i, episode in enumerate(group) if i not in bad.indices]

    def _assemble(self, position: int, group: list[ArrowEpisode], count: int) -> EpisodeBlock:
        """Builds a block.

        Raises BadEpisodesError for bad episodes, before any finding is added.
        """
        run = concatenate_episodes(group, self._columns, self._schema)
        self._check_padding(group, run.has_values_in_padding)
        self._check_facts(group)
        self._note_changes(group)
        return EpisodeBlock(
            position=Position(position, 0),
            lengths=run.lengths,
            columns=run.columns,
            sources=[episode.files.name for episode in group],
            rows=np.zeros(len(group), np.int64),
            has_final=np.full(len(group), bool(run.finals)),
            finals=run.finals,
            metadata=_facts(group),
            source_rows=count,
        )

    def _check_padding(self, group: list[ArrowEpisode], has_values: npt.NDArray[np.bool_]) -> None:
        """Checks the last rows, which should be padding.

        `has_values` (bool [n]) is True for episodes whose last row holds values.

        If an episode's metadata counts such a row as a step, the episode lacks its final observation.
        """
        indices = np.flatnonzero(has_values).tolist()
        bad = [i for i in indices if group[i].facts.get(_STEPS) == group[i].table.num_rows]
        if bad:
            reason = "has no final observation: the last row should be padding, but is a step"
            raise BadEpisodesError(bad, reason, group[bad[0]], row=group[bad[0]].table.num_rows - 1)
        if indices:
            first = group[indices[0]].files.name
            message = "the last row of actions, rewards and flags is padding, but holds values; left out"
            self.findings.add(Finding("padding-not-zero", message, len(indices), file=first))

    def _check_facts(self, group: list[ArrowEpisode]) -> None:
        """Compares each episode's declared number and length with its folder and rows."""
        for key, expected in (
            (_STEPS, [episode.table.num_rows - 1 for episode in group]),
            (_ID, [episode.files.number for episode in group]),
        ):
            wrong = [e for e, value in zip(group, expected, strict=True) if e.facts.get(key, value) != value]
            if wrong:
                message = f"an episode's {key} differs from its folder and rows, which are used"
                name = wrong[0].files.name
                self.findings.add(Finding("metadata-disagrees", message, len(wrong), file=name, column=key))

    def _note_changes(self, group: list[ArrowEpisode]) -> None:
        """Adds findings for dropped infos of the reset, and for columns that were cast."""
        if not group:
            return
        first = group[0].files.name
        for column in self._columns.values():
            if column.path[0] == INFOS:
                message = "the first of T + 1 values belongs to the reset, not to a step; left out"
                self.findings.add(Finding("reset-info-left-out", message, len(group), first, column=column.name))
        for episode in group:
            for name in episode.others:
                message = "not a column of Minari; left out: put it into 'infos'"
                self.findings.add(Finding("column-left-out", message, file=episode.files.name, column=name))
            for name in episode.cast:
                message = "numbers of another type than in the first episode; cast to that type, no value changes"
                self.findings.add(Finding("dtype-differs", message, file=episode.files.name, column=name))


def _facts(group: list[ArrowEpisode]) -> dict[str, list[Any]]:
    """Returns the episodes' own facts by name.

    Lists and objects, such as the options of a reset, become JSON text.
    """
    found = dict.fromkeys(name for episode in group for name in episode.facts)
    names = [name for name in found if name not in (_ID, _STEPS) and not name.startswith(_REWARDS)]
    return {name: [_fact(episode.facts.get(name)) for episode in group] for name in names}


def _fact(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)


FORMAT = Format(
    "minari-arrow", probe, open_, suffixes=(".arrow", ".parquet"), beside=r"(.*/)?(namespace_)?metadata\.json"
)
