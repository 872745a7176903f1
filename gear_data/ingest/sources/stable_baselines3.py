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

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.common.images import looks_like_image
from gear_data.errors import (
    BadEpisodeError,
    CorruptSourceError,
    EmptySourceError,
    GearError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.ideas.dataset_facts import dataset_facts
from gear_data.ingest.location import Location, SourceFile, separate_datasets_hint
from gear_data.ingest.pipeline.columns import choose_columns, column_spec, leave_out
from gear_data.ingest.pipeline.names import DONES, canonical_name, is_observation, name_map
from gear_data.ingest.source import UNIT_BYTES, Format, SourceOptions, Unit, files_between
from gear_data.ingest.sources.arrays.blocks import ReadEpisode, block_of, joined
from gear_data.ingest.sources.arrays.source import describe
from gear_data.ingest.sources.hdf5.flat_file import flat_file, root_scalars
from gear_data.ingest.sources.hdf5.open_file import HDF5_SUFFIXES
from gear_data.ingest.sources.tree.containers import open_archive
from gear_data.ingest.sources.tree.hdf5_view import hdf5_tree
from gear_data.ingest.sources.tree.view import Container, NamedArrays, Tree, TreeArray
from gear_data.schema import DTYPES, ColumnSpec
from gear_data.storage.episode_block import EpisodeBlock, Position, Values

NPZ_SUFFIX = ".npz"
SUFFIXES = (NPZ_SUFFIX, *HDF5_SUFFIXES)


def buffer_container(file: SourceFile) -> Container:
    """Returns a file that can be opened as a tree."""
    if file.name.lower().endswith(NPZ_SUFFIX):
        return Container(file.name, file.size, partial(open_archive, file))
    return hdf5_tree(file)


def open_arrays(tree: Tree) -> tuple[dict[str, TreeArray], dict[str, Any]]:
    """Opens the arrays of a file.

    Returns:
        Name -> array with at least one axis, in the order of the file; and name of a scalar -> plain Python value, None
        for a value that is no fact.

    Raises:
        CorruptSourceError: the file is damaged, or refers to other files.
        UnsupportedColumnError: an array is a link.
    """
    file = flat_file(tree)
    paths = tree.arrays if isinstance(tree, NamedArrays) else file.kinds
    arrays = {path: file.array(path, tree.name) for path in paths}
    scalars = root_scalars(tree, [array for array in arrays.values() if not array.shape])
    return {path: _in_rows(array) for path, array in arrays.items() if array.shape}, scalars


def _in_rows(array: TreeArray) -> TreeArray:
    """Returns encoded images of one size, which npz has as byte strings, as rows of uint8; another array as it is."""
    if not array.dtype.startswith("|S") or len(array.shape) != 2 or not math.prod(array.shape):
        return array
    if not looks_like_image(bytes(array.read(0, 1)[0, 0])):
        return array

    def read(start: int, stop: int) -> npt.NDArray[np.uint8]:
        values = np.ascontiguousarray(array.read(start, stop))
        return values.view(np.uint8).reshape(*values.shape, -1)

    return replace(array, shape=(*array.shape, np.dtype(array.dtype).itemsize), dtype="uint8", read=read)


REQUIRED = ("actions", "rewards", DONES)
POSITION, FULL = "pos", "full"
_NEXT = "next_observations"
_SCAN_BYTES = 16 << 20


@dataclass(frozen=True)
class Buffer:
    """The arrays of an open file, its columns and its filled rows.

    Attributes:
        name: the name of the file.
        arrays: name -> array [rows, environments, ...].
        rows: the number of rows, `buffer_size`.
        environments: the number of environments, `n_envs`.
        oldest: the row of the oldest step.
        steps: the number of filled rows, from `oldest` on and over the last row to row 0.
        columns: the columns to read.
        sources: canonical name -> name of the array.
        next_arrays: canonical name -> name of the array of the observations after each step.
        last_row: the row of the observations after the newest step, if observations are stored only once
            (`optimize_memory_usage`) and the row is known; None otherwise.
        metadata: the scalars of the file.
        findings: about the file.
    """

    name: str
    arrays: Mapping[str, TreeArray]
    rows: int
    environments: int
    oldest: int
    steps: int
    columns: tuple[ColumnSpec, ...]
    sources: Mapping[str, str]
    next_arrays: Mapping[str, str]
    last_row: int | None
    metadata: Mapping[str, Any]
    findings: tuple[Finding, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, the steps of all environments; at least 1."""
        return max(1, self.environments * sum(spec.row_bytes for spec in self.columns))

    def read(self, source: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Reads the steps [start, stop) of all environments.

        Steps are counted from the oldest. Returns [stop - start, environments, ...].
        """
        array, first, last = self.arrays[source], (self.oldest + start) % self.rows, self.oldest + stop
        if stop - start == 0 or first + stop - start <= self.rows:
            return array.read(first, first + stop - start)
        return np.concatenate([array.read(first, self.rows), array.read(0, last - self.rows)])


@dataclass(frozen=True)
class BufferEpisodes:
    """The episodes of a buffer, by their last step, then by environment.

    All arrays are int64 [n].

    Attributes:
        environments: the environment of each episode.
        starts: the first step of each, counted from the oldest.
        stops: the step after the last one.
    """

    environments: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.stops)


def open_buffer(tree: Tree, options: SourceOptions) -> Buffer:
    """Opens the buffer of a file.

    Raises the errors of `open_arrays`, and:
        UnknownFormatError: an array is missing, or has no axis of environments.
        BadEpisodeError: the arrays have different numbers of rows or environments.
        CorruptSourceError: `pos` is not a row.
        UnsupportedColumnError: an array holds no numbers.
    """
    arrays, scalars = open_arrays(tree)
    by_name = {name: source for source, name in name_map(arrays, options.rename).items()}
    missing = [name for name in REQUIRED if name not in by_name]
    if missing:
        raise UnknownFormatError(
            f"holds no array '{missing[0]}', which a replay buffer has",
            hint=f"its arrays: {', '.join(arrays)}; leave --format out",
        )
    shape = arrays[by_name[DONES]].shape
    if len(shape) != 2 or 0 in shape[1:]:
        raise UnknownFormatError(
            f"has the shape {shape}, where [buffer_size, n_envs] is expected",
            column=by_name[DONES],
            hint="leave --format out if the arrays have no axis of environments",
        )
    rows, environments = shape
    position, is_full, findings = _cursor(tree.name, scalars, rows)
    is_shared = not any(name == _NEXT or name.startswith(f"{_NEXT}.") for name in by_name)
    oldest, steps = (position, rows) if is_full else (0, position)
    if is_shared and is_full and POSITION in scalars:
        # `add` wrote the newest next observation over the oldest observation.
        oldest, steps = (position + 1) % rows, rows - 1
    last_row = (oldest + steps) % rows if steps and is_shared and POSITION in scalars else None
    names = [source for name, source in by_name.items() if not _is_next(name)]
    timeouts = by_name.get("truncated")
    if is_shared and timeouts is not None and _is_all_zero(arrays[timeouts], shape):
        # Stable-Baselines3 does not record time limits together with `optimize_memory_usage`.
        names.remove(timeouts)
    chosen = choose_columns(names, options)
    sources = {column: source for source, column in chosen.items()}
    next_arrays = {
        column: by_name[f"next_{column}"]
        for column in sources
        if _is_next(f"next_{column}") and f"next_{column}" in by_name
    }
    for source in [*sources.values(), *next_arrays.values()]:
        if arrays[source].shape[:2] != (rows, environments):
            raise BadEpisodeError(
                f"has the shape {arrays[source].shape}, where '{by_name[DONES]}' has {shape}",
                column=source,
                hint=leave_out(source),
            )
    columns = tuple(
        _column(arrays, source, column, next_arrays.get(column), last_row is not None)
        for column, source in sources.items()
    )
    others = {name: value for name, value in scalars.items() if name not in (POSITION, FULL)}
    metadata, left_out = dataset_facts(others, tree.name)
    findings += left_out
    return Buffer(
        tree.name, arrays, rows, environments, oldest, steps, columns, sources, next_arrays, last_row, metadata,
        findings,
    )  # fmt: skip


def _cursor(name: str, scalars: Mapping[str, Any], rows: int) -> tuple[int, bool, tuple[Finding, ...]]:
    """Returns `pos`, `full`, and a finding if the oldest step is not row 0.

    Without `pos` and `full`, all rows are steps in their order.
    """
    if not rows:
        return 0, False, ()
    if not scalars.keys() >= {POSITION, FULL}:
        message = f"there is no '{POSITION}' and '{FULL}': all rows are read in their order"
        return 0, True, (Finding("position-assumed", message, file=name),)
    position, full = scalars[POSITION], scalars[FULL]
    if type(position) is not int or not 0 <= position < rows or full not in (0, 1):
        raise CorruptSourceError(
            f"'{POSITION}' is {position!r} and '{FULL}' is {full!r} in a buffer of {rows} rows",
            hint="save buffer.pos and buffer.full together with the arrays",
        )
    if not full:
        return position, False, ()
    message = "the buffer is full: it is read from its oldest step; its first episodes may lack their first steps"
    return position, True, (Finding("ring-buffer", message, file=name, row=position),)


def _is_next(name: str) -> bool:
    return name == _NEXT or name.startswith(f"{_NEXT}.")


def _column(
    arrays: Mapping[str, TreeArray], source: str, name: str, next_source: str | None, has_last_row: bool
) -> ColumnSpec:
    array = arrays[source]
    dtype, shape = array.dtype, array.shape[2:]
    if dtype not in DTYPES or 0 in shape:
        raise UnsupportedColumnError(
            f"holds {dtype} of shape {shape} per step, and a column holds numbers or booleans",
            column=source,
            hint=leave_out(source),
        )
    after = arrays.get(next_source or "")
    if after is not None and (after.dtype, after.shape[2:]) != (dtype, shape):
        raise BadEpisodeError(
            f"is {after.dtype} {after.shape}, where '{source}' is {dtype} {array.shape}",
            column=next_source,
            hint="save both arrays of the same buffer",
        )
    has_final = next_source is not None or (has_last_row and is_observation(name))
    return column_spec(name, dtype, shape, source=source, has_final=has_final)


def find_episodes(buffer: Buffer) -> BufferEpisodes:
    """Finds the episodes, which `dones` ends, in the steps of every environment.

    Raises:
        BadEpisodeError: a flag is neither 0 nor 1.
    """
    source, envs = buffer.sources[DONES], buffer.environments
    step = max(1, _SCAN_BYTES // (8 * envs))
    found: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
    for start in range(0, buffer.steps, step):
        stop = min(buffer.steps, start + step)
        flags = buffer.read(source, start, stop).reshape(stop - start, envs)
        wrong = np.argwhere((flags != 0) & (flags != 1))
        if len(wrong):
            raise BadEpisodeError(
                f"holds {flags[tuple(wrong[0])]}, but a flag must be 0 or 1",
                column=source,
                row=(buffer.oldest + start + int(wrong[0][0])) % buffer.rows,
                hint=f"save the array again with 0 and 1, such as {source} > 0",
            )
        times, environments = np.nonzero(flags)
        found.append((times + start + 1, environments))
    tails = np.full(envs, buffer.steps), np.arange(envs)
    stops = np.concatenate([*(times for times, _ in found), tails[0]])
    environments = np.concatenate([*(env for _, env in found), tails[1]])
    order = np.lexsort((stops, environments))  # by environment, then by time
    stops, environments = stops[order], environments[order]
    is_first = np.append(True, environments[1:] != environments[:-1])
    starts = np.where(is_first, 0, np.append(0, stops[:-1]))
    kept = starts < stops  # a tail is empty if the newest step ends an episode
    starts, stops, environments = starts[kept], stops[kept], environments[kept]
    order = np.lexsort((environments, stops))
    return BufferEpisodes(environments[order], starts[order], stops[order])


def _is_all_zero(array: TreeArray, shape: tuple[int, ...]) -> bool:
    """Returns whether an array of flags of this shape is zero everywhere."""
    if array.shape != shape or array.dtype not in DTYPES:
        return False
    rows, step = shape[0], max(1, _SCAN_BYTES // (8 * shape[1]))
    return not any(array.read(row, min(rows, row + step)).any() for row in range(0, rows, step))


_BLOCK_BYTES = 16 << 20


def probe(location: Location) -> str | None:
    """Returns the reason if the first file is a replay buffer; otherwise None."""
    files = location.with_suffix(*SUFFIXES)
    if not files:
        return None
    # Another format raises the error of a damaged file.
    with suppress(GearError), buffer_container(files[0]).open() as tree:
        if not all(name in tree.attributes("") or tree.array(name) for name in (POSITION, FULL)):
            return None
        arrays, scalars = open_arrays(tree)
        by_name = {canonical_name(name): len(array.shape) for name, array in arrays.items()}
        if by_name.keys() >= {*REQUIRED} and scalars.keys() >= {POSITION, FULL} and by_name[DONES] == 2:
            return f"Stable-Baselines3: {files[0].name} has {', '.join(REQUIRED)}, {POSITION}, {FULL}"
    return None


def open_(location: Location, options: SourceOptions) -> ReplayBufferSource:
    """Opens replay buffers. Raises UnknownFormatError if there is no file."""
    files = location.with_suffix(*SUFFIXES)
    if not files:
        raise UnknownFormatError("holds no .npz or HDF5 file", hint="leave --format out")
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
            first = open_buffer(tree, options)
        self.columns = first.columns
        self.metadata: Mapping[str, Any] = first.metadata
        if len(files) == 1 and not first.steps:
            raise EmptySourceError("holds no step", file=files[0].name)
        self.num_rows: int | None = first.steps * first.environments if len(files) == 1 else None

    def units(self) -> Sequence[Unit]:
        """Returns runs of episodes of about `UNIT_BYTES`.

        A packed archive is one unit, because reading cannot begin inside it.
        """
        units: list[Unit] = []
        self.num_rows = 0
        for index, source in enumerate(self._files):
            with source.open() as tree:
                buffer, episodes = self._opened(tree)
            self.num_rows += buffer.steps * buffer.environments
            starts = [0] if source.name.lower().endswith(NPZ_SUFFIX) else _unit_starts(episodes, buffer)
            units += [Unit(Position(index, start), source.size // len(starts)) for start in starts]
        return units

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        for index, first, stop_row in files_between(start, stop, len(self._files)):
            with self._files[index].open() as tree:
                buffer, episodes = self._opened(tree)
                if first == 0:
                    self.findings.extend(buffer.findings)
                    if not len(episodes):
                        self.findings.add(Finding("empty-file", "the arrays hold no steps", file=buffer.name))
                last = len(episodes) if stop_row is None else min(stop_row, len(episodes))
                if first < last:
                    yield from self._file_blocks(buffer, episodes, index, first, last)

    def _opened(self, tree: Tree) -> tuple[Buffer, BufferEpisodes]:
        """Opens the buffer of a file, and finds its episodes.

        Raises CorruptSourceError if its columns differ from the first file.
        """
        buffer = open_buffer(tree, self._options)
        found, known = ({spec.name: spec for spec in columns} for columns in (buffer.columns, self.columns))
        if found != known:
            name = next(name for name in {**known, **found} if found.get(name) != known.get(name))
            names = [file.name for file in self._files]
            raise CorruptSourceError(
                f"'{name}' is {describe(found.get(name))}; in {names[0]} it is {describe(known.get(name))}",
                hint=separate_datasets_hint(names, names[0], buffer.name) or "convert the files that differ separately",
            )
        return buffer, find_episodes(buffer)

    def _file_blocks(
        self, buffer: Buffer, episodes: BufferEpisodes, index: int, first: int, last: int
    ) -> Iterator[EpisodeBlock]:
        """Yields the episodes [first, last) of a file, from one pass over their steps."""
        open_pieces: dict[int, dict[str, list[npt.NDArray[Any]]]] = {}
        at_once = max(1, _BLOCK_BYTES // buffer.row_bytes)
        begin, end, emitted = int(episodes.starts[first:last].min()), int(episodes.stops[last - 1]), first
        for start in range(begin, end, at_once):
            stop = min(end, start + at_once)
            values = {name: buffer.read(source, start, stop) for name, source in buffer.sources.items()}
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
                finals = _finals(buffer, episodes, finished)
                read = [
                    ReadEpisode(
                        (buffer.oldest + int(episodes.starts[number])) % buffer.rows,
                        int(episodes.stops[number] - episodes.starts[number]),
                        {name: joined(parts) for name, parts in open_pieces.pop(number).items()},
                        own_finals,
                        {"environment": int(episodes.environments[number])},
                    )
                    for number, own_finals in zip(finished, finals, strict=True)
                ]
                steps_read = sum(episode.steps for episode in read)
                yield block_of(read, self.columns, buffer.name, Position(index, emitted), steps_read)
                emitted = finished[-1] + 1


def _open_at(episodes: BufferEpisodes, time: int, first: int, last: int) -> list[int]:
    """Returns the episodes [first, last) that began before a time.

    They all end later, so each environment has at most one: its first.
    """
    _, indices = np.unique(episodes.environments[first:last], return_index=True)
    numbers = first + np.sort(indices)
    return [int(number) for number in numbers if episodes.starts[number] < time]


def _finals(buffer: Buffer, episodes: BufferEpisodes, numbers: Sequence[int]) -> list[dict[str, Values]]:
    """Reads the final observations of episodes: name -> [1, ...], of each; none if an episode has none."""
    stops, environments = episodes.stops[numbers], episodes.environments[numbers]
    first, last = int(stops[0]) - 1, int(stops[-1])
    values = {name: buffer.read(source, first, last) for name, source in buffer.next_arrays.items()}
    has_final = np.full(len(stops), bool(values))
    if (row := buffer.last_row) is not None and last == buffer.steps:
        has_final, first = stops == last, last - 1
        names = [spec.name for spec in buffer.columns if spec.has_final]
        values = {name: buffer.arrays[buffer.sources[name]].read(row, row + 1) for name in names}
    return [
        {name: array[stop - 1 - first, environment][None] for name, array in values.items()} if is_read else {}
        for stop, environment, is_read in zip(stops.tolist(), environments.tolist(), has_final.tolist(), strict=True)
    ]


def _unit_starts(episodes: BufferEpisodes, buffer: Buffer) -> list[int]:
    """Returns the first episodes of runs of about `UNIT_BYTES`."""
    starts, size = [0], 0
    step_bytes = buffer.row_bytes // buffer.environments
    for number, steps in enumerate((episodes.stops - episodes.starts).tolist()):
        if size >= UNIT_BYTES:
            starts.append(number)
            size = 0
        size += steps * step_bytes
    return starts


FORMAT = Format("stable-baselines3", probe, open_, suffixes=SUFFIXES)
