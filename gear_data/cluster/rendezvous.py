"""Joining: the processes of a training run become the nodes of a cluster, each node with a server of its own.

All that they tell each other goes through torch.distributed's store (`KeyValueStore`), in three rounds:

    every rank      what it opened, on which node and machine it is         -> ranks/R
    rank 0          which node holds which shards, the run's secret         -> plan
    first of a node where its server listens, what the others hold it by    -> nodes/N
    rank 0          where all listen                                        -> nodes

What is wrong on one rank is put in place of its note, so that all of them raise it, and soon.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gear_data.cluster.credentials import RunCredentials, create_run_credentials
from gear_data.cluster.placement import Placement
from gear_data.cluster.protocol import dataset_identity
from gear_data.cluster.ranks import KeyValueStore, Ranks, find_ranks, join_timeout, machine, own_host
from gear_data.cluster.server.node_server import ServerConfig, ServerInfo
from gear_data.cluster.server.supervisor import ServerLease, join_server_lease, start_server
from gear_data.common.error_codec import error_from_bytes, error_to_bytes
from gear_data.errors import ClusterError, GearError
from gear_data.residency import host_residency
from gear_data.selection.windows import Int64Array
from gear_data.storage.manifest import Manifest

_log = logging.getLogger(__name__)

#: Joinings of this process so far: every rank makes the same ones in the same order.
_joinings = itertools.count()

#: Gives, for the names of the nodes, what each holds, and which of them each shard is drawn on.
PlacementPolicy = Callable[[Sequence[str]], tuple[Placement, Placement]]


@dataclass(frozen=True)
class Membership:
    """A run as one of its processes knows it. Can be pickled; holds no secret.

    Attributes:
        run: names its secret.
        node: the number of this process's node, in `placement.nodes`.
        local_rank, local_size: this process among those of its node.
        servers: each node's; None where it has none, since nobody needs it.
        placement: which node holds which shards.
        owners: the same without copies: each shard is on one node.
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
        """Those that this node holds."""
        return self.placement.held[self.node]

    def owner(self) -> Int64Array:
        """int64 [shards]: the number of the node that draws from each, where nodes draw by themselves."""
        owner = np.empty(len(self.owners.shard_bytes), np.int64)
        for node, shards in enumerate(self.owners.held):
            owner[list(shards)] = node
        return owner


@dataclass(frozen=True)
class JoinRequest:
    """What a process opens.

    Attributes:
        dataset, cache_dir, cache_bytes, residency, transport: see `gear_data.open`.
        prepare: gives its manifest, once this process has seen that it can open it.
        place: as rank 0 asks it.
    """

    dataset: str
    cache_dir: str | None
    cache_bytes: int | None
    residency: str
    transport: str
    prepare: Callable[[], Manifest]
    place: PlacementPolicy


def join(opened: JoinRequest) -> tuple[Membership, ServerLease | None]:
    """Makes this process one of its run's nodes. Every rank must call it, with the same dataset.

    Raises:
        ClusterError: there is no run, a rank leaves no word in time, or the ranks open different datasets.
        MissingExtraError: the nodes are on several machines, and certificates cannot be made.
        whatever opening the dataset or starting a server raises, on any of them.
    """
    ranks = find_ranks()
    board = KeyValueStore(ranks.store, f"gear_data/join-{next(_joinings)}/", join_timeout())
    own = f"rank {ranks.rank}"
    _post(
        board,
        f"ranks/{ranks.rank}",
        own,
        lambda: {"node": ranks.node, "machine": machine(), "dataset": dataset_identity(opened.prepare())},
    )
    if ranks.rank == 0:
        _post(board, "plan", own, lambda: _plan(board, ranks, opened.place))
    plan = _take(board, "plan", 0)
    secret = RunCredentials.from_json(plan["secret"])
    secret.keep()
    nodes: list[list[int]] = plan["nodes"]
    node = next(number for number, members in enumerate(nodes) if ranks.rank in members)
    placement = Placement.from_json(plan["placement"])
    leases: list[ServerLease] = []
    if ranks.rank == nodes[node][0]:
        _post(board, f"nodes/{node}", own, lambda: _start(opened, placement, node, secret, leases))
    if ranks.rank == 0:
        _post(
            board,
            "nodes",
            own,
            lambda: {"nodes": [_take(board, f"nodes/{n}", members[0]) for n, members in enumerate(nodes)]},
        )
    notes = _take(board, "nodes", 0)["nodes"]
    lease = leases[0] if leases else None
    if lease is None and notes[node]["lease"] is not None:
        lease = join_server_lease(notes[node]["lease"])
    membership = Membership(
        secret.run,
        node,
        nodes[node].index(ranks.rank),
        len(nodes[node]),
        tuple(None if note["server"] is None else ServerInfo.from_json(note["server"]) for note in notes),
        placement,
        Placement.from_json(plan["owners"]),
    )
    return membership, lease


def _plan(board: KeyValueStore, ranks: Ranks, place: PlacementPolicy) -> dict[str, Any]:
    """What rank 0 decides."""
    notes = [_take(board, f"ranks/{rank}", rank) for rank in range(ranks.world_size)]
    for rank, note in enumerate(notes):
        if note["dataset"] != notes[0]["dataset"]:
            raise ClusterError(
                f"rank {rank} opens another dataset than rank 0, or another conversion of it",
                hint="give all nodes the same dataset",
            )
    names = sorted({note["node"] for note in notes})
    nodes = [[rank for rank, note in enumerate(notes) if note["node"] == name] for name in names]
    width = len(str(len(nodes) - 1))
    placement, owners = place([f"node-{number:0{width}}" for number in range(len(nodes))])
    tls = len({note["machine"] for note in notes}) > 1
    return {
        "nodes": nodes,
        "secret": create_run_credentials(tls=tls).to_json(),
        "placement": placement.to_json(),
        "owners": owners.to_json(),
    }


def _start(
    opened: JoinRequest, placement: Placement, node: int, secret: RunCredentials, leases: list[ServerLease]
) -> dict[str, Any]:
    """Starts a server for this node, if other nodes read from it; its lease goes into `leases`."""
    shards = placement.held[node]
    if len(placement.nodes) == 1 or not shards:
        return {"server": None, "lease": None}
    job = ServerConfig(
        opened.dataset,
        opened.cache_dir,
        opened.cache_bytes,
        host_residency(opened.residency),
        opened.transport,
        shards,
        own_host() if secret.certificate else "127.0.0.1",
        0,
        secret,
    )
    serving, lease = start_server(job, join_timeout())
    leases.append(lease)
    return {"server": serving.to_json(), "lease": lease.note()}


def _post(board: KeyValueStore, key: str, own: str, make: Callable[[], dict[str, Any]]) -> None:
    """Leaves a note, or what went wrong in its place: whoever takes it raises that, this process too."""
    try:
        note = make()
    except GearError as error:
        known = error.file is not None and error.file.startswith("rank ")
        if not known and error.file is not None:
            error.message = f"{error.file}: {error.message}"
        note = {"error": error_to_bytes(error).decode(), "of": error.file if known else own}
    except Exception as error:
        # Else the others would wait for it in vain.
        _log.exception("joining failed")
        note = {"error": error_to_bytes(ClusterError(f"joining failed: {error!r}")).decode(), "of": own}
    board.put(key, note)


def _take(board: KeyValueStore, key: str, rank: int) -> Any:
    """The note that a rank leaves. Raises what went wrong there."""
    note = board.take(key, f"rank {rank}")
    if "error" in note:
        raise error_from_bytes(note["error"].encode(), note["of"]) or ClusterError("joining failed", file=note["of"])
    return note
