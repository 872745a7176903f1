"""Dataset: opened GEAR shards, or a view of some episodes and steps."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from gear_data.cluster.placement import Placement
from gear_data.common.extras import import_extra
from gear_data.common.keywords import refuse_misspelled, suggest_keywords
from gear_data.dataset import filters, planning
from gear_data.dataset.core import DatasetCore
from gear_data.dataset.curation.duplicates import without_duplicates
from gear_data.dataset.curation.outliers import without_outliers
from gear_data.dataset.episode import Episode
from gear_data.dataset.positions import check_position, check_positions
from gear_data.dataset.refreshing import generations
from gear_data.dataset.split import positions_by_value, split_positions
from gear_data.dataset.steps.expression import Satisfying
from gear_data.dataset.steps.idle import moving
from gear_data.dataset.steps.masks import check_mode, filtered
from gear_data.dataset.steps.ranges import kept_ranges
from gear_data.dataset.tables import conversions
from gear_data.dataset.tables.html import html_table
from gear_data.dataset.views import Filter, StepFilter, StepRule
from gear_data.errors import InvalidArgumentError, naming
from gear_data.residency.plan import ResidencyPlan
from gear_data.selection.samplers import AnySampler
from gear_data.selection.windows import Int64Array
from gear_data.words import NewRole, Rows, SamplerName, StepMode

if TYPE_CHECKING:
    import datasets
    import polars as pl

    from gear_data.dataset.editing.values import ColumnValues
    from gear_data.ingest.saving.save import SaveReport
    from gear_data.loaders.frameworks.map_datasets import EpisodeDataset, WindowDataset
    from gear_data.reports.report import DatasetReport


@suggest_keywords
class Dataset(DatasetCore):
    """Dataset of episodes, or a view of one.

    `gear_data.open` returns a dataset. `filter`, `filter_steps`, `select`, `split` and indexing return views, which
    copy no data. A dataset is a sequence of episodes:

        len(ds)             the number of episodes
        ds[0], ds[-1]       one episode, by position
        ds[10:20]           a view of episodes 10 to 19
        ds[[1, 4, 7]]       a view of three episodes
        for episode in ds:  every episode, in order
        ds.final(0)         the final observation of one episode, by position

    The id of an episode is its position in the whole dataset. Views keep the ids: `ds[10:20].episode(12)` is episode 12
    of `ds`. In a dataset that grows, episodes keep their ids when others leave. A dataset can be pickled; unpickling
    opens it again. `save` writes a view as a dataset of its own.

    Attributes:
        path: folder of the whole dataset, or its URL as text.
        residency: where the column bytes live, see `gear_data.open`.
        manifest: manifest of the whole dataset.
    """

    def __repr__(self) -> str:
        filtered = ""
        if self.step_mask is not None:
            filtered = f", {self.steps_left_out:,} steps left out (mode {self.step_mask_mode})"
        return f"Dataset({str(self.path)!r}, {self.num_episodes:,} episodes, {self.num_steps:,} steps{filtered})"

    def _repr_html_(self) -> str:
        """Returns the table that Jupyter shows."""
        return html_table(self)

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
            return Episode(self.store, int(self._rows(position, position + 1)[0]))
        return self.select(key)

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
        return self._chosen(checked, f"select {len(checked)} of {len(self)} episodes")

    def refresh(self) -> Dataset:
        """Returns the newest generation of a dataset that grows; this dataset if there is no newer one.

        Filters of a view are applied again: a filter of episodes to all episodes, and a filter of steps to those that
        the view does not have.

        Of a dataset at a `gear://` URL, it is the newest generation that all its servers have. With
        `cluster="torchrun"`, every rank calls this: rank 0 finds the generation, and each node loads its share of the
        new shards. All ranks take the generation, or none.

        A dataset that was placed is placed again: what lies in each memory stays there, and new episodes take what the
        plan's budgets leave.

        Raises:
            InvalidArgumentError: the view was made by positions (`select`, `split`, `drop_outliers`, `drop_duplicates`,
                `on_bad_shard="skip"`), or the columns were placed and the nodes of a run share the dataset.
            DatasetReplacedError: the dataset was replaced.
            ClusterError: a server is behind the others, or a rank does not come in time. The error names it.
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
        found = generations.at_generation(self.store, self.view, generation)
        return self if found is None else Dataset(*found)

    def _chosen(self, positions: Int64Array, choice: str) -> Dataset:
        """Returns a view of the episodes at some positions, which are ascending."""
        rows = positions if self.view.rows is None else self.view.rows[positions]
        history = (*self.view.history, choice)
        return Dataset(self.store, replace(self.view, rows=rows, made_by=None, history=history))

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
        rows, history = self._rows(0, len(self))[found], (*self.view.history, f"filter {expression}")
        return Dataset(self.store, replace(self.view.filtered_by(Filter(expression)), rows=rows, history=history))

    def filter_steps(self, expression: pl.Expr | str, mode: StepMode = "first") -> Dataset:
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
        check_mode(self.view, mode)
        return self._with_steps(Satisfying(expression), mode)

    def keep_ranges(
        self,
        ranges: Mapping[int | str, Sequence[Sequence[int]]] | str | os.PathLike[str],
        mode: StepMode = "first",
    ) -> Dataset:
        """Returns a view from which loaders draw only windows in ranges of steps.

        The view is one of `filter_steps`, by which steps a step of an episode is in. Episodes without a range have no
        such steps, nor have episodes that a dataset which grows gets later.

        Args:
            ranges: an episode -> its half-open ranges [start, stop), of steps from 0; or the path or URL of such an
                object in a JSON file. An integer, or its text, is the id of an episode. Another text is its `source`,
                or another text of the episode table that only one episode has. The keys of openpi's file of DROID,
                FOLDER--FILE, name the episodes of a conversion from RLDS.
            mode: as for `filter_steps`.

        Raises:
            EpisodeIndexError: a key names no episode of the dataset.
            InvalidArgumentError: the file cannot be read, a range is not within its episode or has no step, ranges
                overlap, a key names several episodes, or two keys name one; or an earlier step filter has another mode.
            UnknownNameError: the mode does not exist.
            EmptySourceError: no step is in a range.
            RemoteError: the server of a URL cannot be reached.
        """
        check_mode(self.view, mode)
        with self._naming():
            return self._with_steps(kept_ranges(self.store, ranges), mode)

    def drop_idle(
        self, column: str, *, threshold: float, seconds: float, fps: float | None = None, mode: StepMode = "first"
    ) -> Dataset:
        """Returns a view from which loaders draw only windows of steps that are in no long idle run.

        A step is idle if every element of the column differs by less than `threshold` from the step before, in float64.
        The first step of an episode is not idle, nor is one with NaN. A run of idle steps is left out if it has at
        least `seconds` times `fps` steps. The call reads the column once, in blocks. The view is one of `filter_steps`.

        Args:
            column: a column of numbers, such as the positions or velocities of the joints.
            threshold: the smallest change of a step that moves, in the unit of the column.
            seconds: the time of the shortest run that is left out.
            fps: steps per second; None: what the source states (LeRobot, robomimic), or what the column `timestamp`
                says.
            mode: as for `filter_steps`.

        Raises:
            UnknownNameError: the column or the mode does not exist. The error lists the known names.
            UnsupportedColumnError: the column is a camera, or has text or bytes.
            InvalidArgumentError: a number is not above 0, the steps per second are unknown, or an earlier step filter
                has another mode.
            EmptySourceError: no step satisfies this filter and the earlier ones.
        """
        check_mode(self.view, mode)
        with self._naming():
            return self._with_steps(moving(self, column, threshold, seconds, fps), mode)

    def _naming(self) -> AbstractContextManager[None]:
        """Lets errors name the dataset."""
        return naming(f"dataset {self.path}", self.path)

    def _with_steps(self, rule: StepRule, mode: str) -> Dataset:
        return Dataset(self.store, filtered(self.store, self._rows(0, len(self)), self.view, rule, mode))

    def all_steps(self) -> Dataset:
        """Returns a view of the same episodes without filters of steps; this dataset if it has none.

        A dataset that was saved with such a filter is opened with the filter.
        """
        if self.view.mask is None:
            return self
        made_by = self.view.made_by
        episodes = None if made_by is None else tuple(each for each in made_by if not isinstance(each, StepFilter))
        history = (*self.view.history, "all steps")
        return Dataset(self.store, replace(self.view, mask=None, mode=None, made_by=episodes, history=history))

    def split(
        self, fractions: Mapping[str, float], seed: int = 0, *, stratify: str | None = None
    ) -> dict[str, Dataset]:
        """Divides the episodes at random into views.

        Each episode is in exactly one view. Equal seeds give equal views on every machine.

        Args:
            fractions: name of a view -> its fraction of the episodes. Fractions add up to 1; sizes are rounded by the
                method of largest remainders.
            seed: 0 to 2^64 - 1.
            stratify: a column as for `split_by`: each view gets its fraction of the episodes of each value, rounded for
                each value.

        Raises:
            UnknownNameError: the column does not exist. The error lists the columns.
            InvalidArgumentError: a fraction is not positive, the fractions do not add up to 1, or a view gets no
                episode.
        """
        groups = None if stratify is None else list(positions_by_value(self.episode_table, stratify).values())
        parts = split_positions(fractions, len(self), groups, seed)
        how = f"of {dict(fractions)}, seed {seed}" + (f", by {stratify}" if stratify is not None else "")
        return {name: self._chosen(positions, f"split {name} {how}") for name, positions in parts.items()}

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
        return {
            value: self._chosen(positions, f"split_by {column}: {value}")
            for value, positions in positions_by_value(self.episode_table, column).items()
        }

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        resume: bool = False,
        progress: bool | None = None,
    ) -> SaveReport:
        """Saves the episodes as a dataset of their own, which `gear_data.open` opens.

        A shard whose episodes all stay becomes a hard link, or a copy if a link is not possible, such as on another
        disk or at a URL. The other episodes are written to new shards. The video files of the episodes become links or
        copies, whole. Statistics are computed from the episodes that stay, and their ids are 0 to n - 1.

        The fingerprint is the one of this dataset or view, and of a conversion of only these episodes. The provenance
        names the dataset, its fingerprint, and the filters and splits that chose the episodes. A filter of steps is
        saved, too: the new dataset has whole episodes, and is opened with the filter. `all_steps` leaves it out.

        Args:
            path: the folder of the new dataset, as a path or an fsspec URL. It must not exist, or must be empty, unless
                `overwrite` or `resume` is set.
            overwrite: replace the GEAR dataset there, once the new one is complete.
            resume: start an interrupted `save` of the same episodes again, or return the dataset if it is finished.
            progress: show a progress bar. None shows one on a terminal.

        Raises:
            InvalidArgumentError: the view has another discount than 1, other nodes serve the dataset, or the
                destination and the dataset contain each other.
            EmptySourceError: a step filter leaves out every step.
            DestinationExistsError: the destination holds files that must not be replaced, or another process is
                writing there.
            CorruptShardError: a shard or a table is damaged.
            GearError: another subclass. After an error, `open` finds no new dataset at the destination.
        """
        # Reading a dataset needs nothing of conversion.
        from gear_data.dataset.curation.save import save_view

        return save_view(self.store, self.view, path, overwrite=overwrite, resume=resume, progress=progress)

    def with_column(self, name: str, values: ColumnValues, *, role: NewRole | None = None) -> Dataset:
        """Returns the dataset with one more column, of which each step has a value.

        The new values are files beside the shards, which are not written again. They are in a temporary folder
        ($TMPDIR) as long as the returned dataset is used; `save` keeps them, and links the shards. The call reads all
        shards once, because the contents of the episodes change, and with them the fingerprint: it is the one of a
        conversion with the column.

        Args:
            name: of the column. Its first part says its role, as in `observations.embedding`.
            values: one of these:
                an array [num_steps, *shape], for all steps in order, of numbers, text or bytes.
                a Polars expression over the step columns, or SQL text for one. It is evaluated for each episode
                separately, so `pl.col("rewards").cum_sum()` begins again with every episode. A single value is
                repeated.
                a function that takes an `Episode` and returns an array [T, *shape] or a list of T values.
            role: puts the column under the name of a role: with `observation`, `depth` becomes `observations.depth`.
                None: the name stays.

        Raises:
            InvalidArgumentError: the name is taken or invalid, there are more or fewer values than steps, some are
                null or masked, a function or expression gives another dtype or shape in a later episode, this is a view
                of some episodes, the dataset grows, or other nodes serve it.
            UnsupportedColumnError: a dataset cannot store the values.
            UnknownNameError: the expression names a column that does not exist, or the role does not exist.
            CorruptShardError: a shard is damaged.
            StorageFullError, UnwritableError: the temporary folder cannot be written to.
        """
        from gear_data.dataset.editing.dataset import with_column

        return Dataset(*with_column(self, name, values, role))

    def rename(self, names: Mapping[str, str]) -> Dataset:
        """Returns the dataset with other names of columns or cameras. No file of steps is written.

        The masks of columns are renamed with them. `returns_to_go` leaves with `rewards`, and the `return` of each
        episode is the sum of the new `rewards`; null without such a column. Shards are read once if a column becomes
        `rewards` or was it, or if the order of the names changes: the contents of episodes are hashed in this order.
        See `with_column`.

        Args:
            names: name -> new name.

        Raises:
            UnknownNameError: a column does not exist. The error lists the columns.
            InvalidArgumentError: a new name is taken or invalid, every dataset has the column (`terminated`,
                `truncated`), the dataset grows, or other nodes serve it.
            CorruptShardError: a shard is damaged.
        """
        from gear_data.dataset.editing.dataset import renamed

        return Dataset(*renamed(self, names))

    def drop(self, names: str | Sequence[str]) -> Dataset:
        """Returns the dataset without some columns or cameras.

        No file of steps is written: the shards keep the bytes of the columns, and nothing reads them. The masks of
        columns leave with them, and `returns_to_go` with `rewards`. The call reads all shards once. See `with_column`.

        Args:
            names: a column, or several.

        Raises:
            UnknownNameError: a column does not exist. The error lists the columns.
            InvalidArgumentError: there are no names, every dataset has the column (`terminated`, `truncated`), the
                dataset grows, or other nodes serve it.
            CorruptShardError: a shard is damaged.
        """
        from gear_data.dataset.editing.dataset import dropped

        return Dataset(*dropped(self, names))

    def with_facts(self, table: Any) -> Dataset:
        """Returns the dataset with facts about its episodes: further columns of the episode table.

        Contents and fingerprint stay. `save` writes the table, and links the shards. See `with_column`.

        Args:
            table: a Polars or pandas frame, an Arrow table, or a dictionary of columns. With a column `episode_id`, a
                row is about that episode, and other episodes get null or keep their value. Without, there is a row for
                each episode of this dataset or view, in order. A fact that exists is replaced. `task` sets the tasks.

        Raises:
            EpisodeIndexError: the dataset or view has no episode of an id.
            InvalidArgumentError: the table has more or fewer rows, an id twice, or no facts; a column has the name of
                one that every episode table has; the dataset grows, or other nodes serve it.
            UnsupportedColumnError: an episode table cannot have values of a type; or some episodes get values of
                another kind than the other episodes have, such as numbers beside text.
        """
        from gear_data.dataset.editing.dataset import with_more_facts

        return Dataset(*with_more_facts(self, table))

    def drop_outliers(self, limits: Mapping[str, float]) -> Dataset:
        """Returns a view without the episodes whose value is far from the median.

        An episode leaves if |value - median| / scale is above the limit of a column. The scale is 1.4826 times the
        median of |value - median|, which is the standard deviation of normally distributed values. If more than half of
        the values are equal, it is 1.2533 times the mean of |value - median| (Iglewicz and Hoaglin, 1993). Median and
        scale are of the finite values of this dataset or view. Null and NaN are no outliers; an infinite value is one.

        Args:
            limits: a numeric column of the episode table, such as `return` or `length` -> the limit, above 0. Iglewicz
                and Hoaglin suggest 3.5 with their factor of 0.6745, which is this limit.

        Raises:
            UnknownNameError: a column does not exist. The error lists the columns.
            InvalidArgumentError: a column is not numeric, or a limit is not above 0.
            EmptySourceError: every episode is an outlier.
        """
        positions = without_outliers(self.episode_table, limits)
        if len(positions) == len(self):
            return self
        return self._chosen(positions, f"drop_outliers {dict(limits)}")

    def drop_duplicates(self, columns: Sequence[str] | None = None, tolerance: float = 0.0) -> Dataset:
        """Returns a view without the episodes that repeat an earlier episode.

        Args:
            columns: None compares the contents of the episodes by their hashes: all columns, exactly. With columns, an
                episode leaves if it has the length of an earlier episode that stays, and each element of these columns
                differs by at most `tolerance` at each step. NaN equals NaN. A value that is not there, as in a merge of
                unlike columns, equals only another one; an episode without any value stays. The call reads these
                columns.
            tolerance: the largest difference, in the unit of the columns.

        Raises:
            UnknownNameError: a column does not exist. The error lists the columns.
            UnsupportedColumnError: a column has text or bytes, or is a camera.
            InvalidArgumentError: there are no columns, the tolerance is not a finite number of at least 0, or there is
                a tolerance without columns.
        """
        names = [columns] if isinstance(columns, str) else None if columns is None else list(dict.fromkeys(columns))
        positions = without_duplicates(self, names, tolerance)
        choice = "drop_duplicates" if names is None else f"drop_duplicates of {', '.join(names)}, tolerance {tolerance}"
        if len(positions) == len(self):
            return self
        return self._chosen(positions, choice)

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
        store = self.store.with_discount(discount)
        return self if store is self.store else Dataset(store, self.view)

    def to_polars(self, columns: Sequence[str] | None = None, rows: Rows = "steps") -> pl.DataFrame:
        """Returns the episodes as a Polars frame over the shards' memory.

        Numbers, text and bytes are not copied: the frame reads the shards' pages when they are needed. Booleans are
        copied, to one bit each. `episode_id` and `step` are new, 8 bytes a row each. The frame has a chunk for each run
        of adjacent episodes in a shard; `frame.rechunk()` copies them together.

        Args:
            columns: columns of the shards; None: all. Cameras are left out: `to_torch_dataset` decodes them.
            rows: what a row is. `steps`: `episode_id`, `step` (its number in the episode) and the columns; vectors and
                images are `polars.Array`. It has no final observations. `episodes`: `episode_id`, a list of steps for
                each column, `final_X` (null if the episode has none) for each column X of the final observation, and
                the episode metadata of the source, as in an export to Parquet.

        Raises:
            UnknownNameError: a column or the kind of rows does not exist. The error lists the known names.
            UnsupportedColumnError: `columns` names a camera, two columns of the frame would have one name, or Polars
                cannot hold a column.
            InvalidArgumentError: the view has a step filter.
            CorruptShardError: text or bytes are damaged, or a file was truncated.
            ForkedProcessError: see `episodes`.
        """
        return conversions.to_polars(self, columns, rows)

    def to_hf(self, columns: Sequence[str] | None = None, rows: Rows = "steps") -> datasets.Dataset:
        """Returns the episodes as a `datasets.Dataset` over the shards' memory.

        Its rows, columns and chunks are those of `to_polars`, and nothing more is copied. Vectors and images are lists
        of a fixed length. `with_format("torch")` and `with_format("numpy")` make arrays of the column's shape; their
        integers are int64 and their floats float32, as of every `datasets.Dataset`. Forked DataLoader workers share the
        memory. Pickling copies all bytes, and spawned workers get a pickled copy.

        Args:
            columns, rows: see `to_polars`.

        Raises:
            UnknownNameError, UnsupportedColumnError, InvalidArgumentError, CorruptShardError: see `to_polars`.
            MissingExtraError: `datasets` is not installed.
        """
        return conversions.to_hf(self, columns, rows)

    def report(
        self, *, frames: int = 0, sampler: SamplerName | AnySampler | None = None, compare: Dataset | None = None
    ) -> DatasetReport:
        """Makes a page that shows the dataset. In Jupyter the result shows itself.

        `ds.report().save("report.html")` writes a file that needs no server and no network. See `gear_data.report`.

        Args:
            frames: frames of each camera and viewed episode to embed.
            sampler: as for `SequenceLoader`; adds the shares of its draws. None: not shown.
            compare: another dataset, whose columns are compared with these.

        Raises:
            MissingExtraError: the package of the charts is not installed.
            InvalidArgumentError, UnknownNameError: an argument is invalid.
        """
        from gear_data.reports.report import report

        return report(self, frames=frames, sampler=sampler, compare=compare)

    def to_torch_dataset(
        self, context: int | None = None, *, columns: Sequence[str] | None = None, **arguments: Any
    ) -> WindowDataset | EpisodeDataset:
        """Returns a map-style `torch.utils.data.Dataset`, for a trainer that brings its own DataLoader.

        With `context`, an item is a window, as in d3rlpy and LeRobot: a dictionary of tensors of one length, which the
        default `collate_fn` stacks. Its keys and values are those of a `SequenceLoader`, for every preset. Without
        `context`, an item is an episode, as in Minari. Both can be pickled, and work with forked and spawned workers.

        A `SequenceLoader` makes the same batches faster: it collects all windows of a batch in one call, where a
        DataLoader asks for each item and stacks them.

        Args:
            context: the most steps of a window; None: items are episodes.
            columns: of windows, see `SequenceLoader`; of episodes, the columns and facts of an item. None: all columns.
            **arguments: with `context`, arguments of `SequenceLoader` about windows: `preset`, `normalize`, `stride`.

        Raises:
            MissingExtraError: torch is not installed.
            InvalidArgumentError: an argument is the DataLoader's, such as `batch_size`; episodes have other arguments
                or a step filter.
            GearError: see `SequenceLoader`.
        """
        import_extra("torch", "torch")
        from gear_data.loaders.frameworks.map_datasets import EpisodeDataset, WindowDataset

        if context is not None:
            return WindowDataset(self, context, columns=columns, **arguments)
        if arguments:
            refuse_misspelled("Dataset.to_torch_dataset", arguments, ("context", "columns"))
            raise InvalidArgumentError(
                f"{', '.join(arguments)}: only for windows, and items are episodes", hint="give context=, such as 20"
            )
        return EpisodeDataset(self, columns)

    def residency_plan(
        self,
        device_bytes: int,
        host_bytes: int,
        sampler: SamplerName | AnySampler = "uniform",
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
        return Dataset(planning.placed(self, plan), self.view)

    def placement(
        self, nodes: Sequence[str], sampler: SamplerName | AnySampler = "uniform", budget: int | None = None
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
