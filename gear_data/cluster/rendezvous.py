"""Rendezvous: the ranks of a training run form a cluster.

The ranks are grouped into nodes. Each node from which other nodes read starts a server. For this the ranks exchange
messages through a `KeyValueStore`, in three rounds. `join` runs them in this order:

    round       published by             key        value
    1 report    every rank               ranks/R    RankReport: the dataset it opens, its node, its machine
    2 plan      rank 0                   plan       ClusterPlan: ranks of each node, placement, credentials
    3 servers   first rank of each node  nodes/N    NodeReport: its server, and how other ranks of the node join it
                rank 0                   nodes      all NodeReports

If a rank fails, it publishes its error in place of its value. Every rank that reads the value raises that error, so all
ranks fail at once.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gear_data.cluster.key_value_store import KeyValueStore, join_timeout
from gear_data.cluster.placement import Placement
from gear_data.cluster.protocol import ONE_VERSION_HINT
from gear_data.cluster.ranks import Ranks, find_ranks, machine_id, own_host
from gear_data.cluster.run_credentials import RunCredentials, create_run_credentials
from gear_data.cluster.server.node_server import ServerConfig, ServerInfo
from gear_data.cluster.server.supervisor import LeaseLocation, ServerLease, join_server_lease, start_server
from gear_data.common.error_codec import error_from_bytes, error_to_bytes
from gear_data.common.secret import Secret, decode_json
from gear_data.errors import ClusterError, GearError
from gear_data.residency import host_residency
from gear_data.selection.windows import Int64Array
from gear_data.storage.identity import dataset_identity
from gear_data.storage.manifest import Manifest

_log = logging.getLogger(__name__)

#: Number of calls of `join` in this process. Every rank makes the same calls in the same order.
_join_count = itertools.count()

#: Returns, for the names of the nodes, their placement with replicas and without; see `Membership`.
PlacementPolicy = Callable[[Sequence[str]], tuple[Placement, Placement]]


@dataclass(frozen=True)
class Membership:
    """A cluster as one of its processes sees it. Can be pickled; holds no secret.

    Attributes:
        run: Name of the run's credentials.
        node: Number of this process's node, in `placement.nodes`.
        local_rank, local_size: This process among the ranks of its node.
        servers: The server of each node; None for a node that no other node reads from.
        placement: The shards of each node.
        owners: The placement without replicas: each shard is on one node.
    """

    run: str
    node: int
    local_rank: int
    local_size: int
    servers: tuple[ServerInfo | None, ...]
    placement: Placement
    owners: Placement

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


@dataclass(frozen=True)
class JoinRequest:
    """The dataset that a rank opens.

    Attributes:
        dataset, cache_dir, cache_bytes, residency, transport: See `gear_data.open`.
        prepare: Checks that this process can open the dataset, and returns its manifest.
        policy: Chooses the placement; only rank 0 calls it.
    """

    dataset: str
    cache_dir: str | None
    cache_bytes: int | None
    residency: str
    transport: str
    prepare: Callable[[], Manifest]
    policy: PlacementPolicy


@dataclass(frozen=True)
class RankReport:
    """Round 1: a rank's node, machine and dataset.

    See `machine_id` and `dataset_identity`.
    """

    node: str
    machine: str
    dataset: str


@dataclass(frozen=True)
class ClusterPlan:
    """Round 2: decisions of rank 0.

    Attributes:
        nodes: The ranks of each node.
        credentials: The run's credentials.
        placement, owners: As JSON; see `Membership`.
    """

    nodes: tuple[tuple[int, ...], ...]
    credentials: RunCredentials
    placement: dict[str, Any]
    owners: dict[str, Any]

    def node_of(self, rank: int) -> int:
        return next(number for number, ranks in enumerate(self.nodes) if rank in ranks)


@dataclass(frozen=True)
class NodeReport:
    """Round 3: a node's server and the location of its lease.

    Both are None if no other node reads from the node.
    """

    server: ServerInfo | None = None
    lease: LeaseLocation | None = None


@dataclass(frozen=True)
class _Failure:
    """The error of a rank: its bytes (see `error_to_bytes`) and the name of the rank."""

    error: str
    rank: str


T = TypeVar("T")


def join(request: JoinRequest) -> tuple[Membership, ServerLease | None]:
    """Makes this process a member of its run's cluster.

    Every rank must call it, with the same dataset.

    Returns:
        The membership, and this rank's lease on its node's server. The lease is None if the node has no server, or if
        the system does not let this process share the lease.

    Raises:
        ClusterError: There is no run, a rank does not answer in time, or the ranks open different datasets.
        MissingExtraError: The nodes are on several machines, and certificates cannot be created.
        GearError: Any rank's error while it opens the dataset or starts its server.
    """
    ranks = find_ranks()
    messages = _Messages(
        KeyValueStore(ranks.store, f"gear_data/join-{next(_join_count)}/", join_timeout()), f"rank {ranks.rank}"
    )
    # Round 1: report.
    messages.publish(f"ranks/{ranks.rank}", lambda: _report(ranks, request))
    # Round 2: plan.
    if ranks.rank == 0:
        messages.publish("plan", lambda: _plan(_collect_reports(messages, ranks.world_size), request.policy))
    plan = messages.read("plan", 0, ClusterPlan)
    plan.credentials.export()
    node = plan.node_of(ranks.rank)
    placement = Placement.from_json(plan.placement)
    # Round 3: servers.
    lease: ServerLease | None = None
    if ranks.rank == plan.nodes[node][0]:
        lease = messages.publish_with_result(
            f"nodes/{node}", lambda: _start_server(request, placement, node, plan.credentials)
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
    )
    return membership, lease


def _report(ranks: Ranks, request: JoinRequest) -> RankReport:
    return RankReport(ranks.node, machine_id(), dataset_identity(request.prepare()))


def _collect_reports(messages: _Messages, world_size: int) -> list[RankReport]:
    return [messages.read(f"ranks/{rank}", rank, RankReport) for rank in range(world_size)]


def _plan(reports: Sequence[RankReport], policy: PlacementPolicy) -> ClusterPlan:
    """Groups the ranks by node, and places the shards.

    Raises:
        ClusterError: The ranks open different datasets.
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
    placement, owners = policy([f"node-{number:0{width}}" for number in range(len(nodes))])
    tls = len({report.machine for report in reports}) > 1
    return ClusterPlan(nodes, create_run_credentials(tls=tls), placement.to_json(), owners.to_json())


def _start_server(
    request: JoinRequest, placement: Placement, node: int, credentials: RunCredentials
) -> tuple[NodeReport, ServerLease | None]:
    """Starts this node's server, if other nodes read from it."""
    shards = placement.held[node]
    if len(placement.nodes) == 1 or not shards:
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
    )
    server, lease = start_server(config, join_timeout())
    return NodeReport(server, lease.location()), lease


def _collect_servers(messages: _Messages, plan: ClusterPlan) -> tuple[NodeReport, ...]:
    return tuple(messages.read(f"nodes/{node}", ranks[0], NodeReport) for node, ranks in enumerate(plan.nodes))


class _Messages:
    """Values that ranks publish for each other.

    A rank that fails publishes its error in place of its value.

    Args:
        store: The run's store.
        rank: Name of this process's rank, such as `rank 3`.
    """

    def __init__(self, store: KeyValueStore, rank: str) -> None:
        self._store, self._rank = store, rank

    def publish(self, key: str, make: Callable[[], Any]) -> None:
        """Publishes what `make` returns, or its error.

        Does not raise the error of `make`: `read` raises it on every rank, this one too.

        Raises:
            ClusterError: The store cannot be reached.
        """
        self.publish_with_result(key, lambda: (make(), None))

    def publish_with_result(self, key: str, make: Callable[[], tuple[Any, T]]) -> T | None:
        """Publishes the first value that `make` returns, and returns the second.

        Returns None after an error of `make`, which it publishes like `publish`.
        """
        result: T | None = None
        try:
            value, result = make()
        except GearError as error:
            value = self._failure(error)
        except Exception as error:
            # Published too: the other ranks would wait for the value until the timeout.
            _log.exception("joining the cluster failed")
            value = self._failure(
                ClusterError(f"joining the cluster failed: {error!r}", hint=f"see the log of {self._rank}")
            )
        self._store.put(key, value)
        return result

    def _failure(self, error: GearError) -> _Failure:
        """Returns an error in its published form.

        The form has the name of the rank where the error happened first.
        """
        if error.file is not None and error.file.startswith("rank "):
            rank = error.file
        else:
            rank = self._rank
            if error.file is not None:
                error.message = f"{error.file}: {error.message}"
        return _Failure(error_to_bytes(error).decode(), rank)

    def read(self, key: str, rank: int, kind: type[T]) -> T:
        """Waits for the value that a rank publishes.

        Raises:
            GearError: The error that the rank published in its place.
            ClusterError: The rank does not publish a valid value in time.
        """
        message = self._store.take(key, f"rank {rank}")
        # First as a failure: it would also pass as a value without required fields.
        failure = _failure_in(message)
        if failure is not None:
            raise error_from_bytes(failure.error.encode(), failure.rank) or ClusterError(
                "joining the cluster failed", file=failure.rank, hint=f"see the log of {failure.rank}"
            )
        try:
            return decode_json(message, kind)
        except ValueError as problem:
            raise ClusterError(f"rank {rank} published an invalid value: {problem}", hint=ONE_VERSION_HINT) from problem


def _failure_in(message: Secret) -> _Failure | None:
    """Returns the failure that a rank published, or None for another value."""
    try:
        return decode_json(message, _Failure)
    except ValueError:
        return None
