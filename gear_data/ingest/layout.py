"""Layouts: where a source's episodes and columns are.

A mapping (`gear_data.ingest.mapping`) is a layout in YAML. Built-in formats over trees have layouts, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class Kind:
    """The keys of `episodes`, of which a mapping has one."""

    GROUPS, DATASETS, FILES, IDS, ENDS, PADDED = ALL = ("groups", "datasets", "files", "ids", "ends", "padded")


class EndsAre:
    """The values of `ends_are`, and the keys beside `padded`, of which a mapping has one."""

    EXCLUSIVE, INCLUSIVE, FLAGS, STARTS = OF_ENDS = ("exclusive", "inclusive", "flags", "starts")
    LENGTHS, MASK = OF_PADDED = ("lengths", "mask")


class ColumnRole:
    """The values of a column's `role`: those of mappings, and further ones of built-in formats."""

    STEP, WITH_FINAL, AFTER_RESET, EPISODE = OF_MAPPINGS = ("step", "with-final", "after-reset", "episode")
    INFOS, ROW, ROWS = "infos", "row", "rows"


#: Values of `padded`: whether the steps are the first axis.
AXES = {("E", "T"): False, ("T", "E"): True}


@dataclass(frozen=True)
class EpisodeRule:
    """Where a source's episodes are.

    Attributes:
        kind: `groups`, `datasets`, `files`, `ids`, `ends` or `padded`.
        paths: for `groups`, a glob of groups; for `datasets`, a glob whose one `*` is the number of the episode; for
            `files`, a glob of file names; else paths of arrays. Only `ends` and `ids` may have several.
        ends_are: for `ends`: `exclusive`, `inclusive`, `flags` or `starts`; for `padded`: `lengths` or `mask`; else
            None.
        steps_first: for `padded`: whether arrays are [steps, episodes, ...] and not [episodes, steps, ...].
        numbered: for `groups`: the glob is a name and a `*` for a number. Each number stands for one episode, and a
            missing number is a finding.
    """

    kind: str
    paths: tuple[str, ...]
    ends_are: str | None = None
    numbered: bool = False
    steps_first: bool = False

    @property
    def flat(self) -> bool:
        """Whether the arrays hold the steps of all episodes, one after another."""
        return self.kind in (Kind.IDS, Kind.ENDS)


@dataclass(frozen=True)
class Column:
    """A column, and the array that it is read from.

    Attributes:
        name: the canonical name; for role `episode` the name of a fact about the episode.
        path: the path of the array in its file, or in the episode's group. For role `episode`, `@NAME` is an attribute
            of the group.
        dtype: the dtype to store; None keeps the array's.
        role: `step`: a row per step. `with-final`: one row more, the final observation. `after-reset`: one row more,
            the first, which belongs to the reset and is dropped. `episode`: one value, or else none. `infos`: as
            `step` or as `after-reset`. `row`: a fact of one row in every episode that has the array. `rows`: a fact of
            any number of rows.
        next: the path of the array of observations after each step. Its last row is the final observation.
        fractions: whether integers become float64, because another episode may hold fractions.
    """

    name: str
    path: str
    dtype: str | None = None
    role: str = ColumnRole.STEP
    next: str | None = None
    fractions: bool = False

    @property
    def extra_rows(self) -> int:
        """1 if the array has one row more than the episode has steps."""
        return int(self.role in (ColumnRole.WITH_FINAL, ColumnRole.AFTER_RESET))


@dataclass(frozen=True)
class SplitRule:
    """The episodes of one split.

    Attributes:
        name: the name of the split.
        files: a glob of file names; None for all.
        groups: a glob of groups; None for all.
    """

    name: str
    files: str | None = None
    groups: str | None = None


@dataclass(frozen=True)
class Layout:
    """Where the episodes and the columns of a source are.

    Attributes:
        episodes: where the episodes are.
        columns: the columns, at least one of which has a row per step.
        splits: the splits; empty if the source has only one.
    """

    episodes: EpisodeRule
    columns: tuple[Column, ...]
    splits: tuple[SplitRule, ...] = ()

    @property
    def step_columns(self) -> tuple[Column, ...]:
        """The columns with a row per step."""
        return tuple(column for column in self.columns if column.role != ColumnRole.EPISODE)

    @property
    def facts(self) -> tuple[Column, ...]:
        """The columns with one value per episode."""
        return tuple(column for column in self.columns if column.role == ColumnRole.EPISODE)

    def to_json(self) -> dict[str, Any]:
        """Returns the mapping as a dict of the same keys as in YAML."""
        rule = self.episodes
        episodes: dict[str, Any] = {rule.kind: rule.paths[0] if len(rule.paths) == 1 else list(rule.paths)}
        if rule.kind == Kind.PADDED:
            axes = next(axes for axes, steps_first in AXES.items() if steps_first == rule.steps_first)
            episodes = {Kind.PADDED: list(axes), str(rule.ends_are): rule.paths[0]}
        elif rule.ends_are is not None:
            episodes["ends_are"] = rule.ends_are
        data: dict[str, Any] = {"episodes": episodes, "columns": {c.name: _column_json(c) for c in self.columns}}
        if self.splits:
            data["splits"] = {split.name: _given(files=split.files, groups=split.groups) for split in self.splits}
        return data


def _column_json(column: Column) -> Any:
    given = _given(dtype=column.dtype, role=None if column.role == ColumnRole.STEP else column.role, next=column.next)
    return {"path": column.path, **given} if given else column.path


def _given(**values: str | None) -> dict[str, str]:
    return {key: value for key, value in values.items() if value is not None}
