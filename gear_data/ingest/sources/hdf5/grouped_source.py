"""Source over HDF5 files that hold one group per episode.

Minari and robomimic share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import h5py

from gear_data.errors import BadEpisodeError, EmptySourceError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import SourceFile, files_to_compare, separate_datasets_hint
from gear_data.ingest.source import UNIT_BYTES, Unit
from gear_data.ingest.sources.hdf5.attributes import attribute_facts
from gear_data.ingest.sources.hdf5.blocks import block_of, typed_facts
from gear_data.ingest.sources.hdf5.episode_reader import EpisodeReader, GroupContents, GroupEpisode
from gear_data.ingest.sources.hdf5.group_layout import MAX_DIGITS, GroupLayout
from gear_data.ingest.sources.hdf5.inventory import SCALAR, inventory, links_below
from gear_data.ingest.sources.hdf5.open_file import open_hdf5, reading
from gear_data.schema import ColumnSpec
from gear_data.storage.episode_block import BEGIN, EpisodeBlock, Position

_BLOCK_BYTES = 16 << 20
#: Episodes whose attributes are read to know the facts.
_FACT_EPISODES = 100


def open_groups(
    files: tuple[SourceFile, ...],
    layout: GroupLayout,
    describe: Callable[[Mapping[str, h5py.Dataset], Mapping[str, str], str], GroupContents],
    *,
    metadata: Mapping[str, Any],
    skip_bad: bool,
) -> GroupedEpisodeSource:
    """Opens a source with the columns of its first episode of two steps or more.

    An episode of one step does not show which datasets have one row for the whole episode. Its columns are taken only
    if there is no longer one.

    Args:
        files: the files, in source order.
        layout: the layout of all files.
        describe: chooses the columns and facts of an episode, from the two results of `inventory` and the file's name.
        metadata: facts about the source.
        skip_bad: leave bad episodes out and report them, instead of raising.

    Raises:
        EmptySourceError: no episode has steps.
    """
    found = _episode_of_columns(files, layout)
    if found is None:
        raise EmptySourceError(f"holds no episode with steps in '{layout.steps}'", file=files[0].name)
    file, number, key = found
    with open_hdf5(file) as opened:
        with reading(file.name, row=number):
            group = layout.group(opened[layout.parent], file.name, number, key)
        datasets, non_columns = inventory(group, file.name)
        contents = describe(datasets, non_columns, file.name)
        fact_types = _fact_types(opened, layout, file, group)
        source = GroupedEpisodeSource(
            files,
            layout,
            contents,
            model=f"{file.name} {key}",
            links=frozenset(links_below(group, file.name)),
            fact_types=fact_types,
            metadata=metadata,
            skip_bad=skip_bad,
        )
        for finding in contents.findings:
            source.findings.add(finding)
        for path, kind in non_columns.items():
            if kind == SCALAR:
                message = "a scalar in every episode, where one row per step is expected; left out"
                source.findings.add(Finding("column-left-out", message, 1, file.name, number, path))
        return source


def _fact_types(file: h5py.File, layout: GroupLayout, source: SourceFile, group: h5py.Group) -> dict[str, type]:
    """Returns name -> type of the facts in attributes of the first episodes.

    `group`, whose columns are taken, need not have all of them: an attribute `success` may be missing where nobody
    knows.
    """
    groups = [group]
    for number, key in layout.episodes(file, source.name)[:_FACT_EPISODES]:
        with reading(source.name, row=number), suppress(BadEpisodeError):  # reported when the episode is read
            groups.append(layout.group(file[layout.parent], source.name, number, key))
    types: dict[str, type] = {}
    for each in groups:
        with reading(source.name):
            facts, _ = attribute_facts(each, layout.ignored)
        for name, value in facts.items():
            types.setdefault(name, type(value))
    return types


def _episode_of_columns(files: tuple[SourceFile, ...], layout: GroupLayout) -> tuple[SourceFile, int, str] | None:
    """Returns file, number and name of the episode that the columns are taken from.

    It is the first episode of two steps or more, else the first one that has a step. None if no episode has steps.
    """
    shortest = None
    for file in files:
        with open_hdf5(file) as opened:
            episodes = layout.episodes(opened, file.name)
            with reading(file.name):
                parent = opened[layout.parent]
            for number, key in episodes:
                steps = layout.count_steps(parent, file.name, number, key)
                if steps > 1:
                    return file, number, key
                if steps and shortest is None:
                    shortest = file, number, key
    return shortest


class GroupedEpisodeSource:
    """An `EpisodeSource` over HDF5 files with one group per episode.

    `Position.row` is an episode's number.

    Args:
        files: the files, in source order.
        layout: the layout of all files.
        contents: the columns and facts to read from every episode.
        model: file and episode that `contents` were inferred from, for messages.
        links: paths of every link below the group of that episode.
        fact_types: name -> type of the facts that attributes give.
        metadata: facts about the source.
        skip_bad: leave bad episodes out and report them, instead of raising.
    """

    rows_are_steps = False

    def __init__(
        self,
        files: tuple[SourceFile, ...],
        layout: GroupLayout,
        contents: GroupContents,
        *,
        model: str,
        links: frozenset[str],
        fact_types: Mapping[str, type],
        metadata: Mapping[str, Any],
        skip_bad: bool,
    ) -> None:
        self.findings = FindingLog()
        self.resume_state: dict[str, Any] = {}
        self.metadata = metadata
        self.columns: tuple[ColumnSpec, ...] = tuple(column.spec for column in contents.columns)
        self.num_rows: int | None = None
        self._reader = EpisodeReader(contents, layout.steps, model, links, self.findings)
        self._files = files
        self._layout = layout
        self._fact_types = fact_types
        self._skip_bad = skip_bad
        if len(files) == 1:
            self.num_rows = len(self._episodes_of(0))

    def _episodes_of(self, index: int) -> list[tuple[int, str]]:
        with open_hdf5(self._files[index]) as file:
            return self._layout.episodes(file, self._files[index].name)

    def units(self) -> Sequence[Unit]:
        """Returns runs of episodes of about `UNIT_BYTES`.

        The size of an episode is estimated as the file's mean.
        """
        units: list[Unit] = []
        self.num_rows = 0
        names, sizes = [file.name for file in self._files], [file.size for file in self._files]
        compared = [] if self._skip_bad else files_to_compare(names, sizes, UNIT_BYTES)
        for index, file in enumerate(self._files):
            episodes = self._episodes_of(index)
            if index in compared and episodes:
                self._compare(index, episodes[0][0])
            self.num_rows += len(episodes)
            episode_bytes = file.size / max(1, len(episodes))
            count = max(1, int(UNIT_BYTES / episode_bytes))
            for first in range(0, len(episodes), count):
                size = int(episode_bytes * min(count, len(episodes) - first))
                # Row 0, not the first episode's number, starts a file: findings about the file belong to this unit.
                row = episodes[first][0] if first else 0
                units.append(Unit(Position(index, row) if units else BEGIN, size))
        return units or (Unit(BEGIN, 0),)

    def _compare(self, index: int, number: int) -> None:
        """Reads the first episode of a file.

        If it does not fit, the conversion ends here, and not after it has read the files before.
        """
        findings = self.findings.to_json()
        try:
            for _ in self.blocks(Position(index, 0), Position(index, number + 1)):
                pass
        except BadEpisodeError as error:
            names = [file.name for file in self._files]
            error.hint = separate_datasets_hint(names, names[0], names[index]) or error.hint
            raise
        self.findings.restore(findings)  # the episode will be read again

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        for index in range(start.file, len(self._files)):
            first = start.row if index == start.file else 0
            if (index, first) >= stop:
                return
            last = stop.row if index == stop.file else 10**MAX_DIGITS
            with open_hdf5(self._files[index]) as file:
                yield from self._file_blocks(file, index, first, last)

    def _file_blocks(self, file: h5py.File, index: int, first: int, last: int) -> Iterator[EpisodeBlock]:
        """Yields the episodes of a file whose numbers are in [first, last)."""
        source = self._files[index]
        episodes = self._layout.episodes(file, source.name)
        if not episodes:
            self.findings.add(Finding("empty-file", "holds no episode", file=source.name))
        elif first <= episodes[0][0]:
            self._check_file(file, source.name, episodes)
        with reading(source.name):
            facts = self._layout.facts(file, source)
            parent = file[self._layout.parent]
        pending: list[tuple[GroupEpisode, Mapping[str, Any]]] = []
        size, rows_read, position = 0, 0, Position(index, first)
        for number, key in episodes:
            if not first <= number < last:
                continue
            if not rows_read:
                # A run of bad episodes makes no block; the next block then starts at the first of them.
                position = Position(index, number)
            rows_read += 1
            try:
                group = self._layout.group(parent, source.name, number, key)
                episode = self._reader.read(group, source, number)
            except BadEpisodeError as error:
                self.findings.add_bad_episode(error, skip=self._skip_bad)
                continue
            pending.append((episode, {**self._facts(group, source.name, episode), **facts.get(key, {})}))
            size += episode.nbytes
            if size >= _BLOCK_BYTES:
                yield self._block(pending, source.name, position, rows_read)
                pending, size, rows_read = [], 0, 0
        if pending:
            yield self._block(pending, source.name, position, rows_read)

    def _check_file(self, file: h5py.File, name: str, episodes: Sequence[tuple[int, str]]) -> None:
        """Reports gaps in the numbers of episodes, and runs the layout's own check."""
        missing = episodes[-1][0] - episodes[0][0] + 1 - len(episodes)
        if missing:
            row = next(number for i, (number, _) in enumerate(episodes) if number != episodes[0][0] + i)
            message = "numbers are missing before this episode's number; the other episodes are read in order"
            self.findings.add(Finding("gapped-episodes", message, missing, name, row))
        with reading(name):
            parent = file[self._layout.parent]
        steps = sum(self._layout.count_steps(parent, name, *episode) for episode in episodes)
        self._layout.check(file, name, len(episodes), steps, self.findings)

    def _facts(self, group: h5py.Group, name: str, episode: GroupEpisode) -> dict[str, Any]:
        """Returns an episode's facts, from its attributes and its datasets of one row.

        Facts that the episode lacks are None.
        """
        with reading(name, row=episode.number):
            found, unreadable = attribute_facts(group, self._layout.ignored - {self._layout.declared})
        declared = found.get(self._layout.declared, episode.steps)
        for ignored in self._layout.ignored & found.keys():
            del found[ignored]
        if declared != episode.steps:
            message = f"'{self._layout.declared}' is {declared}, but there are {episode.steps} steps; all are read"
            self.findings.add(
                Finding("metadata-disagrees", message, 1, name, episode.number, f"episode {self._layout.declared}")
            )
        facts = typed_facts(found, unreadable, self._fact_types, name, episode.number, self.findings)
        return {**facts, **episode.facts}

    def _block(
        self,
        pending: Sequence[tuple[GroupEpisode, Mapping[str, Any]]],
        name: str,
        position: Position,
        rows_read: int,
    ) -> EpisodeBlock:
        episodes, facts = zip(*pending, strict=True)
        return block_of(episodes, facts, [name] * len(pending), self.columns, position, rows_read)
