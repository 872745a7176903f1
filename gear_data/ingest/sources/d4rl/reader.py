"""D4RL HDF5: all steps flat, episodes told apart by `terminals` and `timeouts`.

Layout: https://github.com/Farama-Foundation/D4RL (`observations` (N, S), `actions` (N, A), `rewards` and
`terminals` (N,) or (N, 1), optionally `timeouts`, `next_observations`, `infos/*`, `metadata/*`). Without
`timeouts` an episode ends where `next_observations[t]` is not `observations[t + 1]`; without both, after the number of
steps that `max_episode_steps` states: the option, else the file (a scalar or attribute under `metadata` or at the
root). `next_observations` of an episode's last step becomes its final observation; within an episode it repeats
`observations` and is not stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    EmptySourceError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import Location, SourceFile, separate_datasets_hint
from gear_data.ingest.pipeline.assemble import StepPart, assemble
from gear_data.ingest.pipeline.columns import choose_columns
from gear_data.ingest.pipeline.names import canonical_name, name_map
from gear_data.ingest.source import UNIT_BYTES, Format, SourceOptions, Unit
from gear_data.ingest.sources.d4rl.episode_ends import BoolArray, EndRule, ages_after, differs
from gear_data.ingest.sources.hdf5.file import (
    LEAVE_OUT,
    SCALAR,
    attribute_facts,
    check_dataset,
    hdf5_files,
    inventory,
    links_of,
    open_hdf5,
    plain,
    reading,
    refuse_links,
    step_spec,
)
from gear_data.ingest.sources.hdf5.heap_checks import check_heaps
from gear_data.schema import ColumnSpec
from gear_data.storage.block import BEGIN, EpisodeBlock, Position

_REQUIRED = ("observations", "actions", "rewards", "terminals")
_CHUNK_BYTES = 32 << 20
#: Chunks of a part for which it does not matter that one is read twice.
_CHUNKS = 8
_FLAG_ROWS = 4 << 20
_METADATA = "metadata/"
_LONGEST = "max_episode_steps"


def probe(location: Location) -> str | None:
    files = hdf5_files(location)
    if not files:
        return None
    with open_hdf5(files[0]) as file, reading(files[0].name):
        if all(isinstance(file.get(name), h5py.Dataset) for name in _REQUIRED):
            return "D4RL: flat HDF5 datasets " + ", ".join(_REQUIRED)
    return None


def open_(location: Location, options: SourceOptions) -> D4rlSource:
    files = hdf5_files(location)
    if not files:
        raise UnknownFormatError("holds no HDF5 file", file=location.name)
    return D4rlSource(files, options)


class D4rlSource:
    """An `EpisodeSource` over D4RL HDF5 files."""

    rows_are_steps = True

    def __init__(self, files: tuple[SourceFile, ...], options: SourceOptions) -> None:
        self.findings = FindingLog()
        self.resume_state: dict[str, Any] = {}
        self._files = files
        for file in files:  # the first that has steps is what the others must be like
            self._model = file.name
            with open_hdf5(file) as opened:
                rows = self._describe(opened, options)
            if rows:
                break
        else:
            raise EmptySourceError("holds no steps", file=files[0].name, column=self._observations)
        self.num_rows: int | None = rows if len(files) == 1 else None
        self._ends.check(self._model)
        if self._ends.by_flags and self._ends.longest is not None:
            message = f"neither 'timeouts' nor 'next_observations'; episodes end after {self._ends.longest} steps"
            self.findings.add(Finding("ends-by-length", message, file=self._model))

    def _describe(self, file: h5py.File, options: SourceOptions) -> int:
        """Takes names, dtypes and shapes from a file; its number of steps."""
        datasets, others = inventory(file, self._model)
        datasets = {path: dataset for path, dataset in datasets.items() if not path.startswith(_METADATA)}
        self.metadata = _metadata(file, others, self._model)
        offered = [*datasets, *(path for path in links_of(others) if not path.startswith(_METADATA))]
        by_name = {name: source for source, name in name_map(offered, options.rename).items()}
        for name in _REQUIRED:
            if canonical_name(name) not in by_name:
                raise UnknownFormatError(f"has no dataset '{name}'", file=self._model, column=name)
        following, timeouts = by_name.get("next_observations"), by_name.get("truncated")
        self._observations = by_name["observations"]
        longest = None
        if timeouts is None and following is None:
            longest = _longest(options.max_episode_steps, self.metadata, self._model)
        self._ends = EndRule(by_name["terminated"], timeouts, following, longest)
        chosen = choose_columns(offered, options)
        refuse_links(others, {*chosen, self._observations, *([following] if following else [])}, self._model)
        keeps_next = options.columns is not None and "next_observations" in options.columns
        self._sources = {s: n for s, n in chosen.items() if keeps_next or n != "next_observations"}
        self._has_final = following is not None and "observations" in self._sources.values()
        self.columns = tuple(
            _column(datasets, source, name, self._model, self._has_final and name == "observations")
            for source, name in self._sources.items()
        )
        return int(datasets[self._observations].shape[0])

    def units(self) -> Sequence[Unit]:
        """Runs of episodes of about `UNIT_BYTES`; whole files where ends can be told by observations alone."""
        units = [Unit(BEGIN, 0)]
        wanted = max(1, UNIT_BYTES // self._row_bytes)
        self.num_rows = 0
        for index, file in enumerate(self._files):
            with open_hdf5(file) as opened:
                rows = self._check_rows(opened, file)
                self.num_rows += rows
                starts = self._starts(opened, rows, wanted, file.name) if self._ends.by_flags else [0]
            shares = [file.size * (stop - start) // max(1, rows) for start, stop in pairwise([*starts, rows])]
            units += [Unit(Position(index, row), share) for row, share in zip(starts, shares, strict=True) if rows]
        first, *others = units
        return (replace(others[0], position=BEGIN), *others[1:]) if others else (first,)

    def _starts(self, file: h5py.File, rows: int, wanted: int, name: str) -> list[int]:
        """Rows of a file where an episode begins, each the first that is `wanted` rows or more after the one before."""
        starts, age = [0], 0
        for row in range(0, rows, _FLAG_ROWS):
            stop = min(rows, row + _FLAG_ROWS)
            with reading(name):
                ends = self._ends.flags(file, row, stop, age)
            age = ages_after(ends, age)
            begins = np.flatnonzero(ends) + row + 1
            while (at := int(np.searchsorted(begins, starts[-1] + wanted))) < len(begins) and begins[at] < rows:
                starts.append(int(begins[at]))
        return starts

    @property
    def _row_bytes(self) -> int:
        return max(1, sum(spec.row_bytes for spec in self.columns))

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        for block in assemble(self._parts(start, stop), self.findings, has_final=self._has_final):
            yield self._settle_flags(block)

    def _parts(self, start: Position, stop: Position) -> Iterator[StepPart]:
        number = 0
        for index in range(start.file, len(self._files)):
            first = start.row if index == start.file else 0
            if (index, first) >= stop:
                return
            with open_hdf5(self._files[index]) as file:
                rows = self._check_rows(file, self._files[index])
                if not rows:
                    message = "the datasets hold no steps"
                    self.findings.add(Finding("empty-file", message, file=self._files[index].name))
                last = min(rows, stop.row) if index == stop.file else rows
                for part in self._file_parts(file, index, first, last, rows, number):
                    number = int(part.episodes[-1])
                    yield part
            number += 1  # an episode does not go on in the next file

    def _file_parts(
        self, file: h5py.File, index: int, first: int, last: int, rows: int, number: int
    ) -> Iterator[StepPart]:
        """Steps first to last of a file of `rows` steps; the first begins an episode, whose number is given."""
        name = self._files[index].name
        step, chunk = self._rows_at_once(file)
        ended, age = False, 0  # whether the row before this part was an episode's last; steps of that episode so far
        row = first
        while row < last:
            stop = min(last, (row + step) // chunk * chunk)  # chunks of HDF5 are read, and decompressed, once
            with reading(name, row=row):
                ends = self._ends.flags(file, row, stop, age)
                if self._ends.by_flags and chunk <= step // _CHUNKS and ends.any():
                    # Few chunks are read twice where parts end with episodes, and no steps have to be joined again.
                    stop -= ages_after(ends, 0)
                    ends = ends[: stop - row]
                columns, following, observations = self._read(file, row, stop, rows)
            if following is not None:
                self._compare(ends, following, observations, name, row)
            age = ages_after(ends, age)
            begins = np.append(0, np.flatnonzero(ends[:-1]) + 1)
            numbers = np.arange(number + ended, number + ended + len(begins))
            episodes = np.repeat(numbers, np.diff(begins, append=len(ends)))
            number, ended = int(episodes[-1]), bool(ends[-1])
            yield StepPart(
                file=index,
                name=name,
                rows=np.arange(row, stop, dtype=np.int64),
                episodes=episodes,
                keep=np.ones(stop - row, np.bool_),
                columns=columns,
                facts={},
                finals={"observations": following} if self._has_final and following is not None else {},
                ends_episode=ended,
            )
            row = stop

    def _rows_at_once(self, file: h5py.File) -> tuple[int, int]:
        """Rows of about `_CHUNK_BYTES`, a multiple of the rows of the largest chunk; and those."""
        chunks = [file[source].chunks for source in self._sources]
        rows = max((chunk[0] for chunk in chunks if chunk), default=1)
        return max(1, _CHUNK_BYTES // self._row_bytes // rows) * rows, rows

    def _read(
        self, file: h5py.File, row: int, stop: int, rows: int
    ) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[Any] | None, npt.NDArray[Any]]:
        """Columns of rows row to stop; the observations after each; and observations, of one row more if there is."""
        columns: dict[str, npt.NDArray[Any]] = {}
        more = stop if self._ends.following is None else min(rows, stop + 1)
        observations = np.empty(0)
        if self._ends.following is not None and self._observations not in self._sources:
            observations = file[self._observations][row:more]
        for source, spec in zip(self._sources, self.columns, strict=True):
            is_observations = source == self._observations
            end = more if is_observations else stop
            # HDF5 may hold the other byte order.
            values = file[source][row:end].reshape(end - row, *spec.shape).astype(spec.dtype, copy=False)
            columns[spec.name] = values[: stop - row]
            observations = values if is_observations else observations
        if self._ends.following is None:
            return columns, None, observations
        following = file[self._ends.following][row:stop]
        return columns, following.astype(following.dtype.newbyteorder("="), copy=False), observations

    def _compare(
        self, ends: BoolArray, following: npt.NDArray[Any], observations: npt.NDArray[Any], name: str, row: int
    ) -> None:
        """Marks the ends that observations alone show; or, where flags say where ends are, counts what contradicts."""
        known = len(observations) - 1  # the last row of a file is followed by none
        jumps = differs(following[:known], observations[1:])
        if self._ends.timeouts is None:
            ends[:known] |= jumps
            return
        inside = np.flatnonzero(jumps & ~ends[:known])
        if len(inside):
            message = "inside an episode, is not the next row's observation; left out, the observations are kept"
            place = (name, row + int(inside[0]), self._ends.following)
            self.findings.add(Finding("next-observation-differs", message, len(inside), *place))

    def _check_rows(self, file: h5py.File, source: SourceFile) -> int:
        """Steps of a file, whose datasets must have one length, and dtypes and shapes like the first file's."""
        name = source.name
        datasets, others = inventory(file, name)
        names = [*self._sources, *([self._ends.following] if self._ends.following else []), self._observations]
        refuse_links(others, names, name)
        for column in names:
            if column not in datasets:
                raise CorruptSourceError(
                    f"is missing; {self._model} has it", file=name, column=column, hint=self._apart(name)
                )
            with reading(name, column):
                check_dataset(datasets[column].id, source, column)
        rows = int(datasets[self._observations].shape[0])
        for column in names:
            found = int(datasets[column].shape[0])
            if found != rows:
                raise BadEpisodeError(
                    f"has {found} rows, where '{self._observations}' has {rows}",
                    file=name,
                    column=column,
                    row=min(rows, found),
                )
        if rows:
            self._check_columns(datasets, name)
        return rows

    def _check_columns(self, datasets: Mapping[str, h5py.Dataset], name: str) -> None:
        if self._ends.following is not None:
            model, found = (_column(datasets, n, n, name) for n in (self._observations, self._ends.following))
            if (model.dtype, model.shape) != (found.dtype, found.shape):
                raise CorruptSourceError(
                    f"is {found.dtype} {found.shape}, where '{self._observations}' is {model.dtype} {model.shape}",
                    file=name,
                    column=self._ends.following,
                    hint="it gives final observations, which must be like the others; convert a copy without it",
                )
        for source, spec in zip(self._sources, self.columns, strict=True):
            found = _column(datasets, source, spec.name, name, spec.has_final)
            if found != spec:
                raise CorruptSourceError(
                    f"is {found.dtype} {found.shape}, in {self._model} {spec.dtype} {spec.shape}",
                    file=name,
                    column=source,
                    hint=self._apart(name),
                )

    def _apart(self, name: str) -> str | None:
        return separate_datasets_hint([file.name for file in self._files], self._model, name)

    def _settle_flags(self, block: EpisodeBlock) -> EpisodeBlock:
        """Both flags set means terminated (D4RL's own reading). Without `timeouts`, an episode of the stated length
        that did not terminate was truncated."""
        if self._ends.timeouts is None:
            if self._ends.following is not None or self._ends.longest is None:
                return block
            last = block.offsets[1:] - 1
            stopped = np.zeros(int(block.lengths.sum()), np.bool_)
            stopped[last] = (block.lengths == self._ends.longest) & (block.columns["terminated"][last] == 0)
            return replace(block, columns={**block.columns, "truncated": stopped})
        truncated = block.columns["truncated"].astype(np.bool_)
        both = block.columns["terminated"].astype(np.bool_) & truncated
        if not both.any():
            return block
        step, offsets = int(np.argmax(both)), block.offsets
        episode = int(np.searchsorted(offsets, step, side="right")) - 1
        row = int(block.rows[episode]) + step - int(offsets[episode])
        message = "terminals and timeouts both set; taken as terminated, not truncated"
        self.findings.add(Finding("both-flags", message, int(both.sum()), block.sources[episode], row))
        return replace(block, columns={**block.columns, "truncated": truncated & ~both})


def _column(
    datasets: Mapping[str, h5py.Dataset], source: str, name: str, file: str, has_final: bool = False
) -> ColumnSpec:
    with reading(file, source):
        spec = step_spec(datasets[source], source, name, file, has_final=has_final)
    if spec.variable_length:
        raise UnsupportedColumnError(
            f"holds {spec.dtype} values, which D4RL's flat columns of numbers do not",
            file=file,
            column=source,
            hint=LEAVE_OUT,
        )
    return spec


def _metadata(file: h5py.File, others: Mapping[str, str], name: str) -> dict[str, Any]:
    """The scalars that stand under `metadata/`, and the attributes of the file."""
    with reading(name):
        facts, _ = attribute_facts(file, ())
        scalars = [path for path, what in others.items() if what == SCALAR and path.startswith(_METADATA)]
        for path in scalars:
            check_heaps(file[path])
            if (value := plain(file[path][()])) is not None:
                facts[path.removeprefix(_METADATA)] = value
    return facts


def _longest(stated: int | None, metadata: Mapping[str, Any], file: str) -> int | None:
    """The length at which episodes were stopped: as the user states it, else as the file does."""
    longest = metadata.get(_LONGEST) if stated is None else stated
    if longest is None:
        return None
    if type(longest) is not int or longest < 1:
        raise CorruptSourceError(f"'{_LONGEST}' is {longest!r}, not a number of steps", file=file)
    return longest


FORMAT = Format(
    name="d4rl",
    probe=probe,
    open=open_,
    priority=10,
    uses=frozenset({"max_episode_steps"}),
    suffixes=(".hdf5", ".h5"),
)
