"""All nodes of a dataset: which holds what, and reading from one that does."""

from __future__ import annotations

import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from gear_data.cluster.addresses import CHECKSUM_VARIABLE, SCHEME, Address, ClientOptions
from gear_data.cluster.client.backoff import PeerBackoff
from gear_data.cluster.client.peer import Peer, PeerDescription
from gear_data.cluster.flight.client import Stream
from gear_data.cluster.flight.fetch import FlightFetch, cut
from gear_data.cluster.flight.grpc_fork import using_grpc
from gear_data.cluster.protocol import MAX_RESPONSE_BYTES, FetchedSpans, Request, dataset_identity
from gear_data.cluster.rdma.client import RdmaClient, RdmaFetch
from gear_data.cluster.rdma.gpu_memory import gpu_transfer_method
from gear_data.cluster.rdma.span_read import WriteTargets
from gear_data.cluster.rdma.transport import AUTO, FLIGHT, VERBS, check_transport, has_device
from gear_data.errors import (
    ClusterError,
    DeviceError,
    GearError,
    InvalidArgumentError,
    MissingExtraError,
    MissingShardsError,
    NodeRefusedError,
    NodeUnreachableError,
)
from gear_data.schema import ColumnSpec
from gear_data.selection.windows import Int64Array
from gear_data.storage.manifest import Manifest
from gear_data.storage.variable import OFFSET_BYTES

#: Seconds for which a node whose memory could not be read is read by Arrow Flight.
_BY_FLIGHT_SECONDS = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ShardDirectory:
    """What is known of nodes before they are asked.

    Attributes:
        manifest: the dataset's.
        held: of each node, its shards.
        verbs: of each node, whether it offers RDMA.
    """

    manifest: Manifest
    held: tuple[frozenset[int], ...]
    verbs: tuple[bool, ...]


class ShardClient:
    """The nodes that hold a dataset, each some of its shards. For any threads, before and after a fork.

    Args:
        addresses: of all nodes; one that cannot be reached now is asked again when it is needed.
        access: what is shown to them.
        known: what they hold; they are then asked for nothing now. None: they are asked, and must hold all shards.
        transport: `verbs`, `flight`, or `auto`: RDMA from those nodes that offer it, if this machine has a device too.

    Raises:
        UnknownNameError: there is no such transport.
        InvalidArgumentError: `verbs`, and answers with checksums.
        DeviceError, MissingExtraError: `verbs`, and this machine has no device or no pyverbs.
        NodeUnreachableError, NodeRefusedError: no node can be used.
        MissingShardsError: no node that can be reached holds some shards.
        NodeRefusedError: two nodes serve different datasets.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        access: ClientOptions,
        known: ShardDirectory | None = None,
        transport: str = AUTO,
    ) -> None:
        check_transport(transport)
        if transport == VERBS and access.checksum:
            raise InvalidArgumentError(
                "what is read by RDMA comes without a checksum",
                hint=f"unset ${CHECKSUM_VARIABLE}, or choose transport='flight'",
            )
        self._transport = FLIGHT if access.checksum else transport
        self._nodes = [Peer(address, access) for address in addresses]
        self._held: list[frozenset[int]] = [frozenset()] * len(self._nodes)
        self._by_verbs: set[int] = set()
        self._memory: RdmaClient | None
        self._verbs_failed: dict[int, float] = {}  # node -> read by Arrow Flight until
        self._failures = PeerBackoff()
        self._turn = 0
        self._routes: dict[tuple[int, frozenset[int]], Int64Array] = {}
        if known is not None:
            self.manifest, self._held = known.manifest, list(known.held)
            self.dataset = dataset_identity(known.manifest)
            self._by_verbs = {number for number, offers in enumerate(known.verbs) if offers}
            self._memory = self._remote_memory()
            return
        self.dataset = ""
        errors = self._ask()
        if not self.dataset:
            raise errors[0]
        self.manifest = self._manifest()
        self._check_all_held(errors)
        self._memory = self._remote_memory()

    def _remote_memory(self) -> RdmaClient | None:
        if self._transport == FLIGHT or not self._by_verbs or (self._transport == AUTO and not has_device()):
            return None
        memory = RdmaClient(self.manifest, self.dataset)
        try:
            # Now, and not in the midst of training.
            memory.open()
        except (DeviceError, MissingExtraError) as error:
            if self._transport == VERBS:
                raise
            _log.warning("no RDMA: %s", error)
            return None
        return memory

    @property
    def place(self) -> str:
        """The URL that names them all."""
        return SCHEME + ",".join(str(node.endpoint.address) for node in self._nodes)

    def _ask(self) -> list[ClusterError]:
        """Asks all what they hold, and gives the errors of those that cannot be reached."""
        errors: list[ClusterError] = []
        for number, node in enumerate(self._nodes):
            try:
                self._note(number, node.describe())
            except NodeUnreachableError as error:
                errors.append(error)
        return errors

    def _note(self, number: int, description: PeerDescription) -> None:
        node = self._nodes[number]
        if self.dataset and description.dataset != self.dataset:
            raise NodeRefusedError(
                "serves another dataset than the other nodes, or another conversion of it",
                file=node.name,
                hint="restart it with the dataset of the others",
            )
        self.dataset = description.dataset
        if self._transport == VERBS and not description.verbs:
            raise NodeRefusedError(
                "does not offer RDMA",
                file=node.name,
                hint="serve with --transport verbs, or read with transport='auto'",
            )
        if description.verbs:
            self._by_verbs.add(number)
        else:
            self._by_verbs.discard(number)
        if self._held[number] != description.shards:
            self._held[number] = description.shards
            self._routes = {}

    def _check_all_held(self, errors: Sequence[ClusterError]) -> None:
        count = len(self.manifest.shards)
        missing = sorted(set(range(count)).difference(*self._held))
        if missing:
            reasons = "".join(f"; {error}" for error in errors)
            raise MissingShardsError(
                f"no node holds shards {_listed(missing)} of {count}{reasons}",
                file=self.place,
                hint="name all nodes, or serve these shards too",
            )
        for error in errors:
            _log.warning("%s; the other nodes hold all its shards", error)

    def _manifest(self) -> Manifest:
        text = b"".join(self.file_pieces("manifest"))
        name = f"{self._nodes[0].name}/manifest.json"
        try:
            manifest = Manifest.from_text(text.decode(), name)
        except UnicodeDecodeError as error:
            raise NodeRefusedError(f"its manifest cannot be read: {error}", file=name) from error
        if dataset_identity(manifest) != self.dataset:
            raise NodeRefusedError("its manifest is not that of what it says it serves", file=name)
        return manifest

    def file_pieces(self, file: str) -> Iterator[bytes]:
        """The bytes of the manifest (`manifest`) or of a table's file; see `ShardServer.file_piece`.

        Raises:
            NodeUnreachableError, NodeRefusedError: no node gives them.
        """
        offset = 0
        while piece := self._file_piece(file, offset):
            yield piece
            offset += len(piece)

    def _file_piece(self, file: str, offset: int) -> bytes:
        problem: GearError | None = None
        for number in sorted(range(len(self._nodes)), key=lambda number: number in self._failures.avoided()):
            try:
                return self._nodes[number].file_piece(self.dataset, file, offset)
            except ClusterError as error:
                self._failures.note(number)
                problem = problem or error
        raise problem or InvalidArgumentError("no nodes")

    def _route(self, turn: int, without: frozenset[int]) -> Int64Array:
        """int64 [shards]: the node that is asked for each; -1 where there is none. In another turn others are, of those
        that hold the same, so that all have as much to do."""
        routes = self._routes
        route = routes.get((turn, without))
        if route is None:
            route = np.full(len(self.manifest.shards), -1, np.int64)
            for shard in range(len(route)):
                holders = [number for number, held in enumerate(self._held) if shard in held and number not in without]
                if holders:
                    route[shard] = holders[(shard + turn) % len(holders)]
            routes[turn, without] = route
        return route

    @property
    def reads_memory(self) -> bool:
        """Whether some nodes' memory is read, so that rows can go straight to their places."""
        return self._memory is not None

    def reads_to_gpu(self, device: int) -> bool:
        """Whether rows can go to the memory of this CUDA device."""
        return self._memory is not None and gpu_transfer_method(device) is not None

    def fetch(self, request: Request, targets: WriteTargets | None = None) -> list[FetchedSpans]:
        """All that `asked` gives."""
        with self.asked(request, targets) as pieces:
            return list(pieces)

    @contextmanager
    def asked(self, request: Request, targets: WriteTargets | None = None) -> Iterator[Iterator[FetchedSpans]]:
        """The rows of a request of any size, in pieces of some spans each, as they come. Spans without any rows are in
        none. All nodes are asked before the body begins.

        Of a node that fails the spans are asked of others that hold them.

        Args:
            targets: where rows go if they are read from a node's memory.

        Raises:
            NodeUnreachableError: no node that holds some of the shards can be reached, or answers in time.
            CorruptShardError, NodeRefusedError: what the last of them said.
        """
        counts = [group.count for group in request.groups]
        if not counts or not len(spans := np.flatnonzero(functools.reduce(np.bitwise_or, counts))):
            yield iter(())
            return
        sizes = self._span_bytes(request)
        if int(sizes.max()) > MAX_RESPONSE_BYTES // 2:
            raise InvalidArgumentError(
                f"a window of {int(sizes.max()):,} bytes is more than a node sends at once",
                hint="choose a shorter context, or fewer columns",
            )
        self._turn = turn = (self._turn + 1) % len(self._nodes)
        lanes: list[FlightFetch | RdmaFetch] = []
        failed: dict[int, GearError] = {}

        def ask(spans: Int64Array) -> None:
            owners = self._owners(request.shard[spans], turn, failed)
            lanes[:] = [
                self._lane(number, request, cut(spans[owners == number], sizes), targets)
                for number in np.flatnonzero(np.bincount(owners)).tolist()
            ]
            # All are asked before any is waited for.
            for lane in lanes:
                lane.post()

        with using_grpc():
            try:
                ask(spans)
                yield self._taken(lanes, failed, ask)
            finally:
                for lane in lanes:
                    lane.abandon()

    def _taken(
        self, lanes: list[FlightFetch | RdmaFetch], failed: dict[int, GearError], ask: Callable[[Int64Array], None]
    ) -> Iterator[FetchedSpans]:
        """What lanes bring, as it comes.

        Args:
            lanes: those under way; changed by `ask`.
            failed: nodes not to be asked any more; here they are added.
            ask: asks the others for some spans.
        """
        while True:
            active = deque(lanes)
            while active:
                lane = active.popleft()
                if lane.take():
                    active.append(lane)
                while lane.done:
                    yield lane.done.popleft()
            unread = []
            for lane in lanes:
                unread += lane.unread
                if lane.error is not None and isinstance(lane, RdmaFetch) and self._transport == AUTO:
                    self._note_verbs_failure(lane.number, lane.error)
                elif lane.error is not None:
                    failed[lane.number] = lane.error
                    self._failures.note(lane.number)
                else:
                    self._failures.end(lane.number)
            if not unread:
                return
            ask(np.concatenate(unread))

    def _span_bytes(self, request: Request) -> Int64Array:
        """int64 [N]: bytes that each span has over all groups."""
        sizes = np.zeros(len(request.shard), np.int64)
        for group in request.groups:
            sizes += group.count * sum(self._row_bytes[column] for column in group.columns)
        return sizes

    @functools.cached_property
    def _row_bytes(self) -> tuple[int, ...]:
        """Bytes of a row of each column; of one of variable length, as many as its rows have on average."""
        return tuple(_row_bytes(column, self.manifest) for column in self.manifest.schema)

    def _lane(
        self, number: int, request: Request, pieces: Sequence[Int64Array], targets: WriteTargets | None
    ) -> FlightFetch | RdmaFetch:
        by_verbs = number in self._by_verbs and self._verbs_failed.get(number, 0.0) <= time.monotonic()
        if self._memory is not None and by_verbs:
            return RdmaFetch(self._memory, number, self._nodes[number].endpoint, request, pieces, targets)
        node = self._nodes[number]
        return FlightFetch(number, node, lambda: self._stream(number), self.manifest.schema, request, pieces)

    def _note_verbs_failure(self, number: int, error: GearError) -> None:
        self._verbs_failed[number] = time.monotonic() + _BY_FLIGHT_SECONDS
        _log.warning("%s; it is read by Arrow Flight for %g s", error, _BY_FLIGHT_SECONDS)

    def _owners(self, shards: Int64Array, turn: int, failed: dict[int, GearError]) -> Int64Array:
        """int64 [n]: which node is asked for each of these shards; none of those that failed."""
        without = frozenset(failed)
        for avoided in (without | self._failures.avoided(), without):
            owners = self._route(turn, avoided)[shards]
            if (owners >= 0).all():
                return owners
        unknown = [number for number, held in enumerate(self._held) if not held and number not in failed]
        for number in unknown:
            try:
                self._nodes[number].keep(self._stream(number))
            except ClusterError as error:
                failed[number] = error
                self._failures.note(number)
        if unknown:
            return self._owners(shards, turn, failed)
        lost = np.unique(shards[owners < 0]).tolist()
        for number, problem in failed.items():
            if self._held[number].intersection(lost):
                problem.message += f"; no other node gives shards {_listed(lost)}"
                raise problem
        raise MissingShardsError(f"no node holds shards {_listed(lost)} any more", file=self.place)

    def _stream(self, number: int) -> Stream:
        """A stream to a node, which serves the same dataset as before."""
        stream, description = self._nodes[number].open_stream(self.dataset)
        if description is not None:
            try:
                self._note(number, description)
            except NodeRefusedError:
                stream.close()
                raise
        return stream


def _listed(shards: Sequence[int]) -> str:
    return ", ".join(map(str, shards[:20])) + (" ..." if len(shards) > 20 else "")


def _row_bytes(column: ColumnSpec, manifest: Manifest) -> int:
    if not column.variable_length:
        return column.row_bytes
    values = sum(shard.variable[column.name].bytes for shard in manifest.shards)
    return OFFSET_BYTES + -(-values // max(1, manifest.steps))
