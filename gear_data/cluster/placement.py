"""Placement: the shards of each node, with replicas of often drawn shards."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xxhash

from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.selection.windows import Float64Array, Int64Array
from gear_data.storage.manifest import ShardEntry


@dataclass(frozen=True)
class Placement:
    """The shards of each node. Shards are numbered as in the manifest.

    Attributes:
        nodes: names of the nodes, sorted.
        shard_bytes: bytes of each shard.
        shard_shares: share of the drawn data that comes from each shard; the shares sum to 1.
        held: shards of each node, ascending.
    """

    nodes: tuple[str, ...]
    shard_bytes: tuple[int, ...]
    shard_shares: tuple[float, ...]
    held: tuple[tuple[int, ...], ...]

    def shards_of(self, node: str) -> tuple[int, ...]:
        """Returns the shards of a node, ascending.

        Raises:
            UnknownNameError: there is no such node.
        """
        return self.held[self._index(node)]

    def nodes_of(self, shard: int) -> tuple[str, ...]:
        """Returns the nodes that hold a shard, sorted."""
        return tuple(node for node, held in zip(self.nodes, self.held, strict=True) if shard in held)

    def bytes_of(self, node: str) -> int:
        """Returns the bytes of a node's shards."""
        return sum(self.shard_bytes[shard] for shard in self.shards_of(node))

    def remote_share(self, node: str) -> float:
        """Returns the share, 0 to 1, of the bytes that a node must read from other nodes.

        The node draws from the whole dataset.
        """
        held = set(self.shards_of(node))
        # A step has the same number of bytes in all shards, so shares of steps are shares of bytes.
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
        """Reads what `to_json` returned.

        Raises:
            InvalidArgumentError: the data is not a placement.
        """
        try:
            placement = Placement(
                tuple(str(node["name"]) for node in data["nodes"]),
                tuple(int(shard["bytes"]) for shard in data["shards"]),
                tuple(float(shard["share"]) for shard in data["shards"]),
                tuple(tuple(int(shard) for shard in node["shards"]) for node in data["nodes"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"the data is not a placement: {type(error).__name__}: {error}") from error
        if {shard for held in placement.held for shard in held} != set(range(len(placement.shard_bytes))):
            raise InvalidArgumentError(
                "the data is not a placement: a shard is on no node, or a node holds a shard that does not exist"
            )
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
    """Returns shards in the form of `gear-data serve --shards`: 0-3,7."""
    parts: list[list[int]] = []
    for shard in shards:
        if parts and parts[-1][1] == shard - 1:
            parts[-1][1] = shard
        else:
            parts.append([shard, shard])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


@dataclass(frozen=True)
class ShardPart:
    """One of several parts of the shards of a dataset, in each of its generations.

    The part of a shard depends on the name of its file only. So servers of all parts hold all shards of every
    generation, without knowing of each other, and a shard stays in its part.

    Attributes:
        number: the part, from 1.
        count: number of parts.
    """

    number: int
    count: int

    def shards(self, shards: Sequence[ShardEntry]) -> tuple[int, ...]:
        """Returns the positions of the part's shards, ascending.

        A part without shards gets the first one, as a replica: every server holds a shard.
        """
        names = [shard.entry.file.encode() for shard in shards]
        found = [
            each for each, name in enumerate(names) if xxhash.xxh3_64_intdigest(name) % self.count == self.number - 1
        ]
        return tuple(found) or (0,)


def shard_shares(shards: Int64Array, shares: Float64Array, count: int) -> Float64Array:
    """Sums the shares of episodes by shard.

    Args:
        shards: int64 [episodes], the shard of each episode.
        shares: float64 [episodes], the share of the drawn data that comes from each episode.
        count: number of shards.

    Returns:
        float64 [count], the share of each shard.
    """
    return np.bincount(shards, shares, count).astype(np.float64, copy=False)


def place_shards(
    shards: Sequence[ShardEntry], nodes: Sequence[str], shares: Float64Array, budget: int | None = None
) -> Placement:
    """Places every shard on one node, and replicates the shards that are drawn most.

    A pure function: neither the order of the shards nor the order of the nodes matters. It has two steps:

    1. From the largest shard to the smallest, each shard goes to the node with the fewest bytes so far (longest
       processing time first, Graham 1969: no node gets more than 4/3 - 1/(3 nodes) of its bytes in the best division).
    2. With a budget, each node's free bytes are filled with replicas, by share per byte, as in a knapsack problem.
       Quiver (Tan et al., 2023) places features by their read probability in the same way.

    Args:
        shards: the manifest's shards.
        nodes: names of the nodes, all different.
        shares: float64 [shards], the share of the drawn data that comes from each shard; not negative, sums to 1.
        budget: most bytes on a node; None: no limit, and no replicas.

    Raises:
        InvalidArgumentError: there is no node, a name occurs twice, the shares are invalid, or the budget is too small.
    """
    names = sorted(nodes)
    if not names or not all(names) or len(set(names)) < len(names):
        raise InvalidArgumentError(f"nodes must be one or more names, all different; got {list(nodes)!r}")
    if len(shares) != len(shards) or not (np.isfinite(shares) & (shares >= 0)).all() or not shares.any():
        raise InvalidArgumentError(
            f"shares must be finite numbers, 0 or more, one for each of {len(shards)} shards, and not all zero"
        )
    held = [set[int]() for _ in names]
    _place_owned(shards, held, range(len(shards)), budget)
    if budget is not None:
        _replicate(shards, held, shares, budget)
    return _placement(names, shards, shares, held)


def extend_placement(
    before: Sequence[ShardEntry],
    placement: Placement,
    owners: Placement,
    after: Sequence[ShardEntry],
    budget: int | None = None,
) -> tuple[Placement, Placement]:
    """Extends a placement to another generation of the dataset.

    A pure function. Shards that both generations have stay on their nodes. A new shard goes to the node with the fewest
    bytes of its own, as in `place_shards`. With a budget, replicas make room for new shards: those that are drawn least
    leave first. Then each node's free bytes are filled with replicas again.

    The shares of the drawn data are not known for new shards: a step of them counts like an average step.

    Args:
        before: the shards of the placement.
        placement, owners: the placement with replicas and without.
        after: the shards of the other generation.
        budget: see `place_shards`.

    Returns:
        The placements of `after`, with replicas and without.

    Raises:
        InvalidArgumentError: the budget is too small.
    """
    known = {shard.entry: number for number, shard in enumerate(before)}
    kept = [(new, known[shard.entry]) for new, shard in enumerate(after) if shard.entry in known]
    new_of_old = {old: new for new, old in kept}

    def moved(old: Placement) -> list[set[int]]:
        return [{new_of_old[shard] for shard in held if shard in new_of_old} for held in old.held]

    shares = _extended_shares(before, placement, after, kept)
    owned = moved(owners)
    added = sorted(set(range(len(after))) - {new for new, _ in kept})
    _place_owned(after, owned, added, budget)
    held = [set(each) for each in owned]
    if budget is not None:
        # Replicas that are held already come first: they need not be loaded.
        _replicate(after, held, shares, budget, moved(placement))
        _replicate(after, held, shares, budget)
    names = owners.nodes
    return _placement(names, after, shares, held), _placement(names, after, shares, owned)


def _extended_shares(
    before: Sequence[ShardEntry], placement: Placement, after: Sequence[ShardEntry], kept: Sequence[tuple[int, int]]
) -> Float64Array:
    """Returns float64 [shards of after]: the share of each, with a sum of 1."""
    steps = np.array([shard.steps for shard in after], np.float64)
    known = math.fsum(placement.shard_shares[old] for _, old in kept)
    kept_steps = sum(before[old].steps for _, old in kept)
    shares = steps * (known / kept_steps if known else 1.0)
    if known:
        for new, old in kept:
            shares[new] = placement.shard_shares[old]
    return shares / math.fsum(shares)


def _place_owned(shards: Sequence[ShardEntry], held: list[set[int]], added: Iterable[int], budget: int | None) -> None:
    """Adds each of some shards to the node with the fewest bytes, from the largest shard to the smallest."""
    sizes = [shard.bytes for shard in shards]
    used = [sum(sizes[shard] for shard in own) for own in held]
    for shard in sorted(added, key=lambda shard: (-sizes[shard], shards[shard].entry.file)):
        node = min(range(len(held)), key=lambda node: used[node])
        if budget is not None and used[node] + sizes[shard] > budget:
            raise InvalidArgumentError(
                f"shard {shards[shard].entry.file} of {sizes[shard]:,} bytes does not fit on {len(held)} nodes of "
                f"{budget:,} bytes; all shards have {sum(sizes):,} bytes",
                hint="use more nodes or a larger budget",
            )
        held[node].add(shard)
        used[node] += sizes[shard]


def _replicate(
    shards: Sequence[ShardEntry],
    held: list[set[int]],
    shares: Float64Array,
    budget: int,
    candidates: Sequence[Set[int]] | None = None,
) -> None:
    """Fills the free bytes of each node with replicas, by share per byte.

    Args:
        shards, shares, budget: see `place_shards`.
        held: the shards of each node; replicas are added.
        candidates: the shards that each node may get; None: all.
    """
    sizes = [shard.bytes for shard in shards]
    drawn = [shard for shard in range(len(shards)) if shares[shard] > 0]
    drawn.sort(key=lambda shard: (-shares[shard] / sizes[shard], shards[shard].entry.file))
    for node, own in enumerate(held):
        used = sum(sizes[shard] for shard in own)
        for shard in drawn:
            allowed = candidates is None or shard in candidates[node]
            if allowed and shard not in own and used + sizes[shard] <= budget:
                own.add(shard)
                used += sizes[shard]


def _placement(
    names: Sequence[str], shards: Sequence[ShardEntry], shares: Float64Array, held: Sequence[Set[int]]
) -> Placement:
    return Placement(
        tuple(names),
        tuple(shard.bytes for shard in shards),
        tuple(float(share) for share in shares),
        tuple(tuple(sorted(each)) for each in held),
    )
