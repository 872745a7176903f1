"""Dataset: opened GEAR shards, or a view of some episodes and steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.cluster.placement import Placement
from gear_data.common.polars_threads import check_polars_threads
from gear_data.dataset import filters, planning, views
from gear_data.dataset.episode import Episode
from gear_data.dataset.positions import check_position, check_positions, check_range, row_of_id
from gear_data.dataset.refreshing import generations
from gear_data.dataset.split import positions_by_value, split_positions, split_sizes
from gear_data.dataset.step_filter import combined_mask
from gear_data.dataset.store import DatasetStore
from gear_data.dataset.views import Filter, View
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.residency import ShardReader
from gear_data.residency.device.columns import find_extents
from gear_data.residency.plan import ResidencyPlan
from gear_data.schema import Schema
from gear_data.selection.samplers import Sampler
from gear_data.selection.step_mask import StepMask
from gear_data.selection.windows import Int64Array
from gear_data.storage.episode_block import offsets_of
from gear_data.storage.statistics import ColumnStatistics

if TYPE_CHECKING:
    import polars as pl


class Dataset:
    """Dataset of episodes, or a view of one.

    `gear_data.open` returns a dataset. `filter`, `filter_steps`, `select`, `split` and indexing return views, which
    copy no data. A dataset is a sequence of episodes:

        len(ds)             the number of episodes
        ds[0], ds[-1]       one episode, by position
        ds[10:20]           a view of episodes 10 to 19
        ds[[1, 4, 7]]       a view of three episodes
        for episode in ds:  every episode, in order
        ds.final(i)         the final observation of the episode with id i

    The id of an episode is its position in the whole dataset. Views keep the ids: `ds[10:20].episode(12)` is episode 12
    of `ds`. In a dataset that grows, episodes keep their ids when others leave. A dataset can be pickled; unpickling
    opens it again.

    Attributes:
        path: folder of the whole dataset, or its URL as text.
        residency: where the column bytes live, see `gear_data.open`.
        manifest: manifest of the whole dataset.
    """

    def __init__(self, store: DatasetStore, view: View) -> None:
        self._store = store
        self._view = view
        self.path = store.path
        self.residency = store.residency
        self.manifest = store.manifest

    def __reduce__(self) -> tuple[Any, ...]:
        return (Dataset, (self._store, self._view))

    def __repr__(self) -> str:
        filtered = "" if self.step_mask is None else f", {self.step_mask_mode} steps filtered"
        return f"Dataset({str(self.path)!r}, {self.num_episodes:,} episodes, {self.num_steps:,} steps{filtered})"

    def __len__(self) -> int:
        """Returns the number of episodes, at least 1."""
        return self.num_episodes

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Episode: ...

    @overload
    def __getitem__(self, key: slice | Sequence[int] | npt.NDArray[np.integer[Any]]) -> Dataset: ...

    def __getitem__(
        self, key: int | np.integer[Any] | slice | Sequence[int] | npt.NDArray[np.integer[Any]]
    ) -> Episode | Dataset:
        """Returns the episode at a position, or a view of several episodes.

        Args:
            key: a position, a slice, or positions as for `select`. Negative positions count from the end.

        Raises:
            EpisodeIndexError: a position is outside the dataset. It is an `IndexError` too.
            InvalidArgumentError: the key has another type, or the positions are not ascending.
            EmptySourceError: the key selects no episode, as in `ds[5:5]`.
        """
        if isinstance(key, slice):
            return self.select(range(*key.indices(len(self))))
        if isinstance(key, int | np.integer):
            position = check_position(key, len(self))
            return Episode(self._store, int(self._ids(position, position + 1)[0]))
        return self.select(key)

    def __iter__(self) -> Iterator[Episode]:
        """Yields every episode, in order."""
        for index in self._ids(0, len(self)).tolist():
            yield Episode(self._store, index)

    def select(self, positions: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Dataset:
        """Returns a view of the episodes at some positions of this dataset.

        Args:
            positions: integers in ascending order, without repeats; negative ones count from the end. A position
                counts the episodes of this dataset or view. To select by id or by other columns, use `filter`.

        Raises:
            EpisodeIndexError: a position is outside the dataset. It is an `IndexError` too.
            InvalidArgumentError: the positions are not integers, or not ascending.
            EmptySourceError: there are no positions.
        """
        checked = check_positions(positions, len(self))
        if len(checked) == len(self):
            return self
        return self._view_of(self._ids(0, len(self))[checked])

    @property
    def num_episodes(self) -> int:
        """Returns the number of episodes."""
        return self.manifest.episodes if self._view.ids is None else len(self._view.ids)

    @property
    def num_steps(self) -> int:
        """Number of steps of the episodes. Steps that a step filter excludes are counted."""
        return self.manifest.steps if self._view.ids is None else int(self.offsets[-1])

    @property
    def schema(self) -> Schema:
        """Returns the columns of the whole dataset."""
        return self._store.schema

    @property
    def discount(self) -> float:
        """Discount of the column `returns_to_go`."""
        return 1.0 if self._store.discount is None else self._store.discount

    @property
    def is_remote(self) -> bool:
        """Whether some steps are read from other nodes."""
        return self._store.is_remote

    @property
    def episode_ids(self) -> Int64Array | None:
        """int64 [episodes], ascending: ids of the episodes.

        None if the dataset has all episodes, with the ids 0 to n - 1.
        """
        ids, rows = self._store.ids, self._view.ids
        return rows if ids is None else ids if rows is None else ids[rows]

    @property
    def generation(self) -> int:
        """The number of the dataset's generation; 0 if it has not grown. See `gear_data.Writer`."""
        return self.manifest.generation

    def refresh(self) -> Dataset:
        """Returns the newest generation of a dataset that grows; this dataset if there is no newer one.

        Filters of a view are applied again: a filter of episodes to all episodes, and a filter of steps to those that
        the view does not have.

        Raises:
            InvalidArgumentError: the view was made by positions (`select`, `split`), or the dataset cannot be opened
                again in this way: its columns were placed, or other nodes serve it.
            DatasetReplacedError: the dataset was replaced.
            EmptySourceError: no episode satisfies the filters any more.
            GearError: see `gear_data.open`.
        """
        return self._at(None)

    def at_generation(self, generation: int) -> Dataset:
        """Returns a generation of a dataset that grows, as `refresh` does.

        Raises:
            GenerationGoneError: it is no longer on disk, or not yet.
            GearError: the errors of `refresh`.
        """
        return self._at(generation)

    def _at(self, generation: int | None) -> Dataset:
        found = generations.at_generation(self._store, self._view, generation)
        return self if found is None else Dataset(*found)

    @property
    def step_mask(self) -> StepMask | None:
        """Mask of the steps that satisfy the step filters.

        Steps are numbered as in the whole dataset. None without a step filter.
        """
        return self._view.mask

    @property
    def step_mask_mode(self) -> str | None:
        """Steps of a window that the step filters test: `first` or `all`.

        None without a step filter.
        """
        return self._view.mode

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the contents, independent of the division into shards.

        A view has the fingerprint of a dataset that holds only its episodes. A step filter changes the fingerprint.
        """
        ids = self._view.ids
        episodes = self.manifest.fingerprint if ids is None else views.view_fingerprint(self._store, ids)
        if self._view.mask is None or self._view.mode is None:
            return episodes
        return views.filtered_fingerprint(episodes, self._view.mask, self._view.mode)

    @cached_property
    def statistics(self) -> Mapping[str, ColumnStatistics]:
        """Column name -> statistics over all steps of the episodes.

        The statistics are count (int64), and mean, std, min and max (float64) of the finite values. The first use on a
        view reads all steps of the view once. Cameras have statistics of a sample of frames, for each channel, with
        `sampled_frames` and `quantiles`. Views have no statistics of cameras.
        """
        if self._view.ids is None:
            return self._store.statistics
        return views.view_statistics(self._store, self._view.ids)

    def quantiles(self, column: str, probabilities: Sequence[float] = (0.01, 0.99)) -> npt.NDArray[np.float64]:
        """Returns quantiles of a column over all steps of the episodes, exactly.

        Quantiles are of finite values, and interpolated as by `numpy.quantile`. A vector column has quantiles for each
        element; other columns have one set for all their elements. The first call reads the column three times (64-bit
        numbers: six times), in blocks. The result is kept in the folder `sidecars` of the dataset.

        Args:
            column: a column of a fixed size.
            probabilities: numbers from 0 to 1.

        Returns:
            float64 [probabilities, elements]; NaN for an element without finite values.

        Raises:
            UnknownNameError: the column does not exist. The error lists the columns.
            UnsupportedColumnError: the column has text or bytes, or is a camera.
            InvalidArgumentError: a probability is not a number from 0 to 1.
        """
        ids = self._ids(0, len(self))
        contents = self.manifest.fingerprint if self._view.ids is None else views.view_fingerprint(self._store, ids)
        return views.episode_quantiles(self._store, ids, contents, column, views.checked_probabilities(probabilities))

    @cached_property
    def episodes(self) -> pl.DataFrame:
        """Episode table: one row per episode, in source order.

        Columns: `episode_id`, `shard`, `start`, `length`, `return`, `terminated`, `truncated`, `source`, `task`,
        `content`, and the episode metadata of the source.

        Raises:
            ForkedProcessError: this process is a forked child, and Polars was in use before the fork. `episode_table`
                works there.
        """
        if self._view.ids is None:
            return self._store.episodes
        check_polars_threads()
        return self._store.episodes[self._view.ids]

    @cached_property
    def episode_table(self) -> Any:
        """Episode table as a `pyarrow.Table`.

        The table of the whole dataset is memory-mapped.
        """
        table = self._store.episode_table
        return table if self._view.ids is None else table.take(self._view.ids)

    @cached_property
    def lengths(self) -> Int64Array:
        """int64 [episodes]: number of steps of each episode."""
        return self._store.lengths if self._view.ids is None else self._store.lengths[self._view.ids]

    @cached_property
    def offsets(self) -> Int64Array:
        """int64 [episodes + 1]: first step of each episode in this dataset.

        The episode at position i has steps offsets[i] to offsets[i + 1].
        """
        return self._store.offsets if self._view.ids is None else offsets_of(self.lengths)

    @cached_property
    def shards(self) -> Int64Array:
        """int64 [episodes]: shard of each episode.

        A shard is an index into the manifest's shards.
        """
        shards = self._store.episode_starts[0]
        return shards if self._view.ids is None else shards[self._view.ids]

    def _ids(self, first: int, last: int) -> Int64Array:
        """Returns the ids of the episodes at positions first to last - 1."""
        check_range(first, last, self.num_episodes)
        return np.arange(first, last) if self._view.ids is None else self._view.ids[first:last]

    def _view_of(self, ids: Int64Array, made_by: tuple[Filter, ...] | None = None) -> Dataset:
        return Dataset(self._store, replace(self._view, ids=ids, made_by=made_by))

    def _made_by(self, added: Filter) -> tuple[Filter, ...] | None:
        earlier = self._view.made_by
        return None if earlier is None else (*earlier, added)

    def steps(self, name: str, first: int, last: int) -> npt.NDArray[Any]:
        """Returns the steps of one column over several episodes, [steps, *shape].

        The episodes are at positions first to last - 1, and their steps are concatenated. The array is a view of the
        shard's memory if the episodes are adjacent in one shard, else a copy. The frames of a camera are all decoded
        into memory; `ds[i][camera]` decodes only the frames that are indexed.

        Raises:
            UnknownNameError: the column does not exist. The error lists the columns.
            CorruptShardError: a video is damaged.
            EpisodeIndexError: the dataset or view has no such positions.
        """
        return self._store.steps(name, self._ids(first, last))

    def values(self, name: str, first: int, last: int) -> pa.Array:
        """Returns a column of variable length, for the same episodes as `steps`.

        The result is a `LargeStringArray` or a `LargeBinaryArray`.

        Raises:
            UnknownNameError: the column does not exist. The error lists the columns.
            UnsupportedColumnError: the column is a camera; `steps` decodes its frames.
            EpisodeIndexError: the dataset or view has no such positions.
            CorruptShardError: the values are damaged.
        """
        return self._store.values(name, self._ids(first, last))

    def sizes(self, first: int, last: int) -> Int64Array:
        """Returns int64 [last - first]: bytes of each episode in the shards.

        The episodes are at positions first to last - 1. The videos of cameras are not counted.

        Raises:
            EpisodeIndexError: the dataset or view has no such positions.
        """
        return self._store.sizes(self._ids(first, last))

    def _check_id(self, index: int) -> int:
        return row_of_id(index, self._store.ids, self._view.ids, self.manifest.episodes)

    def episode(self, index: int) -> Episode:
        """Returns the episode with id `index`.

        Raises:
            EpisodeIndexError: the dataset or view has no such episode.
        """
        return Episode(self._store, self._check_id(index))

    def final(self, index: int) -> dict[str, npt.NDArray[Any]] | None:
        """Returns the observation after the last step of the episode with id `index`.

        Returns:
            Column name -> [*shape]; None if the episode has no final observation.

        Raises:
            EpisodeIndexError: the dataset or view has no such episode.
        """
        index = self._check_id(index)
        ids, columns = self._store.finals
        row = int(np.searchsorted(ids, index))
        if row == len(ids) or ids[row] != index:
            return None
        return {name: values[row] for name, values in columns.items()}

    def evaluate(self, expression: pl.Expr | str, purpose: str) -> npt.NDArray[np.float64]:
        """Returns the values of an expression over the episode table, float64 [episodes].

        Sampling weights are an example. Null becomes NaN, and true becomes 1. A single value applies to every episode.

        Args:
            expression: as for `filter`, but numeric or Boolean.
            purpose: name of the values in error messages, such as "weight".

        Raises:
            UnknownNameError: a column does not exist. The error lists the columns.
            InvalidArgumentError: the values are not numeric, or not one per episode.
        """
        return filters.row_values(*self._bind(expression), purpose)

    def _bind(self, expression: pl.Expr | str) -> tuple[pl.DataFrame, pl.Expr]:
        """Returns the episode table and the parsed expression.

        The text columns that the expression names are strings.
        """
        parsed = filters.parse(expression, self.episodes.columns)
        return filters.with_plain_text(self.episodes, parsed), parsed

    def filter(self, expression: pl.Expr | str) -> Dataset:
        """Returns a view of the episodes that satisfy an expression.

        The expression is over the episode table (`episodes`).

        Args:
            expression: a Boolean Polars expression, or SQL text for one (`polars.sql_expr`). Null counts as false.
                Aggregates, such as `pl.col("return").quantile(0.9)`, are over the episodes of this dataset or view.

        Raises:
            UnknownNameError: a column does not exist. The error lists the columns.
            InvalidArgumentError: the values are not Boolean, or not one per episode.
            EmptySourceError: no episode satisfies the expression.
        """
        frame, parsed = self._bind(expression)
        found = filters.true_rows(frame, parsed)
        if not found.any():
            raise filters.no_rows_error(frame, parsed, "episode")
        rows = np.flatnonzero(found) if self._view.ids is None else self._view.ids[found]
        return self._view_of(rows, self._made_by(Filter(expression)))

    def filter_steps(self, expression: pl.Expr | str, mode: str = "first") -> Dataset:
        """Returns a view from which loaders draw only windows that satisfy a filter.

        The filter is an expression over the step columns. The view has the same whole episodes: `num_steps`,
        `statistics` and `episode(i)` do not change. The call reads the columns of the expression once, in blocks. If
        there is an earlier step filter, steps must satisfy both filters.

        Args:
            expression: as for `filter`, evaluated for each step separately. Vectors are `polars.Array` columns:
                `pl.col("observations").arr.get(0) > 0`.
            mode: `first`: the first step of a window satisfies the expression; `all`: every step of a window does.

        Raises:
            UnknownNameError: a column or the mode does not exist. The error lists the known names.
            UnsupportedColumnError: the expression names a camera, or a column that Polars cannot hold.
            InvalidArgumentError: the expression is not Boolean, or depends on more than one step; or an earlier step
                filter has another mode.
            EmptySourceError: no step satisfies the expression.
        """
        mask = combined_mask(self._store, self._ids(0, len(self)), self._view, expression, mode)
        made_by = self._made_by(Filter(expression, mode))
        return Dataset(self._store, replace(self._view, mask=mask, mode=mode, made_by=made_by))

    def split(self, fractions: Mapping[str, float], seed: int = 0) -> dict[str, Dataset]:
        """Divides the episodes at random into views.

        Each episode is in exactly one view. Equal seeds give equal views on every machine.

        Args:
            fractions: name of a view -> its fraction of the episodes. Fractions add up to 1; sizes are rounded by the
                method of largest remainders.
            seed: 0 to 2^64 - 1.

        Raises:
            InvalidArgumentError: a fraction is not positive, the fractions do not add up to 1, or a view gets no
                episode.
        """
        sizes = split_sizes(fractions, len(self))
        ids = self._ids(0, len(self))
        return {name: self._view_of(ids[positions]) for name, positions in split_positions(sizes, seed).items()}

    def split_by(self, column: str) -> dict[Any, Dataset]:
        """Divides the episodes by a column of the episode table into views.

        Each episode is in exactly one view.

        Args:
            column: a column of text, integers, booleans or dates, such as `split`, `embodiment` or `task`.

        Returns:
            Value of the column -> view, in the order of the values' first episodes. Episodes without a value have the
            key None.

        Raises:
            UnknownNameError: the column does not exist. The error lists the columns.
            InvalidArgumentError: the column has another type.
        """
        if column not in self.episode_table.column_names:
            raise unknown_name("column", column, self.episode_table.column_names)
        ids = self._ids(0, len(self))
        groups = positions_by_value(self.episode_table.column(column), column)
        return {value: self._view_of(ids[positions]) for value, positions in groups.items()}

    def with_discount(self, discount: float) -> Dataset:
        """Returns the same episodes and steps with `returns_to_go` of another discount.

        `returns_to_go[t]` is rewards[t] + discount * rewards[t + 1] + ... to the end of the episode, summed in float64
        and stored as float32. The column is computed once and kept in the folder `sidecars` of the dataset.
        Fingerprints do not depend on the discount.

        Args:
            discount: 0 to 1. Conversion stores discount 1. With the discount that it already has, the method returns
                this dataset.

        Raises:
            InvalidArgumentError: the discount is not a number from 0 to 1.
            MissingColumnError: the dataset does not have one reward per step.
            StorageFullError: the disk is full.
        """
        store = self._store.with_discount(discount)
        return self if store is self._store else Dataset(store, self._view)

    def residency_plan(
        self,
        device_bytes: int,
        host_bytes: int,
        sampler: str | Sampler = "uniform",
        columns: Sequence[str] | None = None,
    ) -> ResidencyPlan:
        """Plans which parts of the data go to which memory.

        The memories are GPU memory, pinned host memory and disk. The plan reads as many bytes as possible from the
        fastest memory. Planning loads no data; `place` applies the plan, and `print` shows it. The videos of cameras
        stay on disk: plans are about columns in shards.

        Args:
            device_bytes, host_bytes: largest number of bytes to use of each memory.
            sampler: as for `SequenceLoader`; determines how often each episode is drawn.
            columns: columns that batches read; None: all columns of a fixed size.

        Raises:
            InvalidArgumentError: a number of bytes is negative, or an argument of the sampler is invalid.
            UnknownNameError: a column or the sampler does not exist. The error lists the known names.
            UnsupportedColumnError: `columns` names a camera.
        """
        return planning.residency_plan(self, device_bytes, host_bytes, sampler, columns)

    def place(self, plan: ResidencyPlan) -> Dataset:
        """Returns the same dataset with each part in the memory of the plan.

        The call copies the parts now, from disk through a buffer of bounded size, for CUDA's current device
        (`SequenceLoader(device="cuda")`). Parts that stay on disk are gathered by the CPU for each batch. The CPU still
        reads all columns from where it read them before.

        Args:
            plan: returned by `residency_plan`. Each process has its own copies.

        Raises:
            MissingExtraError, DeviceError: CuPy or a GPU is missing.
            DeviceMemoryError, HostMemoryError: the plan needs more memory than is available.
            InvalidArgumentError: the plan belongs to another dataset, or other nodes serve the dataset.
        """
        if not isinstance(self._store.reader(), ShardReader):
            raise InvalidArgumentError(
                f"{self.path} is served by other nodes; its columns cannot be placed in GPU memory",
                hint="open the dataset's folder or URL to place it",
            )
        find_extents((plan.shard, plan.first, plan.last), *self._store.episode_starts, self._store.lengths)
        store = self._store.placed(plan)
        store.device_columns()
        return Dataset(store, self._view)

    def placement(
        self, nodes: Sequence[str], sampler: str | Sampler = "uniform", budget: int | None = None
    ) -> Placement:
        """Plans which node holds which shards, and which are replicated.

        Planning moves no data; `print` shows the plan. See `gear_data.cluster.placement.place_shards`.

        Args:
            nodes: names of the nodes, all different.
            sampler: as for `SequenceLoader`; determines how often each episode is drawn.
            budget: largest number of bytes per node. Memory left over is filled with replicas of the shards drawn most
                often. None: no limit and no replicas.

        Raises:
            InvalidArgumentError: there are no nodes, the budget is too small, or an argument of the sampler is invalid.
            UnknownNameError: the sampler does not exist. The error lists the known samplers.
        """
        return planning.shard_placement(self, nodes, sampler, budget)
