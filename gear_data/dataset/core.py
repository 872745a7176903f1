"""DatasetCore: the episodes and steps of a dataset or view, and their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.keywords import suggest_keywords
from gear_data.dataset import filters, views
from gear_data.dataset.episode import Episode
from gear_data.dataset.polars_threads import check_polars_threads
from gear_data.dataset.positions import check_position, check_range, row_of_id
from gear_data.dataset.stores.store import DatasetStore
from gear_data.dataset.views import View
from gear_data.errors import InvalidArgumentError, UnknownNameError, UnsupportedColumnError
from gear_data.schema import Schema
from gear_data.selection.step_mask import StepMask
from gear_data.selection.windows import Int64Array
from gear_data.storage.episode_block import offsets_of
from gear_data.storage.statistics import ColumnStatistics

if TYPE_CHECKING:
    import polars as pl


@suggest_keywords
class DatasetCore:
    """What a dataset or view shows of its store: base of `gear_data.Dataset`.

    Modules that `Dataset` calls take a `DatasetCore`.

    Attributes:
        store: files, shards and tables, which a dataset and all its views share.
        view: the episodes and steps of the store that are shown.
        path, residency, manifest: see `gear_data.Dataset`.
    """

    def __init__(self, store: DatasetStore, view: View) -> None:
        self.store = store
        self.view = view
        self.path = store.path
        self.residency = store.residency
        self.manifest = store.manifest

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.store, self.view))

    def __len__(self) -> int:
        """Returns the number of episodes, at least 1."""
        return self.num_episodes

    def __iter__(self) -> Iterator[Episode]:
        """Yields every episode, in order."""
        for index in self._rows(0, len(self)).tolist():
            yield Episode(self.store, index)

    @property
    def num_episodes(self) -> int:
        """Returns the number of episodes."""
        return self.manifest.episodes if self.view.rows is None else len(self.view.rows)

    @property
    def num_steps(self) -> int:
        """Number of steps of the episodes. Steps that a step filter excludes are counted."""
        return self.manifest.steps if self.view.rows is None else int(self.offsets[-1])

    @property
    def schema(self) -> Schema:
        """Returns the columns of the whole dataset."""
        return self.store.schema

    @property
    def discount(self) -> float:
        """Discount of the column `returns_to_go`."""
        return 1.0 if self.store.discount is None else self.store.discount

    @property
    def is_remote(self) -> bool:
        """Whether some steps are read from other nodes."""
        return self.store.is_remote

    @property
    def episode_ids(self) -> Int64Array | None:
        """int64 [episodes], ascending: ids of the episodes.

        None if the dataset has all episodes, with the ids 0 to n - 1.
        """
        ids, rows = self.store.ids, self.view.rows
        return rows if ids is None else ids if rows is None else ids[rows]

    @property
    def generation(self) -> int:
        """The number of the dataset's generation; 0 if it has not grown. See `gear_data.Writer`."""
        return self.manifest.generation

    @property
    def step_mask(self) -> StepMask | None:
        """Mask of the steps that satisfy the step filters.

        Steps are numbered as in the whole dataset. None without a step filter.
        """
        return self.view.mask

    @property
    def step_mask_mode(self) -> str | None:
        """Steps of a window that the step filters test: `first` or `all`.

        None without a step filter.
        """
        return self.view.mode

    @property
    def steps_left_out(self) -> int:
        """Number of steps of the episodes that the step filters exclude; 0 without one."""
        if self.view.mask is None:
            return 0
        first = self.store.offsets[self._rows(0, len(self))]
        return self.num_steps - int(self.view.mask.counts(first, self.lengths).sum())

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the contents, independent of the division into shards.

        A view has the fingerprint of a dataset that holds only its episodes. A step filter changes the fingerprint.
        """
        episodes = views.episodes_fingerprint(self.store, self.view.rows)
        if self.view.mask is None or self.view.mode is None:
            return episodes
        return views.filtered_fingerprint(episodes, self.view.mask, self.view.mode)

    @cached_property
    def statistics(self) -> Mapping[str, ColumnStatistics]:
        """Column name -> statistics over all steps of the episodes.

        The statistics are count (int64), and mean, std, min and max (float64) of the finite values. The first use on a
        view reads all steps of the view once. Cameras have statistics of a sample of frames, for each channel, with
        `sampled_frames` and `quantiles`. Views have no statistics of cameras.
        """
        if self.view.rows is None:
            return self.store.statistics
        return views.view_statistics(self.store, self.view.rows)

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
        rows = self._rows(0, len(self))
        contents = views.episodes_fingerprint(self.store, self.view.rows)
        return views.episode_quantiles(self.store, rows, contents, column, views.checked_probabilities(probabilities))

    @cached_property
    def episodes(self) -> pl.DataFrame:
        """Episode table: one row per episode, in source order.

        Columns: `episode_id`, `shard`, `start`, `length`, `return`, `terminated`, `truncated`, `source`, `task`,
        `content`, and the episode metadata of the source.

        Raises:
            ForkedProcessError: this process is a forked child, and Polars was in use before the fork. `episode_table`
                works there.
        """
        if self.view.rows is None:
            return self.store.episodes
        check_polars_threads()
        return self.store.episodes[self.view.rows]

    @cached_property
    def episode_table(self) -> Any:
        """Episode table as a `pyarrow.Table`.

        The table of the whole dataset is memory-mapped.
        """
        table = self.store.episode_table
        return table if self.view.rows is None else table.take(self.view.rows)

    @cached_property
    def lengths(self) -> Int64Array:
        """int64 [episodes]: number of steps of each episode."""
        return self.store.lengths if self.view.rows is None else self.store.lengths[self.view.rows]

    @cached_property
    def offsets(self) -> Int64Array:
        """int64 [episodes + 1]: first step of each episode in this dataset.

        The episode at position i has steps offsets[i] to offsets[i + 1].
        """
        return self.store.offsets if self.view.rows is None else offsets_of(self.lengths)

    @cached_property
    def shards(self) -> Int64Array:
        """int64 [episodes]: shard of each episode.

        A shard is an index into the manifest's shards.
        """
        shards = self.store.episode_starts[0]
        return shards if self.view.rows is None else shards[self.view.rows]

    def _rows(self, first: int, last: int) -> Int64Array:
        """Returns the rows in the store of the episodes at positions first to last - 1."""
        check_range(first, last, self.num_episodes)
        return np.arange(first, last) if self.view.rows is None else self.view.rows[first:last]

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
        rows, spec = self._rows(first, last), self.schema[name]
        return self.store.steps(name, rows) if len(rows) else np.empty((0, *spec.shape), spec.numpy_dtype)

    def values(self, name: str, first: int, last: int) -> pa.Array:
        """Returns a column of variable length, for the same episodes as `steps`.

        The result is a `LargeStringArray` or a `LargeBinaryArray`.

        Raises:
            UnknownNameError: the column does not exist. The error lists the columns.
            UnsupportedColumnError: the column is a camera, or has a fixed size; `steps` returns its values.
            EpisodeIndexError: the dataset or view has no such positions.
            CorruptShardError: the values are damaged.
        """
        rows, spec = self._rows(first, last), self.schema.columns[self.schema.index(name)]
        if not spec.variable_length:
            raise UnsupportedColumnError("has values of a fixed size", column=name, hint="Dataset.steps returns them")
        return self.store.values(name, rows) if len(rows) else pa.array([], spec.arrow_type)

    def sizes(self, first: int, last: int) -> Int64Array:
        """Returns int64 [last - first]: bytes of each episode in the shards.

        The episodes are at positions first to last - 1. The videos of cameras are not counted.

        Raises:
            EpisodeIndexError: the dataset or view has no such positions.
        """
        return self.store.sizes(self._rows(first, last))

    def _check_id(self, index: int) -> int:
        return row_of_id(index, self.store.ids, self.view.rows, self.manifest.episodes)

    def episode(self, index: int) -> Episode:
        """Returns the episode with id `index`.

        Raises:
            EpisodeIndexError: the dataset or view has no such episode.
            InvalidArgumentError: `index` is not an integer.
        """
        return Episode(self.store, self._check_id(index))

    def final(self, position: int | np.integer[Any]) -> dict[str, npt.NDArray[Any]] | None:
        """Returns the observation after the last step of the episode at a position, as `ds[position].final`.

        Returns:
            Column name -> [*shape]; None if the episode has no final observation.

        Raises:
            EpisodeIndexError: the position is outside the dataset. It is an `IndexError` too.
            InvalidArgumentError: the position is not an integer.
        """
        if not isinstance(position, int | np.integer):
            raise InvalidArgumentError(f"an episode's position is an integer, not {position!r}")
        checked = check_position(position, len(self))
        return Episode(self.store, int(self._rows(checked, checked + 1)[0])).final

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
        """Returns the columns of the episode table that an expression reads, and the parsed expression.

        The text columns that the expression names are strings.
        """
        names = self.store.episode_table.column_names
        try:
            parsed = filters.parse(expression, names)
        except UnknownNameError as error:
            if error.column not in self.schema:
                raise
            hint = "filter_steps takes it; Weighted takes an array with a weight for each step"
            raise UnknownNameError(
                f"{error.message}: it is a column of the steps", column=error.column, hint=hint
            ) from None
        # Of a large table, columns that the expression does not read take longer than its evaluation.
        frame = self.store.episode_frame(filters.read_columns(parsed, names))
        frame = frame if self.view.rows is None else frame[self.view.rows]
        return filters.with_plain_text(frame, parsed), parsed
