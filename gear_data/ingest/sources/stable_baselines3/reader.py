"""Replay buffers of Stable-Baselines3.

Source: https://github.com/DLR-RM/stable-baselines3.

`ReplayBuffer` (`stable_baselines3/common/buffers.py`) has arrays [buffer_size, n_envs, ...]: `observations`,
`next_observations`, `actions`, `rewards`, `dones` and `timeouts`. `DictReplayBuffer` has a dict of observations,
here `observations.KEY` (npz) or `observations/KEY` (HDF5). `pos` is the row of the next step, and `full` tells whether
it overwrites the oldest one.

- Each environment is a separate stream of episodes, which `dones` ends. `timeouts` marks the truncated ones.
- `next_observations` of an episode's last step is its final observation.
- `optimize_memory_usage` stores no `next_observations`. Then the final observation of the newest step is in row `pos`,
  where a full buffer has lost its oldest step. Other episodes have none.

`save_replay_buffer` writes a pickle, which is never loaded: see `gear_data.ingest.sources.unrecognised`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import CorruptSourceError, EmptySourceError, GearError, UnknownFormatError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import Location, SourceFile, separate_datasets_hint
from gear_data.ingest.pipeline.names import DONES, canonical_name
from gear_data.ingest.source import UNIT_BYTES, Format, SourceOptions, Unit
from gear_data.ingest.sources.arrays.source import describe
from gear_data.ingest.sources.stable_baselines3.layout import (
    FULL,
    NPZ_SUFFIX,
    POSITION,
    REQUIRED,
    SUFFIXES,
    BufferEpisodes,
    BufferFile,
    BufferLayout,
    buffer_container,
    find_episodes,
    read_buffer,
    read_layout,
)
from gear_data.storage.episode_block import EpisodeBlock, Position

_BLOCK_BYTES = 16 << 20

Arrays = dict[str, npt.NDArray[Any]]


def probe(location: Location) -> str | None:
    """Returns the reason if the first file is a replay buffer; otherwise None."""
    files = location.with_suffix(*SUFFIXES)
    if not files:
        return None
    # Another format raises the error of a damaged file.
    with suppress(GearError), buffer_container(files[0]).open() as tree:
        if not all(name in tree.attributes("") or tree.array(name) for name in (POSITION, FULL)):
            return None
        file = read_buffer(tree)
        by_name = {canonical_name(name): len(array.shape) for name, array in file.arrays.items()}
        if by_name.keys() >= {*REQUIRED} and file.scalars.keys() >= {POSITION, FULL} and by_name[DONES] == 2:
            return f"Stable-Baselines3: {files[0].name} has {', '.join(REQUIRED)}, {POSITION}, {FULL}"
    return None


def open_(location: Location, options: SourceOptions) -> ReplayBufferSource:
    """Opens replay buffers. Raises UnknownFormatError if there is no file."""
    files = location.with_suffix(*SUFFIXES)
    if not files:
        raise UnknownFormatError("holds no .npz or HDF5 file", file=location.name, hint="leave --format out")
    return ReplayBufferSource(files, options)


class ReplayBufferSource:
    """An `EpisodeSource` over replay buffers.

    `Position.row` counts the episodes of a file. All environments are read together, so the open episodes of all
    environments are in memory.
    """

    rows_are_steps = True

    def __init__(self, files: tuple[SourceFile, ...], options: SourceOptions) -> None:
        self.findings = FindingLog()
        self.resume_state: dict[str, Any] = {}
        self._files = tuple(map(buffer_container, files))
        self._options = options
        with self._files[0].open() as tree:
            self._first = read_layout(read_buffer(tree), options)
        self.columns = self._first.columns
        self.metadata: Mapping[str, Any] = self._first.metadata
        if len(files) == 1 and not self._first.steps:
            raise EmptySourceError("holds no step", file=files[0].name)
        self.num_rows: int | None = self._first.steps * self._first.environments if len(files) == 1 else None

    def units(self) -> Sequence[Unit]:
        """Returns runs of episodes of about `UNIT_BYTES`.

        A packed archive is one unit, because reading cannot begin inside it.
        """
        units: list[Unit] = []
        self.num_rows = 0
        for index, source in enumerate(self._files):
            with source.open() as tree:
                file = read_buffer(tree)
                layout = self._layout(file)
                episodes = find_episodes(file, layout)
            self.num_rows += layout.steps * layout.environments
            starts = [0] if source.name.lower().endswith(NPZ_SUFFIX) else _unit_starts(episodes, layout)
            units += [Unit(Position(index, start), source.size // len(starts)) for start in starts]
        return units

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        for index in range(start.file, len(self._files)):
            first = start.row if index == start.file else 0
            if (index, first) >= stop:
                return
            with self._files[index].open() as tree:
                file = read_buffer(tree)
                layout = self._layout(file)
                episodes = find_episodes(file, layout)
                if first == 0:
                    self.findings.extend(layout.findings)
                    if not len(episodes):
                        self.findings.add(Finding("empty-file", "the arrays hold no steps", file=layout.name))
                last = min(stop.row, len(episodes)) if index == stop.file else len(episodes)
                if first < last:
                    yield from self._file_blocks(file, layout, episodes, index, first, last)

    def _layout(self, file: BufferFile) -> BufferLayout:
        """Reads the layout of a file.

        Raises CorruptSourceError if its columns differ from the first file.
        """
        layout = read_layout(file, self._options)
        found, known = ({spec.name: spec for spec in columns} for columns in (layout.columns, self.columns))
        if found != known:
            name = next(name for name in {**known, **found} if found.get(name) != known.get(name))
            names = [file.name for file in self._files]
            raise CorruptSourceError(
                f"'{name}' is {describe(found.get(name))}; in {self._first.name} it is {describe(known.get(name))}",
                file=layout.name,
                hint=separate_datasets_hint(names, names[0], layout.name) or "convert the files that differ separately",
            )
        return layout

    def _file_blocks(
        self, file: BufferFile, layout: BufferLayout, episodes: BufferEpisodes, index: int, first: int, last: int
    ) -> Iterator[EpisodeBlock]:
        """Yields the episodes [first, last) of a file, from one pass over their steps."""
        open_pieces: dict[int, dict[str, list[npt.NDArray[Any]]]] = {}
        at_once = max(1, _BLOCK_BYTES // layout.row_bytes)
        begin, end, emitted = int(episodes.starts[first:last].min()), int(episodes.stops[last - 1]), first
        for start in range(begin, end, at_once):
            stop = min(end, start + at_once)
            values = {name: layout.read(file, source, start, stop) for name, source in layout.sources.items()}
            complete = int(np.searchsorted(episodes.stops, stop, side="right"))
            finished = list(range(emitted, min(last, complete)))
            for number in (*finished, *_open_at(episodes, stop, max(emitted, complete), last)):
                episode_start, episode_stop = int(episodes.starts[number]), int(episodes.stops[number])
                steps = slice(max(episode_start, start) - start, min(episode_stop, stop) - start)
                pieces = open_pieces.setdefault(number, {})
                for name, array in values.items():
                    piece = array[steps, episodes.environments[number]]
                    # A copy, because a view would keep the arrays of all environments in memory.
                    pieces.setdefault(name, []).append(piece if episode_stop <= stop else piece.copy())
            if finished:
                finals = _finals(file, layout, episodes, finished)
                parts = [open_pieces.pop(number) for number in finished]
                yield self._block(layout, episodes, Position(index, emitted), parts, finals)
                emitted = finished[-1] + 1

    def _block(
        self,
        layout: BufferLayout,
        episodes: BufferEpisodes,
        position: Position,
        parts: Sequence[Mapping[str, Sequence[npt.NDArray[Any]]]],
        finals: tuple[npt.NDArray[np.bool_], Arrays],
    ) -> EpisodeBlock:
        selected = slice(position.row, position.row + len(parts))
        starts, lengths = episodes.starts[selected], (episodes.stops - episodes.starts)[selected]
        has_final, final_values = finals
        return EpisodeBlock(
            position=position,
            lengths=lengths,
            columns={
                spec.name: np.concatenate([piece for part in parts for piece in part[spec.name]]).reshape(
                    -1, *spec.shape
                )
                for spec in self.columns
            },
            sources=[layout.name] * len(parts),
            rows=(layout.oldest + starts) % layout.rows,
            has_final=has_final,
            finals={
                spec.name: final_values[spec.name].reshape(-1, *spec.shape) for spec in self.columns if spec.has_final
            },
            metadata={"environment": episodes.environments[selected].tolist()},
            source_rows=int(lengths.sum()),
        )


def _open_at(episodes: BufferEpisodes, time: int, first: int, last: int) -> list[int]:
    """Returns the episodes [first, last) that began before a time.

    They all end later, so each environment has at most one: its first.
    """
    _, indices = np.unique(episodes.environments[first:last], return_index=True)
    numbers = first + np.sort(indices)
    return [int(number) for number in numbers if episodes.starts[number] < time]


def _finals(
    file: BufferFile, layout: BufferLayout, episodes: BufferEpisodes, numbers: Sequence[int]
) -> tuple[npt.NDArray[np.bool_], Arrays]:
    """Reads the final observations of episodes.

    Returns bool [n], the episodes that have one, and name -> their final observations.
    """
    stops, environments = episodes.stops[numbers], episodes.environments[numbers]
    if layout.next_arrays:
        first, last = int(stops[0]) - 1, int(stops[-1])
        values = {name: layout.read(file, source, first, last) for name, source in layout.next_arrays.items()}
        return np.ones(len(stops), np.bool_), {
            name: array[stops - 1 - first, environments] for name, array in values.items()
        }
    if layout.last_row is None:
        return np.zeros(len(stops), np.bool_), {}
    has_final = stops == layout.steps
    row = layout.last_row
    return has_final, {
        spec.name: file.arrays[layout.sources[spec.name]].read(row, row + 1)[0][environments[has_final]]
        for spec in layout.columns
        if spec.has_final
    }


def _unit_starts(episodes: BufferEpisodes, layout: BufferLayout) -> list[int]:
    """Returns the first episodes of runs of about `UNIT_BYTES`."""
    starts, size = [0], 0
    step_bytes = layout.row_bytes // layout.environments
    for number, steps in enumerate((episodes.stops - episodes.starts).tolist()):
        if size >= UNIT_BYTES:
            starts.append(number)
            size = 0
        size += steps * step_bytes
    return starts


FORMAT = Format("stable-baselines3", probe, open_, suffixes=SUFFIXES)
