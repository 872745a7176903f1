"""Shards of other nodes, or some here and some there, for what reads columns and not windows: episodes, expressions
over steps, statistics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.cluster.client.shard_client import ShardClient
from gear_data.cluster.protocol import ColumnGroup, Request
from gear_data.residency import Shards
from gear_data.selection.windows import Int64Array
from gear_data.storage.reader import ShardLease
from gear_data.storage.variable import array_over, python_values, validated

#: Rows asked for in one span; a shard has more.
_SPAN_BYTES = 8 << 20


class RemoteShards:
    """Shards that are all on other nodes. Every call brings what it gives over the network.

    Attributes:
        addresses: int64 [shards, columns], all 0: none is in this process's memory.
    """

    def __init__(self, nodes: ShardClient) -> None:
        self._nodes = nodes
        self._schema = nodes.manifest.schema
        self._shards = nodes.manifest.shards
        self.addresses: Int64Array = np.zeros((len(self._shards), len(self._schema)), np.int64)

    @property
    def all_mapped(self) -> bool:
        """Never: 0 stands for what is elsewhere."""
        return False

    def lease(self, shards: Sequence[int]) -> ShardLease:
        return ShardLease(self.addresses)

    def column(self, shard: int, index: int, first: int = 0, last: int | None = None) -> npt.NDArray[Any]:
        """As of shards that are here, but a copy; read-only all the same.

        Raises:
            NodeUnreachableError: no node that holds it answers.
            CorruptShardError: values of variable length that are damaged.
        """
        spec = self._schema.columns[index]
        begin, end, _ = slice(first, last).indices(self._shards[shard].steps)
        if spec.variable_length:
            file = self._shards[shard].entry.file
            return python_values(validated(self._rows(shard, index, begin, end), file=file, column=spec.name))
        step = max(1, _SPAN_BYTES // spec.row_bytes)
        starts = np.arange(begin, max(begin, end), step)
        counts = np.minimum(starts + step, end) - starts
        ends = np.cumsum(counts) * spec.row_bytes
        data = np.empty(int(counts.sum()) * spec.row_bytes, np.uint8)
        request = Request(np.full(len(starts), shard), (ColumnGroup((index,), starts, counts),))
        for piece in self._nodes.fetch(request):
            taken = 0
            # One by one: after a failure spans of a piece may be any.
            for span in piece.spans.tolist():
                size = int(counts[span]) * spec.row_bytes
                data[int(ends[span]) - size : int(ends[span])] = piece.parts[0][taken : taken + size]
                taken += size
        data.flags.writeable = False
        return data.view(spec.storage_dtype).view(spec.numpy_dtype).reshape(-1, *spec.shape)

    def values(self, shard: int, index: int) -> pa.Array:
        return self._rows(shard, index, 0, self._shards[shard].steps)

    def _rows(self, shard: int, index: int, first: int, last: int) -> pa.Array:
        known = self._shards[shard].variable[self._schema.columns[index].name]
        step = max(1, _SPAN_BYTES * self._shards[shard].steps // max(1, known.bytes))
        starts = np.arange(first, max(first, last), step)
        counts = np.minimum(starts + step, last) - starts
        arrays = read_remote_variable(self._nodes, index, np.full(len(starts), shard), starts, counts)
        return pa.concat_arrays(arrays) if arrays else pa.array([], self._schema.columns[index].arrow_type)


class ClusterShards:
    """Shards of which some are here, and the others on other nodes.

    Args:
        nodes: the nodes that hold the others.
        here: the places of the local ones in the manifest, ascending.
        local: these, in that order.

    Attributes:
        here, local: the same.
    """

    def __init__(self, nodes: ShardClient, here: Sequence[int], local: Shards) -> None:
        self._remote = RemoteShards(nodes)
        self.here = list(here)
        self.local = local
        self._place = {shard: place for place, shard in enumerate(here)}

    @cached_property
    def addresses(self) -> Int64Array:
        """int64 [shards, columns]; 0 for what is on other nodes. To be asked for when all that are here are mapped."""
        addresses = self._remote.addresses.copy()
        addresses[self.here] = self.local.addresses
        return addresses

    @property
    def all_mapped(self) -> bool:
        """Whether `addresses` holds those of every shard that is here."""
        return self.local.all_mapped

    def lease(self, shards: Sequence[int]) -> ShardLease:
        mine = [shard for shard in shards if shard in self._place]
        places = [self._place[shard] for shard in mine]
        lease = self.local.lease(places)
        addresses = self._remote.addresses.copy()
        addresses[mine] = lease.addresses[places]
        return ShardLease(addresses, lease)

    def column(self, shard: int, index: int, first: int = 0, last: int | None = None) -> npt.NDArray[Any]:
        place = self._place.get(shard)
        if place is None:
            return self._remote.column(shard, index, first, last)
        return self.local.column(place, index, first, last)

    def values(self, shard: int, index: int) -> pa.Array:
        place = self._place.get(shard)
        return self._remote.values(shard, index) if place is None else self.local.values(place, index)


def read_variable(
    nodes: ShardClient,
    shards: Shards,
    here: npt.NDArray[np.bool_],
    column: int,
    spans: tuple[Int64Array, Int64Array, Int64Array],
) -> list[pa.Array]:
    """Values of a column of variable length, an array a span, wherever the shards are.

    Args:
        shards: all; asked for those that are here.
        here: bool [shards].
        spans: int64 [n] each: shard, first row, rows.

    Raises:
        NodeUnreachableError: no node that holds some of them answers.
        CorruptShardError: damaged values.
    """
    shard, first, count = spans
    away = ~here[shard]
    arrays = np.empty(len(shard), object)
    for place, array in zip(
        np.flatnonzero(away).tolist(), read_remote_variable(nodes, column, *(each[away] for each in spans)), strict=True
    ):
        arrays[place] = array
    whole = {number: shards.values(number, column) for number in np.unique(shard[~away]).tolist()}
    for place in np.flatnonzero(~away).tolist():
        number = int(shard[place])
        arrays[place] = validated(
            whole[number].slice(int(first[place]), int(count[place])),
            file=nodes.manifest.shards[number].entry.file,
            column=nodes.manifest.schema.columns[column].name,
        )
    return arrays.tolist()


def read_remote_variable(
    nodes: ShardClient, column: int, shard: Int64Array, first: Int64Array, count: Int64Array
) -> list[pa.Array]:
    """Values of a column of variable length, an array a span: `count` rows of a shard from row `first` on.

    Raises:
        NodeUnreachableError: no node that holds some of them answers.
        CorruptShardError: damaged values.
    """
    spec = nodes.manifest.schema.columns[column]
    arrays = [pa.array([], spec.arrow_type)] * len(shard)
    for piece in nodes.fetch(Request(shard, (ColumnGroup((column,), first, count),))):
        rows = count[piece.spans]
        offsets, values = (pa.py_buffer(part) for part in piece.parts)
        whole = validated(
            array_over(spec.arrow_type, int(rows.sum()), offsets, values, file=nodes.place, column=spec.name),
            file=nodes.place,
            column=spec.name,
        )
        for span, end, length in zip(piece.spans.tolist(), np.cumsum(rows).tolist(), rows.tolist(), strict=True):
            arrays[span] = whole.slice(end - length, length)
    return arrays
