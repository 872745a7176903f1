"""StoredEpisodes: where the episodes of a dataset lie, and their final observations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.dataset.polars_threads import check_polars_threads
from gear_data.errors import ManifestError
from gear_data.selection.windows import Int64Array
from gear_data.storage.arrow_files import table_values
from gear_data.storage.dataset_files import DatasetFiles
from gear_data.storage.episode_block import offsets_of
from gear_data.storage.episode_tables import read_episodes, read_finals
from gear_data.storage.identity import replaced_error
from gear_data.storage.manifest import Manifest

if TYPE_CHECKING:
    import polars as pl

#: Most episodes that are compared with those of another generation.
_COMPARED = 100
#: Number of episodes whose places are checked at once.
_CHECKED_AT_ONCE = 1 << 14
#: Remedy for an episode table that does not fit the manifest.
_RESTORE_TABLE = "run 'gear-data verify', then convert the source again"


class StoredEpisodes:
    """The tables of a dataset, with one row per episode. Each table is read at first use.

    Args:
        files: files of the dataset.
        manifest: manifest of the dataset.
    """

    def __init__(self, files: DatasetFiles, manifest: Manifest) -> None:
        self.files = files
        self.manifest = manifest

    @cached_property
    def episode_table(self) -> Any:
        """Episode table as a `pyarrow.Table`, mapped from its file."""
        with self.files.local(self.manifest.tables["episodes"]) as path:
            table = read_episodes(path, self.manifest)
            self.files.mapped.add(self.manifest.tables["episodes"], path)
        return table

    @property
    def _table_name(self) -> str:
        return self.files.name(self.manifest.tables["episodes"])

    @cached_property
    def episodes(self) -> pl.DataFrame:
        """Episode table as a Polars frame.

        Raises ForkedProcessError if Polars cannot make it here.
        """
        return self.episode_frame(self.episode_table.column_names)

    def episode_frame(self, names: Sequence[str]) -> pl.DataFrame:
        """Returns some columns of the episode table as a Polars frame.

        Raises ForkedProcessError if Polars cannot make it here.
        """
        check_polars_threads()
        import polars as pl

        try:
            frame = pl.from_arrow(self.episode_table.select(names))
        except pl.exceptions.PolarsError as error:  # such as an unknown time zone
            raise ManifestError(
                f"Polars cannot read the episode table: {error}", file=self._table_name, hint=_RESTORE_TABLE
            ) from error
        if not isinstance(frame, pl.DataFrame):
            raise ManifestError(f"the episode table is a {type(frame).__name__}", file=self._table_name)
        return frame

    def check_same_episodes(self, other: StoredEpisodes) -> None:
        """Checks that an id means the same episode in two generations, as far as both tables were read.

        Copies of a dataset that grew in two places seem to be generations of one dataset. The last episodes that the
        earlier generation may have differ then.

        Raises:
            DatasetReplacedError: an id means another episode.
        """
        first, last = sorted((self, other), key=lambda each: each.manifest.generation)
        if "episode_table" not in self.__dict__:
            return
        ids, known = (table_values(each.episode_table, "episode_id") for each in (last, first))
        stop = int(np.searchsorted(ids, first.manifest.next_id))
        start = max(0, stop - _COMPARED)
        rows = np.searchsorted(known, ids[start:stop])
        same = bool((rows < len(known)).all()) and np.array_equal(known[rows], ids[start:stop])
        contents = last.episode_table.column("content").slice(start, stop - start)
        if not same or not first.episode_table.column("content").take(pa.array(rows)).equals(contents):
            raise replaced_error(self.files.location)

    def _int64(self, name: str) -> Int64Array:
        return table_values(self.episode_table, name).astype(np.int64, copy=False)

    @cached_property
    def ids(self) -> Int64Array | None:
        """int64 [n], ascending: the ids of the episodes; None: 0 to n - 1."""
        return None if self.manifest.next_id == self.manifest.episodes else self._int64("episode_id")

    @cached_property
    def lengths(self) -> Int64Array:
        """int64 [n]: number of steps of each episode."""
        return self._int64("length")

    @cached_property
    def offsets(self) -> Int64Array:
        """int64 [n + 1]: episode e has steps offsets[e] to offsets[e + 1] of the dataset."""
        offsets = offsets_of(self.lengths)
        if offsets[-1] != self.manifest.steps or self.lengths.min(initial=1) <= 0:
            raise ManifestError(
                f"the episodes' lengths add up to {offsets[-1]} steps, the manifest says {self.manifest.steps}",
                file=self._table_name,
                column="length",
                hint=_RESTORE_TABLE,
            )
        return offsets

    @cached_property
    def shard_steps(self) -> Int64Array:
        """int64 [shards]: number of steps of each shard."""
        return np.array([entry.steps for entry in self.manifest.shards], np.int64)

    @cached_property
    def episode_starts(self) -> tuple[Int64Array, Int64Array]:
        """int64 [n] each: the shard of each episode, and the row of its first step there.

        Both are checked against the shards' sizes, because kernels compute addresses from them.
        """
        shard, start = self._int64("shard"), self._int64("start")
        steps = self.shard_steps
        # Some episodes at a time, in the cache: new memory for all of them takes longer than the checks.
        for first in range(0, len(shard), _CHECKED_AT_ONCE):
            part = slice(first, first + _CHECKED_AT_ONCE)
            shards, starts, lengths = shard[part], start[part], self.lengths[part]
            inside = (shards >= 0) & (shards < len(steps)) & (starts >= 0) & (lengths > 0)
            if inside.all():
                # A sum start + length could overflow.
                inside = lengths <= steps[shards] - starts
            if not inside.all():
                raise ManifestError(
                    "an episode lies outside its shard",
                    file=self._table_name,
                    row=first + int(np.argmin(inside)),
                    hint=_RESTORE_TABLE,
                )
        return shard, start

    @cached_property
    def finals(self) -> tuple[Int64Array, dict[str, npt.NDArray[Any]]]:
        """Final observations: int64 [k] rows and column name -> [k, *shape].

        The rows are of the episodes that have a final observation.
        """
        entry = self.manifest.tables.get("finals")
        if entry is None:
            return np.empty(0, np.int64), {}
        with self.files.local(entry) as path:
            table = read_finals(path, self.manifest)
            self.files.mapped.add(entry, path)
        columns = {}
        for column in self.manifest.schema.final_columns:
            values = table_values(table, column.name).view(column.numpy_dtype)
            columns[column.name] = values.reshape(len(table), *column.shape)
        final_ids = table_values(table, "episode_id")
        if self.ids is None:
            return final_ids, columns
        rows = np.searchsorted(self.ids, final_ids)
        if not np.array_equal(self.ids[np.minimum(rows, len(self.ids) - 1)], final_ids):
            raise ManifestError(
                "it has final observations of episodes that are not in the episode table",
                file=self.files.name(entry),
                column="episode_id",
                hint=_RESTORE_TABLE,
            )
        return rows, columns
