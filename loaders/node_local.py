"""Selection by nodes: each draws from its own shards alone, so that no bytes of a batch go over the network.

The slots of all batches are dealt to the nodes by a `Cycle`, in proportion to what is drawn of each one's shards. So
node by node the rows of a batch are as many as with one sampler over all, to within one row over any number of batches.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from gear_data.dataset.dataset import Dataset
from gear_data.dataset.internals import anchors_of, store_of
from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.loaders.mixture import Mixture
from gear_data.selection.anchors import Anchors
from gear_data.selection.samplers import Candidates, Sampler, Selector, TopK
from gear_data.selection.turns import Cycle
from gear_data.selection.window_sampler import SamplingPlan
from gear_data.selection.windows import Float64Array, Windows

if TYPE_CHECKING:
    import polars as pl

    from gear_data.cluster.rendezvous import Membership

SELECTIONS = ("centralized", "decentralized")


def check_selection(
    selection: str, dataset: Dataset | Mixture, rank: int | None, world_size: int | None
) -> Membership | None:
    """This process in its run, with `decentralized` selection; None with `centralized`.

    Raises:
        UnknownNameError: another selection.
        InvalidArgumentError: `decentralized`, and a mixture, a rank of the caller's own, or a dataset without nodes.
    """
    if selection not in SELECTIONS:
        raise unknown_name("selection", selection, SELECTIONS)
    if selection == "centralized":
        return None
    if isinstance(dataset, Mixture):
        raise InvalidArgumentError("a mixture is drawn with selection='centralized'")
    if rank is not None or world_size is not None:
        raise InvalidArgumentError("with selection='decentralized' rank and world_size are those of the run")
    membership = store_of(dataset).membership
    if membership is None:
        raise InvalidArgumentError(
            "this dataset has no nodes that could draw by themselves",
            hint="open it with cluster='torchrun', or use selection='centralized'",
        )
    return membership


class NodeLocalSelector:
    """The rows of one node. Its `select` gives fewer windows than it is asked for: those of the slots that are the
    node's.

    Args:
        whole: what is drawn of all nodes' episodes.
        own: what is drawn of this node's.
        cycle: deals the slots to the nodes.
        node: this node's number.
        placement: hash of what the nodes own.
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

    def most_rows(self, count: int) -> int:
        """Most windows that `select` gives of so many slots."""
        # Either end of them may be off by less than one turn.
        return min(count, int(count * self._share) + 2)

    def shares(self) -> Float64Array:
        return self._shares

    def epoch_slots(self, epochs: int) -> int | None:
        return None

    def identity(self) -> dict[str, Any]:
        return dict(self._identity)


def node_local_selector(
    dataset: Dataset,
    member: Membership,
    anchors: Anchors,
    sampler: Sampler,
    whole: Selector,
    evaluate: Callable[[str | pl.Expr, str], Float64Array],
    seed: int,
) -> NodeLocalSelector:
    """The selector of this process's node.

    Args:
        dataset: what is drawn from.
        member: this process in its run.
        anchors: its anchors.
        sampler, whole: the sampler, and itself bound to them.
        evaluate: see `Candidates`.
        seed: of the loader.

    Raises:
        InvalidArgumentError: nothing is drawn of what some node holds.
    """
    from gear_data.kernels.cpu.random import DOMAIN_NODE, word64

    owner, node, names = member.owner()[dataset.shards], member.node, member.owners.nodes
    proportions = np.bincount(owner, whole.shares(), len(names))
    if not proportions.all():
        raise InvalidArgumentError(
            f"nothing is drawn of what {names[int(np.argmin(proportions))]} holds: its ranks would have no rows",
            hint="use selection='centralized', or fewer nodes",
        )
    mine = np.flatnonzero(owner == node)
    own_anchors = anchors_of(dataset.select(mine), anchors.rule)
    if isinstance(sampler, TopK):
        # The best of all, not of each node.
        chosen = whole.shares()[mine] > 0
        sampler = dataclasses.replace(sampler, k=int(np.count_nonzero(chosen)))
        candidates = Candidates(own_anchors, lambda *_: np.where(chosen, 1.0, np.nan))
    else:
        candidates = Candidates(own_anchors, lambda *what: evaluate(*what)[mine])
    own_seed = seed if len(names) == 1 else int(word64(np.uint64(seed), DOMAIN_NODE, 0, node, 0))
    cycle = Cycle(proportions.tolist())
    return NodeLocalSelector(
        whole, sampler.bind(candidates, own_seed), cycle, node, xxhash.xxh3_128(owner.data).hexdigest()
    )


def most_rows(selector: Selector, count: int) -> int:
    """Most windows that a selector gives of so many slots."""
    return selector.most_rows(count) if isinstance(selector, NodeLocalSelector) else count
