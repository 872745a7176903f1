"""ClusterDatasetStore: a dataset with shards on other nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.cluster.client.reader import ClusterReader
from gear_data.cluster.client.shard_client import ShardClient
from gear_data.cluster.client.shards import read_variable, run_spans
from gear_data.collection.reader import ColumnReader
from gear_data.dataset.stores.store import DatasetStore
from gear_data.selection.windows import Int64Array
from gear_data.storage.sidecar import REWARDS


class ClusterDatasetStore(DatasetStore):
    """Base of the stores that read steps from other nodes.

    Attributes, set by subclasses:
        _client: reads the shards of other nodes.
        _here: bool [shards]: whether this node holds the shard.
    """

    is_remote = True
    _client: ShardClient
    _here: npt.NDArray[np.bool_]

    def _rewards(self, shard: int) -> npt.NDArray[Any]:
        # Discounted returns are computed and kept on this machine, so that a client may choose any discount. The nodes
        # send only the rewards, once.
        return self._stored.column(shard, self.manifest.schema.index(REWARDS))

    def reader(self) -> ColumnReader:
        shard, start = self.episode_starts
        return ClusterReader(self._client, self.shards, self._here, shard, start, self.lengths, lambda: self.finals)

    def values(self, name: str, ids: Int64Array) -> pa.Array:
        index = self.schema.index(name)
        spans = run_spans(self._client, self._here, index, self.runs(ids))
        arrays = read_variable(self._client, self.shards, self._here, index, spans)
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
