"""HDF5 files with a group an episode, numbered by name (`episode_12`, `demo_12`): what Minari and robomimic share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from h5py import h5d, h5g, h5l, h5o

from gear_data.errors import BadEpisodeError, CorruptSourceError, EmptySourceError, GearError
from gear_data.ingest.findings.log import BAD_EPISODE_HINT, Finding, FindingLog
from gear_data.ingest.location import SourceFile
from gear_data.ingest.source import UNIT_BYTES, Unit
from gear_data.ingest.sources.hdf5.episode_reader import EpisodeReader, GroupColumn, GroupEpisode
from gear_data.ingest.sources.hdf5.file import SCALAR, attribute_facts, inventory, links_below, open_hdf5, reading
from gear_data.schema import ColumnSpec
from gear_data.storage.block import BEGIN, EpisodeBlock, Position

_BLOCK_BYTES = 16 << 20
_MAX_DIGITS = 18


@dataclass(frozen=True)
class GroupLayout:
    """What the files of one format look like.

    Attributes:
        parent: the group that holds the episodes; "/" for the file itself.
        prefix: of the names of episodes; a number follows.
        steps: path of the dataset whose rows are an episode's steps.
        declared: attribute of an episode that says how many steps it has.
        ignored: further attributes that are no facts worth keeping.
        facts: of a file, its episodes' names -> further facts.
        check: looks at a file as a whole when its first episode is read: the file, its name, its number of episodes,
            their steps in all.
    """

    parent: str
    prefix: str
    steps: str
    declared: str
    ignored: frozenset[str]
    facts: Callable[[h5py.File, SourceFile], Mapping[str, Mapping[str, Any]]]
    check: Callable[[h5py.File, str, int, int, FindingLog], None]

    def episodes(self, file: h5py.File, name: str) -> list[tuple[int, str]]:
        """Number and name of the episodes of a file, by number.

        Raises:
            CorruptSourceError: two have one number.
        """
        pattern = re.compile(rf"{re.escape(self.prefix)}([0-9]{{1,{_MAX_DIGITS}}})")
        with reading(name):
            found = sorted((int(match[1]), key) for key in file[self.parent] if (match := pattern.fullmatch(key)))
        for (number, key), (following, other) in pairwise(found):
            if number == following:
                raise CorruptSourceError(f"groups '{key}' and '{other}' have one number", file=name, row=number)
        return found

    def group(self, parent: h5py.Group, name: str, number: int, key: str) -> h5py.Group:
        """An episode's group. Raises BadEpisodeError where its name is that of something else."""
        with reading(name, row=number):
            encoded = key.encode()
            if parent.id.links.get_info(encoded).type == h5l.TYPE_HARD:
                found = h5o.open(parent.id, encoded)
                if isinstance(found, h5g.GroupID):
                    return h5py.Group(found)
        raise BadEpisodeError(f"'{key}' is not a group of this file", file=name, row=number)


def open_groups(
    files: tuple[SourceFile, ...],
    layout: GroupLayout,
    describe: Callable[[Mapping[str, h5py.Dataset], Mapping[str, str], str], Sequence[GroupColumn]],
    *,
    metadata: Mapping[str, Any],
    skip_bad: bool,
) -> GroupedEpisodeSource:
    """The source whose columns are those of the first episode that has steps.

    Args:
        describe: what to read of an episode, from its `inventory` and its file's name.

    Raises:
        EmptySourceError: there is no such episode.
    """
    for file in files:
        with open_hdf5(file) as opened:
            for number, key in layout.episodes(opened, file.name):
                try:
                    group = layout.group(opened[layout.parent], file.name, number, key)
                except BadEpisodeError:
                    continue  # reading will say so
                datasets, others = inventory(group, file.name)
                if layout.steps not in datasets or not datasets[layout.steps].shape[0]:
                    continue
                columns = describe(datasets, others, file.name)
                with reading(file.name, row=number):
                    facts, _ = attribute_facts(group, layout.ignored | {layout.declared})
                source = GroupedEpisodeSource(
                    files,
                    layout,
                    columns,
                    model=f"{file.name} {key}",
                    links=frozenset(links_below(group, file.name)),
                    fact_types={name: type(value) for name, value in facts.items()},
                    metadata=metadata,
                    skip_bad=skip_bad,
                )
                for path, what in others.items():
                    if what == SCALAR:
                        message = "a scalar in every episode, where a row a step is due; left out"
                        source.findings.add(Finding("column-left-out", message, 1, file.name, number, path))
                return source
    raise EmptySourceError(f"holds no episode with steps in '{layout.steps}'", file=files[0].name)


class GroupedEpisodeSource:
    """An `EpisodeSource` over files with a group an episode.

    Args:
        files: in source order.
        layout: of all of them.
        columns: what to read of every episode.
        model: as in `EpisodeReader`, as are `links`.
        fact_types: name -> type of the facts that attributes give.
        metadata: facts about the source.
        skip_bad: leave bad episodes out.
    """

    rows_are_steps = False

    def __init__(
        self,
        files: tuple[SourceFile, ...],
        layout: GroupLayout,
        columns: Sequence[GroupColumn],
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
        self.columns: tuple[ColumnSpec, ...] = tuple(column.spec for column in columns)
        self.num_rows: int | None = None
        self._reader = EpisodeReader(tuple(columns), layout.steps, model, links, self.findings)
        self._files = files
        self._layout = layout
        self._fact_types = fact_types
        self._skip_bad = skip_bad
        self._has_final = any(spec.has_final for spec in self.columns)
        if len(files) == 1:
            self.num_rows = len(self._episodes_of(0))

    def _episodes_of(self, index: int) -> list[tuple[int, str]]:
        with open_hdf5(self._files[index]) as file:
            return self._layout.episodes(file, self._files[index].name)

    def units(self) -> Sequence[Unit]:
        """Runs of episodes: as many as `UNIT_BYTES` hold, were all of one length."""
        units: list[Unit] = []
        self.num_rows = 0
        for index, file in enumerate(self._files):
            episodes = self._episodes_of(index)
            self.num_rows += len(episodes)
            share = file.size / max(1, len(episodes))
            count = max(1, int(UNIT_BYTES / share))
            for first in range(0, len(episodes), count):
                size = int(share * min(count, len(episodes) - first))
                # A file's first episode may have any number; what is noticed of the file goes with it.
                row = episodes[first][0] if first else 0
                units.append(Unit(Position(index, row) if units else BEGIN, size))
        return units or (Unit(BEGIN, 0),)

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        for index in range(start.file, len(self._files)):
            first = start.row if index == start.file else 0
            if (index, first) >= stop:
                return
            last = stop.row if index == stop.file else 10**_MAX_DIGITS
            with open_hdf5(self._files[index]) as file:
                yield from self._file_blocks(file, index, first, last)

    def _file_blocks(self, file: h5py.File, index: int, first: int, last: int) -> Iterator[EpisodeBlock]:
        source = self._files[index]
        known = self._layout.episodes(file, source.name)
        if not known:
            self.findings.add(Finding("empty-file", "holds no episode", file=source.name))
        elif first <= known[0][0]:
            self._check_file(file, source.name, known)
        with reading(source.name):
            facts = self._layout.facts(file, source)
            parent = file[self._layout.parent]
        held: list[tuple[GroupEpisode, Mapping[str, Any]]] = []
        size, used, position = 0, 0, Position(index, first)
        for number, key in known:
            if not first <= number < last:
                continue
            if not used:
                # Bad episodes alone make no block: the next one then starts where they did.
                position = Position(index, number)
            used += 1
            try:
                group = self._layout.group(parent, source.name, number, key)
                episode = self._reader.read(group, source, number)
            except BadEpisodeError as error:
                self._skip(error)
                continue
            held.append((episode, {**self._facts(group, source.name, episode), **facts.get(key, {})}))
            size += episode.nbytes
            if size >= _BLOCK_BYTES:
                yield self._block(held, source.name, position, used)
                held, size, used = [], 0, 0
        if held:
            yield self._block(held, source.name, position, used)

    def _skip(self, error: BadEpisodeError) -> None:
        if not self._skip_bad:
            error.hint = BAD_EPISODE_HINT
            raise error
        message = f"{error.message}; skipped"
        self.findings.add(Finding("bad-episode", message, 1, error.file, error.row, error.column))

    def _check_file(self, file: h5py.File, name: str, known: Sequence[tuple[int, str]]) -> None:
        missing = known[-1][0] - known[0][0] + 1 - len(known)
        if missing:
            row = next(number for i, (number, _) in enumerate(known) if number != known[0][0] + i)
            message = "numbers are missing before this episode's; those there are read in their order"
            self.findings.add(Finding("gapped-episodes", message, missing, name, row))
        with reading(name):
            parent = file[self._layout.parent]
        steps = sum(self._steps_of(parent, name, *episode) for episode in known)
        self._layout.check(file, name, len(known), steps, self.findings)

    def _steps_of(self, parent: h5py.Group, name: str, number: int, key: str) -> int:
        """Steps as an episode's dataset has them; 0 for an episode that reading will find bad."""
        steps = self._layout.steps.encode()
        try:
            with reading(name):
                group = self._layout.group(parent, name, number, key)
                if group.id.links.get_info(steps).type == h5l.TYPE_HARD:
                    return int(h5d.open(group.id, steps).shape[0])
        except GearError:
            pass
        return 0

    def _facts(self, group: h5py.Group, name: str, episode: GroupEpisode) -> dict[str, Any]:
        """An episode's facts by its attributes, those it does not have as None."""
        with reading(name, row=episode.number):
            found, others = attribute_facts(group, self._layout.ignored)
        declared = found.pop(self._layout.declared, episode.steps)
        if declared != episode.steps:
            message = f"'{self._layout.declared}' is {declared}, there are {episode.steps} steps; those there are read"
            self.findings.add(
                Finding("metadata-disagrees", message, 1, name, episode.number, f"episode {self._layout.declared}")
            )
        facts: dict[str, Any] = {_fact_name(key): None for key in self._fact_types}
        for key, value in found.items():
            kind = self._fact_types.get(key)
            if kind is float and type(value) is int:
                value = float(value)
            if type(value) is kind:
                facts[_fact_name(key)] = value
            else:
                others.append(key)
        for key in others:
            message = "an attribute of episodes that is no number or short text, or not the kind it began as; left out"
            self.findings.add(Finding("fact-left-out", message, 1, name, episode.number, key))
        return facts

    def _block(
        self, held: Sequence[tuple[GroupEpisode, Mapping[str, Any]]], name: str, position: Position, used: int
    ) -> EpisodeBlock:
        episodes = [episode for episode, _ in held]
        facts = [facts for _, facts in held]
        names = dict.fromkeys(key for fact in facts for key in fact)
        fixed = [spec for spec in self.columns if not spec.variable_length]
        variable = [spec for spec in self.columns if spec.variable_length]
        count = len(episodes)
        return EpisodeBlock(
            position=position,
            lengths=np.array([episode.steps for episode in episodes], np.int64),
            columns={spec.name: _joined([episode.columns[spec.name] for episode in episodes]) for spec in fixed},
            sources=[name] * count,
            rows=np.array([episode.number for episode in episodes], np.int64),
            has_final=np.full(count, self._has_final),
            finals={
                spec.name: _joined([episode.finals[spec.name] for episode in episodes])
                for spec in fixed
                if spec.has_final
            },
            metadata={key: [fact.get(key) for fact in facts] for key in names},
            variable={
                spec.name: pa.concat_arrays([episode.variable[spec.name] for episode in episodes]) for spec in variable
            },
            variable_finals={
                spec.name: pa.concat_arrays([episode.variable_finals[spec.name] for episode in episodes])
                for spec in variable
                if spec.has_final
            },
            source_rows=used,
        )


def _joined(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _fact_name(attribute: str) -> str:
    return attribute.replace("/", ".")
