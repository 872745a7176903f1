"""Episodes in memory: any iterable of dicts, or of objects such as Minari's and d3rlpy's episodes.

An episode is `observations` [T + 1, ...] or [T, ...], `actions`, `rewards`, `terminations` or `terminated`,
`truncations` or `truncated` [T], `infos` [T + 1] or [T], and whatever else has T rows. Observations, actions and infos
may be dicts (Dict spaces) and tuples (Tuple spaces) of such arrays. A flag may also be one value, for the last step;
other single values are facts about the episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import (
    BadEpisodeError,
    EmptySourceError,
    InvalidArgumentError,
    UnknownFormatError,
    UnsupportedColumnError,
)
from gear_data.ingest.columns import END_FLAGS, SCALARS, choose_columns
from gear_data.ingest.findings import Finding, Findings
from gear_data.ingest.location import Location
from gear_data.ingest.names import canonical_name
from gear_data.ingest.source import Format, SourceOptions, Unit
from gear_data.schema import DTYPES, VARIABLE_TYPES, ColumnSpec
from gear_data.storage.block import BEGIN, EpisodeBlock, Position

_BLOCK_BYTES = 16 << 20
#: What is looked for in an episode that is an object and no mapping.
_ATTRIBUTES = (
    "observations", "actions", "rewards", "terminations", "truncations", "terminated", "truncated", "dones", "infos",
)  # fmt: skip
_MAX_DEPTH = 32


def probe(location: Location) -> str | None:
    return None if location.episodes is None else "episodes in memory"


def open_(location: Location, options: SourceOptions) -> InMemory:
    if location.episodes is None:
        raise UnknownFormatError("is not an iterable of episodes", file=location.name)
    return InMemory(location.name, location.episodes, options)


@dataclass(frozen=True)
class _Episode:
    """One episode's arrays by source name, and its facts."""

    arrays: Mapping[str, npt.NDArray[Any]]
    texts: Mapping[str, Sequence[Any]]
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class _Steps:
    """One episode as it goes into a block."""

    number: int
    length: int
    columns: Mapping[str, npt.NDArray[Any]]
    variable: Mapping[str, pa.Array]
    finals: Mapping[str, npt.NDArray[Any]]
    facts: Mapping[str, Any]


class InMemory:
    """An `EpisodeSource` over an iterable. An iterator or a generator can be read only once."""

    rows_are_steps = False

    def __init__(self, name: str, episodes: Any, options: SourceOptions) -> None:
        self.findings = Findings()
        self.notes: dict[str, Any] = {}
        self.metadata: Mapping[str, Any] = {}
        self.num_rows: int | None = len(episodes) if hasattr(episodes, "__len__") else None
        self._name = name
        self._options = options
        self._episodes = episodes
        self._begun = self._iterate()
        self._once = self._begun is episodes
        first = next(self._begun, None)
        if first is None:
            raise EmptySourceError("holds no episode", file=name)
        self._first: Any = first
        model = self._flatten(first, 0)
        self._sources = choose_columns([*model.arrays, *model.texts], options)
        self.columns = self._infer(model)
        self._specs = {spec.name: spec for spec in self.columns}

    def units(self) -> Sequence[Unit]:
        return (Unit(BEGIN, 0),)

    def blocks(self, start: Position, stop: Position) -> Iterator[EpisodeBlock]:
        held: list[_Steps] = []
        size, row = 0, start.row
        for number, item in enumerate(self._items()):
            if number < start.row:
                continue
            try:
                steps = self._steps(item, number)
            except BadEpisodeError as error:
                if not self._options.skip_bad:
                    raise
                message = f"{error.message}; skipped"
                self.findings.add(Finding("bad-episode", message, 1, self._name, number, error.column))
                continue
            held.append(steps)
            size += sum(values.nbytes for values in (*steps.columns.values(), *steps.variable.values()))
            if size >= _BLOCK_BYTES:
                yield self._block(held, row, number + 1)
                held, size, row = [], 0, number + 1
        if held:
            yield self._block(held, row, held[-1].number + 1)

    def _iterate(self) -> Iterator[Any]:
        return iter(self._episodes() if callable(self._episodes) else self._episodes)

    def _items(self) -> Iterator[Any]:
        if not self._once:
            yield from self._iterate()
            return
        if self._first is None:
            raise InvalidArgumentError(
                "the iterator has been read already, and cannot be read again",
                file=self._name,
                hint="give a list, or the generator function itself",
            )
        first, self._first = self._first, None
        yield first
        yield from self._begun

    def _flatten(self, item: Any, number: int) -> _Episode:
        if not isinstance(item, Mapping):
            item = {name: getattr(item, name) for name in _ATTRIBUTES if getattr(item, name, None) is not None}
        if not item:
            raise InvalidArgumentError(
                "an episode is a mapping of arrays, or an object with 'observations', 'actions' and 'rewards'",
                file=self._name,
                row=number,
            )
        arrays: dict[str, npt.NDArray[Any]] = {}
        texts: dict[str, Sequence[Any]] = {}
        facts: dict[str, Any] = {}
        for name, value in _leaves(item, "", 0):
            kind = type(value[0]) if isinstance(value, list | tuple) and value else None
            if value is None or isinstance(value, str | int | float | bytes) or np.ndim(value) == 0 and kind is None:
                facts[name] = value.item() if hasattr(value, "item") else value
                continue
            if kind is not None and issubclass(kind, Mapping):
                raise self._refuse(
                    BadEpisodeError,
                    "is a list of a mapping a step",
                    number,
                    name,
                    "give a mapping of arrays instead: {'image': [T, ...], ...}",
                )
            text = _as_text(value)
            if text is not None:
                texts[name] = text
                continue
            try:
                array = np.asarray(value)
            except (ValueError, TypeError, RuntimeError) as error:
                raise self._refuse(BadEpisodeError, f"is no array: {error}", number, name) from error
            if array.dtype.kind == "O":
                raise self._refuse(
                    UnsupportedColumnError, "holds Python objects", number, name, "leave it out with columns=[...]"
                ) if self._wants(name) else self._refuse(BadEpisodeError, "", number, name)
            arrays[name] = array
        return _Episode(arrays, texts, facts)

    def _wants(self, name: str) -> bool:
        return True

    def _refuse(
        self, kind: type[BadEpisodeError] | type[UnsupportedColumnError], reason: str, row: int, column: str, hint: str | None = None
    ) -> BadEpisodeError | UnsupportedColumnError:
        return kind(reason, file=self._name, column=column, row=row, hint=hint)
