"""ClusterReader: reads windows of a batch from local and remote shards."""

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
from gear_data.cluster.protocol import ColumnGroup, FetchedSpans, Request
from gear_data.cluster.rdma.reads.span_read import WriteTargets
from gear_data.collection.reader import OutputBuffers
from gear_data.kernels import cpu
from gear_data.kernels.output_plan import COLUMN_KINDS, KIND_COPY, OutputPlanArray
from gear_data.residency import ShardReader, Shards
from gear_data.residency.reader import Finals, read_only
from gear_data.residency.row_ranges import ColumnReads, column_reads, row_sizes
from gear_data.selection.windows import Int64Array, Windows
from gear_data.storage.mapped_shards import ShardLease

_NO_ROWS: Int64Array = np.empty(0, np.int64)


@dataclass(frozen=True)
class _PlannedColumns:
    """Columns of which a plan reads the same rows.

    Attributes:
        reads: the rows.
        columns, row_bytes: int64 [C], position in the schema and bytes of a row of each column.
    """

    reads: ColumnReads
    columns: Int64Array
    row_bytes: Int64Array


def _planned_columns(plan: OutputPlanArray) -> tuple[_PlannedColumns, ...]:
    """Returns the columns that a plan of `gear_data.kernels.cpu.collect` reads."""
    sizes = row_sizes(plan)
    return tuple(
        _PlannedColumns(each, np.array(each.columns), np.array([sizes[column] for column in each.columns]))
        for each in column_reads(plan)
    )


@dataclass(frozen=True)
class _RemoteColumns:
    """Columns that are fetched for some windows of a batch.

    Attributes:
        columns, row_bytes: see `_PlannedColumns`.
        low, count: int64 [B], for each window the first row that it needs, counted from the start of its episode, and
            the number of rows.
    """

    columns: Int64Array
    row_bytes: Int64Array
    low: Int64Array
    count: Int64Array


@dataclass(frozen=True)
class _Batch:
    """A batch that is being read.

    Attributes:
        windows, buffers: see `ColumnReader.read`.
        total: int64 [B], the steps of each window's episode.
        finals: int64 [B], the row of each episode's final observation; empty if no episode has one.
        addresses: int64 [B, columns]. At first the addresses of the columns of each window's shard; later the address
            of its episode's first row (or where that row would be). 0 while unknown.
    """

    windows: Windows
    buffers: OutputBuffers
    total: Int64Array
    finals: Int64Array
    addresses: Int64Array

    @cached_property
    def numbers(self) -> Int64Array:
        return np.arange(len(self.windows))

    @cached_property
    def zeros(self) -> Int64Array:
        return read_only(np.zeros(len(self.windows), np.int64))


class ClusterReader:
    """A `ColumnReader` over local and remote shards.

    Responses are packed rows. The collector's kernel treats each fetched window as a separate episode, whose rows
    lie in the response. So the same code does casts, padding, final observations and sums for local and remote rows.

    Args:
        client: reads the remote shards.
        shards: all shards; address 0 stands for columns of remote shards.
        here: bool [shards], which shards are local with all their columns.
        shard, start, length: int64 [episodes], from the episode table.
        finals: see `ShardReader`.
    """

    def __init__(
        self,
        client: ShardClient,
        shards: Shards,
        here: npt.NDArray[np.bool_],
        shard: Int64Array,
        start: Int64Array,
        length: Int64Array,
        finals: Finals,
    ) -> None:
        # Loads the kernels here, not in a prefetch thread.
        self._collect, self._row_ranges = cpu.collect, cpu.row_ranges
        self._client = client
        self._shards = shards
        self._here = here
        self._is_local = here[shard]
        self._shard, self._start, self._length = shard, start, length
        # Reads batches whose windows are all local, and knows where final observations are.
        self._local = ShardReader(shards, shard, start, length, finals)
        self._plans: dict[bytes, tuple[_PlannedColumns, ...]] = {}

    def mapped(self) -> None:
        """Returns None: see `ColumnReader`. Other nodes may have the windows."""

    def final_address(self, column: str) -> int:
        return self._local.final_address(column)

    def values(self, column: int, windows: Windows) -> pa.ChunkedArray:
        first = self._start[windows.episode_id] + windows.start
        spans = (self._shard[windows.episode_id], first, windows.length)
        return pa.chunked_array(read_variable(self._client, self._shards, self._here, column, spans))

    def read(self, windows: Windows, buffers: OutputBuffers) -> None:
        """Fills the buffers; see `ColumnReader.read`.

        Local windows are collected while nodes send the others.

        Raises:
            As `ShardClient.fetching`.
        """
        episode = windows.episode_id
        if self._row_ranges.all_of(self._is_local, episode):
            self._local.read(windows, buffers)
            return
        shard, finals = self._shard[episode], self._local.final_rows
        lease = self._lease(shard)
        batch = _Batch(
            windows,
            buffers,
            read_only(self._length[episode]),
            finals[episode] if len(finals) else _NO_ROWS,
            lease.addresses[shard],
        )
        remote, groups = self._remote_columns(batch, self._start[episode])
        targets = self._targets(groups, remote, batch)
        with self._client.fetching(Request(shard, groups), targets) as results:
            needed = functools.reduce(np.bitwise_or, [each.count for each in remote], batch.zeros)
            self._fill(batch, np.flatnonzero(needed == 0))
            for result in results:
                self._point(batch, remote, result, targets)
                self._fill(batch, result.spans)
        self._collect.count_valid(
            batch.numbers, windows.start, windows.length, batch.total, batch.finals, buffers.plan,
            buffers.windows_per_batch, buffers.valid,
        )  # fmt: skip
        del lease

    def staging(self) -> ClusterStaging | None:
        """Returns a staging reader for a GPU.

        Returns None if no shard is local and RDMA is not used: staging would gain nothing.
        """
        if not self._client.uses_rdma and not self._here.any():
            return None
        return ClusterStaging(self._client, self._shards, self._local)

    def _lease(self, shards: Int64Array) -> ShardLease:
        self._shards.check()
        if self._shards.all_mapped:
            return ShardLease(self._shards.addresses)
        return self._shards.lease(np.flatnonzero(np.bincount(shards)).tolist())

    def _remote_columns(self, batch: _Batch, start: Int64Array) -> tuple[list[_RemoteColumns], tuple[ColumnGroup, ...]]:
        """Returns the columns to fetch, and their part of the request.

        Turns the batch's addresses into the addresses of the first rows of its episodes.

        Args:
            batch: the batch.
            start: int64 [B], the first row of each window's episode in its shard.
        """
        key = batch.buffers.plan.tobytes()
        planned = self._plans.get(key)
        if planned is None:
            planned = self._plans[key] = _planned_columns(batch.buffers.plan)
        remote, groups = [], []
        for each in planned:
            low, count = each.reads.rows(batch.windows, batch.total)
            is_remote = np.zeros(len(each.columns), np.bool_)
            self._row_ranges.to_episodes(batch.addresses, each.columns, each.row_bytes, start, count, is_remote)
            if is_remote.any():
                remote.append(_RemoteColumns(each.columns[is_remote], each.row_bytes[is_remote], low, count))
                groups.append(ColumnGroup(tuple(remote[-1].columns.tolist()), start + low, count))
        return remote, tuple(groups)

    def _point(
        self, batch: _Batch, remote: Sequence[_RemoteColumns], result: FetchedSpans, targets: WriteTargets | None
    ) -> None:
        """Points the addresses of a result's windows at the rows that arrived."""
        first = 0
        for each in remote:
            last = first + len(each.columns)
            parts = np.array([part.ctypes.data for part in result.parts[first:last]])
            if targets is not None and result.is_direct:
                spans = result.spans[each.count[result.spans] > 0]
                for number, target in enumerate(targets.addresses[first:last]):
                    if target is not None:
                        # The kernel finds the rows at their target, and copies nothing.
                        rows = each.low[spans] * each.row_bytes[number]
                        batch.addresses[spans, each.columns[number]] = target[spans] - rows
                        parts[number] = 0
            self._row_ranges.to_packed(
                batch.addresses, each.columns, each.row_bytes, parts, result.spans, each.low, each.count
            )
            first = last

    def _fill(self, batch: _Batch, spans: Int64Array) -> None:
        """Collects some windows into the output buffers."""
        if not len(spans):
            return
        windows, buffers = batch.windows, batch.buffers
        self._collect.collect(
            spans,
            windows.start[spans],
            windows.length[spans],
            buffers.row_of_window[spans] if len(buffers.row_of_window) else spans,
            read_only(batch.numbers),
            batch.zeros,
            batch.total,
            batch.finals,
            batch.addresses,
            buffers.plan,
            buffers.addresses,
            len(spans),
            np.empty(1, np.int64),  # valid bytes: `read` counts them for all windows at the end
        )

    def _targets(
        self, groups: Sequence[ColumnGroup], remote: Sequence[_RemoteColumns], batch: _Batch
    ) -> WriteTargets | None:
        """Returns where in the batch RDMA writes columns that are copied to one output.

        Returns None if all rows are packed.
        """
        buffers = batch.buffers
        if buffers.memory is None or not self._client.uses_rdma:
            return None
        addresses = []
        for group, each in zip(groups, remote, strict=True):
            for column in group.columns:
                output = direct_output(buffers.plan, column)
                addresses.append(
                    None if output is None else row_targets(buffers, output, batch.windows, each.low, each.count)
                )
        return WriteTargets(buffers.memory, tuple(addresses))


def direct_output(plan: OutputPlanArray, column: int) -> int | None:
    """Returns the output that copies a column row for row.

    Returns None if another output reads the column, or none does. RDMA writes only such rows directly into the batch;
    other rows pass through a buffer.
    """
    outputs = np.flatnonzero(np.isin(plan["kind"], COLUMN_KINDS) & (plan["column"] == column))
    if len(outputs) != 1:
        return None
    output = plan[outputs[0]]
    # A shifted output is not one range of rows: one of its rows is a final observation, or a fill.
    return int(outputs[0]) if output["kind"] == KIND_COPY and not output["shift"] and not output["hops"] else None


def row_targets(
    buffers: OutputBuffers, output: int, windows: Windows, low: Int64Array, count: Int64Array
) -> Int64Array:
    """Returns int64 [B], the address of each window's first valid row.

    The output must not be shifted.

    Args:
        buffers: the batch's output buffers.
        output: position of the output in the plan.
        windows: B windows.
        low, count: int64 [B], the first row of its episode that each window reads, and the number of rows.
    """
    names = ["first", "width", "pad_left", "out_bytes", "packed"]
    first, width, pad_left, row_bytes, packed = buffers.plan[names][output].tolist()
    padding = width - count if pad_left else low - (windows.start + first)
    rows = buffers.row_of_window if len(buffers.row_of_window) else np.arange(len(windows))
    targets: Int64Array = buffers.addresses[output] + (rows * (1 if packed else width) + padding) * row_bytes
    return targets
