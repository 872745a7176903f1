"""Episode: a read-only mapping of column names to one episode's steps."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.dataset.cameras.video_frames import VideoFrames
from gear_data.dataset.stores.store import DatasetStore
from gear_data.storage.episode_tables import episode_metadata_names


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
        return self._store.shards.column(shard, self._store.schema.index(name), start, start + self.length)

    def __contains__(self, name: object) -> bool:
        return name in self._store.schema

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.schema.names)

    def __len__(self) -> int:
        """Returns the number of columns; `length` is the number of steps."""
        return len(self._store.schema.names)

    def __repr__(self) -> str:
        ends = [name for name in ("terminated", "truncated") if self._of_table(name)]
        values = [f"id {self.id}", f"{self.length:,} steps", *ends]
        if (total := self._of_table("return")) is not None:
            values.append(f"return {total:.6g}")
        if self.task is not None:
            values.append(f"task {self.task!r}")
        return f"Episode({', '.join(values)}; {textwrap.shorten(', '.join(self), 120, placeholder=' ...')})"

    @property
    def id(self) -> int:
        """The id: the position in the whole dataset, unless episodes left it."""
        ids = self._store.ids
        return self._index if ids is None else int(ids[self._index])

    @property
    def length(self) -> int:
        """The number of steps, T, as in the column `length` of the episode table."""
        return int(self._store.lengths[self._index])

    @property
    def final(self) -> dict[str, npt.NDArray[Any]] | None:
        """The observation after the last step: column name -> [*shape].

        None if the episode has no final observation.
        """
        rows, columns = self._store.finals
        place = int(np.searchsorted(rows, self._index))
        if place == len(rows) or rows[place] != self._index:
            return None
        return {name: values[place] for name, values in columns.items()}

    @property
    def task(self) -> str | None:
        """The task, such as an instruction to a robot; None if the source has none."""
        task: str | None = self._of_table("task")
        return task

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the source: name -> value, null as None.

        They are the columns of the episode table that the source brought, without `task`.
        """
        names = episode_metadata_names(self._store.episode_table.column_names, self._store.schema)
        return {name: self._of_table(name) for name in names if name != "task"}

    def _of_table(self, name: str) -> Any:
        return self._store.episode_table.column(name)[self._index].as_py()
