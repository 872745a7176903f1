"""Dataset: a folder of GEAR shards, opened, or a view of some of its episodes and steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.cluster.placement import Placement, place_shards, shard_shares
from gear_data.collection.collector import ColumnReader
from gear_data.dataset import filters, views
from gear_data.dataset.episode import Episode
from gear_data.dataset.store import DatasetStore
from gear_data.dataset.views import View
from gear_data.errors import EmptySourceError, InvalidArgumentError, ManifestError, unknown_name
from gear_data.residency import DeviceColumns, ShardReader
from gear_data.residency.device.columns import extents_of
from gear_data.residency.plan import ResidencyPlan, make_plan
from gear_data.schema import Schema
from gear_data.selection.anchors import Anchors
from gear_data.selection.samplers import Candidates, Sampler, as_sampler
from gear_data.selection.step_mask import MODES, StepMask
from gear_data.selection.windows import Float64Array, Int64Array, WindowRule
from gear_data.storage.block import offsets_of
from gear_data.storage.statistics import ColumnStatistics

if TYPE_CHECKING:
    import polars as pl

    from gear_data.cluster.rendezvous import Membership

_MAX_SEED = (1 << 64) - 1


class Dataset:
    """A GEAR dataset, or a view of one. Made by `gear_data.open`, and by `filter`, `filter_steps` and `split`, which
    copy nothing. Can be pickled, and opens again where it is unpickled.

    An episode's id is its place in the whole dataset, and stays so in every view. `path` (of a remote one, its URL as
    text), `manifest` and `schema` are the whole dataset's.
    """

    def __init__(self, store: DatasetStore, view: View) -> None:
        self._store = store
        self._view = view
        self.path = store.path
        self.residency = store.residency
        self.manifest = store.manifest

    def __reduce__(self) -> tuple[Any, ...]:
        return (_open_again, (self._store, self._view, self.manifest.fingerprint))

    def __repr__(self) -> str:
        filtered = "" if self.step_mask is None else f", {self.step_mask_mode} steps filtered"
        return f"Dataset({str(self.path)!r}, {self.num_episodes:,} episodes, {self.num_steps:,} steps{filtered})"

    @property
    def num_episodes(self) -> int:
        return self.manifest.episodes if self.episode_ids is None else len(self.episode_ids)

    @property
    def num_steps(self) -> int:
        """Steps of its episodes, those included that a step filter leaves out."""
        return self.manifest.steps if self.episode_ids is None else int(self.offsets[-1])

    @property
    def schema(self) -> Schema:
        return self._store.schema

    @property
    def episode_ids(self) -> Int64Array | None:
        """int64 [episodes], ascending: the ids of a view's episodes; None where it has all."""
        return self._view.ids

    @property
    def step_mask(self) -> StepMask | None:
        """The steps of the whole dataset that satisfy the step filters; None where there are none."""
        return self._view.mask

    @property
    def step_mask_mode(self) -> str | None:
        """Which steps of a window must satisfy them: `first` or `all`; None where there is no step filter."""
        return self._view.mode

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the contents: equal for equal episodes, whatever the shards. A view has that of its episodes, as if
        they were a dataset; with a step filter, that and the steps."""
        ids = self.episode_ids
        episodes = self.manifest.fingerprint if ids is None else views.view_fingerprint(self._store, ids)
        if self._view.mask is None or self._view.mode is None:
            return episodes
        return views.filtered_fingerprint(episodes, self._view.mask, self._view.mode)

    @cached_property
    def statistics(self) -> Mapping[str, ColumnStatistics]:
        """Column name -> count, mean, std, min, max of its finite values, float64, over all steps of its episodes.

        A view works its own out on first use, which reads its steps once."""
        if self.episode_ids is None:
            return self._store.statistics
        return views.view_statistics(self._store, self.episode_ids)

    @cached_property
    def episodes(self) -> pl.DataFrame:
        """The episode table: `episode_id`, `shard`, `start`, `length`, `return`, `terminated`, `truncated`, `source`,
        `task`, `content`, and the source's own facts; a row an episode, in source order."""
        return self._store.episodes if self.episode_ids is None else self._store.episodes[self.episode_ids]

    @cached_property
    def episode_table(self) -> Any:
        """The same as a `pyarrow.Table`; the whole dataset's is mapped from its file."""
        table = self._store.episode_table
        return table if self.episode_ids is None else table.take(self.episode_ids)

    @cached_property
    def lengths(self) -> Int64Array:
        """int64 [episodes], steps of each."""
        return self._store.lengths if self.episode_ids is None else self._store.lengths[self.episode_ids]

    @cached_property
    def offsets(self) -> Int64Array:
        """int64 [episodes + 1]: the i-th episode is steps offsets[i] to offsets[i + 1] of this dataset or view."""
        return self._store.offsets if self.episode_ids is None else offsets_of(self.lengths)

    @property
    def root_offsets(self) -> Int64Array:
        """int64 [n + 1]: the episode of id e is steps root_offsets[e] to root_offsets[e + 1] of the whole dataset."""
        return self._store.offsets

    def anchors(self, rule: WindowRule) -> Anchors:
        """The steps that windows by a rule hang on: of this dataset's or view's episodes, those that its step filters
        leave. Raises InvalidArgumentError where there is none."""
        ids, mask = self.episode_ids, self.step_mask
        first = None if ids is None else self.root_offsets[ids]
        eligible = None
        if mask is not None and self.step_mask_mode is not None:
            eligible = mask.anchors(self.root_offsets, rule, self.step_mask_mode)
        return Anchors(self.lengths, self.offsets, ids, first, rule, eligible)

    def _ids(self, first: int, last: int) -> Int64Array:
        """The ids of the first-th to last-th episode."""
        return np.arange(first, last) if self.episode_ids is None else self.episode_ids[first:last]

    def reader(self) -> ColumnReader:
        """What collects windows, by episode id."""
        return self._store.reader()

    def steps(self, name: str, first: int, last: int) -> npt.NDArray[Any]:
        """[steps, *shape]: a column's steps of the first-th to last-th episode, `last` not included, one after another.
        A view of the shard's memory where they follow each other there, else a copy.

        Raises:
            UnknownNameError: no such column; lists the columns.
        """
        return self._store.steps(name, self._ids(first, last))

    def values(self, name: str, first: int, last: int) -> pa.Array:
        """A column of variable length as `steps` gives others: `LargeStringArray` or `LargeBinaryArray`.

        Raises:
            UnknownNameError: no such column; lists the columns.
            CorruptShardError: damaged values.
        """
        return self._store.values(name, self._ids(first, last))

    def sizes(self, first: int, last: int) -> Int64Array:
        """int64 [last - first]: bytes of each of the first-th to last-th episode over all columns."""
        return self._store.sizes(self._ids(first, last))

    def _check_episode(self, index: int) -> int:
        count, ids = self.manifest.episodes, self.episode_ids
        if not 0 <= index < count:
            raise InvalidArgumentError(f"there is no episode {index}: they are 0 to {count - 1}")
        if ids is not None:
            place = int(np.searchsorted(ids, index))
            if place == len(ids) or ids[place] != index:
                raise InvalidArgumentError(
                    f"episode {index} is not among the {len(ids):,} of this view",
                    hint="episodes keep their ids in a view; ds.episodes['episode_id'] lists them",
                )
        return int(index)

    def episode(self, index: int) -> Episode:
        """The episode of id `index`: its place in the whole dataset, in source order.

        Raises:
            InvalidArgumentError: no such episode.
        """
        return Episode(self._store, self._check_episode(index))

    def final(self, index: int) -> dict[str, npt.NDArray[Any]] | None:
        """The observation after the last step of the episode of id `index`, column name -> [*shape]; None if it has
        none. Raises as `episode` does."""
        index = self._check_episode(index)
        ids, columns = self._store.finals
        place = int(np.searchsorted(ids, index))
        if place == len(ids) or ids[place] != index:
            return None
        return {name: values[place] for name, values in columns.items()}

    def evaluate(self, expression: pl.Expr | str, what: str) -> npt.NDArray[np.float64]:
        """float64 [episodes]: a numeric expression over the episode table, such as weights; see `filter`. Null becomes
        NaN, true 1; one value stands for all episodes.

        Args:
            what: what the values are for, in errors: "weights".

        Raises:
            UnknownNameError: no such column; lists the columns.
            InvalidArgumentError: not numeric, or not a value an episode.
        """
        return filters.row_values(*self._over_episodes(expression), what)

    def _over_episodes(self, expression: pl.Expr | str) -> tuple[pl.DataFrame, pl.Expr]:
        """The episode table as an expression wants it, and the expression."""
        parsed = filters.parse(expression, self.episodes.columns)
        return filters.with_plain_text(self.episodes, parsed), parsed

    def filter(self, expression: pl.Expr | str) -> Dataset:
        """A view of the episodes for which an expression over the episode table (`episodes`) holds.

        Args:
            expression: a Boolean Polars expression, or SQL text for one (`polars.sql_expr`); null counts as false.
                Aggregates (`pl.col("return").quantile(0.9)`) are over this dataset's or view's episodes.

        Raises:
            UnknownNameError: no such column; lists the columns.
            InvalidArgumentError: not Boolean, or not a value an episode.
            EmptySourceError: no episode satisfies it.
        """
        frame, parsed = self._over_episodes(expression)
        found = filters.true_rows(frame, parsed)
        if not found.any():
            raise filters.nothing_holds(frame, parsed, "episode")
        ids = np.flatnonzero(found) if self.episode_ids is None else self.episode_ids[found]
        return Dataset(self._store, View(ids, self._view.mask, self._view.mode))

    def filter_steps(self, expression: pl.Expr | str, mode: str = "first") -> Dataset:
        """A view from which only those windows are drawn whose steps satisfy an expression over the step columns.

        It has the same episodes, whole: `num_steps`, `statistics` and `episode(i)` stay. Steps are read once, block by
        block. Of two step filters both must hold.

        Args:
            expression: as for `filter`, for each step by itself. Vectors are `polars.Array` columns:
                `pl.col("observations").arr.get(0) > 0`.
            mode: `first`: a window's first step satisfies it; `all`: every step of a window does.

        Raises:
            UnknownNameError: no such column or mode; lists those there are.
            InvalidArgumentError: not Boolean; looks at more than one step at a time; or an earlier step filter has
                another mode.
            EmptySourceError: no step satisfies it.
        """
        if mode not in MODES:
            raise unknown_name("mode", mode, MODES)
        if self.step_mask_mode not in (None, mode):
            raise InvalidArgumentError(f"this view filters steps with mode={self.step_mask_mode!r}, not {mode!r}")
        parsed = filters.parse(expression, self.schema.names)
        mask = views.satisfying_steps(self._store, self._ids(0, self.num_episodes), parsed)
        if self.step_mask is not None:
            mask = mask & self.step_mask
            if not mask.count:
                raise EmptySourceError(f"no step satisfies {parsed} and the earlier step filters")
        return Dataset(self._store, View(self.episode_ids, mask, mode))

    def residency_plan(
        self,
        device_bytes: int,
        host_bytes: int,
        sampler: str | Sampler = "uniform",
        columns: Sequence[str] | None = None,
    ) -> ResidencyPlan:
        """Which parts of the data belong in GPU memory, which in pinned host memory, and which stay on disk, so that
        most of what is read comes from the fastest. It is worked out, not done: `print` shows it, `place` does it.

        Args:
            device_bytes, host_bytes: how much of either memory may be taken.
            sampler: as for `SequenceLoader`; it says how often each episode is drawn.
            columns: those that batches are made of; None: all of a fixed size.

        Raises:
            InvalidArgumentError: negative bytes, or a sampler's arguments.
            UnknownNameError: no such column or sampler; lists those there are.
        """
        for name, value in (("device_bytes", device_bytes), ("host_bytes", host_bytes)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
                raise InvalidArgumentError(f"{name} is {value!r}, not a number of bytes from 0 on")
        read = [column.name for column in self.schema.fixed_columns] if columns is None else list(columns)
        for name in read:
            self.schema.index(name)
        shares = self._shares(sampler)
        placement = (*self._store.placement, self._store.lengths)
        return make_plan(self.schema, read, placement, shares, int(device_bytes), int(host_bytes))

    def place(self, plan: ResidencyPlan) -> Dataset:
        """The same episodes and steps with each part where the plan has it, for kernels of CUDA's current device
        (`SequenceLoader(device="cuda")`): copied now, from disk through a buffer of a bounded size. The CPU goes on
        reading where it did, and what stays on disk it gathers for each batch.

        Args:
            plan: of `residency_plan`; each process has its own copies.

        Raises:
            MissingExtraError, DeviceError: CuPy or a GPU is missing.
            DeviceMemoryError, HostMemoryError: there is less memory than the plan takes.
            InvalidArgumentError: a plan of another dataset, or a dataset that others serve.
        """
        if not isinstance(self.reader(), ShardReader):
            raise InvalidArgumentError("what other machines serve is not brought to a GPU's memory")
        extents_of((plan.shard, plan.first, plan.last), *self._store.placement, self._store.lengths)
        store = self._store.placed(plan)
        store.device_columns()
        return Dataset(store, self._view)

    def device_columns(self) -> DeviceColumns:
        """Where kernels find the columns; the addresses of those that they cannot read in place are 0."""
        return self._store.device_columns()

    def placement(
        self, nodes: Sequence[str], sampler: str | Sampler = "uniform", budget: int | None = None
    ) -> Placement:
        """Which node should hold which shards, and which of those drawn most often it should have copies of: see
        `gear_data.cluster.placement.place_shards`. It is worked out, not done; `print` shows it.

        Args:
            nodes: names, all different.
            sampler: as for `SequenceLoader`; it says how often each episode is drawn.
            budget: most bytes on a node; None: as many as there are, and no copies.

        Raises:
            InvalidArgumentError: nodes that are none, a budget that is too small, or a sampler's arguments.
            UnknownNameError: no such sampler; lists those there are.
        """
        shards = self.manifest.shards
        shares = shard_shares(self._store.placement[0], self._shares(sampler), len(shards))
        return place_shards(shards, nodes, shares, budget)

    @property
    def is_remote(self) -> bool:
        """Whether other nodes are asked for some of its steps."""
        return self._store.is_remote

    @property
    def membership(self) -> Membership | None:
        """This process in the training run whose nodes share the dataset out; None where none do."""
        return self._store.membership

    @cached_property
    def shards(self) -> Int64Array:
        """int64 [episodes]: the shard that each is in, by its place in the manifest."""
        shards = self._store.placement[0]
        return shards if self.episode_ids is None else shards[self.episode_ids]

    def at(self, places: Int64Array) -> Dataset:
        """A view of the episodes at some places of `episodes`, int64 [k], ascending."""
        return Dataset(self._store, View(self._ids(0, self.num_episodes)[places], self._view.mask, self._view.mode))

    def _shares(self, sampler: str | Sampler) -> Float64Array:
        """float64 [n]: how much of what a sampler draws comes from each episode of the whole dataset."""
        anchors = self.anchors(WindowRule(context=1))
        shares = as_sampler(sampler).bind(Candidates(anchors, self.evaluate), seed=0).shares()
        if self.episode_ids is None:
            return shares
        whole = np.zeros(len(self._store.lengths))
        whole[self.episode_ids] = shares
        return whole

    @property
    def discount(self) -> float:
        """That of the column `returns_to_go`."""
        return 1.0 if self._store.discount is None else self._store.discount

    def with_discount(self, discount: float) -> Dataset:
        """The same episodes and steps with `returns_to_go` of a discount, float32: rewards[t] + discount *
        rewards[t + 1] + ..., as far as the episode goes, summed in float64. It is worked out once, and kept in a folder
        `sidecars` of the dataset; fingerprints do not count it.

        Args:
            discount: 0 to 1; 1 is what conversion stores, with which a dataset is itself.

        Raises:
            InvalidArgumentError: not such a number.
            MissingColumnError: the dataset has no rewards, or several a step.
            StorageFullError: the disk is full.
        """
        store = self._store.with_discount(discount)
        return self if store is self._store else Dataset(store, self._view)

    def split(self, fractions: Mapping[str, float], seed: int = 0) -> dict[str, Dataset]:
        """Views that divide the episodes at random: every episode is in one of them, and the same one on every machine.

        Args:
            fractions: part -> fraction of the episodes; together 1. Sizes are rounded by largest remainder.
            seed: 0 to 2^64 - 1.

        Raises:
            InvalidArgumentError: fractions that are not positive, or do not add up to 1; or a part without an episode.
        """
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed <= _MAX_SEED:
            raise InvalidArgumentError(f"seed must be an integer from 0 to 2^64 - 1, not {seed!r}")
        sizes = views.split_sizes(fractions, self.num_episodes)
        ids = self._ids(0, self.num_episodes)
        return {
            name: Dataset(self._store, View(ids[places], self._view.mask, self._view.mode))
            for name, places in views.split_places(sizes, int(seed)).items()
        }


def _open_again(store: DatasetStore, view: View, fingerprint: str) -> Dataset:
    """In another process. Ids and steps of a view mean nothing in another dataset."""
    if store.manifest.fingerprint != fingerprint:
        raise ManifestError("the dataset was replaced since it was opened", file=str(store.path), hint="open it again")
    return Dataset(store, view)
