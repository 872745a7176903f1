"""Node-local selection: each node samples only its own shards.

No bytes of a batch go over the network.

A `Cycle` deals the slots of all batches to the nodes, in proportion to the weight of each node's shards. So the number
of rows of each node is the number that one sampler over all nodes gives, to within one row over any number of batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from gear_data.dataset.dataset import Dataset
from gear_data.dataset.window_anchors import anchors_of
from gear_data.errors import InvalidArgumentError
from gear_data.kernels import cpu
from gear_data.loaders.mixture import Mixture
from gear_data.selection.anchors import Anchors
from gear_data.selection.samplers import BuiltInSampler, Candidates, Selector, TopK, Weighted, WeightedSelector
from gear_data.selection.turns import Cycle
from gear_data.selection.window_sampler import SamplingPlan
from gear_data.selection.windows import Float64Array, Int64Array, Windows

if TYPE_CHECKING:
    import polars as pl

    from gear_data.cluster.rendezvous import Membership


def check_selection(
    selection: str, dataset: Dataset | Mixture, rank: int | None, world_size: int | None
) -> Membership | None:
    """Returns this process's membership in its run, for `decentralized`.

    Returns None for `centralized`.

    Raises:
        InvalidArgumentError: `decentralized` with a mixture, with a given rank, or with a dataset without nodes.
    """
    if selection == "centralized":
        return None
    if isinstance(dataset, Mixture):
        raise InvalidArgumentError(
            "a mixture cannot be sampled node by node", hint="use a mixture with WindowOptions(selection='centralized')"
        )
    if rank is not None or world_size is not None:
        raise InvalidArgumentError(
            "with selection='decentralized', the run gives rank and world_size",
            hint="leave rank and world_size out",
        )
    membership = dataset.store.membership
    if membership is None:
        raise InvalidArgumentError(
            "selection='decentralized' was given, and this dataset has no nodes",
            hint="open it with cluster='torchrun', or use WindowOptions(selection='centralized')",
        )
    return membership


def own_episodes(dataset: Dataset, membership: Membership) -> Int64Array:
    """Returns the positions of the episodes whose shards are on this process's node."""
    return np.flatnonzero(membership.owner()[dataset.shards] == membership.node)


def node_seed(seed: int, membership: Membership) -> int:
    """Returns the seed of this process's node.

    All nodes number their windows from 0, so one seed would give all of them the same random numbers.
    """
    random = cpu.random
    if len(membership.owners.nodes) == 1:
        return seed
    return int(random.word64(np.uint64(seed), random.DOMAIN_NODE, 0, membership.node, 0))


class NodeLocalSelector:
    """Selects the windows of one node's slots.

    `select` returns fewer windows than slots.

    Args:
        whole: the selector over all nodes' episodes.
        own: the selector over this node's episodes.
        cycle: deals the slots to the nodes.
        node: this node's number.
        placement: hash of the shards' owners.
    """

    def __init__(self, whole: Selector, own: Selector, cycle: Cycle, node: int, placement: str) -> None:
        self._shares = whole.shares()
        self._own, self._cycle, self._node = own, cycle, node
        self._share = cycle.identity()[node] / cycle.length
        self._identity = {
            "decentralized": whole.identity(), "nodes": cycle.identity(), "placement": placement,
        }  # fmt: skip

    def select(self, step: int, count: int, position: int) -> Windows:
        node, before = self._cycle.turns(position, count)
        rows = np.flatnonzero(node == self._node)
        windows = self._own.select(step, len(rows), int(before[rows[0]]) if len(rows) else 0)
        if windows.probability is None:
            return windows
        return dataclasses.replace(windows, probability=windows.probability * self._share)

    def sampling_plan(self, count: int) -> SamplingPlan | None:
        return None

    def max_rows(self, count: int) -> int:
        """Returns the most windows that `select` returns for `count` slots."""
        # At either end of the slots, the node's share may be off by less than one turn.
        return min(count, int(count * self._share) + 2)

    def shares(self) -> Float64Array:
        return self._shares

    def epoch_slots(self, epochs: int) -> int | None:
        return None

    def identity(self) -> dict[str, Any]:
        return dict(self._identity)


def node_local_selector(
    dataset: Dataset,
    membership: Membership,
    anchors: Anchors,
    sampler: BuiltInSampler,
    whole: Selector,
    evaluate: Callable[[str | pl.Expr, str], Float64Array],
    seed: int,
) -> NodeLocalSelector:
    """Makes the selector of this process's node.

    Args:
        dataset: the dataset of all nodes.
        membership: this process in its run.
        anchors: the dataset's anchors.
        sampler: the sampler.
        whole: the sampler bound to the anchors.
        evaluate: see `Candidates`.
        seed: seed of the loader.

    Raises:
        InvalidArgumentError: the sampler selects nothing from some node's shards.
    """
    owner, node, names = membership.owner()[dataset.shards], membership.node, membership.owners.nodes
    proportions = np.bincount(owner, whole.shares(), len(names))
    if not proportions.all():
        raise InvalidArgumentError(
            f"the sampler selects no window of node {names[int(np.argmin(proportions))]}: its ranks would have no rows",
            hint="use WindowOptions(selection='centralized'), or fewer nodes",
        )
    if isinstance(whole, WeightedSelector) and whole.importance is not None:
        raise InvalidArgumentError(
            "beta= was given, and no node knows the importance weights of the whole batch",
            hint="use WindowOptions(selection='centralized'), or leave beta out",
        )
    episodes = own_episodes(dataset, membership)
    excluded = None if anchors.excluded is None else anchors.excluded[episodes]
    own_anchors = anchors_of(dataset.select(episodes), anchors.rule, excluded)
    if isinstance(sampler, TopK):
        # The best k of all nodes, not of each node.
        chosen = whole.shares()[episodes] > 0
        sampler = dataclasses.replace(sampler, k=int(np.count_nonzero(chosen)))
        candidates = Candidates(own_anchors, lambda *_: np.where(chosen, 1.0, np.nan))
    elif isinstance(sampler, Weighted) and isinstance(whole, WeightedSelector) and sampler.is_array:
        sampler = dataclasses.replace(sampler, weights=whole.weights_of(episodes), by=whole.by)
        candidates = Candidates(own_anchors, evaluate)
    else:
        candidates = Candidates(own_anchors, lambda *arguments: evaluate(*arguments)[episodes])
    cycle = Cycle(proportions.tolist())
    own = sampler.bind(candidates, node_seed(seed, membership))
    return NodeLocalSelector(whole, own, cycle, node, xxhash.xxh3_128(owner.data).hexdigest())


def max_rows(selector: Selector, count: int) -> int:
    """Returns the most windows that a selector returns for `count` slots."""
    return selector.max_rows(count) if isinstance(selector, NodeLocalSelector) else count
