"""DatasetStore: a dataset's folder, opened once and shared by the whole dataset and all its views."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.collection.reader import ColumnReader
from gear_data.errors import CorruptShardError, InvalidArgumentError, ManifestError, MissingColumnError
from gear_data.residency import (
    DeviceColumns,
    DeviceCopy,
    OverlayCopy,
    OverlayShards,
    PartialCopy,
    ShardReader,
    Shards,
    host_residency,
    open_shards,
)
from gear_data.residency.plan import ResidencyPlan
from gear_data.schema import Schema
from gear_data.selection.windows import Int64Array
from gear_data.storage.arrow_files import array_values
from gear_data.storage.block import offsets_of
from gear_data.storage.dataset_files import DatasetFiles, FolderFiles
from gear_data.storage.sidecar import COLUMN, REWARDS, Sidecar, discounted_returns, read_rewards
from gear_data.storage.tables import read_episodes, read_finals
from gear_data.storage.variable import checked, value_offsets

if TYPE_CHECKING:
    import polars as pl

    from gear_data.cluster.rendezvous import Membership


def check_discount(discount: Any) -> float:
    """Raises InvalidArgumentError unless it is a number from 0 to 1."""
    number = isinstance(discount, int | float | np.integer | np.floating) and not isinstance(discount, bool)
    if not number or not 0 <= discount <= 1:
        raise InvalidArgumentError(f"discount must be a number from 0 to 1, not {discount!r}")
    return float(discount)


class DatasetStore:
    """All episodes of a folder, by id: 0 to n - 1 in source order. Can be pickled: it opens again where it is
    unpickled. Columns are mapped from disk on first touch; nothing is copied.

    Args, errors: see `gear_data.open`. `bad` are files of shards that are not to be read.
    """

    #: Whether other nodes are asked for some of the steps.
    is_remote = False
    #: Of a dataset that the nodes of a training run share out: this process among them.
    membership: Membership | None = None

    def __init__(self, files: DatasetFiles, residency: str = "mmap", bad: frozenset[str] = frozenset()) -> None:
        self.files = files
        self.path = files.place
        self.residency = self._opened_as = residency
        self.manifest = files.manifest()
        self.bad = bad
        self._check_files()
        self.schema = self.manifest.schema
        self.statistics = self.manifest.statistics
        #: Where a plan has each part; None without one.
        self._tiers: ResidencyPlan | None = None
        self._stored: Shards = self._open_shards()
        self.shards = self._stored
        self._stored_copy = self._device_copy(self.schema, self._stored)
        self._copy: DeviceCopy | PartialCopy | OverlayCopy = self._stored_copy
        #: Of `returns_to_go`; None for the column as it is stored, if it is.
        self.discount: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (_open_again, (type(self), self.files, self._opened_as, self.bad, self._tiers, self.discount))

    def _check_files(self) -> None:
        self.files.check(self.manifest, self.bad)

    def _open_shards(self) -> Shards:
        """The shards that the manifest lists."""
        return open_shards(host_residency(self._opened_as), self.files, self.schema, self.manifest.shards, self.bad)

    @cached_property
    def _steps(self) -> Int64Array:
        """int64 [shards]: of each."""
        return np.array([entry.steps for entry in self.manifest.shards], np.int64)

    def _device_copy(self, schema: Schema, shards: Shards) -> DeviceCopy | PartialCopy:
        return DeviceCopy(self.residency, schema, shards, self._steps, self._tiers)

    def _open_sidecar(self, sidecar: Sidecar) -> Shards:
        """Its one column."""
        return open_shards(
            host_residency(self._opened_as), FolderFiles(sidecar.folder), Schema((COLUMN,)), sidecar.shards
        )

    def _rewards(self, shard: int) -> npt.NDArray[Any]:
        """[steps]: those of a shard."""
        return read_rewards(self.files, self.manifest.schema, self.manifest.shards[shard])

    def with_discount(self, discount: float) -> DatasetStore:
        """These episodes with `returns_to_go` of a discount, see `Dataset.with_discount`; shares all that is open."""
        discount = check_discount(discount)
        stored = self.manifest.schema
        if REWARDS not in stored or stored[REWARDS].shape:
            raise MissingColumnError(
                f"{COLUMN.name} needs one reward a step; the columns are {', '.join(stored.names)}",
                file=str(self.path),
                column=REWARDS,
            )
        # Zero may come with a sign, and one number must have one name.
        wanted = None if discount == 1 and COLUMN.name in stored else abs(discount)
        if wanted == self.discount:
            return self
        if wanted is not None and self.bad:
            raise CorruptShardError(
                f"is damaged: {COLUMN.name} of another discount is made of all shards",
                file=f"{self.path}/{min(self.bad)}",
                hint="make it again with 'gear-data repair'",
            )
        store = copy(self)
        store.discount = wanted
        if wanted is None:
            store.schema, store.statistics, store.shards = stored, self.manifest.statistics, self._stored
            store._copy = self._stored_copy
        else:
            episodes = (*self.episode_starts, self.lengths)
            sidecar = discounted_returns(self.files, self.manifest, *episodes, wanted, self._rewards)
            index = stored.index(COLUMN.name) if COLUMN.name in stored else len(stored)
            store.schema = Schema((*stored.columns[:index], COLUMN, *stored.columns[index + 1 :]))
            store.statistics = {**self.manifest.statistics, COLUMN.name: sidecar.statistics}
            other = self._open_sidecar(sidecar)
            store.shards = OverlayShards(self._stored, index, other)
            store._copy = OverlayCopy(self._stored_copy, index, self._device_copy(Schema((COLUMN,)), other))
        return store

    def placed(self, plan: ResidencyPlan) -> DatasetStore:
        """These episodes, where a GPU finds each part as a plan says."""
        store = copy(self)
        store.residency, store._tiers = "tiered", plan
        store.schema, store.statistics, store.shards, store.discount = (
            self.manifest.schema, self.manifest.statistics, self._stored, None,
        )  # fmt: skip
        store._copy = store._stored_copy = store._device_copy(store.schema, store.shards)
        return store if self.discount is None else store.with_discount(self.discount)

    def device_columns(self) -> DeviceColumns:
        """Where a GPU finds the columns; the first call brings them there. Raises as `DeviceCopy.columns` does."""
        return self._copy.columns()

    @cached_property
    def episode_table(self) -> Any:
        """The episode table as a `pyarrow.Table`, mapped from its file."""
        with self.files.local(self.manifest.tables["episodes"]) as path:
            table = read_episodes(path)
        if len(table) != self.manifest.episodes:
            raise ManifestError(
                f"the episode table has {len(table)} rows, the manifest {self.manifest.episodes} episodes",
                file=self._table_name,
            )
        return table

    @property
    def _table_name(self) -> str:
        return self.files.name(self.manifest.tables["episodes"])

    @cached_property
    def episodes(self) -> pl.DataFrame:
        """The episode table as a Polars frame."""
        import polars as pl

        frame = pl.from_arrow(self.episode_table)
        if not isinstance(frame, pl.DataFrame):
            raise ManifestError("the episode table is not a table", file=self._table_name)
        return frame

    def _int64(self, name: str) -> Int64Array:
        return self.episode_table.column(name).to_numpy().astype(np.int64, copy=False)  # type: ignore[no-any-return]

    @cached_property
    def lengths(self) -> Int64Array:
        """int64 [n], steps of each episode."""
        return self._int64("length")

    @cached_property
    def offsets(self) -> Int64Array:
        """int64 [n + 1]: episode e is steps offsets[e] to offsets[e + 1] of the dataset."""
        offsets = offsets_of(self.lengths)
        if offsets[-1] != self.manifest.steps or (self.lengths <= 0).any():
            raise ManifestError(
                f"the episodes' lengths add up to {offsets[-1]} steps, the manifest says {self.manifest.steps}",
                file=self._table_name,
                column="length",
            )
        return offsets

    @cached_property
    def episode_starts(self) -> tuple[Int64Array, Int64Array]:
        """int64 [n] each: shard, and row there of the first step; checked, since they become addresses."""
        shard, start = self._int64("shard"), self._int64("start")
        steps = self._steps
        inside = (shard >= 0) & (shard < len(steps)) & (start >= 0) & (self.lengths > 0)
        if inside.all():
            # Not start + length, which may overflow.
            inside = self.lengths <= steps[shard] - start
        if not inside.all():
            raise ManifestError(
                "an episode lies outside its shard",
                file=self._table_name,
                row=int(np.argmin(inside)),
                hint="run 'gear-data verify'; convert again",
            )
        return shard, start

    def reader(self) -> ColumnReader:
        """What collects windows of these episodes."""
        shard, start = self.episode_starts
        return ShardReader(self.shards, shard, start, self.lengths, lambda: self.finals)

    def steps(self, name: str, ids: Int64Array) -> npt.NDArray[Any]:
        """[sum of lengths, *shape]: a column's steps of these episodes, one after another. A view of the shard's
        memory where they follow each other there, else a copy. A column of variable length gives str or bytes objects.

        Raises:
            UnknownNameError: no such column; lists the columns.
            CorruptShardError: values of variable length that are damaged.
        """
        index = self.schema.index(name)
        parts = [self.shards.column(shard, index, first, last) for shard, first, last in self._runs(ids)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def values(self, name: str, ids: Int64Array) -> pa.Array:
        """A column of variable length as `steps` gives others: `LargeStringArray` or `LargeBinaryArray`, and checked.

        Raises:
            CorruptShardError: damaged values.
        """
        index = self.schema.index(name)
        parts = [
            checked(self.shards.values(shard, index)[first:last], file=self._shard_file(shard), column=name)
            for shard, first, last in self._runs(ids)
        ]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def sizes(self, ids: Int64Array) -> Int64Array:
        """int64 [k]: bytes of each of these episodes over all columns."""
        sizes: Int64Array = self.lengths[ids] * self.schema.step_bytes
        shards, firsts = (values[ids] for values in self.episode_starts)
        for column in self.schema.variable_columns:
            index = self.schema.index(column.name)
            for shard in np.unique(shards).tolist():
                mine = shards == shard
                places = value_offsets(self.shards.values(shard, index))
                sizes[mine] += places[firsts[mine] + self.lengths[ids[mine]]] - places[firsts[mine]]
        return sizes

    def _shard_file(self, shard: int) -> str:
        return self.files.name(self.manifest.shards[shard].entry)

    def _runs(self, ids: Int64Array) -> Iterator[tuple[int, int, int]]:
        """(shard, first row, last row) of these episodes, those that follow each other taken together."""
        shard, first = (values[ids] for values in self.episode_starts)
        last = first + self.lengths[ids]
        follows = (shard[1:] == shard[:-1]) & (first[1:] == last[:-1])
        begins = np.concatenate([[0], np.flatnonzero(~follows) + 1])
        ends = np.concatenate([begins[1:], [len(ids)]]) - 1
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            yield int(shard[begin]), int(first[begin]), int(last[end])

    @cached_property
    def finals(self) -> tuple[Int64Array, dict[str, npt.NDArray[Any]]]:
        """int64 ids of the episodes with a final observation, and those observations."""
        entry = self.manifest.tables.get("finals")
        if entry is None:
            return np.empty(0, np.int64), {}
        with self.files.local(entry) as path:
            table = read_finals(path, self.schema)
        columns = {}
        for column in self.schema.final_columns:
            values = array_values(table.column(column.name).combine_chunks()).view(column.numpy_dtype)
            columns[column.name] = values.reshape(len(table), *column.shape)
        return table.column("episode_id").to_numpy(), columns


def _open_again(
    kind: type[DatasetStore],
    files: DatasetFiles,
    residency: str,
    bad: frozenset[str],
    tiers: ResidencyPlan | None,
    discount: float | None,
) -> DatasetStore:
    """In another process. Nothing is brought to a GPU before it is asked for: a DataLoader's worker never does."""
    return as_it_was(kind(files, residency, bad), tiers, discount)


def as_it_was(store: DatasetStore, tiers: ResidencyPlan | None, discount: float | None) -> DatasetStore:
    """A store that was opened again, placed and with the discount that the first one had."""
    if tiers is not None:
        store = store.placed(tiers)
    return store if discount is None else store.with_discount(discount)
