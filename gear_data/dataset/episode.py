"""Episode: one of a dataset, as a mapping of its columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt

from gear_data.dataset.store import Root


class Episode(Mapping[str, npt.NDArray[Any]]):
    """One episode: column name -> read-only array [T, *shape], a view of the shard's memory. Text and encoded bytes
    come as an object array [T] of str or bytes, made anew each time."""

    def __init__(self, root: Root, index: int) -> None:
        self._root = root
        self._index = index

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Raises UnknownNameError, which lists the columns."""
        shard, start = (int(values[self._index]) for values in self._root.placement)
        return self._root.shards.column(shard, self._root.schema.index(name), start, start + self.num_steps)

    def __contains__(self, name: object) -> bool:
        return name in self._root.schema

    def __iter__(self) -> Iterator[str]:
        return iter(self._root.schema.names)

    def __len__(self) -> int:
        return len(self._root.schema)

    @property
    def num_steps(self) -> int:
        return int(self._root.lengths[self._index])
