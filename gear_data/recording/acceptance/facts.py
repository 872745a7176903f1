"""FactTypes: the types of facts that a dataset and its journals have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gear_data.common.paths import is_utf8, printable
from gear_data.errors import EpisodeRefusedError
from gear_data.ingest.pipeline.names import INVALID_NAME, is_storable
from gear_data.storage.episode_tables import EPISODE_SCHEMA

_KINDS: Mapping[type, str] = {str: "text", bool: "booleans", int: "whole numbers", float: "numbers"}
_INT, _FLOAT = _KINDS[int], _KINDS[float]
#: The largest whole number up to which each one is a float64.
_EXACT = 1 << 53
#: Columns of the episode table that are no facts.
_RESERVED = frozenset(EPISODE_SCHEMA.names)
#: A fact that is stored as text, whatever its type.
_TASK = "task"


@dataclass(frozen=True)
class _Known:
    kind: str
    #: The largest whole number, without its sign.
    largest: int = 0


class FactTypes:
    """The types of facts about episodes. The facts of all episodes of a dataset must have one type by name.

    Whole numbers and other numbers are one type, as long as whole numbers are exact as float64.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def __contains__(self, name: str) -> bool:
        return name == _TASK or _stored(name) in self._known

    def add_table(self, table: pa.Table) -> None:
        """Adds the facts of an episode table."""
        for field in table.schema:
            if field.name not in _RESERVED and (kind := _kind(field.type)) is not None:
                limits = pc.min_max(table.column(field.name)).as_py() if kind == _INT else {}
                largest = max((abs(each) for each in limits.values() if each is not None), default=0)
                self._merge(field.name, _Known(kind, largest))

    def add(self, facts: Mapping[str, Any]) -> None:
        """Adds facts that `check` accepts."""
        for name, value in facts.items():
            if name != _TASK:
                self._merge(_stored(name), _known(value))

    def _merge(self, name: str, new: _Known) -> None:
        known = self._known.get(name, new)
        kind = _FLOAT if {known.kind, new.kind} == {_INT, _FLOAT} else known.kind
        self._known[name] = _Known(kind, max(known.largest, new.largest))

    def check(self, facts: Mapping[str, Any]) -> None:
        """Checks that facts can be stored beside those of all earlier episodes.

        Raises:
            EpisodeRefusedError: see `problem`.
        """
        if (found := self.problem(facts)) is not None:
            name, problem = found
            raise EpisodeRefusedError(
                f"the fact {printable(name)} is {printable(repr(facts[name])):.80}: {problem}",
                hint="give the fact another name, or values of one type",
            )

    def check_weight(self, column: str, facts: Mapping[str, Any]) -> None:
        """Checks that episodes can leave by a column of the episode table, if it has one more episode.

        Args:
            column: of the episode table.
            facts: of the episode. `check` accepts them.

        Raises:
            EpisodeRefusedError: no episode has a fact of this name, or the column has text.
        """
        if column in _RESERVED:
            kind = _kind(EPISODE_SCHEMA.field(column).type) or _KINDS[str]
        else:
            new = {_stored(name): _known(value) for name, value in facts.items()}
            found = self._known.get(column) or new.get(column)
            if found is None:
                raise EpisodeRefusedError(
                    f"episodes of small {printable(column)} leave (evict), and no episode has a fact of this name",
                    hint="give the fact to end_episode, or name another column as evict, such as 'return'",
                )
            kind = found.kind
        if kind == _KINDS[str]:
            raise EpisodeRefusedError(
                f"episodes of small {printable(column)} leave (evict), and this column has text",
                hint="name a numeric column as evict, such as 'return'",
            )

    def problem(self, facts: Mapping[str, Any]) -> tuple[str, str] | None:
        """Returns the first fact that cannot be stored, and why: its name or value, or the type in earlier episodes."""
        names = [_stored(name) for name in facts]
        for name, value in facts.items():
            if not is_storable(name):
                return name, f"a fact cannot have this name: it is {INVALID_NAME}"
            if names.count(_stored(name)) > 1:
                return name, "another fact is stored under this name"
            if problem := self._problem(name, value):
                return name, problem
        return None

    def _problem(self, name: str, value: Any) -> str | None:
        if not is_fact(value):
            return "facts are text, finite numbers and booleans"
        if isinstance(value, str) and not is_utf8(value):
            return "it is not UTF-8"
        if type(value) is int and not -(1 << 63) <= value < 1 << 63:
            return "whole numbers have 64 bits"
        new, known = _known(value), self._known.get(_stored(name))
        if known is None or name == _TASK:
            return None
        if {new.kind, known.kind} == {_INT, _FLOAT} or (new.kind == known.kind == _FLOAT and known.largest > _EXACT):
            if max(new.largest, known.largest) > _EXACT:
                return f"with the numbers of earlier episodes, {max(new.largest, known.largest):,} would not be exact"
            return None
        return None if new.kind == known.kind else f"it is of {new.kind}, and earlier episodes have {known.kind}"


def is_fact(value: Any) -> bool:
    """Returns whether a value is text, a finite number or a boolean."""
    return type(value) in _KINDS and not (isinstance(value, float) and not math.isfinite(value))


def _stored(name: str) -> str:
    """Returns the column of a fact in the episode table."""
    return f"metadata.{name}" if name in _RESERVED and name != _TASK else name


def _known(value: Any) -> _Known:
    return _Known(_KINDS[type(value)], abs(value) if type(value) is int else 0)


def _kind(kind: pa.DataType) -> str | None:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        return _KINDS[bool]
    if pa.types.is_integer(kind):
        return _INT
    if pa.types.is_floating(kind):
        return _FLOAT
    return _KINDS[str] if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None
