"""D4RL HDF5: flat datasets whose `terminals` and `timeouts` end the episodes.

Layout: https://github.com/Farama-Foundation/D4RL: `observations` (N, S), `actions` (N, A), `rewards` and `terminals`
(N,) or (N, 1), optionally `timeouts`, `next_observations`, `infos/*`, `metadata/*`.

Without `timeouts` an episode ends where `next_observations[t]` differs from `observations[t + 1]`. Without both, it
ends after `max_episode_steps` steps: from the option, else from the file (a scalar or attribute under `metadata` or at
the root). The `next_observations` of an episode's last step are its final observation. The other rows repeat
`observations` and are not stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from gear_data.errors import EmptySourceError, UnknownFormatError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.ideas.next_observations import next_differs
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.pipeline.assemble import StepPart, assemble
from gear_data.ingest.pipeline.episode_values import rows_differ
from gear_data.ingest.pipeline.names import canonical_name
from gear_data.ingest.source import UNIT_BYTES, Format, SourceOptions, Unit
from gear_data.ingest.sources.arrays.axes import refuse_unclear_axes
from gear_data.ingest.sources.d4rl.episode_ends import BoolArray, age_after
from gear_data.ingest.sources.d4rl.layout import REQUIRED, D4rlLayout, check_file, read_layout
from gear_data.ingest.sources.hdf5.open_file import hdf5_files, open_hdf5, reading
from gear_data.storage.episode_block import BEGIN, EpisodeBlock, Position

_CHUNK_BYTES = 32 << 20
#: If a part has at least this number of HDF5 chunks, reading one chunk twice costs little.
_CHUNKS = 8
_FLAG_ROWS = 4 << 20


def probe(location: Location) -> str | None:
    """Returns the reason if the first HDF5 file has D4RL's datasets; otherwise None.

    Raises UnknownFormatError if their first axis may be something else than the steps.
    """
    files = hdf5_files(location)
    if not files:
        return None
    with open_hdf5(files[0]) as file, reading(files[0].name):
        found = {location.rename.get(name, name): item for name, item in file.items()}
        required = [name if name in file else canonical_name(name) for name in REQUIRED]
        if all(isinstance(found.get(name), h5py.Dataset) for name in required):
            datasets = {name: item.shape for name, item in found.items() if isinstance(item, h5py.Dataset)}
            refuse_unclear_axes(files[0].name, {name: shape for name, shape in datasets.items() if shape}, "d4rl")
            return "D4RL: flat HDF5 datasets " + ", ".join(REQUIRED)
    return None


def open_(location: Location, options: SourceOptions) -> D4rlSource:
    """Opens D4RL HDF5 files. Raises UnknownFormatError if there are none."""
    files = hdf5_files(location)
    if not files:
        raise UnknownFormatError("holds no HDF5 file", file=location.name, hint="leave --format out")
    return D4rlSource(files, options)


class D4rlSource:
    """An `EpisodeSource` over D4RL HDF5 files."""

    rows_are_steps = True

    def __init__(self, files: tuple[SourceFile, ...], options: SourceOptions) -> None:
        self.findings = FindingLog()
        self.resume_state: dict[str, Any] = {}
        self._files = files
        self._layout = _first_layout(files, options)
        self._end_rule = self._layout.end_rule
        self._end_rule.check(self._layout.file)
        self.columns = self._layout.columns
        self.metadata = self._layout.metadata
        self.num_rows: int | None = self._layout.rows if len(files) == 1 else None
        if self._end_rule.by_flags and self._end_rule.max_steps is not None:
            message = f"neither 'timeouts' nor 'next_observations'; episodes end after {self._end_rule.max_steps} steps"
            self.findings.add(Finding("ends-by-length", message, file=self._layout.file))

    def units(self) -> Sequence[Unit]:
        """Returns runs of episodes of about `UNIT_BYTES`.

        If only observations show the ends, a unit is a whole file.
        """
        units = [Unit(BEGIN, 0)]
        min_rows = max(1, UNIT_BYTES // self._layout.row_bytes)
        self.num_rows = 0
        for index, file in enumerate(self._files):
            with open_hdf5(file) as opened:
                rows = check_file(opened, file, self._layout, self._files)
                self.num_rows += rows
                starts = self._unit_starts(opened, rows, min_rows, file.name) if self._end_rule.by_flags else [0]
            sizes = [file.size * (stop - start) // max(1, rows) for start, stop in pairwise([*starts, rows])]
            units += [Unit(Position(index, row), size) for row, size in zip(starts, sizes, strict=True) if rows]
        placeholder, *found = units
        return (replace(found[0], position=BEGIN), *found[1:]) if found else (placeholder,)

    def _unit_starts(self, file: h5py.File, rows: int, min_rows: int, name: str) -> list[int]:
        """Returns rows at which an episode begins, at least `min_rows` apart."""
        starts, age = [0], 0
        for row in range(0, rows, _FLAG_ROWS):
            stop = min(rows, row + _FLAG_ROWS)
            with reading(name):
                ends = self._end_rule.flags(file, row, stop, age)
            age = age_after(ends, age)
            begins = np.flatnonzero(ends) + row + 1
            while (i := int(np.searchsorted(begins, starts[-1] + min_rows))) < len(begins) and begins[i] < rows:
                starts.append(int(begins[i]))
        return starts

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        for block in assemble(self._parts(start, stop), self.findings, has_final=self._layout.has_final):
            yield self._set_truncated(block)

    def _parts(self, start: Position, stop: Position) -> Iterator[StepPart]:
        """Yields the steps of all files from `start` to `stop`."""
        number = 0
        for index in range(start.file, len(self._files)):
            first = start.row if index == start.file else 0
            if (index, first) >= stop:
                return
            with open_hdf5(self._files[index]) as file:
                rows = check_file(file, self._files[index], self._layout, self._files)
                if not rows:
                    message = "the datasets hold no steps"
                    self.findings.add(Finding("empty-file", message, file=self._files[index].name))
                last = min(rows, stop.row) if index == stop.file else rows
                for part in self._file_parts(file, index, first, last, rows, number):
                    number = int(part.episodes[-1])
                    yield part
            number += 1  # an episode ends with its file

    def _file_parts(
        self, file: h5py.File, index: int, first: int, last: int, rows: int, number: int
    ) -> Iterator[StepPart]:
        """Yields the steps [first, last) of a file.

        Args:
            file: the open file.
            index: the index of the file.
            first: the first row to read; it begins an episode.
            last: the row after the last row to read.
            rows: the number of steps in the file.
            number: the running number of the first episode.
        """
        name = self._files[index].name
        step, chunk = self._rows_at_once(file)
        # Whether the row before the part ends an episode, and the number of steps of the open episode so far.
        ended, age = False, 0
        row = first
        while row < last:
            stop = min(last, (row + step) // chunk * chunk)  # whole HDF5 chunks, so that each is decompressed once
            with reading(name, row=row):
                ends = self._end_rule.flags(file, row, stop, age)
                if self._end_rule.by_flags and chunk <= step // _CHUNKS and ends.any():
                    # The part ends with an episode: few chunks are read twice, and no episode is joined from parts.
                    stop -= age_after(ends, 0)
                    ends = ends[: stop - row]
                columns, next_observations, observations = self._read(file, row, stop, rows)
            if next_observations is not None:
                self._apply_jumps(ends, next_observations, observations, name, row)
            age = age_after(ends, age)
            begins = np.append(0, np.flatnonzero(ends[:-1]) + 1)
            numbers = np.arange(number + ended, number + ended + len(begins))
            episodes = np.repeat(numbers, np.diff(begins, append=len(ends)))
            number, ended = int(episodes[-1]), bool(ends[-1])
            finals = {}
            if self._layout.has_final and next_observations is not None:
                finals["observations"] = next_observations
            yield StepPart(
                file=index,
                name=name,
                rows=np.arange(row, stop, dtype=np.int64),
                episodes=episodes,
                keep=np.ones(stop - row, np.bool_),
                columns=columns,
                facts={},
                finals=finals,
                ends_episode=ended,
            )
            row = stop

    def _rows_at_once(self, file: h5py.File) -> tuple[int, int]:
        """Returns the rows to read at once, and the rows of the largest HDF5 chunk.

        The first is a multiple of the second.
        """
        chunks = [file[source].chunks for source in self._layout.sources]
        rows = max((chunk[0] for chunk in chunks if chunk), default=1)
        return max(1, _CHUNK_BYTES // self._layout.row_bytes // rows) * rows, rows

    def _read(
        self, file: h5py.File, row: int, stop: int, rows: int
    ) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[Any] | None, npt.NDArray[Any]]:
        """Reads the rows [row, stop) of a file with `rows` steps.

        Returns:
            The columns; the observations after each step; and the observations, one row more if the file has it.
        """
        columns: dict[str, npt.NDArray[Any]] = {}
        next_name, observations_name = self._end_rule.next_observations, self._layout.observations
        observations_stop = stop if next_name is None else min(rows, stop + 1)
        observations = np.empty(0)
        if next_name is not None and observations_name not in self._layout.sources:
            observations = file[observations_name][row:observations_stop]
        for source, spec in zip(self._layout.sources, self.columns, strict=True):
            is_observations = source == observations_name
            end = observations_stop if is_observations else stop
            # The cast is to native byte order: HDF5 may hold the other.
            values = file[source][row:end].reshape(end - row, *spec.shape).astype(spec.dtype, copy=False)
            columns[spec.name] = values[: stop - row]
            observations = values if is_observations else observations
        if next_name is None:
            return columns, None, observations
        next_observations = file[next_name][row:stop]
        native = next_observations.dtype.newbyteorder("=")
        return columns, next_observations.astype(native, copy=False), observations

    def _apply_jumps(
        self,
        ends: BoolArray,
        next_observations: npt.NDArray[Any],
        observations: npt.NDArray[Any],
        name: str,
        row: int,
    ) -> None:
        """Marks or reports jumps between observations.

        At a jump, the next observation of a step differs from the observation of the next row.

        Without `timeouts`, jumps are marked in `ends`, in place. Otherwise a jump inside an episode makes a finding.
        """
        count = len(observations) - 1  # the last row of a file has no next row
        jumps = rows_differ(next_observations[:count], observations[1:])
        if self._end_rule.end_flags is None:
            ends[:count] |= jumps
            return
        inside = np.flatnonzero(jumps & ~ends[:count])
        if len(inside):
            column = self._end_rule.next_observations
            self.findings.add(next_differs(len(inside), name, row + int(inside[0]), column))

    def _set_truncated(self, block: EpisodeBlock) -> EpisodeBlock:
        """Sets `truncated` of a block.

        If both flags are set the step is terminal, as D4RL reads it. Without `timeouts`, an episode of the stated
        length whose last step is not terminal was truncated.
        """
        if self._end_rule.timeouts is None:
            if self._end_rule.max_steps is None:
                return block
            last = block.offsets[1:] - 1
            truncated = np.zeros(int(block.lengths.sum()), np.bool_)
            at_limit = block.lengths == self._end_rule.max_steps
            truncated[last] = at_limit & (block.columns["terminated"][last] == 0)
            return replace(block, columns={**block.columns, "truncated": truncated})
        truncated = block.columns["truncated"].astype(np.bool_)
        both = block.columns["terminated"].astype(np.bool_) & truncated
        if not both.any():
            return block
        step, offsets = int(np.argmax(both)), block.offsets
        episode = int(np.searchsorted(offsets, step, side="right")) - 1
        row = int(block.rows[episode]) + step - int(offsets[episode])
        message = "terminals and timeouts are both set; read as terminated, not truncated"
        self.findings.add(Finding("both-flags", message, int(both.sum()), block.sources[episode], row))
        return replace(block, columns={**block.columns, "truncated": truncated & ~both})


def _first_layout(files: tuple[SourceFile, ...], options: SourceOptions) -> D4rlLayout:
    """Reads the layout of the first file that has steps.

    Raises EmptySourceError if no file has steps.
    """
    layout = None
    for file in files:
        with open_hdf5(file) as opened:
            layout = read_layout(opened, file.name, options)
        if layout.rows:
            return layout
    raise EmptySourceError(
        "holds no steps", file=files[0].name, column=layout.observations if layout is not None else None
    )


FORMAT = Format(
    name="d4rl",
    probe=probe,
    open=open_,
    priority=9,
    uses=frozenset({"max_episode_steps"}),
    suffixes=(".hdf5", ".h5"),
)
