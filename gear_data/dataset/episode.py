"""Episode: a read-only mapping of column names to one episode's steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gear_data.dataset.cameras.video_frames import VideoFrames
from gear_data.dataset.stores.store import DatasetStore


class Episode(Mapping[str, Any]):
    """One episode: column name -> read-only array [T, *shape].

    An array is a view of the shard's memory. Columns of text and encoded bytes instead give an object array [T] of str
    or bytes, created at each access. A camera gives a lazy array, `VideoFrames`, which decodes the frames that are
    indexed.
    """

    def __init__(self, store: DatasetStore, index: int) -> None:
        self._store = store
        self._index = index

    def __getitem__(self, name: str) -> Any:
        """Returns one column: an array, or `VideoFrames` of a camera.

        Raises:
            UnknownNameError: the column does not exist. The error lists the columns.
        """
        if self._store.schema[name].video is not None:
            return VideoFrames(self._store, name, self._index)
        shard, start = (int(values[self._index]) for values in self._store.episode_starts)
        return self._store.shards.column(shard, self._store.schema.index(name), start, start + self.num_steps)

    def __contains__(self, name: object) -> bool:
        return name in self._store.schema

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.schema.names)

    def __len__(self) -> int:
        """Returns the number of columns; `num_steps` is the number of steps."""
        return len(self._store.schema.names)

    @property
    def id(self) -> int:
        """The id: the position in the whole dataset, unless episodes left it."""
        ids = self._store.ids
        return self._index if ids is None else int(ids[self._index])

    @property
    def num_steps(self) -> int:
        """Returns the number of steps, T."""
        return int(self._store.lengths[self._index])
