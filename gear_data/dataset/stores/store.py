"""DatasetStore: files, shards and tables of a dataset and its views."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.collection.reader import ColumnReader
from gear_data.dataset.cameras.stored_videos import StoredVideos, read_videos
from gear_data.dataset.refreshing.shard_statistics import ShardStatistics
from gear_data.dataset.stores.episodes import StoredEpisodes
from gear_data.errors import CorruptShardError, MissingColumnError
from gear_data.residency import (
    ColumnsCopy,
    Contents,
    DeviceColumns,
    DeviceCopy,
    JoinedShards,
    OverlayCopy,
    OverlayShards,
    ShardCopies,
    ShardReader,
    Shards,
    host_residency,
    open_shards,
)
from gear_data.residency.plan import ResidencyPlan, extend_plan
from gear_data.schema import Schema
from gear_data.selection.windows import Int64Array
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.episode_block import offsets_of
from gear_data.storage.identity import check_same_dataset
from gear_data.storage.manifest import REPAIR
from gear_data.storage.mapped_shards import MappedShards
from gear_data.storage.sidecar import COLUMN, REWARDS, Sidecar, check_discount, discounted_returns, read_rewards
from gear_data.storage.variable_columns import validated, value_offsets
from gear_data.storage.videos.stored_packets import stored_packets
from gear_data.video.index_tables import VideoIndex
from gear_data.video.packet_bytes import PacketBytes

if TYPE_CHECKING:
    from gear_data.cluster.rendezvous import Membership


#: The residencies that read all columns at opening.
_IN_MEMORY = ("host", "pinned", "device")


class DatasetStore(StoredEpisodes):
    """All episodes of a dataset, by row of the episode table: 0 to n - 1 in source order.

    Without evictions, the row of an episode is its id.

    A column is mapped from disk when it is first read; no column is copied. A store can be pickled; unpickling opens
    it again.

    Args:
        files: files of the dataset.
        residency: see `gear_data.open`.
        bad_files: files of shards that are not read.

    Raises:
        GearError: see `gear_data.open`.
    """

    #: Whether some steps are read from other nodes.
    is_remote = False
    #: Membership of this process in the training run whose nodes share the dataset; None if they do not.
    membership: Membership | None = None

    def __init__(self, files: DatasetFiles, residency: str = "mmap", bad_files: frozenset[str] = frozenset()) -> None:
        super().__init__(files, files.manifest())
        self.path = files.location
        self.residency = self._requested_residency = residency
        self.bad_files = bad_files
        self._check_files()
        self.schema = self.manifest.schema
        self.statistics = self.manifest.statistics
        #: Of views of a dataset that grows.
        self.shard_statistics = ShardStatistics()
        #: Memory of each part of the columns; None without a plan.
        self._plan: ResidencyPlan | None = None
        self._stored: Shards = self._open_shards()
        self.shards = self._stored
        self._stored_copy = self._copy_of_stored()
        self._copy: ColumnsCopy = self._stored_copy
        #: Discount of `returns_to_go`; None for the column as stored, if there is one.
        self.discount: float | None = None
        if residency in _IN_MEMORY:
            # These residencies need no file after opening, except videos, so that the folder may be replaced.
            _ = self.episode_table, self.finals, self.videos

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.files, self._requested_residency, self.bad_files)
        return (open_again, (type(self), arguments, self._plan, self.discount))

    def __copy__(self) -> DatasetStore:
        # Without this method, `copy` would open the dataset again, as unpickling does.
        store = object.__new__(type(self))
        store.__dict__.update(self.__dict__)
        return store

    def at_generation(self, generation: int | None) -> DatasetStore | None:
        """Returns another generation of the dataset, opened in the same way; None if it is the same one.

        Args:
            generation: the number; None: the newest one.

        Raises:
            GearError: see `Dataset.refresh`.
        """
        files = self.files.at(generation)
        if self._is_same(files):
            return None
        store = self._opened_again(files)
        self.check_same_episodes(store)
        return restored(store, self._plan_of(store), self.discount)

    def _plan_of(self, store: DatasetStore) -> ResidencyPlan | None:
        """Returns the plan for the store of another generation: shards that both have stay where they are."""
        if self._plan is None:
            return None
        numbers = {shard.entry: number for number, shard in enumerate(store.manifest.shards)}
        new_of_old = np.array([numbers.get(shard.entry, -1) for shard in self.manifest.shards], np.int64)
        return extend_plan(self._plan, new_of_old, (*store.episode_starts, store.lengths))

    def _is_same(self, files: DatasetFiles) -> bool:
        """Returns whether files are of the generation of this store.

        Raises:
            DatasetReplacedError: they are of another dataset.
        """
        manifest = files.manifest()
        check_same_dataset(manifest, self.manifest, self.path)
        return manifest.generation == self.manifest.generation

    def _opened_again(self, files: DatasetFiles) -> DatasetStore:
        """Returns a store of other files of the dataset, without a discount."""
        return DatasetStore(files, self._requested_residency)

    def _check_files(self) -> None:
        self.files.check(self.manifest, self.bad_files)

    def _open_shards(self) -> Shards:
        """Returns the shards that the manifest lists."""
        residency = host_residency(self._requested_residency)
        grows = self.manifest.growth is not None
        return open_shards(residency, self.files, self.schema, self.manifest.shards, self.bad_files, grows=grows)

    def _copy_of_stored(self) -> ColumnsCopy:
        """Returns the stored columns for a GPU: see `_device_copy`."""
        stored = self.manifest.schema
        contents = Contents(self.files, stored, self.manifest.shards, self.bad_files)
        return self._device_copy(stored, self._stored, contents)

    def _device_copy(self, schema: Schema, shards: Shards, contents: Contents) -> ColumnsCopy:
        """Returns the columns of some shards for a GPU.

        Nothing is copied before the first use.

        Args:
            schema: all columns of the shards.
            shards: the shards, in this machine's memory.
            contents: the contents of these shards.
        """
        steps = np.array([shard.steps for shard in contents.shards], np.int64)
        grows = self.manifest.growth is not None and self.residency in ("pinned", "device", "tiered")
        if grows and isinstance(shards, MappedShards | JoinedShards):
            return ShardCopies(self.residency, schema, shards, steps, contents, self._plan)
        return DeviceCopy(self.residency, schema, shards, steps, contents, self._plan)

    def _open_sidecar(self, sidecar: Sidecar) -> Shards:
        """Returns the shards of a sidecar, which have one column."""
        residency = host_residency(self._requested_residency)
        grows = self.manifest.growth is not None
        return open_shards(residency, sidecar.files, Schema((COLUMN,)), sidecar.shards, grows=grows)

    def _rewards(self, shard: int) -> npt.NDArray[Any]:
        """Returns [steps]: the rewards of a shard."""
        return read_rewards(self.files, self.manifest.schema, self.manifest.shards[shard])

    def with_discount(self, discount: float) -> DatasetStore:
        """Returns a store with `returns_to_go` of another discount.

        See `Dataset.with_discount`. The returned store shares everything that is open.
        """
        discount = check_discount(discount)
        stored = self.manifest.schema
        if REWARDS not in stored or stored[REWARDS].shape:
            raise MissingColumnError(
                f"{COLUMN.name} needs one reward per step; the columns are {', '.join(stored.names)}",
                file=str(self.path),
                column=REWARDS,
                hint="convert again with one reward per step in the column 'rewards' (--rename OLD=rewards)",
            )
        # abs() because -0.0 == 0.0: equal discounts must give the same name of a sidecar.
        new_discount = None if discount == 1 and COLUMN.name in stored else abs(discount)
        if new_discount == self.discount:
            return self
        bad_shards = self.bad_files & {shard.entry.file for shard in self.manifest.shards}
        if new_discount is not None and bad_shards:
            raise CorruptShardError(
                f"is damaged: computing {COLUMN.name} of discount {new_discount} needs all shards",
                file=f"{self.path}/{min(bad_shards)}",
                hint=REPAIR,
            )
        store = copy(self)
        store.discount = new_discount
        if new_discount is None:
            store.schema, store.statistics, store.shards = stored, self.manifest.statistics, self._stored
            store._copy = self._stored_copy
        else:
            episodes = (*self.episode_starts, self.lengths)
            sidecar = discounted_returns(self.files, self.manifest, *episodes, new_discount, self._rewards)
            index = stored.index(COLUMN.name) if COLUMN.name in stored else len(stored)
            columns = (*stored.columns[:index], COLUMN, *stored.columns[index + 1 :])
            store.schema = Schema(columns, stored.videos)
            store.statistics = {**self.manifest.statistics, COLUMN.name: sidecar.statistics}
            discounted = self._open_sidecar(sidecar)
            store.shards = OverlayShards(self._stored, index, discounted)
            contents = Contents(sidecar.files, Schema((COLUMN,)), sidecar.shards)
            copied = self._device_copy(contents.schema, discounted, contents)
            store._copy = OverlayCopy(self._stored_copy, index, copied)
        return store

    def placed(self, plan: ResidencyPlan) -> DatasetStore:
        """Returns a store whose columns a GPU reads as a plan says."""
        store = copy(self)
        store.residency, store._plan = "tiered", plan
        store.schema, store.statistics, store.shards = self.manifest.schema, self.manifest.statistics, self._stored
        store.discount = None
        store._copy = store._stored_copy = store._copy_of_stored()
        return store if self.discount is None else store.with_discount(self.discount)

    def device_columns(self) -> DeviceColumns:
        """Returns the addresses at which a GPU reads the columns.

        The address is 0 for columns that a GPU cannot read in place.

        The first call copies or registers the columns. Raises as `DeviceCopy.columns` does.
        """
        return self._copy.columns()

    @cached_property
    def videos(self) -> StoredVideos:
        """The files and episodes of the cameras. Without cameras it has none of either."""
        return read_videos(self.files, self.manifest, self.episode_table, self.lengths, self._video_packets)

    def _video_packets(self, index: VideoIndex) -> PacketBytes:
        """Returns what reads the packets of the cameras' files."""
        return stored_packets(self.files, index)

    def reader(self) -> ColumnReader:
        """Returns the reader that collects windows of these episodes."""
        shard, start = self.episode_starts
        return ShardReader(self.shards, shard, start, self.lengths, lambda: self.finals)

    def steps(self, name: str, ids: Int64Array) -> npt.NDArray[Any]:
        """Returns the steps of one column over several episodes, [sum of lengths, *shape].

        The steps are concatenated. The array is a view of the shard's memory if the episodes are adjacent in one shard,
        else a copy. A column of variable length gives str or bytes objects. The frames of a camera are decoded.

        Raises:
            UnknownNameError: the column does not exist. The error lists the columns.
            CorruptShardError: values of variable length, or a video, are damaged.
        """
        if self.schema[name].video is not None:
            lengths = self.lengths[ids]
            steps = np.arange(lengths.sum()) - np.repeat(offsets_of(lengths)[:-1], lengths)
            return self.videos.frames(self.schema[name], np.repeat(ids, lengths), steps)
        index = self.schema.index(name)
        parts = [self.shards.column(shard, index, first, last) for shard, first, last in self.runs(ids)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def values(self, name: str, ids: Int64Array) -> pa.Array:
        """Returns a column of variable length, for the same episodes as `steps`.

        The result is a `LargeStringArray` or a `LargeBinaryArray`.

        Raises:
            CorruptShardError: the values are damaged.
        """
        parts = list(self.value_runs(name, ids))
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def value_runs(self, name: str, ids: Int64Array) -> Iterator[pa.Array]:
        """Yields `values` for each run of adjacent episodes, without a copy."""
        index = self.schema.index(name)
        for shard, first, last in self.runs(ids):
            yield validated(self.shards.values(shard, index)[first:last], file=self._shard_file(shard), column=name)

    def sizes(self, ids: Int64Array) -> Int64Array:
        """Returns int64 [k]: bytes of each of these episodes in the shards."""
        sizes: Int64Array = self.lengths[ids] * self.schema.step_bytes
        shards, first_rows = (values[ids] for values in self.episode_starts)
        for column in self.schema.variable_columns:
            index = self.schema.index(column.name)
            for shard in np.unique(shards).tolist():
                inside = shards == shard
                value_starts = value_offsets(self.shards.values(shard, index))
                last_rows = first_rows[inside] + self.lengths[ids[inside]]
                sizes[inside] += value_starts[last_rows] - value_starts[first_rows[inside]]
        return sizes

    def _shard_file(self, shard: int) -> str:
        return self.files.name(self.manifest.shards[shard].entry)

    def runs(self, ids: Int64Array) -> Iterator[tuple[int, int, int]]:
        """Yields (shard, first row, last row) of runs of adjacent episodes."""
        shard, first = (values[ids] for values in self.episode_starts)
        last = first + self.lengths[ids]
        adjacent = (shard[1:] == shard[:-1]) & (first[1:] == last[:-1])
        begins = np.concatenate([[0], np.flatnonzero(~adjacent) + 1])
        ends = np.concatenate([begins[1:], [len(ids)]]) - 1
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            yield int(shard[begin]), int(first[begin]), int(last[end])


def open_again(
    kind: type[DatasetStore], arguments: tuple[Any, ...], plan: ResidencyPlan | None, discount: float | None
) -> DatasetStore:
    """Returns an unpickled store of a class, made with its arguments.

    It copies nothing to a GPU before the first use, because DataLoader workers need no GPU.
    """
    return restored(kind(*arguments), plan, discount)


def restored(store: DatasetStore, plan: ResidencyPlan | None, discount: float | None) -> DatasetStore:
    """Returns a store with the plan and discount from before pickling."""
    if plan is not None:
        store = store.placed(plan)
    return store if discount is None else store.with_discount(discount)
