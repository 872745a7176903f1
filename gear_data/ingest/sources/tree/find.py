"""Finds episodes in a tree by the names of its groups and arrays.

They are numbered groups, numbered datasets, rows between ends, rows of one id, or whole files.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from gear_data.common.progress import pluralize
from gear_data.ingest.layout import EndsAre, EpisodeRule, Kind, SplitRule
from gear_data.ingest.pipeline.columns import END_FLAGS, EPISODE_COLUMNS, FIRST_FLAGS, ONE_VALUE
from gear_data.ingest.pipeline.names import canonical_name
from gear_data.ingest.sources.arrays.first_rows import RowConvention, row_convention
from gear_data.ingest.sources.tree.view import ARRAY, GROUP, Container, Tree, TreeArray, join, walk

ACTIONS = "actions"
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})")
_NUMBER_GLOB = "[0-9]*"
#: Groups are searched this deep for episodes.
_MAX_DEPTH = 6
_ENDS_NAMES = ("episode_ends", "episode_end", "ep_ends", "traj_ends", "trajectory_ends")
_SPLIT_NAMES = ("train", "training", "val", "valid", "validation", "test", "eval")
#: Names such as `episode_12` and `traj-3`, of several files. One file `demo_10` may also hold ten demonstrations.
_EPISODE_FILE = re.compile(r"(.*[^a-z])?(episode|ep|traj|trajectory|demo|demonstration|rollout)[^a-z]*[0-9]+")
_ONLY_FILE = re.compile(r"episode[^a-z]*[0-9]+")
_NO_ACTIONS = "no array looks like actions; give one column the name 'actions'"


@dataclass(frozen=True)
class FoundEpisodes:
    """Where episodes seem to be.

    Attributes:
        rule: where they are.
        reason: why, for messages.
        doubts: what else the source could be. Without doubts the rule needs no confirmation.
        splits: the splits, if the episodes of several are in groups of their names.
    """

    rule: EpisodeRule
    reason: str
    doubts: tuple[str, ...] = ()
    splits: tuple[SplitRule, ...] = ()


def find_episodes(tree: Tree, trees: Sequence[Container], rename: Mapping[str, str]) -> FoundEpisodes | None:
    """Returns where the episodes of a source seem to be.

    If no array looks like actions, the largest family of numbered groups is a guess, or else the whole file, and the
    doubts say so. Returns None for a tree without arrays.

    Args:
        tree: the first tree, open.
        trees: all trees of the source.
        rename: path of an array -> the name that the user gives it.
    """
    return (
        _numbered_groups(tree, rename)
        or _numbered_datasets(tree, rename)
        or _whole_tree(tree, trees, rename)
        or _unnamed_groups(tree)
        or _unnamed_tree(tree, trees)
    )


def last_name(path: str, rename: Mapping[str, str]) -> str:
    """Returns the last name of a path, or the name that the user gives the array: `demo_0/act` has the path `act`."""
    return next((new for old, new in rename.items() if f"/{path}".endswith(f"/{old}")), path.rpartition("/")[2])


def is_actions(path: str, rename: Mapping[str, str]) -> bool:
    """Returns whether the last name of a path means actions: `action`, `acts`, and `action_*` of numbered arrays."""
    paths = (path, path.rstrip("*_-. ")) if path.endswith("*") else (path,)
    return any(canonical_name(last_name(each, rename)) == ACTIONS for each in paths)


def resembles_actions(path: str, rename: Mapping[str, str]) -> bool:
    """Returns whether the last name of a path may mean actions: `joint_action`."""
    name = last_name(path, rename).lower()
    return is_actions(path, rename) or (
        "act" in re.split(r"[^a-z]", name.replace("action", "act_")) and "prev" not in name
    )


def number_of(name: str) -> tuple[str, str] | None:
    """Splits `demo_12` into `demo_` and `12`.

    Returns None for a name that does not end with a number.
    """
    match = _NUMBERED.fullmatch(name)
    return None if match is None else (match[1], match[2])


def _numbered_groups(tree: Tree, rename: Mapping[str, str]) -> FoundEpisodes | None:
    found: list[tuple[str, str, int]] = []
    doubt = False
    for parent, prefix, names in _families(tree, "", 0):
        arrays = [array for array in walk(tree, join(parent, names[0])) if array.shape]
        if any(is_actions(array.path, rename) for array in arrays):
            found.append((parent, prefix, len(names)))
        elif any(resembles_actions(array.path, rename) for array in arrays):
            found.append((parent, prefix, len(names)))
            doubt = True
    if not found:
        return None
    patterns = list(dict.fromkeys(join(glob.escape(parent), _pattern(prefix)) for parent, prefix, _ in found))
    parents = [parent for parent, _, _ in found]
    count = sum(number for _, _, number in found)
    doubts: tuple[str, ...] = ("no array of a group is called actions",) if doubt else ()
    splits: tuple[SplitRule, ...] = ()
    pattern = patterns[0]
    if len(patterns) > 1:
        same = len({prefix for _, prefix, _ in found}) == 1 and len({parent.count("/") for parent in parents}) == 1
        if not same or "" in parents:
            doubts += (f"each of {' and '.join(patterns)} may be the episodes",)
        else:
            pattern = join(_common(parents), _pattern(found[0][1]))
            if all(parent.rpartition("/")[2].lower() in _SPLIT_NAMES for parent in parents):
                splits = tuple(
                    SplitRule(parent.rpartition("/")[2], groups=found_pattern)
                    for parent, found_pattern in zip(parents, patterns, strict=True)
                )
    reason = f"a group is an episode: {count} of {pattern}"
    return FoundEpisodes(EpisodeRule(Kind.GROUPS, (pattern,)), reason, doubts, splits)


def _unnamed_groups(tree: Tree) -> FoundEpisodes | None:
    families = [
        (parent, prefix, names)
        for parent, prefix, names in _families(tree, "", 0)
        if any(array.shape for array in walk(tree, join(parent, names[0])))
    ]
    if not families:
        return None
    parent, prefix, names = max(families, key=lambda family: len(family[2]))
    pattern = join(glob.escape(parent), _pattern(prefix))
    reason = f"a group may be an episode: {len(names)} of {pattern}"
    return FoundEpisodes(EpisodeRule(Kind.GROUPS, (pattern,)), reason, (_NO_ACTIONS,))


def _unnamed_tree(tree: Tree, trees: Sequence[Container]) -> FoundEpisodes | None:
    if not any(array.shape for array in walk(tree)):
        return None
    reason = f"a file may be an episode: {pluralize(len(trees), 'file')}"
    return FoundEpisodes(EpisodeRule(Kind.FILES, ("*",)), reason, (_NO_ACTIONS, *_file_doubts(trees)))


def _families(tree: Tree, group: str, depth: int) -> Iterator[tuple[str, str, list[str]]]:
    """Yields families of groups with numbered names.

    Each has the parent, the start of the names, and the names. Groups inside numbered groups are not searched:
    `demo_0/camera_1` is part of `demo_0`.
    """
    families: dict[str, list[str]] = {}
    others = []
    for name, kind in tree.children(group).items():
        if kind == GROUP:
            parts = number_of(name)
            if parts is None:
                others.append(name)
            else:
                families.setdefault(parts[0], []).append(name)
    for prefix, names in families.items():
        yield group, prefix, names
    for name in others if depth < _MAX_DEPTH else ():
        yield from _families(tree, join(group, name), depth + 1)


def _pattern(prefix: str) -> str:
    return glob.escape(prefix) + _NUMBER_GLOB


def _common(paths: Sequence[str]) -> str:
    """Returns a glob of paths of the same depth: `*` for each part that differs."""
    columns = zip(*(path.split("/") for path in paths), strict=True)
    return "/".join(glob.escape(parts[0]) if len(set(parts)) == 1 else "*" for parts in columns)


def _numbered_datasets(tree: Tree, rename: Mapping[str, str], group: str = "", depth: int = 0) -> FoundEpisodes | None:
    stems: dict[str, list[str]] = {}
    children = tree.children(group)
    for name, kind in children.items():
        parts = number_of(name) if kind == ARRAY else None
        if parts is not None:
            stems.setdefault(parts[0], []).append(parts[1])
    for stem, numbers in stems.items():
        alike = [other for other, found in stems.items() if found == numbers]
        pattern = f"{join(group, stem)}*"
        if is_actions(pattern, rename) and len(alike) > 1:
            doubts = [f"'{other}' has other numbers than '{stem}'" for other in stems if other not in alike]
            arrays = [array for n in numbers[:8] if (array := tree.array(join(group, stem) + n)) is not None]
            if all(len(array.shape) == 1 for array in arrays) and len({array.shape for array in arrays}) == 1:
                doubts.append(f"the numbers of {pattern} may also be the elements of one action")
            reason = f"a dataset is an episode and a column: {len(numbers)} of {pattern}"
            return FoundEpisodes(EpisodeRule(Kind.DATASETS, (pattern,)), reason, tuple(doubts))
    for name, kind in children.items():
        if kind == GROUP and depth < _MAX_DEPTH:
            found = _numbered_datasets(tree, rename, join(group, name), depth + 1)
            if found is not None:
                return found
    return None


def _whole_tree(tree: Tree, trees: Sequence[Container], rename: Mapping[str, str]) -> FoundEpisodes | None:
    arrays = {array.path: array for array in walk(tree)}
    candidates = [
        array for array in arrays.values() if array.shape and resembles_actions(array.path, rename) and array.kind
    ]
    if not candidates:
        return None
    actions = min(candidates, key=lambda array: (not is_actions(array.path, rename), array.path.count("/")))
    doubts: tuple[str, ...] = () if is_actions(actions.path, rename) else ("no array is called actions",)
    rows = actions.rows
    named = {last_name(path, rename).lower(): array for path, array in reversed(arrays.items())}
    for name in _ENDS_NAMES:
        if name in named and (ends_are := _ends_are(named[name], rows)) is not None:
            rule = EpisodeRule(Kind.ENDS, (named[name].path,), ends_are)
            return FoundEpisodes(rule, f"'{named[name].path}' has the {ends_are} ends of the episodes", doubts)
    for name in EPISODE_COLUMNS:
        if name in named and named[name].shape == (rows,) and (named[name].kind in ("i", "u") or not named[name].kind):
            return FoundEpisodes(
                EpisodeRule(Kind.IDS, (named[name].path,)), f"'{named[name].path}' has the ids", doubts
            )
    for name in FIRST_FLAGS & named.keys():
        array = named[name]
        if array.rows == rows > 1 and array.shape[1:] in ONE_VALUE and array.kind and array.read(1, rows).any():
            others = [last_name(path, rename) for path in arrays if path != array.path]
            if row_convention(others, {}) is not RowConvention.STEPS:
                doubts += ("the last row of an episode may be only its final observation (RLDS, Dreamer)",)
            reason = f"'{array.path}' marks the first steps"
            return FoundEpisodes(EpisodeRule(Kind.ENDS, (array.path,), EndsAre.STARTS), reason, doubts)
    flags = [array for array in arrays.values() if _is_flag(array, rows, rename)]
    if any(array.read(0, rows - 1).any() for array in flags if rows > 1):
        paths = tuple(array.path for array in flags)
        doubts += (f"{', '.join(paths)} may not mark every end: a time limit may have none",)
        return FoundEpisodes(
            EpisodeRule(Kind.ENDS, paths, EndsAre.FLAGS), f"{', '.join(paths)} end the episodes", doubts
        )
    return FoundEpisodes(
        EpisodeRule(Kind.FILES, ("*",)),
        f"a file is an episode: {pluralize(len(trees), 'file')}",
        (*doubts, *_file_doubts(trees)),
    )


def _ends_are(array: TreeArray, rows: int) -> str | None:
    """Returns whether the ends in an array are exclusive or inclusive.

    Returns None if the values cannot be the ends of `rows` rows.
    """
    if array.kind not in ("i", "u") or len(array.shape) != 1 or not array.rows:
        return None
    values = array.read(0, array.rows)
    if (values[1:] <= values[:-1]).any() or values[0] < 0:
        return None
    return {rows: EndsAre.EXCLUSIVE, rows - 1: EndsAre.INCLUSIVE}.get(int(values[-1]))


def _is_flag(array: TreeArray, rows: int, rename: Mapping[str, str]) -> bool:
    name = canonical_name(last_name(array.path, rename))
    return name in END_FLAGS and bool(array.kind) and array.shape in ((rows,), (rows, 1))


def _file_doubts(trees: Sequence[Container]) -> tuple[str, ...]:
    stems = [PurePosixPath(item.name.lower()).stem for item in trees]
    pattern = _EPISODE_FILE if len(stems) > 1 else _ONLY_FILE
    other = next((stem for stem in stems if not pattern.fullmatch(stem)), None)
    if other is None:
        return ()
    return (f"'{other}' may hold one episode, or several whose ends nothing marks",)
