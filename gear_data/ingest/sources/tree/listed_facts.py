"""Facts of episodes that a JSON file beside the arrays lists, as ManiSkill writes them.

`trajectory.json` beside `trajectory.h5` has a list `episodes`. The entry whose `episode_id` is 3 is about the group
`traj_3`. The other keys are about all episodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from gear_data.errors import GearError
from gear_data.ingest.findings.log import Finding
from gear_data.ingest.location import Location, SourceFile
from gear_data.ingest.pipeline.mapped_source import MappedSource
from gear_data.ingest.pipeline.names import is_storable
from gear_data.ingest.source import EpisodeSource
from gear_data.ingest.sources.json_files import read_json_object
from gear_data.storage.episode_block import EpisodeBlock

#: Facts in deeper mappings are JSON.
_MAX_DEPTH = 8
_EPISODES, _NUMBER, _STEPS = "episodes", "episode_id", "elapsed_steps"


def with_listed_facts(source: EpisodeSource, location: Location, files: Sequence[str]) -> EpisodeSource:
    """Returns a source whose episodes have the facts that JSON files list.

    Args:
        source: a source whose rows are the numbers of the episodes of a file.
        location: the source's files.
        files: the names of the files that hold episodes.
    """
    found: dict[str, dict[int, dict[str, Any]]] = {}
    metadata: dict[str, Any] = {}
    read: list[str] = []
    for name in files:
        beside = location.file(str(PurePosixPath(name).with_suffix(".json")))
        if beside is not None and (contents := _contents(beside)) is not None:
            found[name] = contents.pop(_EPISODES)
            metadata = {**contents, **metadata}
            read.append(beside.name)
    _make_alike([entry for entries in found.values() for entry in entries.values()])
    return _WithFacts(source, found, {**metadata, **source.metadata}, frozenset(read)) if found else source


def _contents(file: SourceFile) -> dict[str, Any] | None:
    """Returns the contents of a file that lists episodes, as number -> facts; None for another file."""
    with suppress(GearError, RecursionError):
        contents = read_json_object(file)
        listed = contents.get(_EPISODES)
        if isinstance(listed, list) and all(isinstance(entry, dict) for entry in listed):
            numbers = [entry.get(_NUMBER) for entry in listed]
            if numbers and all(type(number) is int for number in numbers) and len({*numbers}) == len(numbers):
                return {**contents, _EPISODES: {entry[_NUMBER]: _flat(entry) for entry in listed}}
    return None


def _make_alike(entries: Sequence[dict[str, Any]]) -> None:
    """Turns the values of a fact into JSON where they are lists, have several types, or do not fit 64 bits."""
    for name in dict.fromkeys(name for entry in entries for name in entry):
        values = [entry[name] for entry in entries if entry.get(name) is not None]
        types = {*map(type, values)}
        alike = (len(types) < 2 and list not in types) or types == {int, float}
        if not alike or any(type(value) is int and not -(1 << 63) <= value < 1 << 63 for value in values):
            for entry in entries:
                if entry.get(name) is not None:
                    entry[name] = json.dumps(entry[name])


def _flat(entry: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Returns the facts of an entry. Nested names are dotted; names that no fact can have are left out."""
    found: dict[str, Any] = {}
    for name, value in entry.items():
        if isinstance(value, dict) and depth < _MAX_DEPTH:
            found |= {f"{name}.{key}": each for key, each in _flat(value, depth + 1).items()}
        elif name != _NUMBER:
            found[name] = json.dumps(value) if isinstance(value, dict) else value
    return {name: value for name, value in found.items() if is_storable(name)}


class _WithFacts(MappedSource):
    """An `EpisodeSource` whose episodes have listed facts.

    Args:
        source: the other source.
        listed: name of a file -> number of an episode -> its facts.
        metadata: the metadata of both.
        files_read: the names of the files that have the lists.
    """

    def __init__(
        self,
        source: EpisodeSource,
        listed: Mapping[str, Mapping[int, Mapping[str, Any]]],
        metadata: Mapping[str, Any],
        files_read: frozenset[str],
    ) -> None:
        super().__init__(source)
        self._listed, self._metadata = listed, metadata
        self._names = dict.fromkeys(name for entries in listed.values() for each in entries.values() for name in each)
        self.files_read = files_read

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._metadata

    def _mapped(self, piece: EpisodeBlock) -> Iterator[EpisodeBlock]:
        numbers = zip(piece.sources, piece.rows.tolist(), strict=True)
        entries = [self._listed.get(file, {}).get(number) for file, number in numbers]
        for i, entry in enumerate(entries):
            if entry is None:
                self._report(piece, i, "the JSON file beside the file does not list the episode; kept", _NUMBER)
            elif entry.get(_STEPS, piece.lengths[i]) != piece.lengths[i]:
                message = f"the JSON file says {entry[_STEPS]}, and the episode has {piece.lengths[i]} steps"
                self._report(piece, i, message, _STEPS)
        facts = {name: [None if entry is None else entry.get(name) for entry in entries] for name in self._names}
        yield replace(piece, metadata={**facts, **piece.metadata})

    def _report(self, piece: EpisodeBlock, episode: int, message: str, column: str) -> None:
        place = piece.sources[episode], int(piece.rows[episode])
        self.findings.add(Finding("metadata-disagrees", message, 1, *place, column))
