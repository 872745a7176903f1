"""Episodes in memory, such as mappings, or Minari's or d3rlpy's episodes; and arrays of steps in memory.

`gear_data.ingest.pipeline.episode_stream.EpisodeStream` documents the contents of an episode. Observations, actions
and infos may be mappings (Dict spaces) and tuples (Tuple spaces) of arrays. Arrays with a row a step are such as D4RL's
`env.get_dataset()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.errors import BadEpisodeError, InvalidArgumentError, UnknownFormatError, UnsupportedColumnError
from gear_data.ingest.findings.log import Finding, FindingLog
from gear_data.ingest.ideas.dataset_facts import dataset_facts
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.pipeline.episode_stream import EpisodeStream
from gear_data.ingest.pipeline.episode_values import flatten, refuse_masked
from gear_data.ingest.source import EpisodeSource, Format, SourceOptions, Unit
from gear_data.ingest.sources.arrays.layouts import USES, open_flat
from gear_data.ingest.sources.arrays.numpy_files import StoredArray
from gear_data.ingest.sources.arrays.source import ArraySource
from gear_data.ingest.sources.hdf5.attributes import plain_value
from gear_data.storage.episode_block import BEGIN

#: The arrays by which D4RL's data is known.
_D4RL = frozenset({"observations", "actions", "rewards", "terminals"})
_D4RL_METADATA = "metadata/"


def probe(location: Location) -> str | None:
    """Returns the reason if the location holds data in memory; otherwise None."""
    if location.arrays is not None:
        return f"arrays in memory, with a row per step: {', '.join(location.arrays)}"
    return None if location.episodes is None else "episodes in memory"


def open_(location: Location, options: SourceOptions) -> EpisodeSource:
    """Opens episodes or arrays in memory. Raises UnknownFormatError for files."""
    if location.arrays is not None:
        return _open_arrays(location.arrays, location.name, options)
    episodes = location.episodes
    if episodes is None:
        raise UnknownFormatError("is not an iterable of episodes", hint="leave --format out")
    for name in options.episodes.given:
        raise InvalidArgumentError(
            f"the format {FORMAT.name} does not support {name}, because each item is an episode",
            hint="leave it out, or give arrays with a row per step",
        )
    count = len(episodes) if hasattr(episodes, "__len__") else None
    is_iterator = not callable(episodes) and iter(episodes) is episodes
    reader = _OneShotEpisodes(episodes, location.name) if is_iterator else _RepeatableEpisodes(episodes, location.name)
    return EpisodeStream(location.name, reader.read, options, units=[Unit(BEGIN, 0)], num_rows=count)


class _RepeatableEpisodes:
    """Episodes that can be read any number of times.

    They are an iterable, or a function that returns an iterable.
    """

    def __init__(self, episodes: Any, name: str) -> None:
        self._episodes = episodes
        self._name = name

    def read(self, start: int, stop: int | None) -> Iterator[Any]:
        episodes = self._episodes() if callable(self._episodes) else self._episodes
        if not isinstance(episodes, Iterable) and not hasattr(episodes, "__getitem__"):
            raise InvalidArgumentError(
                f"returns {type(episodes).__name__}, where an iterable of episodes is expected",
                file=self._name,
                hint="return a list, or write a generator function that yields one episode at a time",
            )
        return islice(episodes, start, stop)


class _OneShotEpisodes:
    """Episodes from an iterator, which can be read only once.

    The first episode can be read again.
    """

    def __init__(self, episodes: Iterator[Any], name: str) -> None:
        self._name = name
        self._first = list(islice(episodes, 1))
        self._rest: Iterator[Any] | None = episodes

    def read(self, start: int, stop: int | None) -> Iterator[Any]:
        if (start, stop) == (0, 1):
            return iter(self._first)
        if self._rest is None:
            raise InvalidArgumentError(
                "the iterator has been read already, and cannot be read again",
                file=self._name,
                hint="pass a list, or the generator function itself",
            )
        rest, self._rest = self._rest, None
        return islice(chain(self._first, rest), start, stop)


def _open_arrays(values: Mapping[str, Any], name: str, options: SourceOptions) -> ArraySource:
    """Opens arrays of steps in memory, as the same arrays in an `.npz` file.

    D4RL's are read as D4RL's files: a step of both flags is terminal, and `metadata/...` are facts about the source.

    Args:
        values: name -> array [N, ...]; nested mappings become dotted names.
        name: the name of the source, for messages.
        options: the user's options.

    Raises:
        UnknownFormatError: nothing says where episodes end.
        BadEpisodeError: the arrays have different lengths, are ragged, or have masked values.
        UnsupportedColumnError: an array has a dtype that no column has.
    """
    arrays = {key: _as_array(value, key) for key, value in flatten(values).items() if value is not None}
    findings = FindingLog()
    metadata: dict[str, Any] = {}
    if arrays.keys() >= _D4RL:
        names = [key for key in arrays if key.startswith(_D4RL_METADATA)]
        found = {key.removeprefix(_D4RL_METADATA): plain_value(arrays.pop(key)) for key in names}
        metadata, left_out = dataset_facts(found, name)
        findings.extend(left_out)
        if "timeouts" in arrays:
            arrays["timeouts"] = _without_terminals(arrays, name, findings)
    stored = {
        key: StoredArray(SourceFile("", name, array.nbytes), array.dtype, array.shape, member=key, values=array)
        for key, array in arrays.items()
    }
    size = sum(array.nbytes for array in arrays.values())
    try:
        source = open_flat([(name, size, lambda: stored)], options, seekable=True)
    except UnknownFormatError as error:
        error.hint = f"{error.hint}; if all rows are one episode, put the mapping into a list"
        raise
    source.findings, source.metadata = findings, metadata
    return source


def _as_array(value: Any, key: str) -> npt.NDArray[Any]:
    refuse_masked(value, key)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged lists; tensors that NumPy cannot hold
        raise BadEpisodeError(
            f"cannot be converted to an array: {error}",
            column=key,
            hint="give an array with a row per step, or one mapping per episode in a list",
        ) from error
    if array.dtype.hasobject:
        raise UnsupportedColumnError(
            "is an array of Python objects, and a column holds numbers, booleans or text",
            column=key,
            hint="convert it to one type, or leave it out of the mapping",
        )
    return array


def _without_terminals(arrays: Mapping[str, npt.NDArray[Any]], name: str, findings: FindingLog) -> npt.NDArray[Any]:
    """Returns D4RL's `timeouts` without the steps that are terminal, too."""
    terminals, timeouts = arrays["terminals"].astype(np.bool_), arrays["timeouts"].astype(np.bool_)
    if terminals.shape != timeouts.shape or not (both := terminals & timeouts).any():
        return arrays["timeouts"]
    message = "terminals and timeouts are both set; read as terminated, not truncated"
    findings.add(Finding("both-flags", message, int(both.sum()), name, int(np.argmax(both))))
    return timeouts & ~both


FORMAT = Format("in-memory", probe, open_, uses=USES, in_time_order=True)
