"""Windows read from the shards of other nodes, and from those that are here in place."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.cluster.client.shard_client import ShardClient
from gear_data.cluster.client.shards import read_variable
from gear_data.cluster.client.staging import ClusterStaging
from gear_data.cluster.client.zero_copy import copied_to, target_rows
from gear_data.cluster.protocol import ColumnGroup, FetchedSpans, Request
from gear_data.cluster.rdma.span_read import WriteTargets
from gear_data.collection.reader import OutputBuffers
from gear_data.kernels.output_plan import OutputPlanArray
from gear_data.residency import ShardReader, Shards
from gear_data.residency.reader import Finals
from gear_data.residency.row_ranges import ColumnReads, column_reads, row_sizes
from gear_data.selection.windows import Int64Array, Windows
from gear_data.storage.reader import ShardLease

_NO_ROWS: Int64Array = np.empty(0, np.int64)


@dataclass(frozen=True)
class _Columns:
    """Columns of which the same rows are read.

    Attributes:
        wanted: says which rows.
        columns, row_bytes: int64 [C]: their places in the schema, and the bytes of a row of each.
    """

    wanted: ColumnReads
    columns: Int64Array
    row_bytes: Int64Array


def _columns(plan: OutputPlanArray) -> tuple[_Columns, ...]:
    """What a plan of `gear_data.kernels.cpu.collect` reads."""
    sizes = row_sizes(plan)
    return tuple(
        _Columns(each, np.array(each.columns), np.array([sizes[column] for column in each.columns]))
        for each in column_reads(plan)
    )


@dataclass(frozen=True)
class _Away:
    """Columns that are brought for some windows.

    Attributes:
        columns, row_bytes: see `_Columns`.
        low, count: int64 [B]: the first row of its episode that is brought for each window, and how many.
    """

    columns: Int64Array
    row_bytes: Int64Array
    low: Int64Array
    count: Int64Array


@dataclass(frozen=True)
class _Batch:
    """Windows on their way to their places.

    Attributes:
        windows, places: see `ColumnReader.read`.
        total: int64 [B], the steps of their episodes.
        finals: int64 [B], the rows of their final observations; empty: none has one.
        addresses: int64 [B, columns]: of each window's shard's columns, and later of its episode's first row, or where
            that would be; 0 while it is not known.
    """

    windows: Windows
    places: OutputBuffers
    total: Int64Array
    finals: Int64Array
    addresses: Int64Array

    @cached_property
    def numbers(self) -> Int64Array:
        return np.arange(len(self.windows))

    @cached_property
    def zeros(self) -> Int64Array:
        return np.zeros(len(self.windows), np.int64)


class ClusterReader:
    """A `ColumnReader` over shards some of which, or all, are on other nodes.

    What comes over the wire are packed rows. To the collector's kernel each window is then an episode of its own, whose
    rows lie there; so casts, padding, final observations and sums are made by the same code wherever the rows are from.

    Args:
        nodes: the nodes.
        shards: all; the address 0 stands for columns of a shard that are not here.
        here: bool [shards]: which are here with all columns.
        shard, start, length: int64 [episodes], from the episode table.
        finals: see `ShardReader`.
    """

    def __init__(
        self,
        nodes: ShardClient,
        shards: Shards,
        here: npt.NDArray[np.bool_],
        shard: Int64Array,
        start: Int64Array,
        length: Int64Array,
        finals: Finals,
    ) -> None:
        from gear_data.kernels.cpu.collect import collect, count_valid
        from gear_data.kernels.cpu.row_ranges import all_of, to_episodes, to_packed

        self._collect, self._count_valid = collect, count_valid
        self._all_of, self._to_episodes, self._to_packed = all_of, to_episodes, to_packed
        self._nodes = nodes
        self._shards = shards
        self._here = here
        self._is_here = here[shard]
        self._shard, self._start, self._length = shard, start, length
        # Knows where final observations are.
        self._local = ShardReader(shards, shard, start, length, finals)
        self._wanted: dict[bytes, tuple[_Columns, ...]] = {}

    def final_address(self, column: str) -> int:
        return self._local.final_address(column)

    def values(self, column: int, windows: Windows) -> pa.ChunkedArray:
        first = self._start[windows.episode_id] + windows.start
        shard = self._shard[windows.episode_id]
        return pa.chunked_array(
            read_variable(self._nodes, self._shards, self._here, column, (shard, first, windows.length))
        )

    def read(self, windows: Windows, places: OutputBuffers) -> None:
        episode = windows.episode_id
        if self._all_of(self._is_here, episode):
            self._local.read(windows, places)
            return
        shard, finals = self._shard[episode], self._local.final_rows
        lease = self._lease(shard)
        batch = _Batch(
            windows, places, self._length[episode], finals[episode] if len(finals) else _NO_ROWS, lease.addresses[shard]
        )
        away, groups = self._away(batch, self._start[episode])
        targets = self._targets(groups, away, batch)
        with self._nodes.asked(Request(shard, groups), targets) as pieces:
            # What is here, while the others send.
            some = functools.reduce(np.bitwise_or, [each.count for each in away], batch.zeros)
            self._fill(batch, np.flatnonzero(some == 0))
            for piece in pieces:
                self._point(batch, away, piece, targets)
                self._fill(batch, piece.spans)
        self._count_valid(
            batch.numbers, windows.start, windows.length, batch.total, batch.finals, places.plan, places.per,
            places.valid,
        )  # fmt: skip
        del lease

    def staging(self) -> ClusterStaging | None:
        """What brings rows to where a GPU's kernels read them; None: nothing is here, and nodes' memory is not read, so
        that there is nothing to gain."""
        if not self._nodes.reads_memory and not self._here.any():
            return None
        return ClusterStaging(self._nodes, self._shards, self._local)

    def _lease(self, shards: Int64Array) -> ShardLease:
        if self._shards.all_mapped:
            return ShardLease(self._shards.addresses)
        return self._shards.lease(np.flatnonzero(np.bincount(shards)).tolist())

    def _away(self, batch: _Batch, start: Int64Array) -> tuple[list[_Away], tuple[ColumnGroup, ...]]:
        """What is to be brought, and how nodes are asked for it. Turns addresses into those of episodes' first rows.

        Args:
            start: int64 [B]: the row of its shard that each window's episode begins with.
        """
        key = batch.places.plan.tobytes()
        wanted = self._wanted.get(key)
        if wanted is None:
            wanted = self._wanted[key] = _columns(batch.places.plan)
        found, groups = [], []
        for each in wanted:
            low, count = each.wanted.rows(batch.windows, batch.total)
            away = np.zeros(len(each.columns), np.bool_)
            self._to_episodes(batch.addresses, each.columns, each.row_bytes, start, count, away)
            if away.any():
                found.append(_Away(each.columns[away], each.row_bytes[away], low, count))
                groups.append(ColumnGroup(tuple(found[-1].columns.tolist()), start + low, count))
        return found, tuple(groups)

    def _point(self, batch: _Batch, away: Sequence[_Away], piece: FetchedSpans, targets: WriteTargets | None) -> None:
        """Has the addresses of a piece's windows lead to its rows."""
        first = 0
        for each in away:
            last = first + len(each.columns)
            parts = np.array([part.ctypes.data for part in piece.parts[first:last]])
            if targets is not None and piece.placed:
                spans = piece.spans[each.count[piece.spans] > 0]
                for number, target in enumerate(targets.places[first:last]):
                    if target is not None:
                        # The kernel finds those rows there, and has nothing to copy.
                        rows = each.low[spans] * each.row_bytes[number]
                        batch.addresses[spans, each.columns[number]] = target[spans] - rows
                        parts[number] = 0
            self._to_packed(batch.addresses, each.columns, each.row_bytes, parts, piece.spans, each.low, each.count)
            first = last

    def _fill(self, batch: _Batch, spans: Int64Array) -> None:
        """Collects some windows."""
        if not len(spans):
            return
        windows, places = batch.windows, batch.places
        self._collect(
            spans,
            windows.start[spans],
            windows.length[spans],
            places.rows[spans] if len(places.rows) else spans,
            batch.numbers,
            batch.zeros,
            batch.total,
            batch.finals,
            batch.addresses,
            places.plan,
            places.addresses,
            len(spans),
            np.empty(1, np.int64),  # of all windows they are counted at the end
        )

    def _targets(self, groups: Sequence[ColumnGroup], away: Sequence[_Away], batch: _Batch) -> WriteTargets | None:
        """Where rows of columns that are copied to one output belong in the batch; None: all are packed."""
        places = batch.places
        if places.memory is None or not self._nodes.reads_memory:
            return None
        found = []
        for group, each in zip(groups, away, strict=True):
            for column in group.columns:
                output = copied_to(places.plan, column)
                found.append(
                    None if output is None else target_rows(places, output, batch.windows, each.low, each.count)
                )
        return WriteTargets(places.memory, tuple(found))
