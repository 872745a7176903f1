"""Rows of other nodes' shards, brought to where a GPU's kernels read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.cluster.client.shard_client import ShardClient
from gear_data.cluster.protocol import ColumnGroup, Request
from gear_data.cluster.rdma.span_read import WriteTargets
from gear_data.residency import ShardReader, Shards
from gear_data.residency.device.staging import StagedRows, StagingBuffer
from gear_data.selection.windows import Int64Array


class ClusterStaging:
    """A `StagingReader` over shards some of which, or all, are on other nodes.

    Args:
        nodes: the nodes.
        shards: all; the address 0 stands for columns of a shard that are not here.
        reader: of the same; knows the episodes, and where final observations are.
    """

    def __init__(self, nodes: ShardClient, shards: Shards, reader: ShardReader) -> None:
        # Bound here: importing in `stage` would cost time at every batch.
        from gear_data.kernels.cpu.gather import gather

        self._gather = gather
        self._nodes, self._shards, self._reader = nodes, shards, reader
        self.shard, self.start, self.length = reader.shard, reader.start, reader.length

    @property
    def final_rows(self) -> Int64Array:
        return self._reader.final_rows

    def final_values(self, address: int) -> npt.NDArray[Any]:
        return self._reader.final_values(address)

    def stages_on(self, device: int) -> bool:
        """Whether this machine's RDMA device writes to the memory of that GPU."""
        return self._nodes.reads_to_gpu(device)

    def stage(self, rows: Sequence[StagedRows], stage: StagingBuffer) -> None:
        """See `StagingReader`. By RDMA they go there straight; what is here, or comes by Arrow Flight, is copied.

        Raises:
            as `ShardClient.fetch`.
        """
        shard = rows[0].shard
        lease = self._shards.lease(np.unique(shard).tolist())
        away: list[StagedRows] = []
        groups: list[ColumnGroup] = []
        for each in rows:
            addresses = lease.addresses[shard, each.column]
            here = addresses != 0
            some = np.flatnonzero(here & (each.count > 0))
            if len(some):
                packed = np.empty(int(each.sizes[some].sum()), np.uint8)
                self._gather(addresses[some] + each.first[some] * each.row_bytes, each.sizes[some], packed.ctypes.data)
                stage.put(packed, each.sizes[some], each.places[some])
            left = np.where(here, 0, each.count)
            # A column that is all here may be none of the nodes': returns of another discount.
            if left.any():
                away.append(each)
                groups.append(ColumnGroup((each.column,), each.first, left))
        targets = WriteTargets(stage.memory, tuple(each.places for each in away))
        for piece in self._nodes.fetch(Request(shard, tuple(groups)), targets):
            if piece.placed:
                continue
            for each, group, part in zip(away, groups, piece.parts, strict=True):
                spans = piece.spans[group.count[piece.spans] > 0]
                stage.put(part, each.sizes[spans], each.places[spans])
