"""HDF5 files with a group an episode, numbered by name (`episode_12`, `demo_12`): what Minari and robomimic share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from h5py import h5d, h5g, h5l

from gear_data.errors import BadEpisodeError, CorruptSourceError, EmptySourceError, GearError
from gear_data.ingest.arrow_values import Irregular
from gear_data.ingest.findings import Finding, Findings
from gear_data.ingest.hdf5 import (
    attribute_facts,
    check_dataset,
    links_below,
    open_hdf5,
    plain,
    read_fixed,
    read_variable,
    reading,
    step_spec,
)
from gear_data.ingest.location import SourceFile
from gear_data.ingest.source import Unit
from gear_data.schema import ColumnSpec
from gear_data.storage.block import BEGIN, EpisodeBlock, Position

_BLOCK_BYTES = 16 << 20
_UNIT_BYTES = 32 << 20
_MAX_NUMBER = 1 << 62


@dataclass(frozen=True)
class GroupColumn:
    """A dataset that every episode's group has, and the column it becomes.

    Attributes:
        spec: the column; with `has_final`, its final observation is the last row of `final`.
        path: of the dataset in the group.
        final: path of the dataset whose last row is the final observation; `path` itself where the column's own dataset
            must have a row more than there are steps.
        reset: a first row, more than there are steps, may belong to the reset; it is left out.
        encoded: rows of uint8 are encoded images.
    """

    spec: ColumnSpec
    path: str
    final: str | None = None
    reset: bool = False
    encoded: bool = False


@dataclass(frozen=True)
class GroupLayout:
    """What one format's files look like.

    Attributes:
        parent: the group that holds the episodes; "/" for the file itself.
        prefix: of the names of episodes; a number follows.
        steps: path of the dataset whose rows are an episode's steps.
        declared: attribute of an episode that says how many steps it has.
        number: attribute of an episode that says its number, if there is one.
        ignored: further attributes that are no facts worth keeping.
        facts: of a file, its episodes' names -> further facts.
        check: looks at a file as a whole when its first episode is read: the file, its name, and its episodes' steps
            (None where they cannot be told).
    """

    parent: str
    prefix: str
    steps: str
    declared: str
    number: str | None = None
    ignored: frozenset[str] = frozenset()
    facts: Callable[[h5py.File, str], Mapping[str, Mapping[str, Any]]] = lambda file, name: {}
    check: Callable[[h5py.File, str, Sequence[int | None], Findings], None] = lambda file, name, steps, findings: None

    def episodes(self, file: h5py.File, name: str) -> list[tuple[int, str]]:
        """Number and name of the episodes of a file, by number.

        Raises:
            CorruptSourceError: two have one number.
        """
        pattern = re.compile(re.escape(self.prefix) + r"(\d{1,18})")
        with reading(name):
            parent = file[self.parent]
            found = [(int(match[1]), key) for key in parent if (match := pattern.fullmatch(key))]
        found.sort()
        for (number, key), (following, other) in zip(found, found[1:], strict=False):
            if number == following:
                raise CorruptSourceError(f"groups '{key}' and '{other}' have one number", file=name, row=number)
        return found

    def group(self, file: h5py.File, name: str, number: int, key: str) -> h5py.Group:
        """An episode's group. Raises BadEpisodeError where there is none under its name."""
        with reading(name, row=number):
            parent = file[self.parent]
            if parent.id.links.get_info(key.encode()).type == h5l.TYPE_HARD:
                found = parent[key]
                if isinstance(found, h5py.Group):
                    return found
        raise BadEpisodeError(f"'{key}' is not a group of this file", file=name, row=number)


@dataclass
class _Episode:
    """One episode read."""

    number: int
    steps: int
    facts: dict[str, Any]
    columns: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    finals: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    variable: dict[str, pa.Array] = field(default_factory=dict)
    bytes: int = 0


class GroupedEpisodes:
    """An `EpisodeSource` over files with a group an episode.

    Args:
        files: in source order.
        layout: of all of them.
        columns: what to read of every episode.
        model: the file and episode that `columns` were taken from, for messages.
        links: every link below the model's group; those below other episodes are compared with them.
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
        self.findings = Findings()
        self.notes: dict[str, Any] = {}
        self.metadata = metadata
        self.columns: tuple[ColumnSpec, ...] = tuple(column.spec for column in columns)
        self._files = files
        self._layout = layout
        self._columns = tuple(columns)
        self._model = model
        self._links = links
        self._fact_types = fact_types
        self._skip_bad = skip_bad
        self._has_final = any(spec.has_final for spec in self.columns)
        self.num_rows: int | None = len(self._episodes_of(0)) if len(files) == 1 else None

    def units(self) -> Sequence[Unit]:
        """Runs of episodes: as many as `_UNIT_BYTES` hold, were all of one length."""
        units = []
        for index, file in enumerate(self._files):
            episodes = self._episodes_of(index)
            share = file.size / max(1, len(episodes))
            count = max(1, int(_UNIT_BYTES / share))
            for first in range(0, len(episodes), count):
                size = int(share * min(count, len(episodes) - first))
                units.append(Unit(Position(index, episodes[first][0]) if units else BEGIN, size))
        return units or (Unit(BEGIN, 0),)

    def _episodes_of(self, index: int) -> list[tuple[int, str]]:
        with open_hdf5(self._files[index]) as file:
            return self._layout.episodes(file, self._files[index].name)

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        for index in range(start.file, len(self._files)):
            if (index, 0) >= stop:
                return
            first = start.row if index == start.file else 0
            last = stop.row if index == stop.file else _MAX_NUMBER
            with open_hdf5(self._files[index]) as file:
                yield from self._file_blocks(file, index, first, last)

    def _file_blocks(self, file: h5py.File, index: int, first: int, last: int) -> Iterator[EpisodeBlock]:
        source = self._files[index]
        known = self._layout.episodes(file, source.name)
        if first <= (known[0][0] if known else 0):
            self._check_file(file, source.name, known)
        with reading(source.name):
            facts = self._layout.facts(file, source.name)
        held: list[_Episode] = []
        used, position = 0, Position(index, first)
        for number, key in known:
            if not first <= number < last:
                continue
            if not used:
                # Bad episodes alone make no block: the next one then starts where they did.
                position = Position(index, number)
            used += 1
            try:
                held.append(self._read(file, source, number, key, facts.get(key, {})))
            except BadEpisodeError as error:
                if not self._skip_bad:
                    error.hint = error.hint or "mend the source, or leave such episodes out with --on-bad-episode skip"
                    raise
                message = f"{error.message}; skipped"
                self.findings.add(Finding("bad-episode", message, 1, error.file, error.row, error.column))
            if sum(episode.bytes for episode in held) >= _BLOCK_BYTES:
                yield self._block(held, source.name, position, used)
                held, used = [], 0
        if held:
            yield self._block(held, source.name, position, used)

    def _check_file(self, file: h5py.File, name: str, known: Sequence[tuple[int, str]]) -> None:
        if not known:
            self.findings.add(Finding("empty-file", "holds no episode", file=name))
            return
        missing = known[-1][0] - known[0][0] + 1 - len(known)
        if missing:
            row = next(number for i, (number, _) in enumerate(known) if number != known[0][0] + i)
            message = "numbers are missing between the first episode's and the last's; the others are read in order"
            self.findings.add(Finding("gapped-episodes", message, missing, name, row))
        self._layout.check(file, name, [self._steps_of(file, name, *episode) for episode in known], self.findings)

    def _steps_of(self, file: h5py.File, name: str, number: int, key: str) -> int | None:
        """Steps as an episode's dataset has them; None for an episode that reading will find bad."""
        try:
            group = self._layout.group(file, name, number, key)
            with reading(name):
                return int(h5d.open(group.id, self._layout.steps.encode()).shape[0])
        except (GearError, IndexError):
            return None

    def _read(self, file: h5py.File, source: SourceFile, number: int, key: str, facts: Mapping[str, Any]) -> _Episode:
        group = self._layout.group(file, source.name, number, key)
        links = links_below(group, source.name)
        for path, kind in links.items():
            if kind != h5l.TYPE_HARD and path in self._links:
                raise BadEpisodeError("is a link to elsewhere, not followed", file=source.name, column=path, row=number)
        self._note_extra(links, source.name, number)
        steps = self._dataset(group, links, self._layout.steps, source, number).shape[0]
        if not steps:
            raise BadEpisodeError("the episode has no steps", file=source.name, column=self._layout.steps, row=number)
        episode = _Episode(number, steps, self._facts(group, source.name, number, steps, facts))
        for column in self._columns:
            self._read_column(column, group, links, source, episode)
        return episode

    def _note_extra(self, links: Mapping[str, int], name: str, number: int) -> None:
        if links.keys() - self._links:
            extra = sorted(links.keys() - self._links)
            message = f"'{extra[0]}' is not in {self._model}, so it is no column; left out"
            self.findings.add(Finding("column-left-out", message, len(extra), name, number))

    def _dataset(
        self, group: h5py.Group, links: Mapping[str, int], path: str, source: SourceFile, number: int
    ) -> h5py.Dataset:
        if path not in links:
            raise BadEpisodeError(f"is missing; {self._model} has it", file=source.name, column=path, row=number)
        with reading(source.name, path, number):
            dataset = h5py.Dataset(h5d.open(group.id, path.encode()))
            check_dataset(dataset, source, path)
        if not dataset.shape:
            raise BadEpisodeError("is a scalar, not a row a step", file=source.name, column=path, row=number)
        return dataset

    def _read_column(
        self,
        column: GroupColumn,
        group: h5py.Group,
        links: Mapping[str, int],
        source: SourceFile,
        episode: _Episode,
    ) -> None:
        spec, steps, number = column.spec, episode.steps, episode.number
        dataset = self._dataset(group, links, column.path, source, number)
        rows, ends_with_final = dataset.shape[0], column.final == column.path
        wanted = steps + 1 if ends_with_final else steps
        after_reset = column.reset and rows == steps + 1
        if rows != wanted and not after_reset:
            or_more = f" or {steps + 1}" if column.reset else ""
            raise BadEpisodeError(
                f"has {rows} rows, where '{self._layout.steps}' has {steps}: {wanted}{or_more} are due",
                file=source.name,
                column=column.path,
                row=number,
            )
        part = slice(1, None) if after_reset else slice(0, steps)
        values = self._values(dataset, column, source.name, number)
        if after_reset:
            message = "the first of T + 1 values belongs to the reset, not to a step; left out"
            self.findings.add(Finding("reset-info-left-out", message, 1, source.name, number, column.path))
        episode.bytes += values.nbytes
        if isinstance(values, pa.Array):
            episode.variable[spec.name] = values[part]
            if ends_with_final:
                message = "final observations of variable length are left out"
                self.findings.add(Finding("final-left-out", message, 1, source.name, number, column.path))
            return
        episode.columns[spec.name] = values[part]
        if not spec.has_final:
            return
        if ends_with_final:
            episode.finals[spec.name] = values[steps:]
        else:
            assert_path = str(column.final)
            following = self._dataset(group, links, assert_path, source, number)
            if following.shape[0] != steps:
                raise BadEpisodeError(
                    f"has {following.shape[0]} rows, where '{self._layout.steps}' has {steps}",
                    file=source.name,
                    column=assert_path,
                    row=number,
                )
            with reading(source.name, assert_path, number):
                episode.finals[spec.name] = following[-1:].astype(spec.numpy_dtype, copy=False)
