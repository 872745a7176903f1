"""Episodes in memory, such as mappings, or Minari's or d3rlpy's episodes.

`gear_data.ingest.pipeline.episode_stream.EpisodeStream` documents the contents of an episode. Observations, actions
and infos may be mappings (Dict spaces) and tuples (Tuple spaces) of arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from gear_data.errors import InvalidArgumentError, UnknownFormatError
from gear_data.ingest.location import Location
from gear_data.ingest.pipeline.episode_stream import EpisodeStream
from gear_data.ingest.source import EpisodeSource, Format, SourceOptions, Unit
from gear_data.ingest.sources.arrays.layouts import USES
from gear_data.ingest.sources.memory.arrays import open_arrays
from gear_data.storage.episode_block import BEGIN


def probe(location: Location) -> str | None:
    """Returns the reason if the location holds data in memory; otherwise None."""
    if location.arrays is not None:
        return f"arrays in memory, with a row per step: {', '.join(location.arrays)}"
    return None if location.episodes is None else "episodes in memory"


def open_(location: Location, options: SourceOptions) -> EpisodeSource:
    """Opens episodes or arrays in memory. Raises UnknownFormatError for files."""
    if location.arrays is not None:
        return open_arrays(location.arrays, location.name, options)
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


FORMAT = Format("in-memory", probe, open_, uses=USES)
