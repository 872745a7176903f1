"""Padded episodes, [episodes, steps, ...] or [steps, episodes, ...], as a tree with a group an episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import BadEpisodeError, CorruptSourceError
from gear_data.ingest.layout import ColumnRole, EndsAre, EpisodeRule, Kind, Layout
from gear_data.ingest.sources.tree.view import GROUP, Container, Tree, TreeArray, contents

#: A group an episode, whose name is the index of the episode.
EPISODES = EpisodeRule(Kind.GROUPS, ("*",), numbered=True)


def unpadded(item: Container, layout: Layout) -> Container:
    """Returns a container whose tree has the episodes of padded arrays as groups."""
    return replace(item, opener=partial(_open, item, layout))


@contextmanager
def _open(item: Container, layout: Layout) -> Iterator[PaddedTree]:
    with item.open() as tree:
        yield PaddedTree(tree, layout, _lengths(tree, layout.episodes))


def _lengths(tree: Tree, rule: EpisodeRule) -> npt.NDArray[np.int64]:
    """Returns int64 [episodes], the steps of each episode, by an array of lengths or a mask."""

    def error(message: str) -> CorruptSourceError:
        hint = f"correct episodes.{rule.ends_are} and episodes.padded in the mapping"
        return CorruptSourceError(message, column=rule.paths[0], hint=hint)

    array = tree.array(rule.paths[0])
    axes = 2 if rule.ends_are == EndsAre.MASK else 1
    if array is None or len(array.shape) != axes or array.kind not in ("b", "i", "u"):
        found = "is missing" if array is None else f"holds {array.dtype} {array.shape}"
        raise error(f"{found}, where {'flags of two axes' if axes == 2 else 'an integer an episode'} are expected")
    values = np.asarray(array.read(0, array.rows))
    if rule.ends_are != EndsAre.MASK:
        return values.astype(np.int64)
    valid = values.astype(np.bool_).T if rule.steps_first else values.astype(np.bool_)
    lengths = valid.sum(axis=1)
    holes = np.flatnonzero((valid != (np.arange(valid.shape[1]) < lengths[:, None])).any(axis=1))
    if len(holes):
        raise BadEpisodeError(
            "the mask is not true at the first steps of an episode and false after them",
            column=rule.paths[0],
            row=int(holes[0]),
            hint="give a mask of the steps that are no padding",
        )
    return np.asarray(lengths, np.int64)


@dataclass(frozen=True)
class PaddedTree:
    """A `Tree` of padded arrays, with a group an episode.

    Attributes:
        tree: the tree of the padded arrays.
        layout: their layout.
        lengths: int64 [episodes], the steps of each episode.
        opened: path -> array, if it has been opened.
        whole: path -> values of an array [steps, episodes, ...], which is read whole.
    """

    tree: Tree
    layout: Layout
    lengths: npt.NDArray[np.int64]
    opened: dict[str, TreeArray | None] = field(default_factory=dict)
    whole: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.tree.name

    def children(self, group: str) -> Mapping[str, str]:
        return {} if group else dict.fromkeys(map(str, range(len(self.lengths))), GROUP)

    def names(self, group: str) -> Set[str]:
        return contents(self, group).keys()

    def attributes(self, group: str) -> Mapping[str, Any]:
        return {} if group else self.tree.attributes("")

    def array(self, path: str) -> TreeArray | None:
        episode, _, column_path = path.partition("/")
        if column_path not in self.opened:
            self.opened[column_path] = self.tree.array(column_path)
        array, index = self.opened[column_path], int(episode)
        if array is None:
            return None
        column = next(column for column in self.layout.columns if column_path in (column.path, column.next))
        steps_axis = int(not self.layout.episodes.steps_first)
        episodes_axis = 0 if column.role == ColumnRole.EPISODE else 1 - steps_axis
        if len(array.shape) <= max(episodes_axis, steps_axis * (column.role != ColumnRole.EPISODE)):
            raise self._error(f"has shape {array.shape}, without an axis of episodes or steps", path)
        if array.shape[episodes_axis] != len(self.lengths):
            where = f"'{self.layout.episodes.paths[0]}' has {len(self.lengths)}"
            raise self._error(f"has {array.shape[episodes_axis]} episodes (shape {array.shape}), where {where}", path)
        if column.role == ColumnRole.EPISODE:
            read = partial(_row, array, index)
            return replace(array, path=path, shape=(1, *array.shape[1:]), read=read, raw=None)
        length, most = int(self.lengths[index]) + column.extra_rows, array.shape[steps_axis]
        if length > most:
            raise self._error(f"has {most} steps an episode, where episode {index} has {length}", path)
        read = partial(self._column if self.layout.episodes.steps_first else _padded_row, array, index)
        return replace(array, path=path, shape=(length, *array.shape[2:]), read=read, raw=None)

    def _error(self, message: str, path: str) -> BadEpisodeError:
        return BadEpisodeError(message, column=path, hint="correct episodes and columns in the mapping")

    def _column(self, array: TreeArray, index: int, start: int, stop: int) -> npt.NDArray[Any] | pa.Array:
        """Reads steps of an episode of an array [steps, episodes, ...]."""
        if array.path not in self.whole:
            self.whole[array.path] = array.read(0, array.rows)
        values = self.whole[array.path]
        if isinstance(values, pa.Array):
            return values.take(pa.array(np.arange(start, stop) * array.shape[1] + index))
        return values[start:stop, index]


def _row(array: TreeArray, index: int, start: int, stop: int) -> npt.NDArray[Any] | pa.Array:
    return array.read(index, index + 1)


def _padded_row(array: TreeArray, index: int, start: int, stop: int) -> npt.NDArray[Any] | pa.Array:
    """Reads steps of an episode of an array [episodes, steps, ...]."""
    values = array.read(index, index + 1)
    return values[start:stop] if isinstance(values, pa.Array) else values[0, start:stop]
