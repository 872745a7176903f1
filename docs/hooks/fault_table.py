"""mkdocs hook: faults of a cluster, with their detectors, limits and outcomes, as a table on its page.

Search here for the answer to a question such as "what happens when a rank dies?". Each `Fault` names the function that
detects the event. `tests/cluster/test_fault_table.py` checks that these functions and the limits exist;
`tests/cluster/test_faults.py`, `test_rendezvous.py` and `test_network.py` cause the events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PAGE = "explanation/cluster.md"
MARK = "<!-- the table of faults -->"

_NODE_TIMEOUT, _JOIN_TIMEOUT = "$GEAR_DATA_NODE_TIMEOUT", "$GEAR_DATA_JOIN_TIMEOUT"


@dataclass(frozen=True)
class Fault:
    """One event that a cluster must survive or report.

    Attributes:
        event: the event, in words.
        detector: the function or class that detects the event, as `module:name` below `gear_data.cluster`.
        limit: seconds within which the event is detected or its effect ends: an environment variable (`$NAME`), or a
            constant or function as `module:name` below `gear_data.cluster`. None: at once.
        outcome: the consequence, for each process that it concerns.
    """

    event: str
    detector: str
    limit: str | None
    outcome: str


FAULTS: tuple[Fault, ...] = (
    # Ranks.
    Fault(
        "a rank dies, and other ranks of its node live",
        "server.node_server:_wait_for_ranks",
        None,
        "The kernel closes the rank's lease. The node's server keeps running for the other ranks, and other nodes read "
        "from it as before. If the rank was the first of its node, the server is not restarted any more.",
    ),
    Fault(
        "the last rank of a node dies",
        "server.node_server:_wait_for_ranks",
        "server.node_server:LINGER_SECONDS",
        "The node's server exits once it has been idle for this time. Ranks of other nodes that need its shards go on "
        "with replicas; without a replica they raise NodeUnreachableError.",
    ),
    Fault(
        "the last rank of a node dies, and clients hold queue pairs to its server",
        "server.node_server:main",
        "server.node_server:LINGER_RDMA_SECONDS",
        "The server exits when the last client has closed its queue pairs, at the latest after this time.",
    ),
    Fault(
        "a rank fails while it joins: it cannot open the dataset or start the server",
        "rank_messages:RankMessages.publish_with_result",
        None,
        "The rank publishes its error. Every rank raises the same error, with the rank's name.",
    ),
    Fault(
        "a rank dies while it joins, or never starts",
        "key_value_store:KeyValueStore.take",
        _JOIN_TIMEOUT,
        "Every rank that waits for it raises ClusterError with the rank's name.",
    ),
    Fault(
        "rank 0, which holds the key-value store, dies while ranks join",
        "key_value_store:KeyValueStore.put",
        None,
        "The other ranks raise ClusterError. After the join the store is not used any more.",
    ),
    Fault(
        "ranks open different datasets",
        "rendezvous:_plan",
        None,
        "Every rank raises ClusterError.",
    ),
    # Refreshing the dataset of a training run.
    Fault(
        "a rank dies during a refresh, or does not call it",
        "generation_agreement:_Agreement.wait",
        _JOIN_TIMEOUT,
        "Every other rank raises ClusterError with the rank's name. All stay at the generation that they have. If the "
        "rank had opened the generation, the others take it.",
    ),
    Fault(
        "rank 0, which holds the key-value store, dies during a refresh",
        "key_value_store:KeyValueStore.has",
        None,
        "The other ranks raise ClusterError. Ranks that had read the decision have taken the generation. Under "
        "torchrun the agent holds the store.",
    ),
    Fault(
        "a rank cannot load a new generation",
        "rank_messages:RankMessages.publish_with_result",
        None,
        "Every rank raises its error. All stay at the generation that they have.",
    ),
    Fault(
        "a rank times out while rank 0 decides that a generation is taken",
        "key_value_store:KeyValueStore.propose",
        None,
        "The first decision counts for all ranks: either all take the generation, or none.",
    ),
    Fault(
        "a node's server is restarted, and the generation that it served first is gone",
        "server.node_server:_open_server",
        None,
        "Clients name the generation that they read, and the server opens it. The ranks keep its files.",
    ),
    Fault(
        "a shared file system shows a new generation late to a node",
        "generation_agreement:await_generation",
        "generation_agreement:VISIBLE_SECONDS",
        "The node looks again until this time has passed, then every rank raises GenerationGoneError.",
    ),
    # Servers of a training run.
    Fault(
        "a node's server process dies",
        "server.supervisor:_supervise",
        "server.supervisor:RESTART_DELAYS",
        "The node's first rank restarts it at the same port, after these delays. Meanwhile clients retry.",
    ),
    Fault(
        "a node's server process dies again and again",
        "server.supervisor:_supervise",
        "server.supervisor:RESTART_DELAYS",
        "After the last delay the server is not restarted, and an error is logged. Its shards are lost to other nodes.",
    ),
    Fault(
        "no peer returns some shards, in a training run",
        "client.retry_policy:Retries.wait",
        _NODE_TIMEOUT,
        "The client retries until this time has passed since the first request without an answer, then raises the last "
        "error.",
    ),
    # Peers, as a client sees them.
    Fault(
        "a peer dies, refuses connections or closes the connection",
        "flight.client:Endpoint.errors",
        None,
        "Its spans are read from a replica. Without a replica: NodeUnreachableError.",
    ),
    Fault(
        "a peer hangs, its machine loses power, or the network is cut",
        "flight.grpc_fork:timeout",
        _NODE_TIMEOUT,
        "The call is cancelled, and its spans are read from a replica. Without a replica: NodeUnreachableError. The "
        "time counts once over reconnects, retries and prefetched requests. Other threads' calls to the peer end too.",
    ),
    Fault(
        "a connection breaks while it is idle, as when a peer restarts",
        "client.fetch:Fetch._broke_while_idle",
        None,
        "The idle connections to the peer are closed, and its requests are posted again over a new one.",
    ),
    Fault(
        "a peer has failed recently",
        "client.backoff:PeerBackoff.active",
        "client.backoff:MAX_BACKOFF_SECONDS",
        "It is used only for shards without another replica, for 1 s after the first failure and twice as long after "
        "each further failure, up to this time.",
    ),
    Fault(
        "a peer sends a response of another size or form than requested",
        "flight.client:Stream.take",
        None,
        "NodeRefusedError; its spans are read from a replica.",
    ),
    Fault(
        "a response is damaged on the way, with $GEAR_DATA_CHECKSUM=1",
        "flight.client:Stream.take",
        None,
        "CorruptResponseError; its spans are read from a replica.",
    ),
    Fault(
        "text in a peer's shard is damaged",
        "server.shard_server:ShardServer.answer",
        None,
        "The peer sends CorruptShardError; the spans are read from a replica.",
    ),
    Fault(
        "the files of a peer with residency mmap are replaced by another dataset's",
        "server.shard_server:ShardServer.answer",
        None,
        "Shards that the peer has mapped stay the old ones. For other shards it sends DatasetReplacedError, and the "
        "spans are read from a replica.",
    ),
    Fault(
        "a peer lacks a video file, or its file is truncated",
        "server.shard_server:ShardServer.video_bytes",
        None,
        "The peer sends CorruptShardError; the bytes are read from another peer, which then comes first for this file. "
        "The peer's shards are read as before.",
    ),
    Fault(
        "a server is behind: it does not have the generation of the others, and they do not have its own any more",
        "client.choose_generation:choose_generation",
        _NODE_TIMEOUT,
        "The client waits for the server, then raises ClusterError with the server's name.",
    ),
    Fault(
        "a server has let go of the generation that a client reads",
        "server.served_generations:ServedGenerations.reading",
        None,
        "The server opens it again. If its files are gone: GenerationGoneError; the spans are read from a replica.",
    ),
    Fault(
        "a peer serves another dataset than before, or than the others",
        "client.shard_directory:ShardDirectory.update",
        None,
        "NodeRefusedError; its spans are read from a replica.",
    ),
    # RDMA.
    Fault(
        "an RDMA READ fails: the peer is gone or refuses, or the device fails",
        "rdma.queue_pair:QueuePair.poll",
        _NODE_TIMEOUT,
        "The device reports it after about a quarter of this time. The queue pairs are closed first, so that nothing "
        "is written late. Transport `auto` then reads the peer by Arrow Flight for 60 s; `verbs` reads from a replica.",
    ),
    Fault(
        "an RDMA READ does not complete",
        "rdma.fetch:RdmaFetch._receive",
        _NODE_TIMEOUT,
        "As after a failed READ. Half of this time is for RDMA, the rest for Arrow Flight.",
    ),
    Fault(
        "offsets of text, read by RDMA, are damaged",
        "rdma.reads.variable_ranges:ValueSpans.locate",
        None,
        "CorruptShardError before any value is read; the spans are read from a replica.",
    ),
    Fault(
        "a peer has too little memory for its video files",
        "rdma.server:RdmaServer",
        None,
        "Transport `auto`: the peer warns, and sends videos by Arrow Flight. `verbs`: HostMemoryError when it starts.",
    ),
    Fault(
        "a peer holds a video file in memory no more, or a shorter one",
        "rdma.reads.video_read:VideoRead",
        None,
        "NodeRefusedError before any READ. As after a failed READ.",
    ),
    # Clients, as a server sees them.
    Fault(
        "a client vanishes: its machine loses power, or its network is cut",
        "flight.keepalive:enable_keepalive",
        "flight.keepalive:vanished_seconds",
        "The kernel closes the connection. The stream's thread ends, and its queue pairs are closed.",
    ),
    Fault(
        "a client sends a malformed request, or asks for rows that do not exist",
        "protocol:Request.from_bytes",
        None,
        "The client gets NodeRefusedError. The server goes on.",
    ),
    Fault(
        "a client asks for bytes outside a video file, or for too many",
        "server.shard_server:ShardServer.video_bytes",
        None,
        "The client gets NodeRefusedError. The server goes on.",
    ),
    Fault(
        "a client has another version of gear-data",
        "protocol:check_handshake",
        None,
        "The client gets NodeRefusedError.",
    ),
    Fault(
        "a client reads another dataset",
        "server.served_generations:ServedGenerations.reading",
        None,
        "The client gets NodeRefusedError.",
    ),
    Fault(
        "a client does not send the token",
        "flight.protected_server:_TokenCheck.is_valid",
        None,
        "The client gets NodeRefusedError.",
    ),
    Fault(
        "a client makes a call of Arrow Flight that nodes do not answer",
        "flight.server:FlightServer._refuse",
        None,
        "The client gets NodeRefusedError, without a traceback.",
    ),
    Fault(
        "a node's server raises an unexpected error, such as MemoryError",
        "flight.server_errors:as_flight_errors",
        None,
        "The node logs the traceback with an id. The client gets NodeFailedError with the id; its spans are read from "
        "a replica.",
    ),
    # Writers on other machines.
    Fault(
        "a writer's server dies, or the connection to it breaks",
        "writing.sender:EpisodeSender._pause",
        "writing.sender:LAST_DELAY",
        "The writer keeps its episodes, and tries again after 0.1 s. Each further delay is twice as long, up to this "
        "time. The restarted server says which episodes it has, and takes none of them twice.",
    ),
    Fault(
        "a writer's server hangs",
        "writing.connection:WriteConnection.put",
        _NODE_TIMEOUT,
        "The call is cancelled after this time, and one second more for each MiB. Then as if the server had died.",
    ),
    Fault(
        "a writer's server acknowledges nothing",
        "writing.sender:EpisodeSender._wait",
        "$GEAR_DATA_WRITE_TIMEOUT",
        "`flush`, and `end_episode` if the buffer is full, raise NodeUnreachableError. The episodes are kept.",
    ),
    Fault(
        "the disk of a writer's server is full",
        "writing.intake:EpisodeIntake.add",
        None,
        "The writer gets StorageFullError, and keeps the episode.",
    ),
    Fault(
        "the disk of a writer's server fails while it syncs",
        "writing.intake:EpisodeIntake.synced",
        None,
        "The server acknowledges nothing until it is restarted and has read its journals.",
    ),
    # Forks.
    Fault(
        "the process forks while other code in it uses gRPC",
        "flight.grpc_fork:_before_fork",
        "flight.grpc_fork:_GRPC_END_SECONDS",
        "A warning is logged: a child that uses gRPC may hang.",
    ),
)


def markdown_table(faults: Sequence[Fault] = FAULTS) -> str:
    """Returns the faults as a Markdown table."""
    rows = ["| event | detected by | within | outcome |", "|---|---|---|---|"]
    for fault in faults:
        limit = "at once" if fault.limit is None else f"`{fault.limit}`"
        rows.append(f"| {fault.event} | `{fault.detector}` | {limit} | {fault.outcome} |")
    return "\n".join(rows)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Returns the page's Markdown with the table in place of the mark."""
    if page.file.src_uri != PAGE:
        return markdown
    if MARK not in markdown:
        raise ValueError(f"{PAGE} has no line '{MARK}'")
    return markdown.replace(MARK, markdown_table())
