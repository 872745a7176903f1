"""Suggests a mapping from the names and shapes of the arrays.

Samples of the episodes show which arrays have a row per step. A suggestion without doubts is used without `--map`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import yaml

from gear_data.common.paths import printable
from gear_data.errors import UnknownFormatError
from gear_data.ingest.layout import Column, ColumnRole, EpisodeRule, Kind, Layout
from gear_data.ingest.pipeline.columns import SCALAR_COLUMNS
from gear_data.ingest.pipeline.names import canonical_name, is_column_name
from gear_data.ingest.sources.tree.blocks import fact_value
from gear_data.ingest.sources.tree.episodes import EpisodePlace, find_places
from gear_data.ingest.sources.tree.find import (
    ACTIONS,
    FoundEpisodes,
    find_episodes,
    is_actions,
    number_of,
    resembles_actions,
)
from gear_data.ingest.sources.tree.view import ARRAY, GROUP, Container, Tree, TreeArray, join, paths_below, walk
from gear_data.schema import DTYPES, VARIABLE_TYPES

#: Why the episodes are those of the ids that the user names.
USERS_IDS = "--episode-column names the ids of the episodes"
_OBSERVATIONS = "observations"
_STATES = ("state", "states")
_NEXT = "next_"


@dataclass(frozen=True)
class Suggestion:
    """A mapping that a source seems to need.

    Attributes:
        mapping: the mapping.
        reason: why the episodes are where it says.
        doubts: what else the source could be.
        left_out: path -> why the array is no column.
    """

    mapping: Layout
    reason: str
    doubts: tuple[str, ...]
    left_out: Mapping[str, str]

    @property
    def parts_of_actions(self) -> list[str]:
        """The columns that hold a part of the actions each; empty if one column is the actions."""
        names = [column.name for column in self.mapping.step_columns]
        parts = [name for name in names if name.startswith(f"{ACTIONS}.")]
        return [] if ACTIONS in names or len(parts) < 2 else parts

    def yaml(self) -> str:
        """Returns the mapping as YAML.

        Comments name the doubts and the arrays that are left out.
        """
        doubts = "".join(f"# Check: {printable(doubt)}.\n" for doubt in self.doubts)
        left_out = "".join(f"#   {printable(path)}: {printable(why)}\n" for path, why in self.left_out.items())
        text = yaml.safe_dump(self.mapping.to_json(), sort_keys=False, allow_unicode=True)
        return f"{doubts}{text}" + (f"# Left out:\n{left_out}" if left_out else "")


def suggestion_text(trees: Sequence[Container], source: str) -> str:
    """Returns the YAML file that `gear-data lint SRC --suggest-map` prints.

    Raises:
        UnknownFormatError: there is no array.
    """
    suggestion = suggest(trees, {})
    if suggestion is None:
        raise UnknownFormatError(
            "it holds no array, so no mapping can be suggested",
            file=source,
            hint="write one: docs/reference/mapping.md lists the keys",
        )
    command = f"gear-data convert {shlex.quote(printable(source))} DST --map FILE"
    head = f"# Check the episodes and columns below, then run: {command}\n# {printable(suggestion.reason)}.\n"
    return head + suggestion.yaml()


def suggest(trees: Sequence[Container], rename: Mapping[str, str], ids: tuple[str, ...] = ()) -> Suggestion | None:
    """Suggests a mapping for a source; returns None if its first episode has no arrays.

    Args:
        trees: all trees of the source. The first one, and the last if a file is an episode, are looked at.
        rename: path of an array -> the name that the user gives it.
        ids: the paths of the arrays that name the episodes, if the user says which.
    """
    with trees[0].open() as tree:
        found = FoundEpisodes(EpisodeRule(Kind.IDS, ids), USERS_IDS) if ids else find_episodes(tree, trees, rename)
        if found is None:
            return None
        if found.rule.flat:
            samples = [{array.path: array for array in walk(tree)}]
            return _suggestion(found, samples, {}, {}, rename)
        places = find_places(tree, found.rule, None)
        samples = [_arrays_of(tree, place, found.rule) for place in (places[0], places[len(places) // 2], places[-1])]
        if not any(array.shape for array in samples[0].values()):
            return None
        attributes = {} if found.rule.kind == Kind.DATASETS else tree.attributes(places[0].key)
        attributes = {name: value for name, value in attributes.items() if value is not None}
        outside = _outside(tree, places, found.rule)
        if found.rule.kind == Kind.FILES and len(trees) > 1:
            with trees[-1].open() as last:
                return _suggestion(
                    found, [*samples, _arrays_of(last, places[0], found.rule)], attributes, outside, rename
                )
        return _suggestion(found, samples, attributes, outside, rename)


def _arrays_of(tree: Tree, place: EpisodePlace, rule: EpisodeRule) -> dict[str, TreeArray]:
    """Returns the arrays of an episode: path of a column -> array."""
    if rule.kind != Kind.DATASETS:
        skip = len(place.key) + 1 if place.key else 0
        return {array.path[skip:]: array for array in walk(tree, place.key)}
    found = {}
    for path in paths_below(tree):
        stem = path.removesuffix(place.key)
        if stem != path and not stem[-1:].isdigit() and (array := tree.array(path)) is not None:
            found[f"{stem}*"] = array
    return found


def _outside(tree: Tree, places: Sequence[EpisodePlace], rule: EpisodeRule) -> dict[str, str]:
    """Returns the groups and arrays that are in no episode: path -> reason."""
    if rule.kind == Kind.DATASETS:
        return {path: "is in no episode" for path in paths_below(tree) if not path[-1:].isdigit()}
    if rule.kind != Kind.GROUPS:
        return {}
    inside = {place.key for place in places}
    parents = {key.rpartition("/")[0] for key in inside}
    return {
        path: "is in no episode"
        for parent in sorted({"", *parents, *(parent.partition("/")[0] for parent in parents)})
        for name in tree.children(parent)
        if (path := join(parent, name)) not in inside
        and not any(other == path or other.startswith(f"{path}/") for other in parents)
    }


def _suggestion(
    found: FoundEpisodes,
    samples: Sequence[Mapping[str, TreeArray]],
    attributes: Mapping[str, object],
    outside: Mapping[str, str],
    rename: Mapping[str, str],
) -> Suggestion:
    actions, doubts = _choose_actions(samples[0], rename)
    left_out = dict(outside)
    roles: dict[str, str] = {}
    for path in samples[0]:
        if path in found.rule.paths and found.rule.kind != Kind.DATASETS:
            continue
        role, why = _role(path, samples, actions, flat=found.rule.flat)
        if role is None:
            left_out[path] = why
        else:
            roles[path] = role
            doubts += (f"'{path}' {why}",) if why else ()
    after = _next_paths(roles, samples[0])
    roles = {path: role for path, role in roles.items() if path not in after.values()}
    names = _names(roles, actions)
    columns = [Column(names[path], path, None, role, after.get(path)) for path, role in roles.items()]
    taken = set(names.values())
    for attribute in attributes:
        name = attribute.replace("/", ".")
        name = f"episode_{name}" if name in taken else name
        if is_column_name(name):
            columns.append(Column(name, f"@{attribute}", None, ColumnRole.EPISODE))
        else:
            left_out[f"@{attribute}"] = "has no name that a fact can have"
    mapping = Layout(found.rule, tuple(columns), found.splits)
    return Suggestion(mapping, found.reason, (*found.doubts, *doubts), left_out)


def _choose_actions(arrays: Mapping[str, TreeArray], rename: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Returns the path of the actions, and doubts about it.

    If no array looks like actions, the path is an array of as many rows as most arrays have.
    """
    candidates = [path for path, array in arrays.items() if array.shape and array.kind and is_actions(path, rename)]
    if not candidates:
        candidates = [path for path, array in arrays.items() if array.shape and resembles_actions(path, rename)]
        if not candidates:
            rows = [array.rows for array in arrays.values() if array.shape]
            most = max(rows, key=rows.count)
            return next(path for path, array in arrays.items() if array.shape and array.rows == most), ()
        return candidates[0], (f"'{candidates[0]}' may not be the actions",)
    depth = min(path.count("/") for path in candidates)
    highest = [path for path in candidates if path.count("/") == depth]
    return highest[0], (f"each of {', '.join(highest)} may be the actions",) if len(highest) > 1 else ()


def _role(path: str, samples: Sequence[Mapping[str, TreeArray]], actions: str, *, flat: bool) -> tuple[str | None, str]:
    """Returns the role of an array and a doubt about it.

    Returns None and the reason if the array is left out.
    """
    if not all(path in sample for sample in samples):
        return None, "is not in every episode"
    array = samples[0][path]
    if array.dtype not in (*DTYPES, *VARIABLE_TYPES):
        return None, f"holds {array.dtype}"
    if array.dtype in VARIABLE_TYPES and len(array.shape) > 1:
        return None, "holds several texts or byte strings per step"
    if 0 in array.shape[1:]:
        return None, "holds no values"
    extra = {sample[path].rows - sample[actions].rows for sample in samples if actions in sample}
    if array.shape and extra == {0}:
        return ColumnRole.STEP, ""
    if not flat and array.shape and extra == {1}:
        name = canonical_name(path.rstrip("*_-. "))
        if name in SCALAR_COLUMNS or name.startswith("infos"):
            return (
                ColumnRole.AFTER_RESET,
                "has one row more than the actions: the first may belong to the reset, or the last be padding",
            )
        return ColumnRole.WITH_FINAL, ""
    if not flat and all(fact_value(sample[path]) is not None for sample in samples):
        return ColumnRole.EPISODE, ""
    if not array.shape:
        return None, "is a scalar"
    # The rows may differ in one episode only.
    others = (each for each in samples if actions in each and each[path].rows != each[actions].rows)
    sample = next(others, samples[0])
    return None, f"has {sample[path].rows} rows in an episode, where '{actions}' has {sample[actions].rows}"


def _next_paths(roles: Mapping[str, str], arrays: Mapping[str, TreeArray]) -> dict[str, str]:
    """Returns observations -> observations after each step: `obs/x` -> `next_obs/x`."""
    found = {}
    for path in roles:
        other = "/".join(part.removeprefix(_NEXT) for part in path.split("/"))
        both_steps = other != path and roles.get(other) == ColumnRole.STEP == roles[path]
        if both_steps and (arrays[other].shape, arrays[other].dtype) == (arrays[path].shape, arrays[path].dtype):
            found[other] = path
    return found


def _names(roles: Mapping[str, str], actions: str) -> dict[str, str]:
    """Returns path -> name of a column or fact. Names are unique."""
    shared = _shared_group(path for path, role in roles.items() if role != ColumnRole.EPISODE)
    names = {}
    for path in roles:
        name = path[len(shared) :] if path.startswith(shared) else path
        names[path] = canonical_name("/".join(part.rstrip("*_-. ") or part for part in name.split("/")))
    if ACTIONS not in names.values() and resembles_actions(actions, {}):
        names[actions] = ACTIONS
    if not any(name.split(".")[0] == _OBSERVATIONS for name in names.values()):
        states = [
            path
            for path, name in names.items()
            if name.rpartition(".")[2] in _STATES and roles[path] != ColumnRole.EPISODE
        ]
        if len(states) == 1:
            names[states[0]] = _OBSERVATIONS
    taken: set[str] = set()
    for path, name in names.items():
        unique, count = name, 2
        while unique in taken or not is_column_name(unique):
            unique, count = f"{name.strip('.') or 'column'}_{count}".replace("..", "."), count + 1
        names[path] = unique
        taken.add(unique)
    return names


def _shared_group(paths: Iterable[str]) -> str:
    """Returns the group that all arrays of steps are in, with '/'; or ""."""
    parents = [path.split("/")[:-1] for path in paths]
    shared = []
    for parts in zip(*parents, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "".join(f"{part}/" for part in shared)


_MAX_LINES = 20
_MAX_DEPTH = 16


def unclear(
    trees: Sequence[Container], name: str, rename: Mapping[str, str], ids: tuple[str, ...] = ()
) -> UnknownFormatError:
    """Returns the error for trees whose episodes are not clear.

    It has at most 20 lines about the first tree, and the nearest mapping.

    Args:
        trees: the trees of the source, at least one.
        name: the name of the source.
        rename: path of an array -> the name that the user gives it.
        ids: the paths of the arrays that name the episodes, if the user says which.
    """
    with trees[0].open() as tree:
        lines = list(islice(_lines(tree, "", 0), _MAX_LINES + 1))
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES - 1 :] = ["..."]
    seen = "".join(f"\n    {printable(line)}" for line in lines)
    suggestion = suggest(trees, rename, ids)
    if suggestion is None:
        message, nearest = "the format is not recognised, and it holds no array", ""
    else:
        message = "the format is not recognised"
        message += f"; {'; '.join(suggestion.doubts)}" if suggestion.doubts else ""
        yaml = "".join(f"\n    {line}" for line in suggestion.yaml().splitlines()[:_MAX_LINES])
        nearest = f"\n  the nearest mapping:{yaml}"
    hint = (
        "say where the episodes and columns are: write a mapping with 'gear-data lint SRC --suggest-map > map.yaml', "
    )
    actions = [] if suggestion is None else suggestion.parts_of_actions
    joined = f"; --stack actions={','.join(actions)} makes one column of the {len(actions)} actions" if actions else ""
    hint += f"check it, and convert with --map map.yaml{joined}{nearest}"
    return UnknownFormatError(f"{message}; {trees[0].name} holds:{seen}", file=name, hint=hint)


def _lines(tree: Tree, group: str, depth: int) -> Iterator[str]:
    """Yields a line for each array.

    Of names that differ only in a number, the first stands for all.
    """
    families: dict[tuple[str, str], list[str]] = {}
    for name, kind in tree.children(group).items():
        families.setdefault(((number_of(name) or (name, ""))[0], kind), []).append(name)
    for (stem, kind), names in families.items():
        path = join(group, names[0])
        more = f" (and {len(names) - 1} more {stem}*)" if len(names) > 1 else ""
        if kind == ARRAY:
            array = tree.array(path)
            yield f"{path}: {'damaged' if array is None else f'{array.dtype} {array.shape}'}{more}"
        elif kind == GROUP and depth < _MAX_DEPTH:
            if more:
                yield f"{path}/{more}"
            yield from _lines(tree, path, depth + 1)
        else:
            yield f"{path}: {kind}, not followed"
