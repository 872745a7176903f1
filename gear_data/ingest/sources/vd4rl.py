"""V-D4RL's HDF5 shards of 84 x 84 images: https://github.com/conglu1997/v-d4rl.

A shard holds `observation` [N, C, H, W], `action`, `reward`, `discount` and `step_type` of time steps of `dm_env`, one
after another. `step_type` is 0 in an episode's first row, 2 in its last one, and 1 between. A row has the action, the
reward and the discount that led to its observation, so they belong to the step before. The first row of an episode has
none. The reference is `EfficientReplayBuffer` in drqbc/numpy_replay_buffer.py.

The archives of 64 x 64 images are Dreamer's: `gear_data.ingest.sources.arrays.dreamer` reads them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from gear_data.errors import BadEpisodeError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.pipeline.columns import choose_columns
from gear_data.ingest.pipeline.names import is_observation
from gear_data.ingest.source import Format, SourceOptions
from gear_data.ingest.sources.arrays.boundaries import without_final_rows
from gear_data.ingest.sources.arrays.source import ArraySource
from gear_data.ingest.sources.arrays.step_arrays import EpisodeRanges, StepArrays
from gear_data.ingest.sources.hdf5.datasets import check_dataset, step_spec
from gear_data.ingest.sources.hdf5.inventory import inventory, links_of, refuse_links
from gear_data.ingest.sources.hdf5.open_file import HDF5_SUFFIXES, hdf5_files, open_hdf5, reading

_STEP_TYPE, _DISCOUNT = "step_type", "discount"
_REQUIRED = ("observation", "action", "reward", _DISCOUNT, _STEP_TYPE)
_FIRST, _MID, _LAST = 0, 1, 2
#: Bytes of an array that are read at once, in whole HDF5 chunks, and kept for the reads that follow.
_SLAB_BYTES = 64 << 20


def probe(location: Location) -> str | None:
    """Returns the reason if the first HDF5 file has the arrays of V-D4RL."""
    files = hdf5_files(location)
    if not files:
        return None
    with open_hdf5(files[0]) as file, reading(files[0].name):
        if all(isinstance(file.get(name), h5py.Dataset) for name in _REQUIRED):
            return f"V-D4RL: {files[0].name} has {', '.join(_REQUIRED)}"
    return None


def open_(location: Location, options: SourceOptions) -> ArraySource:
    """Opens HDF5 shards. Raises UnknownFormatError if the source has no HDF5 file."""
    files = hdf5_files(location)
    if not files:
        raise UnknownFormatError("holds no HDF5 file", file=location.name, hint="leave --format out")
    sizes = [file.size for file in files]
    return ArraySource(
        [file.name for file in files],
        sizes,
        lambda i: _step_arrays(files[i], options),
        FindingLog(),
        open_reader=_DatasetReader,
    )


@dataclass(frozen=True)
class _Dataset:
    """A dataset of a file, whose shape and size were checked.

    Attributes:
        file: the file.
        name: the name of the dataset.
        dtype: the stored dtype; its byte order may not be native.
        shape: the shape. The first axis is the rows.
        chunk_rows: the rows of an HDF5 chunk; 1 if the dataset has no chunks.
    """

    file: SourceFile
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunk_rows: int

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[1:]

    def column_dtype(self, column: str) -> str:
        """Returns the dtype of a column with these values.

        Raises UnsupportedColumnError if they are no numbers.
        """
        with open_hdf5(self.file) as file, reading(self.file.name, self.name):
            spec = step_spec(file[self.name], self.name, column, self.file.name)
        if spec.variable_length:
            raise UnsupportedColumnError(f"holds {spec.dtype}, not numbers", file=self.file.name, column=self.name)
        return spec.dtype


class _DatasetReader:
    """A reader of whole HDF5 chunks, which keeps the last ones of each dataset."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._files: dict[str, h5py.File] = {}
        self._slabs: dict[str, tuple[int, npt.NDArray[Any]]] = {}

    def __enter__(self) -> _DatasetReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def read(self, array: _Dataset, start: int, stop: int) -> npt.NDArray[Any]:
        """Reads the rows [start, stop), in native byte order.

        Raises CorruptSourceError if the file is damaged.
        """
        first, slab = self._slabs.get(array.name, (0, np.empty(0)))
        if not (len(slab) and first <= start and stop <= first + len(slab)):
            first, last = _slab_rows(array, start, stop)
            with reading(array.file.name, array.name, start):
                if array.file.path not in self._files:
                    self._files[array.file.path] = self._open.enter_context(open_hdf5(array.file))
                slab = np.asarray(self._files[array.file.path][array.name][first:last])
            slab = slab.astype(slab.dtype.newbyteorder("="), copy=False)
            self._slabs[array.name] = first, slab
        return slab[start - first : stop - first]


def _slab_rows(array: _Dataset, start: int, stop: int) -> tuple[int, int]:
    """Returns rows of whole chunks around [start, stop).

    Returns [start, stop) itself if whole chunks are large.
    """
    row_bytes = max(1, math.prod(array.row_shape) * array.dtype.itemsize)
    chunk = array.chunk_rows
    if chunk * row_bytes > _SLAB_BYTES:
        return start, stop
    last = max(stop, start + _SLAB_BYTES // row_bytes)
    return start // chunk * chunk, min(len(array), -(-last // chunk) * chunk)


def _step_arrays(file: SourceFile, options: SourceOptions) -> StepArrays:
    """Opens the datasets of a shard.

    Raises:
        UnknownFormatError: a dataset is missing.
        BadEpisodeError: datasets have different lengths, or a time step has an unknown type.
    """
    with open_hdf5(file) as opened:
        found, non_columns = inventory(opened, file.name)
        refuse_links(non_columns, links_of(non_columns), file.name)
        if missing := [name for name in _REQUIRED if name not in found]:
            raise UnknownFormatError(
                f"has no dataset '{missing[0]}'", file=file.name, column=missing[0], hint="leave --format out"
            )
        datasets = {}
        for name, dataset in found.items():
            with reading(file.name, name):
                shape = check_dataset(dataset.id, file, name)
                chunk_rows = dataset.chunks[0] if dataset.chunks else 1
                datasets[name] = _Dataset(file, name, dataset.dtype, shape, chunk_rows)
    rows = len(datasets["action"])
    for name, array in datasets.items():
        if len(array) != rows:
            raise BadEpisodeError(
                f"has {len(array)} rows, where 'action' has {rows}",
                file=file.name,
                column=name,
                row=min(rows, len(array)),
                hint="download the file again",
            )
    step_type = datasets.pop(_STEP_TYPE)
    others = {name: f"observations.{name}" for name in datasets if name not in _REQUIRED}
    chosen = choose_columns(datasets, replace(options, rename={**others, **(options.rename or {})}))
    columns = {column: datasets[name] for name, column in chosen.items()}
    episodes = _episodes(file.name, step_type, datasets, options)
    return StepArrays(
        name=file.name,
        bytes=file.size,
        steps=int(episodes.lengths.sum()),
        arrays=columns,
        sources={**{column: name for name, column in chosen.items()}, "terminated": _DISCOUNT, "truncated": _STEP_TYPE},
        locate=lambda: episodes,
        final_row_columns=frozenset(filter(is_observation, columns)),
        shifted=frozenset(column for column in columns if not is_observation(column)),
        episode_flags=("terminated", "truncated"),
        seekable=True,
    )


def _episodes(name: str, step_type: _Dataset, arrays: Mapping[str, _Dataset], options: SourceOptions) -> EpisodeRanges:
    """Finds the episodes of a shard, and how they ended."""
    with _DatasetReader() as reader:
        types, discounts = (_numbers(reader, array) for array in (step_type, arrays[_DISCOUNT]))
        rewards = _numbers(reader, arrays["reward"])
    unknown = np.flatnonzero(~np.isin(types, (_FIRST, _MID, _LAST)))
    if len(unknown):
        raise BadEpisodeError(
            f"is {types[unknown[0]]}, which is no type of a time step: 0 (first), 1 or 2 (last)",
            file=name,
            column=_STEP_TYPE,
            row=int(unknown[0]),
            hint="download the file again",
        )
    begins = types == _FIRST
    begins[1:] |= types[:-1] == _LAST
    begins[:1] = True
    starts = np.flatnonzero(begins)
    findings = []
    if cut := int((types[starts] != _FIRST).sum()):
        row = int(starts[types[starts] != _FIRST][0])
        message = "rows begin inside an episode; the rest of the episode is read as an episode"
        findings.append(Finding("episode-cut", message, cut, name, row))
    if (at_reset := starts[(types[starts] == _FIRST) & (rewards[starts] != 0)]).size:
        message = "the reward of an episode's first row belongs to no step; left out"
        findings.append(Finding("reset-info-left-out", message, len(at_reset), name, int(at_reset[0]), "reward"))
    starts, lengths, empty = without_final_rows(name, _STEP_TYPE, starts, len(types), options)
    last_rows = starts + lengths
    is_last = types[last_rows] == _LAST
    if not is_last.all():
        row = int(last_rows[~is_last][0])
        message = "the last row of an episode is not marked as the last one; read as truncated"
        findings.append(Finding("unfinished-episode", message, int((~is_last).sum()), name, row))
    terminated = is_last & (discounts[last_rows] == 0)
    flags = {"terminated": terminated, "truncated": ~terminated}
    return EpisodeRanges(lengths, starts, flags=flags, findings=(*findings, *empty))


def _numbers(reader: _DatasetReader, array: _Dataset) -> npt.NDArray[Any]:
    """Reads one number a row.

    Raises BadEpisodeError if the dataset holds something else.
    """
    if array.dtype.kind not in "biuf" or array.row_shape not in ((), (1,)):
        raise BadEpisodeError(
            f"holds {array.dtype} {array.shape}, not one number a row",
            file=array.file.name,
            column=array.name,
            hint="download the file again",
        )
    return reader.read(array, 0, len(array)).reshape(-1)


FORMAT = Format(name="vd4rl", probe=probe, open=open_, priority=10, suffixes=HDF5_SUFFIXES)
