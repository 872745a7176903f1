"""Values of a dataset's manifest and tables, computed again from its shards.

Checksums find changed bytes. This finds values that were wrong when their checksum was made.

Floating-point sums depend on their order. A conversion adds episodes to tasks, and tasks to the dataset. A merge adds
datasets, from the statistics in their manifests. So the provenance has the order: `tasks`, or the parts in `merged`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.common.typed_json import Count, resolved
from gear_data.kernels import cpu
from gear_data.schema import Schema
from gear_data.storage.episode_block import EpisodeBlock
from gear_data.storage.manifest import MANIFEST_NAME, Manifest, fingerprint
from gear_data.storage.statistics import ColumnStatistics, RunningStatistics, merged_statistics

#: Sums in another order, as other versions of NumPy may use, differ by less than this part of the largest value.
_TOLERANCE = 1e-9
#: Most differing rows of one column in one file that are reported.
MOST_ROWS = 1000
_RETURNS = "returns_to_go"
_FLAGS = ("terminated", "truncated")


@dataclass(frozen=True)
class Difference:
    """One stored value that differs from the value computed from the shards.

    Attributes:
        file: file with the stored value, relative to the dataset's folder.
        column: column; None for the fingerprint.
        row: row of the file; None for values of manifest.json.
        value: name of the value in manifest.json, such as `mean[3]`; None for a row.
        stored: the stored value.
        computed: the computed value.
    """

    file: str
    column: str | None
    row: int | None
    value: str | None
    stored: Any
    computed: Any

    def __str__(self) -> str:
        places = [self.file, self.column and f"column '{self.column}'", None if self.row is None else f"row {self.row}"]
        place = ", ".join(place for place in places if place)
        name = f"{self.value} is" if self.value else "is"
        return f"{place}: {name} {self.stored}, but the shards give {self.computed}"


class Recomputation:
    """Adds up the shards of a dataset in order, and compares.

    Args:
        manifest: the dataset's manifest.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._differences: list[Difference] = []
        self._manifest = manifest
        self._statistics = _part_statistics(manifest.schema, manifest.provenance, len(manifest.shards))
        self._contents: list[bytes] = []
        self._shards = 0

    def add(self, index: int, block: EpisodeBlock, contents: list[bytes], episodes: pa.Table) -> None:
        """Compares a shard with its rows of the episode table.

        Args:
            index: number of the shard.
            block: episodes of the shard.
            contents: their content hashes.
            episodes: their rows of the episode table.
        """
        self._shards += 1
        self._contents += contents
        self._statistics.add(block.columns, block.lengths)
        self._compare_table(index, block, contents, episodes)
        self._compare_shard(index, block)

    def finish(self) -> tuple[Difference, ...]:
        """Returns all differences. The manifest is compared if all shards were added."""
        if self._shards == len(self._manifest.shards):
            self._compare_manifest()
        return tuple(self._differences)

    def _compare_manifest(self) -> None:
        found = fingerprint(self._manifest.schema, b"".join(self._contents))
        if found != self._manifest.fingerprint:
            self._differences.append(
                Difference(MANIFEST_NAME, None, None, "fingerprint", self._manifest.fingerprint, found)
            )
        for column, computed in self._statistics.result().items():
            stored = self._manifest.statistics[column]
            scale = np.maximum(np.abs(computed.min), np.abs(computed.max))
            for name in ("count", "mean", "std", "min", "max"):
                sums = scale if name in ("mean", "std") else np.zeros(len(scale))
                old, new = getattr(stored, name), getattr(computed, name)
                new = np.where(np.isfinite(new), new, np.nan)  # as in the manifest, whose JSON has no infinities
                for element in np.flatnonzero(~_close(old, new, sums)):
                    value = f"{name}[{element}]"
                    self._differences.append(
                        Difference(MANIFEST_NAME, column, None, value, _plain(old[element]), _plain(new[element]))
                    )

    def _compare_table(self, index: int, block: EpisodeBlock, contents: list[bytes], episodes: pa.Table) -> None:
        file = self._manifest.tables["episodes"].file
        # Not the id of its first episode: after an eviction, ids have gaps.
        first_row = sum(shard.episodes for shard in self._manifest.shards[:index])
        last = block.offsets[1:] - 1
        for name in _FLAGS:
            computed = block.columns[name][last].astype(np.bool_)
            stored = episodes.column(name).to_numpy()
            self._add_rows(file, name, first_row, stored == computed, stored, computed)
        stored = np.array([content.hex() for content in episodes.column("content").to_pylist()])
        computed = np.array([content.hex() for content in contents])
        self._add_rows(file, "content", first_row, stored == computed, stored, computed)
        column = episodes.column("return")
        stored = column.to_numpy()  # null becomes NaN
        rewards = block.arrays.get("rewards")
        if rewards is None or rewards.ndim > 1:
            same = column.is_null().to_numpy()
            self._add_rows(file, "return", first_row, same, stored, np.full(len(block), None))
            return
        rewards = rewards.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # sums of large rewards are infinite
            computed = np.add.reduceat(rewards, block.offsets[:-1])
            scale = np.add.reduceat(np.abs(rewards), block.offsets[:-1])
        valid = column.is_valid().to_numpy()
        same = np.where(block.has_rewards, _close(stored, computed, scale) & valid, ~valid)
        self._add_rows(file, "return", first_row, same, stored, computed)

    def _compare_shard(self, index: int, block: EpisodeBlock) -> None:
        file = self._manifest.shards[index].entry.file
        last = block.offsets[1:] - 1
        unflagged = last[~(block.columns["terminated"][last] | block.columns["truncated"][last]).astype(np.bool_)]
        for row in unflagged[:MOST_ROWS].tolist():
            # An episode whose last step has neither flag was cut off.
            self._differences.append(Difference(file, "truncated", row, None, False, True))
        schema = self._manifest.schema
        if _RETURNS in schema and schema[_RETURNS].derived:
            stored = block.columns[_RETURNS]
            computed = np.empty_like(stored)
            rewards = block.columns["rewards"].astype(np.float64)
            cpu.returns.returns_to_go(rewards, block.lengths, 1.0, computed)
            same = (stored == computed) | (np.isnan(stored) & np.isnan(computed))
            self._add_rows(file, _RETURNS, 0, same, stored, computed)

    def _add_rows(
        self,
        file: str,
        column: str,
        first_row: int,
        same: npt.NDArray[np.bool_],
        stored: npt.NDArray[Any],
        computed: npt.NDArray[Any],
    ) -> None:
        for row in np.flatnonzero(~same)[:MOST_ROWS].tolist():
            old, new = (_plain(values[row]) for values in (stored, computed))
            self._differences.append(Difference(file, column, first_row + row, None, old, new))


def _close(stored: npt.NDArray[Any], computed: npt.NDArray[Any], scale: npt.NDArray[np.float64]) -> Any:
    """Returns whether each value is equal, or differs only as rounded sums do.

    Args:
        stored: values.
        computed: values of the same shape.
        scale: largest sum on the way to each value; 0 if the value is no sum.
    """
    with np.errstate(invalid="ignore"):  # infinities
        near = np.isfinite(computed) & (np.abs(stored - computed) <= _TOLERANCE * scale)
    return near | (stored == computed) | (np.isnan(stored) & np.isnan(computed))


def _plain(value: Any) -> Any:
    """Returns a NumPy scalar as a value of JSON, which has no NaN."""
    value = value.item() if isinstance(value, np.generic) else value
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


@resolved
class _PartRecord(msgspec.Struct, frozen=True):
    """The fields of a part of a merged dataset that say how its statistics were made."""

    shards: Count
    provenance: dict[str, Any]


class _PartStatistics(Protocol):
    """Statistics of a part of a dataset, updated shard by shard."""

    def add(self, columns: Mapping[str, npt.NDArray[Any]], lengths: npt.NDArray[np.int64]) -> None:
        """Adds the episodes of the next shard. See `RunningStatistics.update`."""

    def result(self) -> dict[str, ColumnStatistics]:
        """Returns the statistics of each column."""


def _part_statistics(schema: Schema, provenance: Mapping[str, Any], shards: int) -> _PartStatistics:
    """Returns empty statistics that add up a dataset as its writer did.

    A dataset of another writer, without this provenance, is one task.

    Args:
        schema: all columns.
        provenance: provenance of the dataset.
        shards: number of its shards.
    """
    try:
        parts = msgspec.convert(provenance.get("merged"), list[_PartRecord])
    except msgspec.ValidationError:
        return _TaskStatistics(schema, _task_ends(provenance, shards))
    if sum(part.shards for part in parts) != shards or not all(part.shards for part in parts):
        return _TaskStatistics(schema, frozenset({shards}))
    return _MergedStatistics(
        schema, [(part.shards, _part_statistics(schema, part.provenance, part.shards)) for part in parts]
    )


class _TaskStatistics:
    """Statistics of a converted dataset.

    They are made for each task's episodes, and merged in the order of the tasks.

    Args:
        schema: all columns.
        ends: number of shards up to each task's end.
    """

    def __init__(self, schema: Schema, ends: frozenset[int]) -> None:
        self._schema = schema
        self._ends = ends
        self._shards = 0
        self._total = RunningStatistics(schema)
        self._task = RunningStatistics(schema)

    def add(self, columns: Mapping[str, npt.NDArray[Any]], lengths: npt.NDArray[np.int64]) -> None:
        self._task.update(columns, lengths)
        self._shards += 1
        if self._shards in self._ends:
            self._total.merge(self._task.state())
            self._task = RunningStatistics(self._schema)

    def result(self) -> dict[str, ColumnStatistics]:
        return self._total.result()


class _MergedStatistics:
    """Statistics of a merged dataset: of each part, merged in order.

    Args:
        schema: all columns.
        parts: number of shards and statistics of each part.
    """

    def __init__(self, schema: Schema, parts: list[tuple[int, _PartStatistics]]) -> None:
        self._schema = schema
        self._parts = [part for _, part in parts]
        self._of_shard = iter([part for shards, part in parts for _ in range(shards)])

    def add(self, columns: Mapping[str, npt.NDArray[Any]], lengths: npt.NDArray[np.int64]) -> None:
        next(self._of_shard).add(columns, lengths)

    def result(self) -> dict[str, ColumnStatistics]:
        return merged_statistics(self._schema, (part.result() for part in self._parts))


def _task_ends(provenance: Mapping[str, Any], shards: int) -> frozenset[int]:
    """Returns the number of shards up to each task's end."""
    try:
        tasks = msgspec.convert(provenance.get("tasks"), list[tuple[int, int, int]])
    except msgspec.ValidationError:
        return frozenset({shards})
    ends = list(accumulate(count for _, _, count in tasks))
    return frozenset(ends if ends and ends[-1] == shards else [shards])
