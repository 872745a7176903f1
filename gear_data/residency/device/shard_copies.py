"""ShardCopies: the columns of a dataset that grows, copied shard by shard."""

from __future__ import annotations

import os
import weakref

import numpy as np
import xxhash

from gear_data.residency.device.columns import DeviceColumns, DeviceCopy, current_device
from gear_data.residency.joined_shards import JoinedShards
from gear_data.residency.plan import ResidencyPlan
from gear_data.storage.mapped_shards import MappedShards

#: The copies of this process's shards: (process, device, residency, key of the plan, key of the contents) -> columns. A
#: copy lives as long as some generation has its shard.
_copies: weakref.WeakValueDictionary[tuple[int, int, str, str, str], DeviceColumns] = weakref.WeakValueDictionary()


class ShardCopies(DeviceCopy):
    """The columns of some shards, each copied by itself at the first use.

    Generations of a dataset share the copies of the shards that they share. The memory of a shard is freed when no
    generation has the shard.

    Args:
        residency: `pinned`, `device` or `tiered`.
        schema, shards, steps, contents, plan: see `DeviceCopy`.
    """

    _shards: MappedShards | JoinedShards

    def _make(self) -> DeviceColumns:
        parts = [self._copy(shard) for shard in range(len(self._steps))]
        return DeviceColumns(
            np.repeat(np.arange(len(parts)), [len(part.shard) for part in parts]),
            np.concatenate([part.first for part in parts]),
            np.concatenate([part.last for part in parts]),
            np.concatenate([part.addresses for part in parts]),
            # A plan may put no column of a shard on the device.
            next((part.device for part in parts if part.device is not None), None),
            tuple(parts),
            os.getpid(),
        )

    def _copy(self, shard: int) -> DeviceColumns:
        contents, plan = self._contents.only(shard), None if self._plan is None else self._plan.of_shard(shard)
        key = (os.getpid(), current_device(), self._residency, _key(plan), contents.key())
        found = _copies.get(key)
        if found is None:
            steps, shards = self._steps[shard : shard + 1], self._shards.only(shard)
            copy = DeviceCopy(self._residency, self._schema, shards, steps, contents, plan)
            found = _copies[key] = copy.columns()
        return found


def _key(plan: ResidencyPlan | None) -> str:
    """Returns a key of the tiers of a shard's columns."""
    if plan is None:
        return ""
    digest = xxhash.xxh3_128(repr(plan.columns).encode())
    for values in (plan.first, plan.last, plan.tier):
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()
