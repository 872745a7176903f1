"""ShardCopies: the columns of a dataset that grows, copied shard by shard."""

from __future__ import annotations

import os
import weakref

import numpy as np

from gear_data.common.fork_lock import fork_safe_lock
from gear_data.residency.device.columns import DeviceColumns, DeviceCopy, current_device
from gear_data.residency.host import Contents
from gear_data.residency.joined_shards import JoinedShards
from gear_data.schema import Schema
from gear_data.selection.windows import Int64Array
from gear_data.storage.mapped_shards import MappedShards

#: The copies of this process's shards: (process, device, residency, key of the contents) -> columns. A copy lives as
#: long as some generation has its shard.
_copies: weakref.WeakValueDictionary[tuple[int, int, str, str], DeviceColumns] = weakref.WeakValueDictionary()


class ShardCopies:
    """The columns of some shards, each copied by itself at the first use.

    Generations of a dataset share the copies of the shards that they share. The memory of a shard is freed when no
    generation has the shard.

    Args:
        residency: `pinned` or `device`.
        schema, shards, steps, contents: see `DeviceCopy`.
    """

    def __init__(
        self,
        residency: str,
        schema: Schema,
        shards: MappedShards | JoinedShards,
        steps: Int64Array,
        contents: Contents,
    ) -> None:
        self._residency, self._schema, self._shards, self._steps = residency, schema, shards, steps
        self._contents = contents
        self._columns: DeviceColumns | None = None
        self._lock = fork_safe_lock()

    def columns(self) -> DeviceColumns:
        """Returns the columns: see `DeviceCopy.columns`."""
        with self._lock:
            if self._columns is None:
                parts = [self._copy(shard) for shard in range(len(self._steps))]
                whole = np.arange(len(parts)), np.zeros(len(parts), np.int64), self._steps
                addresses = np.concatenate([part.addresses for part in parts])
                self._columns = DeviceColumns(*whole, addresses, parts[0].device, tuple(parts), os.getpid())
            return self._columns

    def _copy(self, shard: int) -> DeviceColumns:
        contents = self._contents.only(shard)
        key = (os.getpid(), current_device(), self._residency, contents.key())
        found = _copies.get(key)
        if found is None:
            steps, shards = self._steps[shard : shard + 1], self._shards.only(shard)
            found = _copies[key] = DeviceCopy(self._residency, self._schema, shards, steps, contents).columns()
        return found
