"""A mapping: the user's description of a source that no format recognises.

It says where the episodes are, and which arrays are their columns. It is a YAML file, or a dict of the same keys:

    episodes:
      groups: demo_*
    columns:
      observations: obs/state
      actions: action

docs/reference/mapping.md lists all keys.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gear_data.common.typed_json import parse_yaml
from gear_data.errors import MappingError
from gear_data.ingest.layout import AXES, Column, ColumnRole, EndsAre, EpisodeRule, Kind, Layout, SplitRule
from gear_data.ingest.pipeline.names import canonical_name, is_column_name
from gear_data.schema import DTYPES, VARIABLE_TYPES

#: A larger file is no mapping. YAML of this size is parsed in a few seconds.
_MAX_BYTES = 1 << 20


def load_mapping(source: str | os.PathLike[str] | Mapping[str, Any] | Layout) -> Layout:
    """Reads a mapping from a YAML file or a dict, and checks it.

    Raises:
        MappingError: the file cannot be read, is not YAML, or a key or value is wrong. The error names the key.
    """
    if isinstance(source, Layout):
        return source
    if isinstance(source, Mapping):
        return parse_mapping(source, "mapping")
    if not isinstance(source, str | os.PathLike):
        raise MappingError(f"a mapping must be the path of a YAML file or a dict, not {type(source).__name__}")
    file = os.fspath(source)
    try:
        with open(file, "rb") as stream:
            text = stream.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise MappingError(f"has more than {_MAX_BYTES} bytes", file=file, hint="give a mapping, not the source")
    except OSError as error:
        raise MappingError(f"cannot be read: {error.strerror}", file=file, hint="check the path of --map") from error
    return parse_mapping(parse_yaml(text, error=MappingError, file=file), file)


def parse_mapping(data: Any, file: str) -> Layout:
    """Checks the keys and values of a mapping.

    Args:
        data: the contents of the YAML file.
        file: the name of the file, for errors.

    Raises:
        MappingError: a key or value is wrong.
    """
    keys = _Keys(data, "", file, ("episodes", "columns"), ("splits",))
    rule = _episode_rule(keys.child("episodes", (), (*Kind.ALL, "ends_are", EndsAre.LENGTHS, EndsAre.MASK)))
    columns = keys.names("columns")
    mapped = tuple(_column(columns, name, rule) for name in columns.data)
    if not any(column.role != ColumnRole.EPISODE for column in mapped):
        raise columns.error("", "has no column with a row per step", "add at least one, such as 'actions: action'")
    _refuse_repeated_paths(columns, mapped)
    splits = keys.names("splits") if "splits" in keys.data else None
    return Layout(rule, mapped, () if splits is None else tuple(_split(splits, n, rule) for n in splits.data))


class _Keys:
    """The keys of one level of a mapping, and their place for errors."""

    def __init__(self, data: Any, place: str, file: str, required: Sequence[str], optional: Sequence[str]) -> None:
        self.place, self.file = place, file
        allowed = (*required, *optional)
        if not isinstance(data, Mapping):
            raise self.error("", f"is {_shown(data)}, where keys are expected", f"its keys: {', '.join(allowed)}")
        self.data: Mapping[str, Any] = data
        for key in data:
            if allowed and key not in allowed:
                raise self.error(key, "is not a key of a mapping", f"the keys here are: {', '.join(allowed)}")
        for key in required:
            if key not in data:
                raise self.error(key, "is missing", "add it; 'gear-data lint SRC --suggest-map' writes a first mapping")

    def error(self, key: Any, message: str, hint: str) -> MappingError:
        """Returns the error about a key of this level; "" for the level itself."""
        name = key if isinstance(key, str) else _shown(key)
        path = ".".join(part for part in (self.place, name) if part) or "the mapping"
        return MappingError(f"{path}: {message}", file=self.file, hint=hint)

    def child(self, key: str, required: Sequence[str], optional: Sequence[str]) -> _Keys:
        """Returns the keys below a key."""
        return _Keys(self.data[key], f"{self.place}.{key}".lstrip("."), self.file, required, optional)

    def names(self, key: str) -> _Keys:
        """Returns the names below a key, which the user chooses."""
        found = self.child(key, (), ())
        for name in found.data:
            if not isinstance(name, str) or not is_column_name(name):
                raise found.error(name, f"{_shown(name)} is not a name", "give a text; quote it if it is yes, no or on")
        return found

    def text(self, key: str) -> str | None:
        """Returns the text of an optional key."""
        value = self.data.get(key)
        if key in self.data and (not isinstance(value, str) or not value.strip("/")):
            raise self.error(key, f"is {_shown(value)}, where a text is expected", "write a path, in quotes if needed")
        return None if value is None else str(value)

    def choice(self, key: str, choices: Iterable[str]) -> str | None:
        """Returns the value of an optional key that has a few values."""
        value = self.text(key)
        if value is not None and value not in choices:
            raise self.error(key, f"is '{value}', which is no choice", f"choose one of: {', '.join(choices)}")
        return value


def _episode_rule(keys: _Keys) -> EpisodeRule:
    kinds = [kind for kind in Kind.ALL if kind in keys.data]
    if len(kinds) != 1:
        found = f"has {' and '.join(kinds)}" if kinds else "does not say where the episodes are"
        raise keys.error("", found, f"give exactly one of: {', '.join(Kind.ALL)}")
    kind = kinds[0]
    value = keys.data[kind]
    if kind == Kind.PADDED:
        return _padded_rule(keys)
    if (
        kind in (Kind.ENDS, Kind.IDS)
        and isinstance(value, list)
        and value
        and all(isinstance(path, str) and path for path in value)
    ):
        paths: tuple[str, ...] = tuple(value)
    else:
        paths = (keys.text(kind) or "",)
    if kind == Kind.DATASETS and paths[0].count("*") != 1:
        raise keys.error(kind, f"is '{paths[0]}', without one '*'", "write one '*' for the number: actions_*")
    for other in (key for key in EndsAre.OF_PADDED if key in keys.data):
        raise keys.error(other, f"is given, but the episodes are {kind}, not {Kind.PADDED}", "leave it out")
    ends_are = keys.choice("ends_are", EndsAre.OF_ENDS)
    if (kind == Kind.ENDS) != (ends_are is not None):
        message = "is missing" if kind == Kind.ENDS else f"is '{ends_are}', but the episodes have no ends"
        *first, last = EndsAre.OF_ENDS
        hint = f"add ends_are: {', '.join(first)} or {last}" if kind == Kind.ENDS else "leave it out"
        raise keys.error("ends_are", message, hint)
    if kind == Kind.ENDS and len(paths) > 1 and ends_are != EndsAre.FLAGS:
        raise keys.error(kind, f"lists {len(paths)} arrays", f"give one, or set ends_are: {EndsAre.FLAGS}")
    return EpisodeRule(kind, tuple(path if kind == Kind.FILES else path.strip("/") for path in paths), ends_are)


def _padded_rule(keys: _Keys) -> EpisodeRule:
    value = keys.data[Kind.PADDED]
    axes = tuple(axis for axis in value if axis != "...") if isinstance(value, list) else ()
    axes = axes if all(isinstance(axis, str) for axis in axes) else ()
    if axes not in AXES:
        hint = "write [E, T, ...] for arrays [episodes, steps, ...], or [T, E, ...] for [steps, episodes, ...]"
        raise keys.error(Kind.PADDED, f"is {_shown(value)}, which names no two axes", hint)
    given = [key for key in (*EndsAre.OF_PADDED, "ends_are") if key in keys.data]
    if len(given) != 1 or given[0] == "ends_are":
        found = f"has {' and '.join(given)}" if given else "does not say which steps are padding"
        raise keys.error(
            "", found, f"beside {Kind.PADDED}, give the path of an array, {EndsAre.LENGTHS} or {EndsAre.MASK}"
        )
    return EpisodeRule(Kind.PADDED, ((keys.text(given[0]) or "").strip("/"),), given[0], steps_first=AXES[axes])


def _column(columns: _Keys, name: str, rule: EpisodeRule) -> Column:
    if isinstance(columns.data[name], str):
        path = columns.text(name)
        keys = columns
        column = Column(name, (path or "").strip("/"))
    else:
        keys = columns.child(name, ("path",), ("dtype", "role", "next"))
        role = keys.choice("role", ColumnRole.OF_MAPPINGS) or ColumnRole.STEP
        dtype, next_path = keys.choice("dtype", (*DTYPES, *VARIABLE_TYPES)), keys.text("next")
        path = (keys.text("path") or "").strip("/")
        column = Column(name, path, dtype, role, None if next_path is None else next_path.strip("/"))
    if canonical_name(name) != name and column.role != ColumnRole.EPISODE:
        raise columns.error(name, "is a source's name, not a column's", f"call it '{canonical_name(name)}'")
    if column.next is not None and column.role != ColumnRole.STEP:
        raise keys.error(
            "next", f"is given together with role: {column.role}", f"leave one of them out; {ColumnRole.STEP} has it"
        )
    if column.role in (ColumnRole.WITH_FINAL, ColumnRole.AFTER_RESET) and rule.flat:
        raise keys.error(
            "role",
            f"is '{column.role}', but all episodes are in one array (episodes.{rule.kind})",
            "name the array of the observations after each step with next: PATH, or leave role out",
        )
    if column.path.startswith("@") and (
        column.role != ColumnRole.EPISODE or rule.kind not in (Kind.GROUPS, Kind.FILES)
    ):
        raise columns.error(
            name,
            f"is the attribute '{column.path}'",
            f"attributes need role: {ColumnRole.EPISODE}, and episodes in groups or files",
        )
    if rule.kind == Kind.DATASETS and not column.path.startswith("@") and column.path.count("*") != 1:
        raise columns.error(name, f"has the path '{column.path}', without one '*'", "write one '*' for the number")
    return column


def _refuse_repeated_paths(columns: _Keys, mapped: Iterable[Column]) -> None:
    known: dict[str, str] = {}
    for column in mapped:
        if column.path in known:
            raise columns.error(
                column.name, f"has the path '{column.path}', as '{known[column.path]}' has", "leave one of the two out"
            )
        known[column.path] = column.name


def _split(splits: _Keys, name: str, rule: EpisodeRule) -> SplitRule:
    keys = splits.child(name, (), (Kind.FILES, Kind.GROUPS))
    split = SplitRule(name, keys.text(Kind.FILES), keys.text(Kind.GROUPS))
    if split.files is None and split.groups is None:
        raise keys.error("", "does not say which episodes it has", f"give {Kind.FILES} or {Kind.GROUPS}, a glob")
    if split.groups is not None and rule.kind != Kind.GROUPS:
        raise keys.error(
            Kind.GROUPS, f"is given, but the episodes are {rule.kind}, not groups", f"give {Kind.FILES} instead"
        )
    return split


class _Short(reprlib.Repr):
    """Short texts of values. Aliases of YAML make a small file a value whose `repr` fills the memory."""

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write an integer of many digits.
        return repr(x) if x.bit_length() < 128 else f"<integer of {x.bit_length()} bits>"


_SHORT = _Short()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxlist = 3, 60, 12


def _shown(value: Any) -> str:
    """Returns a short text for a wrong value."""
    text = _SHORT.repr(value) if value is not None else "empty"
    return text if len(text) <= 60 else f"{text[:57]}..."
