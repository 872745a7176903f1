"""Staging of remote rows in memory that a GPU's kernels read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gear_data.cluster.client.shard_client import ShardClient
from gear_data.cluster.protocol import ColumnGroup, Request
from gear_data.cluster.rdma.reads.span_read import WriteTargets
from gear_data.kernels import cpu
from gear_data.residency import ShardReader, Shards
from gear_data.residency.device.staging import StagedRows, StagingBuffer
from gear_data.selection.windows import Int64Array


class ClusterStaging:
    """A `StagingReader` over local and remote shards.

    Args:
        client: reads the remote shards.
        shards: all shards; address 0 stands for columns of remote shards.
        reader: reader of the same shards; it knows the episodes and the final observations.
    """

    def __init__(self, client: ShardClient, shards: Shards, reader: ShardReader) -> None:
        # Loads the kernel here, not in a prefetch thread.
        self._gather = cpu.gather.gather
        self._client, self._shards, self._reader = client, shards, reader
        self.shard, self.start, self.length = reader.shard, reader.start, reader.length

    @property
    def final_rows(self) -> Int64Array:
        return self._reader.final_rows

    def final_values(self, address: int) -> npt.NDArray[Any]:
        return self._reader.final_values(address)

    def stages_on(self, device: int) -> bool:
        """Returns whether RDMA can write to the memory of a CUDA device."""
        return self._client.can_write_gpu(device)

    def stage(self, rows: Sequence[StagedRows], stage: StagingBuffer) -> None:
        """Stages rows; see `StagingReader`.

        RDMA writes rows directly to the staging buffer. Local rows, and rows that arrive by Arrow Flight, are copied.

        Raises:
            As `ShardClient.fetch`.
        """
        self._shards.check()
        shard = rows[0].shard
        lease = self._shards.lease(np.unique(shard).tolist())
        remote: list[StagedRows] = []
        groups: list[ColumnGroup] = []
        for each in rows:
            addresses = lease.addresses[shard, each.column]
            is_local = addresses != 0
            local = np.flatnonzero(is_local & (each.count > 0))
            if len(local):
                packed = np.empty(int(each.sizes[local].sum()), np.uint8)
                sources = addresses[local] + each.first[local] * each.row_bytes
                self._gather(sources, each.sizes[local], packed.ctypes.data)
                stage.put(packed, each.sizes[local], each.addresses[local])
            remote_count = np.where(is_local, 0, each.count)
            # The nodes need not have a column that is all local, such as returns of another discount.
            if remote_count.any():
                remote.append(each)
                groups.append(ColumnGroup((each.column,), each.first, remote_count))
        targets = WriteTargets(stage.memory, tuple(each.addresses for each in remote))
        for result in self._client.fetch(Request(shard, tuple(groups)), targets):
            if result.is_direct:
                continue
            for each, group, part in zip(remote, groups, result.parts, strict=True):
                spans = result.spans[group.count[result.spans] > 0]
                stage.put(part, each.sizes[spans], each.addresses[spans])
