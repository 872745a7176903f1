"""Columns of shards on other nodes.

They serve reads of whole columns: of episodes, for filters over steps, and for statistics. `reader` reads batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.cluster.client.shard_client import ShardClient
from gear_data.cluster.protocol import ColumnGroup, Request
from gear_data.residency import Shards
from gear_data.selection.windows import Int64Array
from gear_data.storage.mapped_shards import ShardLease
from gear_data.storage.variable_columns import OFFSET_BYTES, array_over, python_values, validated

#: Bytes of one span of a request; a shard is read in several.
_SPAN_BYTES = 8 << 20


class RemoteShards:
    """Shards that are all on other nodes.

    Every call reads its result over the network.

    Args:
        client: reads them.

    Attributes:
        addresses: int64 [shards, columns], all 0: no column is in this process's memory.
    """

    def __init__(self, client: ShardClient) -> None:
        self._client = client
        self._schema = client.manifest.schema
        self._shards = client.manifest.shards
        self.addresses: Int64Array = np.zeros((len(self._shards), len(self._schema)), np.int64)

    @property
    def all_mapped(self) -> bool:
        """Always False: address 0 stands for a column on another node."""
        return False

    def check(self) -> None:
        """Does nothing: no shard is mapped."""

    def lease(self, shards: Sequence[int]) -> ShardLease:
        return ShardLease(self.addresses)

    def column(self, shard: int, index: int, first: int = 0, last: int | None = None) -> npt.NDArray[Any]:
        """Returns a read-only copy of rows of a column.

        Raises:
            NodeUnreachableError: no node that holds the shard answers.
            CorruptShardError: values of variable length are damaged.
        """
        spec = self._schema.columns[index]
        begin, end, _ = slice(first, last).indices(self._shards[shard].steps)
        if spec.variable_length:
            file = self._shards[shard].entry.file
            return python_values(validated(self._variable(shard, index, begin, end), file=file, column=spec.name))
        starts, counts = _spans(begin, end, max(1, _SPAN_BYTES // spec.row_bytes))
        ends = np.cumsum(counts) * spec.row_bytes
        data = np.empty(int(counts.sum()) * spec.row_bytes, np.uint8)
        request = Request(np.full(len(starts), shard), (ColumnGroup((index,), starts, counts),))
        for result in self._client.fetch(request):
            taken = 0
            # Copied span by span: after a failure, a result may hold any spans.
            for span in result.spans.tolist():
                size = int(counts[span]) * spec.row_bytes
                data[int(ends[span]) - size : int(ends[span])] = result.parts[0][taken : taken + size]
                taken += size
        data.flags.writeable = False
        return data.view(spec.storage_dtype).view(spec.numpy_dtype).reshape(-1, *spec.shape)

    def values(self, shard: int, index: int) -> pa.Array:
        return self._variable(shard, index, 0, self._shards[shard].steps)

    def _variable(self, shard: int, index: int, first: int, last: int) -> pa.Array:
        spans = np.array(_divided(self._client, index, shard, first, last), np.int64).reshape(-1, 3).T
        arrays = read_remote_variable(self._client, index, *spans)
        return pa.concat_arrays(arrays)


def _spans(first: int, last: int, step: int) -> tuple[Int64Array, Int64Array]:
    """Divides a range of rows into spans of `step` rows.

    Returns int64 [n] each: the first row and the row count of each span.
    """
    starts = np.arange(first, max(first, last), step)
    return starts, np.minimum(starts + step, last) - starts


def _divided(client: ShardClient, column: int, shard: int, first: int, last: int) -> list[tuple[int, int, int]]:
    """Divides a range of rows of a column of variable length: it may have more bytes than a response may have.

    Returns the shard, the first row and the row count of each span; at least one span.
    """
    entry = client.manifest.shards[shard]
    known = entry.variable[client.manifest.schema.columns[column].name]
    # The client takes a row of any shard for an average row of the dataset.
    row_bytes = max(client.row_bytes[column], OFFSET_BYTES + known.bytes // max(1, entry.steps))
    starts, counts = _spans(first, last, max(1, _SPAN_BYTES // row_bytes))
    spans = zip(starts.tolist(), counts.tolist(), strict=True)
    return [(shard, start, count) for start, count in spans] or [(shard, first, 0)]


class ClusterShards:
    """Shards of which some are local, and the others on other nodes.

    Args:
        client: reads the remote shards.
        here: positions of the local shards in the manifest, ascending.
        local: the local shards, in that order.

    Attributes:
        here, local: see above.
    """

    def __init__(self, client: ShardClient, here: Sequence[int], local: Shards) -> None:
        self._remote = RemoteShards(client)
        self.here = list(here)
        self.local = local
        self._local_index = {shard: index for index, shard in enumerate(here)}

    @cached_property
    def addresses(self) -> Int64Array:
        """int64 [shards, columns]; 0 for remote shards. Valid once `all_mapped` is True."""
        addresses = self._remote.addresses.copy()
        addresses[self.here] = self.local.addresses
        return addresses

    @property
    def all_mapped(self) -> bool:
        """Whether `addresses` has the addresses of every local shard."""
        return self.local.all_mapped

    def check(self) -> None:
        self.local.check()

    def lease(self, shards: Sequence[int]) -> ShardLease:
        mine = [shard for shard in shards if shard in self._local_index]
        indices = [self._local_index[shard] for shard in mine]
        lease = self.local.lease(indices)
        addresses = self._remote.addresses.copy()
        addresses[mine] = lease.addresses[indices]
        return ShardLease(addresses, lease)

    def column(self, shard: int, index: int, first: int = 0, last: int | None = None) -> npt.NDArray[Any]:
        local = self._local_index.get(shard)
        if local is None:
            return self._remote.column(shard, index, first, last)
        return self.local.column(local, index, first, last)

    def values(self, shard: int, index: int) -> pa.Array:
        local = self._local_index.get(shard)
        return self._remote.values(shard, index) if local is None else self.local.values(local, index)


def run_spans(
    client: ShardClient, here: npt.NDArray[np.bool_], column: int, runs: Iterable[tuple[int, int, int]]
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Returns runs of rows of a column of variable length as spans for `read_variable`.

    Runs in remote shards are divided, as a whole shard may be larger than a response.

    Args:
        client, here, column: see `read_variable`.
        runs: shard, first row, and the row after the last, of each.
    """
    spans: list[tuple[int, int, int]] = []
    for shard, first, last in runs:
        spans += [(shard, first, last - first)] if here[shard] else _divided(client, column, shard, first, last)
    numbers = np.array(spans, np.int64).reshape(-1, 3)
    return numbers[:, 0], numbers[:, 1], numbers[:, 2]


def read_variable(
    client: ShardClient,
    shards: Shards,
    here: npt.NDArray[np.bool_],
    column: int,
    spans: tuple[Int64Array, Int64Array, Int64Array],
) -> list[pa.Array]:
    """Reads spans of a column of variable length from local and remote shards.

    Args:
        client: reads the remote shards.
        shards: all shards; only local ones are read from it.
        here: bool [shards], which shards are local.
        column: position of the column in the schema.
        spans: int64 [n] each: shard, first row, row count.

    Returns:
        One array for each span.

    Raises:
        NodeUnreachableError: no node that holds some of the shards answers.
        CorruptShardError: values are damaged.
    """
    shard, first, count = spans
    is_remote = ~here[shard]
    arrays = np.empty(len(shard), object)
    remote = read_remote_variable(client, column, *(each[is_remote] for each in spans))
    for span, array in zip(np.flatnonzero(is_remote).tolist(), remote, strict=True):
        arrays[span] = array
    whole = {number: shards.values(number, column) for number in np.unique(shard[~is_remote]).tolist()}
    for span in np.flatnonzero(~is_remote).tolist():
        number = int(shard[span])
        arrays[span] = validated(
            whole[number].slice(int(first[span]), int(count[span])),
            file=client.manifest.shards[number].entry.file,
            column=client.manifest.schema.columns[column].name,
        )
    return arrays.tolist()


def read_remote_variable(
    client: ShardClient, column: int, shard: Int64Array, first: Int64Array, count: Int64Array
) -> list[pa.Array]:
    """Reads spans of a column of variable length from other nodes.

    Args:
        client: reads the shards.
        column: position of the column in the schema.
        shard, first, count: int64 [n] each: shard, first row and row count of each span.

    Returns:
        One array for each span.

    Raises:
        NodeUnreachableError: no node that holds some of the shards answers.
        CorruptShardError: values are damaged.
    """
    spec = client.manifest.schema.columns[column]
    arrays = [pa.array([], spec.arrow_type)] * len(shard)
    for result in client.fetch(Request(shard, (ColumnGroup((column,), first, count),))):
        rows = count[result.spans]
        offsets, values = (pa.py_buffer(part) for part in result.parts)
        whole = validated(
            array_over(spec.arrow_type, int(rows.sum()), offsets, values, file=client.url, column=spec.name),
            file=client.url,
            column=spec.name,
        )
        for span, end, length in zip(result.spans.tolist(), np.cumsum(rows).tolist(), rows.tolist(), strict=True):
            arrays[span] = whole.slice(end - length, length)
    return arrays
