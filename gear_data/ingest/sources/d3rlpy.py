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

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import BadEpisodeError, CorruptSourceError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.location import Location, SourceFile, placed
from gear_data.ingest.pipeline.episode_stream import EpisodeStream
from gear_data.ingest.source import UNIT_BYTES, Format, SourceOptions, Unit
from gear_data.ingest.sources.hdf5.open_file import HDF5_SUFFIXES, hdf5_files, reading
from gear_data.ingest.sources.tree.blocks import fact_value
from gear_data.ingest.sources.tree.hdf5_view import open_tree
from gear_data.ingest.sources.tree.view import Tree, TreeArray
from gear_data.schema import VARIABLE_TYPES
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


def probe(location: Location) -> str | None:
    """Returns the reason if the first HDF5 file is d3rlpy's; otherwise None."""
    files = hdf5_files(location)
    if not files:
        return None
    with open_tree(files[0]) as tree:
        for count in (_COUNT, _STACKED_COUNT):
            if all(tree.array(name) is not None for name in (_COLUMNS, count, _VERSION)):
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
        raise UnknownFormatError("holds no HDF5 file", hint="leave --format out")
    findings = FindingLog()
    contents = [_contents(file, findings) for file in files]

    def read(start: int, stop: int | None) -> Iterator[dict[str, Any] | BadEpisodeError]:
        first = 0
        for item in contents:
            last = first + item.episodes if stop is None else min(stop, first + item.episodes)
            if max(start, first) < last:
                with placed(item.file.name), open_tree(item.file) as tree:
                    for number in range(max(start, first), last):
                        yield _arrays_or_error(tree, item, number - first)
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
    with placed(file.name), open_tree(file) as tree:
        with reading(file.name):
            names = list(tree.file)
        stacked = _COUNT not in names
        count_name = _STACKED_COUNT if stacked else _COUNT
        for name in (_COLUMNS, count_name):
            if name not in names:
                raise UnknownFormatError(
                    f"has no dataset '{name}', which d3rlpy's files have", hint="leave --format out"
                )
        columns = _column_names(tree)
        count = fact_value(_array(tree, count_name))
        if type(count) is not int or count < 0 or (not stacked and count > len(names)):
            raise CorruptSourceError(
                f"is {count!r}, but the file has {len(names)} datasets", column=count_name, hint=_WRITE_AGAIN
            )
        version = fact_value(_array(tree, _VERSION)) if _VERSION in names else None
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


def _column_names(tree: Tree) -> tuple[str, ...]:
    """Reads the names of an episode's arrays.

    Raises CorruptSourceError if they are not a list of different names.
    """
    array = _array(tree, _COLUMNS)
    names: list[Any] = []
    if len(array.shape) == 1 and array.rows <= _MAX_COLUMNS and array.dtype == "string":
        names = pa.array(array.read(0, array.rows)).to_pylist()
    if not names or not all(names) or len(set(names)) != len(names):
        raise CorruptSourceError(
            f"holds {array.dtype} {array.shape}, not a list of different names", column=_COLUMNS, hint=_WRITE_AGAIN
        )
    return tuple(names)


def _array(tree: Tree, name: str) -> TreeArray:
    """Opens a dataset of the file.

    Raises CorruptSourceError for a link to elsewhere and for a group.
    """
    array = tree.array(name)
    if array is None:
        raise CorruptSourceError(f"is {tree.children('')[name]}, not a dataset", column=name, hint=_WRITE_AGAIN)
    return array


def _arrays_or_error(tree: Tree, contents: _Contents, index: int) -> dict[str, Any] | BadEpisodeError:
    """Reads an episode while its file is open.

    `_without_error` raises the error later, where an episode can be skipped.
    """
    try:
        return _arrays(tree, contents, index)
    except BadEpisodeError as error:
        return error


def _without_error(item: dict[str, Any] | BadEpisodeError) -> dict[str, Any]:
    if isinstance(item, BadEpisodeError):
        raise item
    return item


def _arrays(tree: Tree, contents: _Contents, index: int) -> dict[str, Any]:
    """Reads the arrays of an episode.

    Raises:
        BadEpisodeError: an array is missing, or `terminated` is not one flag.
    """
    values: dict[str, Any] = {}
    for column in contents.columns:
        name = column if contents.stacked else f"{column}_{index}"
        if (array := tree.array(name)) is not None:
            values[column] = _read(array, contents, index, column)
            continue
        parts = 0
        while (array := tree.array(f"{name}_{parts}")) is not None:
            values[f"{column}.{parts}"] = _read(array, contents, index, column)
            parts += 1
        if not parts and name in tree.children(""):
            _array(tree, name)  # raises the error about a link or a group
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


def _read(array: TreeArray, contents: _Contents, index: int, column: str) -> npt.NDArray[Any]:
    """Reads a dataset, or an episode's row of it, in native byte order."""
    if array.dtype in VARIABLE_TYPES and len(array.shape) == 1 and not contents.stacked:
        is_image = array.holds_images()
        strings = array.byte_strings(0, array.rows) if is_image else array.read(0, array.rows).tolist()
        return np.array(strings, object)
    if not array.kind:
        raise UnsupportedColumnError(
            f"holds {array.dtype}, which is not a number, a boolean or text",
            column=column,
            hint=f"convert a copy of the file without this array, and without its name in '{_COLUMNS}'",
        )
    if not contents.stacked:
        return np.asarray(array.read(0, array.rows)).reshape(array.shape)
    if array.shape[:1] != (contents.episodes,):
        raise CorruptSourceError(
            f"has the shape {array.shape}, where its first axis must be {contents.episodes} episodes",
            column=array.path,
            hint=_WRITE_AGAIN,
        )
    return np.asarray(array.read(index, index + 1)[0])


FORMAT = Format("d3rlpy", probe, open_, uses=frozenset({"dtype"}), suffixes=HDF5_SUFFIXES)
