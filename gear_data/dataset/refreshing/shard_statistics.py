"""Statistics of views of a dataset that grows: shard by shard, so that a refresh reads new shards only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import xxhash

from gear_data.schema import Schema
from gear_data.selection.windows import Int64Array
from gear_data.storage.manifest import ShardEntry
from gear_data.storage.statistics import ColumnStatistics, RunningStatistics, StatisticsState


@dataclass(frozen=True)
class _ChosenEpisodes:
    """Some episodes of a shard.

    Attributes:
        file, checksum: of the shard.
        first_rows: hash of the rows of the episodes' first steps in the shard.
        discount: of `returns_to_go`; None: as stored.
    """

    file: str
    checksum: str
    first_rows: str
    discount: float | None


class ShardStatistics:
    """Statistics of chosen episodes of each shard. Thread-safe.

    A view's statistics are merged from them in the order of shards. So they are the same whether the view was computed
    at once or refreshed.
    """

    def __init__(self) -> None:
        self._known: dict[_ChosenEpisodes, StatisticsState] = {}

    def kept(self, shards: Iterable[ShardEntry]) -> ShardStatistics:
        """Returns the statistics of those of the shards that are known."""
        files = {shard.entry.file for shard in shards}
        kept = ShardStatistics()
        kept._known = {key: state for key, state in self._known.copy().items() if key.file in files}
        return kept

    def merged(
        self,
        schema: Schema,
        shards: tuple[ShardEntry, ...],
        episodes: tuple[Int64Array, Int64Array],
        discount: float | None,
        compute: Callable[[int, int], RunningStatistics],
    ) -> dict[str, ColumnStatistics]:
        """Returns the statistics of all columns over some episodes.

        Args:
            schema: the columns.
            shards: all shards.
            episodes: int64 [k] each, the shard of each episode, ascending, and the row there of its first step.
            discount: of `returns_to_go`; None: as stored.
            compute: returns the statistics of the episodes from one position to another.
        """
        shard, first_row = episodes
        ends = [*(np.flatnonzero(np.diff(shard)) + 1).tolist(), len(shard)]
        running = RunningStatistics(schema)
        for begin, end in pairwise([0, *ends]):
            entry = shards[int(shard[begin])].entry
            rows = xxhash.xxh3_128_hexdigest(first_row[begin:end].tobytes())
            key = _ChosenEpisodes(entry.file, entry.checksum, rows, discount)
            state = self._known.get(key)
            if state is None:
                state = self._known[key] = compute(begin, end).state()
            running.merge(state)
        return running.result()
