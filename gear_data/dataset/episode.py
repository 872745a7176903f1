"""Episode: one of a dataset, as a mapping of its columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy.typing as npt

from gear_data.dataset.store import DatasetStore


class Episode(Mapping[str, npt.NDArray[Any]]):
    """One episode: column name -> read-only array [T, *shape], a view of the shard's memory. Text and encoded bytes
    come as an object array [T] of str or bytes, made anew each time."""

    def __init__(self, store: DatasetStore, index: int) -> None:
        self._store = store
        self._index = index

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Raises UnknownNameError, which lists the columns."""
        shard, start = (int(values[self._index]) for values in self._store.episode_starts)
        return self._store.shards.column(shard, self._store.schema.index(name), start, start + self.num_steps)

    def __contains__(self, name: object) -> bool:
        return name in self._store.schema

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.schema.names)

    def __len__(self) -> int:
        return len(self._store.schema)

    @property
    def num_steps(self) -> int:
        return int(self._store.lengths[self._index])
