"""ShardClient: reads rows of a dataset from the nodes that hold its shards."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from gear_data.cluster.addresses import Address
from gear_data.cluster.client.choose_generation import choose_generation
from gear_data.cluster.client.fetch_session import FetchSession
from gear_data.cluster.client.held_videos import HeldVideos
from gear_data.cluster.client.options import CHECKSUM_VARIABLE, ClientOptions
from gear_data.cluster.client.peer import Peer
from gear_data.cluster.client.retry_policy import NO_RETRY, Retries, RetryPolicy
from gear_data.cluster.client.shard_directory import ClusterManifest, ShardDirectory, list_shards
from gear_data.cluster.client.transports import PeerTransports
from gear_data.cluster.flight.grpc_fork import using_grpc
from gear_data.cluster.protocol import MAX_RESPONSE_BYTES, FetchedSpans, Request
from gear_data.cluster.rdma.reads.span_read import WriteTargets
from gear_data.cluster.transport_names import AUTO, FLIGHT, VERBS, check_transport
from gear_data.errors import (
    ClusterError,
    CorruptShardError,
    DatasetReplacedError,
    GearError,
    GenerationGoneError,
    InvalidArgumentError,
    MissingShardsError,
    NodeRefusedError,
    NodeUnreachableError,
)
from gear_data.schema import ColumnSpec
from gear_data.selection.windows import Int64Array
from gear_data.storage.identity import dataset_identity
from gear_data.storage.manifest import Manifest
from gear_data.storage.variable_columns import OFFSET_BYTES
from gear_data.video.packet_bytes import ByteRange

#: Largest manifest that a node may send.
_MAX_MANIFEST_BYTES = 1 << 30
_RESTART = "restart this node"

_log = logging.getLogger(__name__)


class ShardClient:
    """Client of the nodes that hold a dataset.

    Thread-safe, and usable before and after a fork.

    Args:
        addresses: addresses of all nodes. A node that cannot be reached now is tried again when it is needed.
        options: token, authorities and timeout.
        known: the shards of each node; no node is then contacted now. None: the nodes are asked, and together they must
            hold all shards.
        transport: `verbs`, `flight`, or `auto`: RDMA from the nodes that offer it, if this machine has a device too.
        retry: how long to retry shards whose nodes all fail.
        generation: the generation that is read, if the nodes are asked; None: the newest one that all nodes have.

    Attributes:
        manifest: the dataset's manifest.
        held_videos: reads video files from the nodes' memory.

    Raises:
        UnknownNameError: there is no such transport.
        InvalidArgumentError: transport `verbs`, and responses with checksums.
        DeviceError, MissingExtraError: transport `verbs`, and this machine has no device or no pyverbs.
        NodeUnreachableError, NodeRefusedError: no node can be used, or two nodes serve different datasets.
        GenerationGoneError: a node does not have the generation any more.
        ClusterError: a node is behind the others; see `choose_generation`.
        MissingShardsError: no reachable node holds some of the shards.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        options: ClientOptions,
        known: ClusterManifest | None = None,
        transport: str = AUTO,
        retry: RetryPolicy = NO_RETRY,
        generation: int | None = None,
    ) -> None:
        check_transport(transport)
        if transport == VERBS and options.checksum:
            raise InvalidArgumentError(
                "RDMA responses have no checksum", hint=f"unset ${CHECKSUM_VARIABLE}, or use transport='flight'"
            )
        transport = FLIGHT if options.checksum else transport
        self._directory = ShardDirectory([Peer(address, options) for address in addresses], transport, known)
        self._retries = Retries(retry, self._directory.backoff)
        self._turn = 0
        self.manifest = self._discover(generation) if known is None else known.manifest
        self._transports = PeerTransports(self._directory, self.manifest, transport)
        self.held_videos = HeldVideos(self._directory, self._transports, self._retries)

    @property
    def dataset(self) -> str:
        """The dataset's `dataset_identity`."""
        return self._directory.dataset

    @property
    def url(self) -> str:
        """The URL that lists all nodes."""
        return self._directory.url

    def _discover(self, generation: int | None) -> Manifest:
        """Asks all nodes for their shards, and one node for the manifest."""
        held = 0
        found = choose_generation(self._directory.peers, generation)
        for number, description in found.descriptions.items():
            self._directory.update(number, description)
            held = description.generation
        for number in found.unreachable:
            # `_file_chunk` asks the other nodes first.
            self._directory.backoff.record_failure(number)
        for peer in self._directory.peers:
            peer.read_generation(held)
        errors = list(found.unreachable.values())
        manifest = self._read_manifest()
        self._directory.shard_count = len(manifest.shards)
        missing = self._directory.missing()
        if missing:
            reasons = "".join(f"; {error}" for error in errors)
            raise MissingShardsError(
                f"no node holds shards {list_shards(missing)} of {len(manifest.shards)}{reasons}",
                file=self.url,
                hint="list all nodes in the URL, or serve these shards too",
            )
        for unreachable in errors:
            _log.warning("%s; the other nodes hold all its shards", unreachable)
        return manifest

    def _read_manifest(self) -> Manifest:
        text = b"".join(self.file_chunks("manifest", _MAX_MANIFEST_BYTES))
        name = f"{self._directory.peers[0].name}/manifest.json"
        try:
            manifest = Manifest.from_text(text.decode(), name)
        except UnicodeDecodeError as error:
            raise NodeRefusedError(f"sent a manifest that is not UTF-8: {error}", file=name) from error
        if dataset_identity(manifest) != self.dataset:
            raise NodeRefusedError("sent the manifest of another dataset than it serves", file=name, hint=_RESTART)
        return manifest

    def file_chunks(self, file: str, size: int) -> Iterator[bytes]:
        """Yields the bytes of the manifest or of a table's file, in chunks.

        Args:
            file: `manifest`, or the name of a table; see `ShardServer.file_chunk`.
            size: most bytes that the file may have.

        Raises:
            NodeUnreachableError, NodeRefusedError, CorruptShardError, DatasetReplacedError: no node returns them, or a
                node sends more.
        """
        offset, failed = 0, dict[int, GearError]()
        while chunk := self._file_chunk(file, offset, failed):
            offset += len(chunk)
            if offset > size:
                raise NodeRefusedError(f"sends more than {size:,} bytes for {file!r}", file=self.url, hint=_RESTART)
            yield chunk

    def _file_chunk(self, file: str, offset: int, failed: dict[int, GearError]) -> bytes:
        """Returns a chunk of a file from a peer that is not in `failed`.

        Adds the peers that fail.
        """
        return self._from_any_peer(lambda peer: peer.file_chunk(self.dataset, file, offset), failed, 0)[0]

    def video_bytes(self, ranges: Sequence[ByteRange], first: int) -> tuple[bytes, int]:
        """Reads ranges of bytes of video files from one of the nodes.

        If a node fails, another one is asked. If a node cannot be reached, the retry policy decides.

        Args:
            ranges: the number of a file, the first byte, and the byte after the last; together at most
                `protocol.MESSAGE_BYTES` bytes.
            first: the number of the node to ask first, modulo the number of nodes.

        Returns:
            All ranges, one after another; and the number of the node that sent them.

        Raises:
            NodeUnreachableError, NodeRefusedError, CorruptShardError, DatasetReplacedError: no node returns them.
        """
        while True:
            failed = dict[int, GearError]()
            try:
                return self._from_any_peer(lambda peer: peer.video_bytes(self.dataset, ranges), failed, first)
            except (ClusterError, CorruptShardError, DatasetReplacedError, GenerationGoneError):
                # A node that does not answer may have the files that the others lack.
                silent = {number: error for number, error in failed.items() if isinstance(error, NodeUnreachableError)}
                if not silent:
                    raise
                error = next(iter(silent.values()))
                if self._retries.wait(silent, error) is None:
                    raise error from None

    def _from_any_peer(
        self, call: Callable[[Peer], bytes], failed: dict[int, GearError], first: int
    ) -> tuple[bytes, int]:
        """Returns the first answer of a peer that is not in `failed`, and its number.

        Adds the peers that fail.

        Peers that failed lately come last. The others are asked from number `first` on.
        """
        backoff, count = self._directory.backoff, len(self._directory.peers)
        for number in sorted(range(count), key=lambda each: (each in backoff.active(), (each - first) % count)):
            if number in failed:
                continue
            begin = time.monotonic()
            try:
                answer = call(self._directory.peers[number])
            except (ClusterError, DatasetReplacedError, GenerationGoneError) as error:
                backoff.record_failure(number, begin)
                failed[number] = error
            except CorruptShardError as error:
                # The peer lacks a file. Its shards can be read.
                failed[number] = error
            else:
                backoff.record_success(number)
                return answer, number
        raise next(iter(failed.values()), InvalidArgumentError("there are no nodes; list at least one"))

    @property
    def uses_rdma(self) -> bool:
        """Whether some nodes are read by RDMA.

        RDMA can write rows directly to their targets.
        """
        return self._transports.rdma is not None

    def can_write_gpu(self, device: int) -> bool:
        """Returns whether RDMA can write to the memory of a CUDA device.

        Args:
            device: number of the CUDA device.
        """
        return self._transports.can_write_gpu(device)

    def fetch(self, request: Request, targets: WriteTargets | None = None) -> list[FetchedSpans]:
        """Returns everything that `fetching` yields."""
        with self.fetching(request, targets) as results:
            return list(results)

    @contextmanager
    def fetching(self, request: Request, targets: WriteTargets | None = None) -> Iterator[Iterator[FetchedSpans]]:
        """Posts a request of any size, and yields an iterator over its spans.

        The iterator returns the spans as they arrive, in any order. Spans without rows are not returned.

        All nodes have received their requests before the body begins. If a node fails, its spans are read from a
        replica.

        Args:
            request: the rows to read.
            targets: memory that rows are written to if they are read by RDMA.

        Raises:
            NodeUnreachableError: no node that holds some of the shards answers in time.
            CorruptShardError, NodeRefusedError: the error of the last node that holds some of the shards.
            InvalidArgumentError: one span is larger than a response may be.
        """
        counts = [group.count for group in request.groups]
        if not counts or not len(spans := np.flatnonzero(functools.reduce(np.bitwise_or, counts))):
            yield iter(())
            return
        sizes = self._span_bytes(request)
        if int(sizes.max()) > MAX_RESPONSE_BYTES // 2:
            raise InvalidArgumentError(
                f"a window of {int(sizes.max()):,} bytes is larger than the limit of {MAX_RESPONSE_BYTES // 2:,}",
                hint="choose a shorter context, or fewer columns",
            )
        self._turn = turn = (self._turn + 1) % len(self._directory.peers)
        session = FetchSession(self._directory, self._transports, self._retries, request, sizes, targets, turn)
        with using_grpc():
            try:
                session.start(spans)
                yield session.results()
            finally:
                session.abandon()

    def _span_bytes(self, request: Request) -> Int64Array:
        """Returns int64 [N], the bytes of each span over all groups."""
        sizes = np.zeros(len(request.shard), np.int64)
        for group in request.groups:
            sizes += group.count * sum(self.row_bytes[column] for column in group.columns)
        return sizes

    @functools.cached_property
    def row_bytes(self) -> tuple[int, ...]:
        """Bytes of a row of each column; the average for a column of variable length."""
        return tuple(_row_bytes(column, self.manifest) for column in self.manifest.schema)


def _row_bytes(column: ColumnSpec, manifest: Manifest) -> int:
    if not column.variable_length:
        return column.row_bytes
    values = sum(shard.variable[column.name].bytes for shard in manifest.shards)
    return OFFSET_BYTES + -(-values // max(1, manifest.steps))
