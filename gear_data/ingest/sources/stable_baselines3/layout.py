"""Layout of a replay buffer: its columns, and the rows of its episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import BadEpisodeError, CorruptSourceError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.ideas.dataset_facts import dataset_facts
from gear_data.ingest.location import SourceFile
from gear_data.ingest.pipeline.columns import SCALAR_COLUMNS, choose_columns, leave_out
from gear_data.ingest.pipeline.names import DONES, name_map
from gear_data.ingest.source import SourceOptions
from gear_data.ingest.sources.hdf5.flat_file import flat_file, root_scalars
from gear_data.ingest.sources.hdf5.open_file import HDF5_SUFFIXES
from gear_data.ingest.sources.tree.containers import open_archive
from gear_data.ingest.sources.tree.hdf5_view import hdf5_tree
from gear_data.ingest.sources.tree.view import Container, NamedArrays, Tree, TreeArray
from gear_data.schema import DTYPES, ColumnSpec

NPZ_SUFFIX = ".npz"
SUFFIXES = (NPZ_SUFFIX, *HDF5_SUFFIXES)


@dataclass(frozen=True)
class BufferFile:
    """The contents of an open file.

    Attributes:
        name: the name of the file.
        arrays: name -> array with at least one axis, in the order of the file.
        scalars: name -> plain Python value; None for a value that is no fact.
    """

    name: str
    arrays: Mapping[str, TreeArray]
    scalars: Mapping[str, Any]


def buffer_container(file: SourceFile) -> Container:
    """Returns a file that can be opened as a tree."""
    if file.path.lower().endswith(NPZ_SUFFIX):
        return Container(file.name, file.size, partial(open_archive, file))
    return hdf5_tree(file)


def read_buffer(tree: Tree) -> BufferFile:
    """Opens the arrays of a file.

    Raises:
        CorruptSourceError: the file is damaged, or refers to other files.
        UnsupportedColumnError: an array is a link.
    """
    file = flat_file(tree)
    paths = tree.arrays if isinstance(tree, NamedArrays) else file.kinds
    arrays = {path: file.array(path, tree.name) for path in paths}
    scalars = root_scalars(tree, [array for array in arrays.values() if not array.shape])
    return BufferFile(tree.name, {path: array for path, array in arrays.items() if array.shape}, scalars)


REQUIRED = ("actions", "rewards", DONES)
POSITION, FULL = "pos", "full"
_NEXT, _OBSERVATIONS = "next_observations", "observations"
_SCAN_BYTES = 16 << 20


@dataclass(frozen=True)
class BufferLayout:
    """The columns and the filled rows of one file.

    Attributes:
        name: the name of the file.
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

    def read(self, file: BufferFile, source: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Reads the steps [start, stop) of all environments.

        Steps are counted from the oldest. Returns [stop - start, environments, ...].
        """
        array, first, last = file.arrays[source], (self.oldest + start) % self.rows, self.oldest + stop
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


def read_layout(file: BufferFile, options: SourceOptions) -> BufferLayout:
    """Reads the layout of an open file.

    Raises:
        UnknownFormatError: an array is missing, or has no axis of environments.
        BadEpisodeError: the arrays have different numbers of rows or environments.
        CorruptSourceError: `pos` is not a row.
        UnsupportedColumnError: an array holds no numbers.
    """
    by_name = {name: source for source, name in name_map(file.arrays, options.rename).items()}
    missing = [name for name in REQUIRED if name not in by_name]
    if missing:
        raise UnknownFormatError(
            f"holds no array '{missing[0]}', which a replay buffer has",
            file=file.name,
            hint=f"its arrays: {', '.join(file.arrays)}; leave --format out",
        )
    shape = file.arrays[by_name[DONES]].shape
    if len(shape) != 2 or 0 in shape[1:]:
        raise UnknownFormatError(
            f"has the shape {shape}, where [buffer_size, n_envs] is expected",
            file=file.name,
            column=by_name[DONES],
            hint="leave --format out if the arrays have no axis of environments",
        )
    rows, environments = shape
    position, is_full, findings = _cursor(file, rows)
    is_shared = not any(name == _NEXT or name.startswith(f"{_NEXT}.") for name in by_name)
    oldest, steps = (position, rows) if is_full else (0, position)
    if is_shared and is_full and POSITION in file.scalars:
        # `add` wrote the newest next observation over the oldest observation.
        oldest, steps = (position + 1) % rows, rows - 1
    last_row = (oldest + steps) % rows if steps and is_shared and POSITION in file.scalars else None
    names = [source for name, source in by_name.items() if not _is_next(name)]
    timeouts = by_name.get("truncated")
    if is_shared and timeouts is not None and _is_all_zero(file, timeouts, shape):
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
        if file.arrays[source].shape[:2] != (rows, environments):
            raise BadEpisodeError(
                f"has the shape {file.arrays[source].shape}, where '{by_name[DONES]}' has {shape}",
                file=file.name,
                column=source,
                hint=leave_out(source),
            )
    columns = tuple(
        _column(file, source, column, next_arrays.get(column), last_row is not None)
        for column, source in sources.items()
    )
    others = {name: value for name, value in file.scalars.items() if name not in (POSITION, FULL)}
    metadata, left_out = dataset_facts(others, file.name)
    return BufferLayout(
        file.name,
        rows,
        environments,
        oldest,
        steps,
        columns,
        sources,
        next_arrays,
        last_row,
        metadata,
        (*findings, *left_out),
    )


def _cursor(file: BufferFile, rows: int) -> tuple[int, bool, tuple[Finding, ...]]:
    """Returns `pos`, `full`, and a finding if the oldest step is not row 0.

    Without `pos` and `full`, all rows are steps in their order.
    """
    if not rows:
        return 0, False, ()
    if POSITION not in file.scalars or FULL not in file.scalars:
        message = f"there is no '{POSITION}' and '{FULL}': all rows are read in their order"
        return 0, True, (Finding("position-assumed", message, file=file.name),)
    position, full = file.scalars[POSITION], file.scalars[FULL]
    if type(position) is not int or not 0 <= position < rows or full not in (0, 1):
        raise CorruptSourceError(
            f"'{POSITION}' is {position!r} and '{FULL}' is {full!r} in a buffer of {rows} rows",
            file=file.name,
            hint="save buffer.pos and buffer.full together with the arrays",
        )
    if not full:
        return position, False, ()
    message = "the buffer is full: it is read from its oldest step; its first episodes may lack their first steps"
    return position, True, (Finding("ring-buffer", message, file=file.name, row=position),)


def _is_next(name: str) -> bool:
    return name == _NEXT or name.startswith(f"{_NEXT}.")


def _column(file: BufferFile, source: str, name: str, next_source: str | None, has_last_row: bool) -> ColumnSpec:
    array = file.arrays[source]
    dtype, shape = array.dtype, array.shape[2:]
    if dtype not in DTYPES or 0 in shape:
        raise UnsupportedColumnError(
            f"holds {dtype} of shape {shape} per step, and a column holds numbers or booleans",
            file=file.name,
            column=source,
            hint=leave_out(source),
        )
    after = file.arrays.get(next_source or "")
    if after is not None and (after.dtype, after.shape[2:]) != (dtype, shape):
        raise BadEpisodeError(
            f"is {after.dtype} {after.shape}, where '{source}' is {dtype} {array.shape}",
            file=file.name,
            column=next_source,
            hint="save both arrays of the same buffer",
        )
    if name in SCALAR_COLUMNS and shape == (1,):
        shape = ()
    is_observation = name.split(".", 1)[0] == _OBSERVATIONS
    has_final = next_source is not None or (has_last_row and is_observation)
    return ColumnSpec(name, dtype, shape, False, None if source == name else source, has_final)


def find_episodes(file: BufferFile, layout: BufferLayout) -> BufferEpisodes:
    """Finds the episodes, which `dones` ends, in the steps of every environment.

    Raises:
        BadEpisodeError: a flag is neither 0 nor 1.
    """
    source, envs = layout.sources[DONES], layout.environments
    step = max(1, _SCAN_BYTES // (8 * envs))
    found: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
    for start in range(0, layout.steps, step):
        stop = min(layout.steps, start + step)
        flags = layout.read(file, source, start, stop).reshape(stop - start, envs)
        wrong = np.argwhere((flags != 0) & (flags != 1))
        if len(wrong):
            raise BadEpisodeError(
                f"holds {flags[tuple(wrong[0])]}, but a flag must be 0 or 1",
                file=layout.name,
                column=source,
                row=(layout.oldest + start + int(wrong[0][0])) % layout.rows,
                hint="if it is not an end flag, give it another name with --rename",
            )
        times, environments = np.nonzero(flags)
        found.append((times + start + 1, environments))
    tails = np.full(envs, layout.steps), np.arange(envs)
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


def _is_all_zero(file: BufferFile, source: str, shape: tuple[int, ...]) -> bool:
    """Returns whether an array of flags of this shape is zero everywhere."""
    array = file.arrays[source]
    if array.shape != shape or array.dtype not in DTYPES:
        return False
    rows, step = shape[0], max(1, _SCAN_BYTES // (8 * shape[1]))
    return not any(array.read(row, min(rows, row + step)).any() for row in range(0, rows, step))
