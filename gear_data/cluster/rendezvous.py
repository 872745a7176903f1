"""Rendezvous: the ranks of a training run form a cluster.

The ranks are grouped into nodes. Each of several nodes starts a server. For this the ranks exchange
messages through a `KeyValueStore`, in four rounds. `join` runs them in this order:

    round       published by             key        value
    0 choose    rank 0                   generation the number of the generation that it opens
    1 report    every rank               ranks/R    RankReport: the dataset it opens, its node, its machine
    2 plan      rank 0                   plan       ClusterPlan: ranks of each node, placement, credentials
    3 servers   first rank of each node  nodes/N    NodeReport: its server, and how other ranks of the node join it
                rank 0                   nodes      all NodeReports

If a rank fails, it publishes its error in place of its value. Every rank that reads the value raises that error, so all
ranks fail at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gear_data.cluster.key_value_store import KeyValueStore, join_timeout
from gear_data.cluster.placement import Placement, extend_placement
from gear_data.cluster.rank_messages import RankMessages
from gear_data.cluster.ranks import Ranks, find_ranks, machine_id, own_host
from gear_data.cluster.run_credentials import RunCredentials, create_run_credentials
from gear_data.cluster.server.node_server import ServerConfig, ServerInfo
from gear_data.cluster.server.supervisor import LeaseLocation, ServerLease, join_server_lease, start_server
from gear_data.common.typed_json import resolved
from gear_data.errors import ClusterError
from gear_data.residency import host_residency
from gear_data.selection.windows import Int64Array
from gear_data.storage.identity import dataset_identity
from gear_data.storage.manifest import Manifest

#: Number of calls of `join` in this process. Every rank makes the same calls in the same order.
_join_count = itertools.count()

#: Returns, for the names of the nodes, their placement with replicas and without; see `Membership`.
PlacementPolicy = Callable[[Sequence[str]], tuple[Placement, Placement]]


@dataclass(frozen=True)
class Membership:
    """A cluster as one of its processes sees it. Can be pickled; holds no secret.

    Attributes:
        run: name of the run's credentials.
        node: number of this process's node, in `placement.nodes`.
        local_rank, local_size: this process among the ranks of its node.
        servers: the server of each node; None if there is one node only.
        placement: the shards of each node.
        owners: the placement without replicas: each shard is on one node.
        budget: most bytes on a node; see `place_shards`.
    """

    run: str
    node: int
    local_rank: int
    local_size: int
    servers: tuple[ServerInfo | None, ...]
    placement: Placement
    owners: Placement
    budget: int | None = None

    @property
    def shards(self) -> tuple[int, ...]:
        """The shards of this process's node."""
        return self.placement.held[self.node]

    def owner(self) -> Int64Array:
        """Returns int64 [shards], the node that draws from each shard.

        It is used with `selection="decentralized"`.
        """
        owner = np.empty(len(self.owners.shard_bytes), np.int64)
        for node, shards in enumerate(self.owners.held):
            owner[list(shards)] = node
        return owner

    def extended(self, before: Manifest, after: Manifest) -> Membership:
        """Returns the membership for another generation of the dataset; see `extend_placement`.

        Raises:
            InvalidArgumentError: the budget is too small.
        """
        placed = extend_placement(before.shards, self.placement, self.owners, after.shards, self.budget)
        return replace(self, placement=placed[0], owners=placed[1])


@dataclass(frozen=True)
class JoinRequest:
    """The dataset that a rank opens.

    Attributes:
        dataset, cache_dir, cache_bytes, residency, transport: see `gear_data.open`.
        prepare: checks that this process can open a generation of the dataset, and returns its manifest; None: the
            newest one. Rank 0 chooses the generation.
        policy: chooses the placement; only rank 0 calls it.
        budget: see `Membership`.
    """

    dataset: str
    cache_dir: str | None
    cache_bytes: int | None
    residency: str
    transport: str
    prepare: Callable[[int | None], Manifest]
    policy: PlacementPolicy
    budget: int | None = None


@resolved
@dataclass(frozen=True)
class RankReport:
    """Round 1: a rank's node, machine and dataset.

    See `machine_id` and `dataset_identity`.
    """

    node: str
    machine: str
    dataset: str


@resolved
@dataclass(frozen=True)
class ClusterPlan:
    """Round 2: decisions of rank 0.

    Attributes:
        nodes: the ranks of each node.
        credentials: the run's credentials.
        placement, owners: as JSON; see `Membership`.
        budget: see `Membership`.
    """

    nodes: tuple[tuple[int, ...], ...]
    credentials: RunCredentials
    placement: dict[str, Any]
    owners: dict[str, Any]
    budget: int | None

    def node_of(self, rank: int) -> int:
        return next(number for number, ranks in enumerate(self.nodes) if rank in ranks)


@resolved
@dataclass(frozen=True)
class NodeReport:
    """Round 3: a node's server and the location of its lease.

    Both are None if there is no other node.
    """

    server: ServerInfo | None = None
    lease: LeaseLocation | None = None


def join(request: JoinRequest) -> tuple[Membership, ServerLease | None]:
    """Makes this process a member of its run's cluster.

    Every rank must call it, with the same dataset.

    Returns:
        The membership, and this rank's lease on its node's server. The lease is None if the node has no server, or if
        the system does not let this process share the lease.

    Raises:
        ClusterError: there is no run, a rank does not answer in time, or the ranks open different datasets.
        MissingExtraError: the nodes are on several machines, and certificates cannot be created.
        GearError: any rank's error while it opens the dataset or starts its server.
    """
    ranks = find_ranks()
    messages = RankMessages(
        KeyValueStore(ranks.store, f"gear_data/join-{next(_join_count)}/", join_timeout()), f"rank {ranks.rank}"
    )
    # Round 0: choose. The dataset may grow meanwhile.
    if ranks.rank == 0:
        messages.publish("generation", lambda: request.prepare(None).generation)
    generation = messages.read("generation", 0, int)
    # Round 1: report.
    messages.publish(f"ranks/{ranks.rank}", lambda: _report(ranks, request, generation))
    # Round 2: plan.
    if ranks.rank == 0:
        messages.publish("plan", lambda: _plan(_collect_reports(messages, ranks.world_size), request))
    plan = messages.read("plan", 0, ClusterPlan)
    plan.credentials.export()
    node = plan.node_of(ranks.rank)
    placement = Placement.from_json(plan.placement)
    # Round 3: servers.
    lease: ServerLease | None = None
    if ranks.rank == plan.nodes[node][0]:
        lease = messages.publish_with_result(
            f"nodes/{node}", lambda: _start_server(request, placement, node, plan.credentials, generation)
        )
    if ranks.rank == 0:
        messages.publish("nodes", lambda: _collect_servers(messages, plan))
    reports = messages.read("nodes", 0, tuple[NodeReport, ...])
    location = reports[node].lease
    if lease is None and location is not None:
        lease = join_server_lease(location)
    membership = Membership(
        plan.credentials.run,
        node,
        plan.nodes[node].index(ranks.rank),
        len(plan.nodes[node]),
        tuple(report.server for report in reports),
        placement,
        Placement.from_json(plan.owners),
        plan.budget,
    )
    return membership, lease


def _report(ranks: Ranks, request: JoinRequest, generation: int) -> RankReport:
    return RankReport(ranks.node, machine_id(), dataset_identity(request.prepare(generation)))


def _collect_reports(messages: RankMessages, world_size: int) -> list[RankReport]:
    return [messages.read(f"ranks/{rank}", rank, RankReport) for rank in range(world_size)]


def _plan(reports: Sequence[RankReport], request: JoinRequest) -> ClusterPlan:
    """Groups the ranks by node, and places the shards.

    Raises:
        ClusterError: the ranks open different datasets.
    """
    for rank, report in enumerate(reports):
        if report.dataset != reports[0].dataset:
            raise ClusterError(
                f"rank {rank} opens another dataset than rank 0, or another conversion of it",
                hint="pass the same dataset on all nodes",
            )
    names = sorted({report.node for report in reports})
    nodes = tuple(tuple(rank for rank, report in enumerate(reports) if report.node == name) for name in names)
    width = len(str(len(nodes) - 1))
    placement, owners = request.policy([f"node-{number:0{width}}" for number in range(len(nodes))])
    tls = len({report.machine for report in reports}) > 1
    credentials = create_run_credentials(tls=tls)
    return ClusterPlan(nodes, credentials, placement.to_json(), owners.to_json(), request.budget)


def _start_server(
    request: JoinRequest, placement: Placement, node: int, credentials: RunCredentials, generation: int = 0
) -> tuple[NodeReport, ServerLease | None]:
    """Starts this node's server, if there are other nodes.

    A node without shards gets some when the dataset grows.
    """
    shards = placement.held[node]
    if len(placement.nodes) == 1:
        return NodeReport(), None
    config = ServerConfig(
        request.dataset,
        request.cache_dir,
        request.cache_bytes,
        host_residency(request.residency),
        request.transport,
        shards,
        own_host() if credentials.certificate else "127.0.0.1",
        0,
        credentials,
        generation,
    )
    server, lease = start_server(config, join_timeout())
    return NodeReport(server, lease.location()), lease


def _collect_servers(messages: RankMessages, plan: ClusterPlan) -> tuple[NodeReport, ...]:
    return tuple(messages.read(f"nodes/{node}", ranks[0], NodeReport) for node, ranks in enumerate(plan.nodes))
