"""Dataset: a folder of GEAR shards, opened."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gear_data.collection import ColumnReader
from gear_data.errors import InvalidArgumentError, ManifestError
from gear_data.residency import MmapReader, check_residency
from gear_data.schema import Schema
from gear_data.selection.windows import Int64Array
from gear_data.storage.block import offsets_of
from gear_data.storage.manifest import Manifest
from gear_data.storage.reader import MappedShards, check_files
from gear_data.storage.statistics import ColumnStatistics
from gear_data.storage.tables import array_values, read_episodes, read_finals

if TYPE_CHECKING:
    import polars as pl


class Episode(Mapping[str, npt.NDArray[Any]]):
    """One episode: column name -> read-only array [T, *shape], a view of the shard's memory."""

    def __init__(self, dataset: Dataset, shard: int, start: int, length: int) -> None:
        self._dataset = dataset
        self._shard = shard
        self._start = start
        self._length = length

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Raises UnknownNameError, which lists the columns."""
        column = self._dataset._shards.column(self._shard, self._dataset.schema.index(name))
        return column[self._start : self._start + self._length]

    def __contains__(self, name: object) -> bool:
        return name in self._dataset.schema

    def __iter__(self) -> Iterator[str]:
        return iter(self._dataset.schema.names)

    def __len__(self) -> int:
        return len(self._dataset.schema)

    @property
    def num_steps(self) -> int:
        return self._length


class Dataset:
    """A GEAR dataset. Made by `gear_data.open`; can be pickled, and opens again where it is unpickled.

    Columns are mapped from disk on first touch; nothing is copied.
    """

    def __init__(self, path: str | os.PathLike[str], residency: str = "mmap") -> None:
        check_residency(residency)
        self.path = Path(path)
        self.residency = residency
        self.manifest = Manifest.load(self.path)
        check_files(self.path, self.manifest)
        self._shards = MappedShards(self.path, self.manifest.schema, self.manifest.shards)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Dataset, (self.path, self.residency))

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}, {self.num_episodes:,} episodes, {self.num_steps:,} steps)"

    @property
    def num_episodes(self) -> int:
        return self.manifest.episodes

    @property
    def num_steps(self) -> int:
        return self.manifest.steps

    @property
    def schema(self) -> Schema:
        return self.manifest.schema

    @property
    def fingerprint(self) -> str:
        """Hash of the contents: equal for equal episodes, whatever the shards."""
        return self.manifest.fingerprint

    @property
    def statistics(self) -> Mapping[str, ColumnStatistics]:
        """Column name -> count, mean, std, min, max of its finite values, float64."""
        return self.manifest.statistics

    @cached_property
    def episodes(self) -> pl.DataFrame:
        """The episode table: `episode_id`, `shard`, `start`, `length`, `return`, `terminated`, `truncated`, `source`,
        `task`, `content`, and the source's own facts; a row an episode, in source order."""
        import polars as pl

        frame = pl.from_arrow(self.episode_table)
        if not isinstance(frame, pl.DataFrame):
            raise ManifestError("the episode table is not a table", file=str(self.path))
        return frame

    @cached_property
    def episode_table(self) -> Any:
        """The episode table as a `pyarrow.Table`, mapped from its file."""
        entry = self.manifest.tables["episodes"]
        table = read_episodes(self.path / entry.file)
        if len(table) != self.num_episodes:
            raise ManifestError(
                f"the episode table has {len(table)} rows, the manifest {self.num_episodes} episodes",
                file=str(self.path / entry.file),
            )
        return table

    def _int64(self, name: str) -> Int64Array:
        return self.episode_table.column(name).to_numpy().astype(np.int64, copy=False)  # type: ignore[no-any-return]

    @cached_property
    def lengths(self) -> Int64Array:
        """int64 [episodes], steps of each."""
        return self._int64("length")

    @cached_property
    def offsets(self) -> Int64Array:
        """int64 [episodes + 1]: episode e is steps offsets[e] to offsets[e + 1] of the dataset."""
        offsets = offsets_of(self.lengths)
        if offsets[-1] != self.num_steps or (self.lengths <= 0).any():
            raise ManifestError(
                f"the episodes' lengths add up to {offsets[-1]} steps, the manifest says {self.num_steps}",
                file=str(self.path / self.manifest.tables["episodes"].file),
                column="length",
            )
        return offsets

    @cached_property
    def _placement(self) -> tuple[Int64Array, Int64Array]:
        """int64 [episodes] each: shard, and row there of the first step; checked, since they become addresses."""
        shard, start = self._int64("shard"), self._int64("start")
        steps = np.array([entry.steps for entry in self.manifest.shards], np.int64)
        inside = (shard >= 0) & (shard < len(steps)) & (start >= 0) & (self.lengths > 0)
        if inside.all():
            # Not start + length, which may overflow.
            inside = self.lengths <= steps[shard] - start
        if not inside.all():
            raise ManifestError(
                "an episode lies outside its shard",
                file=str(self.path / self.manifest.tables["episodes"].file),
                row=int(np.argmin(inside)),
                hint="run 'gear-data verify'; convert again",
            )
        return shard, start

    def reader(self) -> ColumnReader:
        """What collects windows of this dataset."""
        shard, start = self._placement
        return MmapReader(self._shards, shard, start, self.lengths)

    def steps(self, shard: int, name: str, first: int, last: int) -> npt.NDArray[Any]:
        """[last - first, *shape]: a column's steps `first` to `last` of the whole dataset, all in one shard; a view."""
        before = sum(entry.steps for entry in self.manifest.shards[:shard])
        return self._shards.column(shard, self.schema.index(name))[first - before : last - before]

    def _check_episode(self, index: int) -> int:
        if not 0 <= index < self.num_episodes:
            raise InvalidArgumentError(f"there is no episode {index}: they are 0 to {self.num_episodes - 1}")
        return int(index)

    def episode(self, index: int) -> Episode:
        """Episode `index` in source order.

        Raises:
            InvalidArgumentError: no such episode.
        """
        index = self._check_episode(index)
        shard, start = self._placement
        return Episode(self, int(shard[index]), int(start[index]), int(self.lengths[index]))

    @cached_property
    def _finals(self) -> tuple[Int64Array, dict[str, npt.NDArray[Any]]]:
        """int64 ids of the episodes with a final observation, and those observations."""
        entry = self.manifest.tables.get("finals")
        if entry is None:
            return np.empty(0, np.int64), {}
        table = read_finals(self.path / entry.file, self.schema)
        columns = {}
        for column in self.schema.final_columns:
            values = array_values(table.column(column.name).combine_chunks()).view(column.numpy_dtype)
            columns[column.name] = values.reshape(len(table), *column.shape)
        return table.column("episode_id").to_numpy(), columns

    def final(self, index: int) -> dict[str, npt.NDArray[Any]] | None:
        """The observation after the last step of episode `index`, column name -> [*shape]; None if it has none."""
        index = self._check_episode(index)
        ids, columns = self._finals
        place = int(np.searchsorted(ids, index))
        if place == len(ids) or ids[place] != index:
            return None
        return {name: values[place] for name, values in columns.items()}


def open_dataset(path: str | os.PathLike[str], residency: str = "mmap") -> Dataset:
    """Opens a dataset in time that does not grow with its steps: checks the manifest against the files' sizes, and
    maps columns when they are first read.

    Args:
        path: the dataset's folder.
        residency: where column bytes live; `mmap`.

    Raises:
        DatasetNotFoundError: nothing there, or a conversion that did not finish.
        VersionError, ManifestError, CorruptShardError: it cannot be used.
    """
    return Dataset(path, residency)
