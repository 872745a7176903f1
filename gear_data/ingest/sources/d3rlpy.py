"""HDF5 files of d3rlpy's `ReplayBuffer.dump` and `MDPDataset.dump`.

Source: https://github.com/takuseno/d3rlpy, `d3rlpy/dataset/io.py`.

The dataset `columns` lists the arrays of an episode: `observations`, `actions`, `rewards` and `terminated`, a flag.

- Version 2.1 has a dataset for each episode and array, `actions_0`. `num_episodes` counts the episodes.
- Version 2.0 has a dataset for each array, `actions`, whose first axis is the episode. `total_size` counts them.

Observations of a Tuple space are `observations_0_0`, `observations_0_1`, ... in 2.1, and `observations_0`, ... in 2.0.
They become `observations.0`, `observations.1`. An episode that did not terminate was truncated. There are no final
observations. Version 1 has D4RL's flat arrays and `episode_terminals`, which the format d4rl reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from h5py import h5d, h5l

from gear_data.errors import BadEpisodeError, CorruptSourceError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.pipeline.episode_stream import EpisodeStream
from gear_data.ingest.source import UNIT_BYTES, Format, SourceOptions, Unit
from gear_data.ingest.sources.hdf5.attributes import plain_value
from gear_data.ingest.sources.hdf5.datasets import check_dataset, read_fixed
from gear_data.ingest.sources.hdf5.heap_checks import check_heaps
from gear_data.ingest.sources.hdf5.open_file import HDF5_SUFFIXES, hdf5_files, open_hdf5, reading
from gear_data.schema import DTYPES
from gear_data.storage.episode_block import Position

_COLUMNS, _VERSION = "columns", "version"
#: The datasets that count the episodes, in version 2.1 and in 2.0.
_COUNT, _STACKED_COUNT = "num_episodes", "total_size"
_TERMINATED = "terminated"
#: d3rlpy has four columns; episode classes of users may have more.
_MAX_COLUMNS = 1000
_WRITE_AGAIN = "the file may have been truncated: download it again, or write it again with ReplayBuffer.dump"


@dataclass(frozen=True)
class _Contents:
    """The contents of one file.

    Attributes:
        file: the file.
        columns: the names of an episode's arrays.
        episodes: the number of episodes.
        stacked: whether the first axis of each dataset is the episode (version 2.0).
        version: the version that the file declares, or None.
    """

    file: SourceFile
    columns: tuple[str, ...]
    episodes: int
    stacked: bool
    version: str | None


@dataclass(frozen=True)
class _OpenEpisode:
    """An episode of an open file."""

    opened: h5py.File
    contents: _Contents
    index: int


def probe(location: Location) -> str | None:
    """Returns the reason if the first HDF5 file is d3rlpy's; otherwise None."""
    files = hdf5_files(location)
    if not files:
        return None
    with open_hdf5(files[0]) as file, reading(files[0].name):
        for count in (_COUNT, _STACKED_COUNT):
            if all(isinstance(file.get(name), h5py.Dataset) for name in (_COLUMNS, count, _VERSION)):
                return f"d3rlpy: {files[0].name} has {_COLUMNS}, {count}, {_VERSION}"
    return None


def open_(location: Location, options: SourceOptions) -> EpisodeStream:
    """Opens d3rlpy's files.

    Raises:
        UnknownFormatError: there is no HDF5 file, or a file has no `columns` and no number of episodes.
        CorruptSourceError: a file is damaged.
    """
    files = hdf5_files(location)
    if not files:
        raise UnknownFormatError("holds no HDF5 file", file=location.name, hint="leave --format out")
    findings = FindingLog()
    contents = [_contents(file, findings) for file in files]

    def read(start: int, stop: int | None) -> Iterator[dict[str, Any] | BadEpisodeError]:
        first = 0
        for item in contents:
            last = first + item.episodes if stop is None else min(stop, first + item.episodes)
            if max(start, first) < last:
                with open_hdf5(item.file) as opened:
                    for number in range(max(start, first), last):
                        yield _arrays_or_error(_OpenEpisode(opened, item, number - first))
            first += item.episodes

    name = files[0].name if len(files) == 1 else location.name
    stream = EpisodeStream(
        name,
        read,
        options,
        units=_units(contents),
        num_rows=sum(item.episodes for item in contents),
        metadata={"d3rlpy_version": contents[0].version},
        prepare=_without_error,
    )
    stream.findings.restore(findings.to_json())
    return stream


def _units(contents: Sequence[_Contents]) -> list[Unit]:
    """Returns runs of episodes of about `UNIT_BYTES`.

    The size of an episode is estimated as its file's mean.
    """
    units, first = [], 0
    for item in contents:
        count = max(1, int(UNIT_BYTES * item.episodes / max(1, item.file.size)))
        for start in range(0, item.episodes, count):
            size = item.file.size * min(count, item.episodes - start) // item.episodes
            units.append(Unit(Position(0, first + start), size))
        first += item.episodes
    return units


def _contents(file: SourceFile, findings: FindingLog) -> _Contents:
    """Reads the declarations of a file, and reports datasets that no episode has."""
    with open_hdf5(file) as opened:
        with reading(file.name):
            names = list(opened)
        stacked = _COUNT not in names
        count_name = _STACKED_COUNT if stacked else _COUNT
        for name in (_COLUMNS, count_name):
            if name not in names:
                raise UnknownFormatError(
                    f"has no dataset '{name}', which d3rlpy's files have", file=file.name, hint="leave --format out"
                )
        columns = _column_names(opened, file)
        count = _value(opened, file, count_name)
        if type(count) is not int or count < 0 or (not stacked and count > len(names)):
            raise CorruptSourceError(
                f"is {count!r}, but the file has {len(names)} datasets",
                file=file.name,
                column=count_name,
                hint=_WRITE_AGAIN,
            )
        version = _value(opened, file, _VERSION) if _VERSION in names else None
    known = {_COLUMNS, count_name, _VERSION}
    number = "(_[0-9]{1,18})?" if stacked else "_(?P<episode>[0-9]{1,18})(_[0-9]{1,18})?"
    pattern = re.compile(f"({'|'.join(map(re.escape, columns))}){number}")
    left_out = [
        name
        for name in names
        if name not in known
        and ((match := pattern.fullmatch(name)) is None or (not stacked and int(match["episode"]) >= count))
    ]
    if left_out:
        message = f"is not in '{_COLUMNS}', or beyond the {count} episodes of '{count_name}'; left out"
        findings.add(Finding("column-left-out", message, len(left_out), file.name, None, left_out[0]))
    return _Contents(file, columns, count, stacked, None if version is None else str(version))


def _column_names(opened: h5py.File, file: SourceFile) -> tuple[str, ...]:
    """Reads the names of an episode's arrays.

    Raises CorruptSourceError if they are not a list of different names.
    """
    dataset = _dataset(opened, file, _COLUMNS)
    shape = check_dataset(dataset, file, _COLUMNS)
    names: list[Any] = []
    if len(shape) == 1 and shape[0] <= _MAX_COLUMNS and h5py.check_string_dtype(dataset.dtype) is not None:
        with reading(file.name, _COLUMNS):
            values = h5py.Dataset(dataset)
            check_heaps(values)
            names = [plain_value(value) for value in values[...].tolist()]
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) != len(names):
        raise CorruptSourceError(
            f"holds {dataset.dtype} {shape}, not a list of different names",
            file=file.name,
            column=_COLUMNS,
            hint=_WRITE_AGAIN,
        )
    return tuple(names)


def _value(opened: h5py.File, file: SourceFile, name: str) -> Any:
    """Reads a number or a text."""
    dataset = _dataset(opened, file, name)
    if check_dataset(dataset, file, name) != ():
        return None
    with reading(file.name, name):
        values = h5py.Dataset(dataset)
        if h5py.check_string_dtype(values.dtype) is None and values.dtype.kind not in "biuf":
            return None
        check_heaps(values)
        return plain_value(values[()])


def _dataset(opened: h5py.File, file: SourceFile, name: str) -> h5d.DatasetID:
    """Opens a dataset of the file.

    Raises CorruptSourceError for a link to elsewhere and for a group.
    """
    with reading(file.name, name):
        if opened.id.links.get_info(name.encode()).type != h5l.TYPE_HARD:
            raise CorruptSourceError(
                "is a link to elsewhere, which is not followed", file=file.name, column=name, hint=_WRITE_AGAIN
            )
        return h5d.open(opened.id, name.encode())


def _arrays_or_error(episode: _OpenEpisode) -> dict[str, Any] | BadEpisodeError:
    """Reads an episode while its file is open.

    `_without_error` raises the error later, where an episode can be skipped.
    """
    try:
        return _arrays(episode)
    except BadEpisodeError as error:
        return error


def _without_error(item: dict[str, Any] | BadEpisodeError) -> dict[str, Any]:
    if isinstance(item, BadEpisodeError):
        raise item
    return item


def _arrays(episode: _OpenEpisode) -> dict[str, Any]:
    """Reads the arrays of an episode.

    Raises:
        BadEpisodeError: an array is missing, or `terminated` is not one flag.
    """
    contents = episode.contents
    values: dict[str, Any] = {}
    for column in contents.columns:
        name = column if contents.stacked else f"{column}_{episode.index}"
        if name.encode() in episode.opened.id:
            values[column] = _read(episode, name, column)
            continue
        parts = 0
        while f"{name}_{parts}".encode() in episode.opened.id:
            values[f"{column}.{parts}"] = _read(episode, f"{name}_{parts}", column)
            parts += 1
        if not parts:
            raise BadEpisodeError(f"there is no dataset '{name}'", column=column)
    terminated = values.get(_TERMINATED)
    if terminated is not None:
        if terminated.size != 1 or terminated.reshape(-1)[0] not in (0, 1):
            raise BadEpisodeError(
                f"holds {terminated.dtype} {terminated.shape}, not one flag of the episode", column=_TERMINATED
            )
        # d3rlpy: the flag stays false at a timeout.
        values[_TERMINATED] = terminated.reshape(1).astype(np.bool_)
        values["truncated"] = ~values[_TERMINATED]
    return values


def _read(episode: _OpenEpisode, name: str, column: str) -> npt.NDArray[Any]:
    """Reads a dataset, or an episode's row of it, in native byte order."""
    file, stacked = episode.contents.file, episode.contents.stacked
    dataset = _dataset(episode.opened, file, name)
    shape = check_dataset(dataset, file, name)
    if str(dataset.dtype.newbyteorder("=")) not in DTYPES:
        raise UnsupportedColumnError(
            f"holds {dataset.dtype}, which is not a number or a boolean",
            column=column,
            hint=f"convert a copy of the file without this array, and without its name in '{_COLUMNS}'",
        )
    with reading(file.name, name):
        if not stacked:
            return read_fixed(dataset, shape, dataset.dtype.newbyteorder("="))
        if not shape or shape[0] != episode.contents.episodes:
            raise CorruptSourceError(
                f"has the shape {shape}, where its first axis must be {episode.contents.episodes} episodes",
                file=file.name,
                column=name,
                hint=_WRITE_AGAIN,
            )
        values = np.asarray(h5py.Dataset(dataset)[episode.index])
        return values.astype(values.dtype.newbyteorder("="), copy=False)


FORMAT = Format(
    name="d3rlpy",
    probe=probe,
    open=open_,
    priority=14,
    suffixes=HDF5_SUFFIXES,
)
