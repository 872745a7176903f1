"""Windows read from the shards of other nodes, and from those that are here in place."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.cluster.in_place import copied_to, target_rows
from gear_data.cluster.nodes import Nodes
from gear_data.cluster.protocol import Group, Request
from gear_data.cluster.remote_shards import placed_values
from gear_data.cluster.verbs.client import Targets
from gear_data.collection import Places
from gear_data.residency import ShardReader, Shards
from gear_data.residency.reach import Wanted, row_sizes, wanted_rows
from gear_data.residency.reader import Finals
from gear_data.selection.windows import Int64Array, Windows
from gear_data.storage.reader import Lease

_NO_ROWS: Int64Array = np.empty(0, np.int64)


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
        nodes: Nodes,
        shards: Shards,
        here: npt.NDArray[np.bool_],
        shard: Int64Array,
        start: Int64Array,
        length: Int64Array,
        finals: Finals,
    ) -> None:
        from gear_data.kernels.cpu import collect

        self._collect = collect
        self._nodes = nodes
        self._shards = shards
        self._here = here
        self._is_here = here[shard]
        self._shard, self._start, self._length = shard, start, length
        # Knows where final observations are.
        self._local = ShardReader(shards, shard, start, length, finals)
        self._wanted: dict[bytes, tuple[Wanted, ...]] = {}

    def final_address(self, column: str) -> int:
        return self._local.final_address(column)

    def values(self, column: int, windows: Windows) -> pa.ChunkedArray:
        first = self._start[windows.episode_id] + windows.start
        shard = self._shard[windows.episode_id]
        return pa.chunked_array(
            placed_values(self._nodes, self._shards, self._here, column, (shard, first, windows.length))
        )

    def read(self, windows: Windows, places: Places) -> None:
        if self._is_here.take(windows.episode_id).all():
            self._local.read(windows, places)
            return
        shard = self._shard[windows.episode_id]
        lease = self._lease(shard)
        key = places.plan.tobytes()
        wanted = self._wanted.get(key)
        if wanted is None:
            wanted = self._wanted[key] = wanted_rows(places.plan)
        addresses = lease.addresses[shard]
        total, numbers = self._length[windows.episode_id], np.arange(len(windows))
        start = self._start[windows.episode_id]
        held = self._place(addresses, wanted, windows, (shard, start, total), places)
        finals = self._local.final_rows
        self._collect(
            numbers,
            windows.start,
            windows.length,
            places.rows,
            numbers,
            np.zeros(len(windows), np.int64),
            total,
            finals[windows.episode_id] if len(finals) else _NO_ROWS,
            addresses,
            places.plan,
            places.addresses,
            places.per,
            places.valid,
        )
        del held, lease

    def _lease(self, shards: Int64Array) -> Lease:
        if self._shards.all_mapped:
            return Lease(self._shards.addresses)
        return self._shards.lease(np.unique(shards).tolist())

    def _place(
        self,
        addresses: Int64Array,
        wanted: tuple[Wanted, ...],
        windows: Windows,
        episodes: tuple[Int64Array, Int64Array, Int64Array],
        places: Places,
    ) -> object:
        """Brings what is not here, and turns addresses of shards' columns into those of windows' episodes.

        Args:
            addresses: int64 [B, columns]: of each window's shard; changed to where its episode's first row is, or would
                be.
            episodes: int64 [B] each: shard, first row there, steps.

        Returns:
            What must live as long as the addresses are used.
        """
        shard, start, total = episodes
        row_bytes = row_sizes(places.plan)
        groups, lows = [], []
        for each in wanted:
            columns = list(each.columns)
            here = addresses[:, columns] != 0
            away = tuple(
                column for column, is_here in zip(columns, here.all(axis=0).tolist(), strict=True) if not is_here
            )
            sizes = np.array([row_bytes[column] for column in columns], np.int64)
            addresses[:, columns] += start[:, None] * sizes
            if away:
                low, count = each.rows(windows, total)
                count[here.all(axis=1)] = 0
                groups.append(Group(away, start + low, count))
                lows.append(low)
        request = Request(shard, tuple(groups))
        targets = self._targets(request, windows, lows, places)
        pieces = self._nodes.fetch(request, targets)
        for piece in pieces:
            parts = iter(piece.parts)
            ready = iter(targets.places) if targets is not None and piece.placed else itertools.repeat(None)
            for group, low in zip(groups, lows, strict=True):
                count = group.count[piece.spans]
                filled = count > 0
                spans = piece.spans[filled]
                rows = (np.cumsum(count) - count)[filled] - low[spans]
                for column in group.columns:
                    part, target = next(parts), next(ready)
                    if target is None:
                        addresses[spans, column] = part.ctypes.data + rows * row_bytes[column]
                    else:
                        # The kernel finds that row there, and has nothing to copy.
                        addresses[spans, column] = target[spans] - low[spans] * row_bytes[column]
        return pieces

    def _targets(
        self, request: Request, windows: Windows, lows: Sequence[Int64Array], places: Places
    ) -> Targets | None:
        """Where rows of columns that are copied to one output belong in the batch; None: all are packed."""
        if places.memory is None or not self._nodes.reads_memory:
            return None
        found = []
        for group, low in zip(request.groups, lows, strict=True):
            for column in group.columns:
                output = copied_to(places.plan, column)
                found.append(None if output is None else target_rows(places, output, windows, low, group.count))
        return Targets(places.memory, tuple(found))
