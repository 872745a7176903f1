"""Placement: which node holds which shards, and what is copied to more of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.selection.windows import Float64Array, Int64Array
from gear_data.storage.manifest import ShardEntry


@dataclass(frozen=True)
class Placement:
    """Shards on nodes. Shards are numbered as in the manifest.

    Attributes:
        nodes: their names, sorted.
        shard_bytes: of each shard.
        shard_shares: of each shard, how much of what is drawn comes from it; 1 in sum.
        held: of each node, the shards that it holds, ascending.
    """

    nodes: tuple[str, ...]
    shard_bytes: tuple[int, ...]
    shard_shares: tuple[float, ...]
    held: tuple[tuple[int, ...], ...]

    def shards_of(self, node: str) -> tuple[int, ...]:
        """The shards that a node holds, ascending. Raises UnknownNameError."""
        return self.held[self._index(node)]

    def nodes_of(self, shard: int) -> tuple[str, ...]:
        """The nodes that hold a shard, sorted."""
        return tuple(node for node, held in zip(self.nodes, self.held, strict=True) if shard in held)

    def bytes_of(self, node: str) -> int:
        """What a node holds."""
        return sum(self.shard_bytes[shard] for shard in self.shards_of(node))

    def remote_share(self, node: str) -> float:
        """Of the bytes that a node reads when it draws from the whole dataset, the part that others must send it, 0 to
        1."""
        held = set(self.shards_of(node))
        # Steps have equally many bytes in all shards, so bytes are drawn as shards are.
        remote = math.fsum(share for shard, share in enumerate(self.shard_shares) if shard not in held)
        return remote / self._total_share

    @cached_property
    def _total_share(self) -> float:
        return math.fsum(self.shard_shares)

    def _index(self, node: str) -> int:
        if node not in self.nodes:
            raise unknown_name("node", node, self.nodes)
        return self.nodes.index(node)

    def to_json(self) -> dict[str, Any]:
        """Returns the placement as a JSON-able mapping."""
        return {
            "shards": [
                {"bytes": size, "share": share} for size, share in zip(self.shard_bytes, self.shard_shares, strict=True)
            ],
            "nodes": [
                {
                    "name": node,
                    "shards": list(self.shards_of(node)),
                    "bytes": self.bytes_of(node),
                    "remote_share": self.remote_share(node),
                }
                for node in self.nodes
            ],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Placement:
        """What `to_json` gave. Raises InvalidArgumentError for what is none."""
        try:
            placement = Placement(
                tuple(str(node["name"]) for node in data["nodes"]),
                tuple(int(shard["bytes"]) for shard in data["shards"]),
                tuple(float(shard["share"]) for shard in data["shards"]),
                tuple(tuple(int(shard) for shard in node["shards"]) for node in data["nodes"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"is no placement: {type(error).__name__}: {error}") from error
        if {shard for held in placement.held for shard in held} != set(range(len(placement.shard_bytes))):
            raise InvalidArgumentError("is no placement: some shard is on no node, or there is no such shard")
        return placement

    def __str__(self) -> str:
        width = max(len("node"), *(len(node) for node in self.nodes))
        lines = [f"{'node':<{width}}{'shards':>9}{'MiB':>12}{'read from others':>19}"]
        for node in self.nodes:
            size = self.bytes_of(node) / 2**20
            lines.append(
                f"{node:<{width}}{len(self.shards_of(node)):>9,}{size:>12,.1f}{self.remote_share(node):>19.1%}"
                f"  {_ranges(self.shards_of(node))}"
            )
        return "\n".join(lines)


def _ranges(shards: Sequence[int]) -> str:
    """As `gear-data serve --shards` takes them: 0-3,7."""
    parts: list[list[int]] = []
    for shard in shards:
        if parts and parts[-1][1] == shard - 1:
            parts[-1][1] = shard
        else:
            parts.append([shard, shard])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def shard_shares(shards: Int64Array, shares: Float64Array, count: int) -> Float64Array:
    """float64 [count]: how much of what is drawn comes from each shard, where `shares` (float64 [episodes]) says it of
    the episodes and `shards` (int64 [episodes]) where these are."""
    return np.bincount(shards, shares, count).astype(np.float64, copy=False)


def place_shards(
    shards: Sequence[ShardEntry], nodes: Sequence[str], shares: Float64Array, budget: int | None = None
) -> Placement:
    """Every shard on one node, so that all hold about as many bytes; then, with a budget, copies of those that are
    drawn most often a byte, on every node that has room.

    A pure function, in which neither the order of the shards nor that of the nodes counts. The first part goes from the
    largest shard to the smallest, each to the node that has least yet (Graham's longest processing time first, 1969: no
    node has more than 4/3 - 1/(3 nodes) of what the best division gives it). The second fills what a node has left as
    one fills a knapsack, by share a byte, as Quiver (Tan et al., 2023) places features by how likely they are read.

    Args:
        shards: the manifest's.
        nodes: names, all different.
        shares: float64 [shards], not negative, 1 in sum: how much of what is drawn comes from each.
        budget: most bytes on a node; None: as many as there are, and no copies.

    Raises:
        InvalidArgumentError: no node, two of one name, shares that are none, or a budget that is too small.
    """
    names = sorted(nodes)
    if not names or not all(names) or len(set(names)) < len(names):
        raise InvalidArgumentError(f"nodes are names, one or more and all different, not {list(nodes)!r}")
    if len(shares) != len(shards) or not (np.isfinite(shares) & (shares >= 0)).all() or not shares.any():
        raise InvalidArgumentError("shares are finite numbers from 0 on, one a shard and not all zero")
    sizes = [shard.entry.bytes for shard in shards]
    files = [shard.entry.file for shard in shards]
    held: list[set[int]] = [set() for _ in names]
    used = [0] * len(names)
    for shard in sorted(range(len(shards)), key=lambda shard: (-sizes[shard], files[shard])):
        node = min(range(len(names)), key=lambda node: used[node])
        if budget is not None and used[node] + sizes[shard] > budget:
            raise InvalidArgumentError(
                f"shard {files[shard]} of {sizes[shard]:,} bytes has no place on {len(names)} nodes of {budget:,}; "
                f"all shards have {sum(sizes):,}",
                hint="give more nodes or a larger budget",
            )
        held[node].add(shard)
        used[node] += sizes[shard]
    if budget is not None:
        drawn = [shard for shard in range(len(shards)) if shares[shard] > 0]
        drawn.sort(key=lambda shard: (-shares[shard] / sizes[shard], files[shard]))
        for node in range(len(names)):
            for shard in drawn:
                if shard not in held[node] and used[node] + sizes[shard] <= budget:
                    held[node].add(shard)
                    used[node] += sizes[shard]
    return Placement(
        tuple(names),
        tuple(sizes),
        tuple(float(share) for share in shares),
        tuple(tuple(sorted(shards)) for shards in held),
    )
