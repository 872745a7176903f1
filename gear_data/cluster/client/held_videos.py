"""HeldVideos: reads video files that nodes hold in memory, by RDMA."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from gear_data.cluster.client.fetch import take_all
from gear_data.cluster.client.retry_policy import Retries
from gear_data.cluster.client.shard_directory import ShardDirectory
from gear_data.cluster.client.transports import PeerTransports
from gear_data.cluster.flight.grpc_fork import using_grpc
from gear_data.cluster.rdma.fetch import RdmaFetch
from gear_data.cluster.transport_names import VERBS
from gear_data.errors import GearError, NodeRefusedError, NodeUnreachableError
from gear_data.video.packet_bytes import ByteRange

_NOTHING = np.empty((0, 3), np.int64)


class HeldVideos:
    """Reads video files that nodes hold in memory. Thread-safe.

    A node tells with its queue pairs which files it holds. If several nodes hold a file, the file's number chooses one.

    Args:
        directory: the nodes.
        transports: creates the fetches.
        retries: waits for nodes to return.
    """

    def __init__(self, directory: ShardDirectory, transports: PeerTransports, retries: Retries) -> None:
        self._directory, self._transports, self._retries = directory, transports, retries
        #: Number of a node -> numbers of the files that it holds.
        self._files: dict[int, frozenset[int]] = {}
        #: Number of a file -> numbers of the nodes that hold it.
        self._holders: dict[int, list[int]] = {}

    def read(self, ranges: Iterable[ByteRange]) -> dict[ByteRange, memoryview]:
        """Reads ranges of bytes of video files.

        Args:
            ranges: None is empty.

        Returns:
            The bytes of the ranges that RDMA can read. The others must be read by Arrow Flight; with transport `verbs`
            there are none.

        Raises:
            NodeUnreachableError, NodeRefusedError, DeviceError: transport `verbs`, and RDMA cannot read a range.
        """
        found: dict[ByteRange, memoryview] = {}
        if self._transports.rdma is None:
            return found
        # Sorted: ranges that are adjacent in a file become one READ.
        left, failed = sorted(set(ranges)), dict[int, GearError]()
        with using_grpc():
            while left:
                parts = self._assign(left, failed)
                if parts:
                    found.update(self._read_parts(parts, failed))
                    left = [each for each in left if each not in found]
                elif self._transports.transport == VERBS:
                    self._wait(left[0][0], failed)
                else:
                    break
        return found

    def _assign(self, ranges: Sequence[ByteRange], failed: dict[int, GearError]) -> dict[int, list[ByteRange]]:
        """Returns the ranges to read from each node. Ranges of files that no node holds are left out."""
        avoided = self._directory.backoff.active()
        usable = self._usable(failed)
        self._ask(usable - avoided, failed)
        if any(each[0] not in self._holders for each in ranges):
            self._ask(usable & avoided, failed)
        usable = self._usable(failed)
        parts = defaultdict[int, list[ByteRange]](list)
        for each in ranges:
            holders = [node for node in self._holders.get(each[0], ()) if node in usable]
            holders = [node for node in holders if node not in avoided] or holders
            if holders:
                parts[holders[each[0] % len(holders)]].append(each)
        return parts

    def _usable(self, failed: dict[int, GearError]) -> set[int]:
        """Returns the nodes that are read by RDMA now."""
        return {node for node in self._directory.rdma_peers if node not in failed and self._transports.rdma_to(node)}

    def _ask(self, nodes: Iterable[int], failed: dict[int, GearError]) -> None:
        """Connects to nodes whose files are not known. Adds the nodes that fail to `failed`."""
        learned: dict[int, frozenset[int]] = {}
        for node in sorted(set(nodes) - self._files.keys()):
            fetch = self._transports.fetch_videos(node, _NOTHING)
            if fetch is None:
                continue
            try:
                fetch.post()
                if fetch.videos is not None:
                    learned[node] = frozenset(fetch.videos[:, 0].tolist())
                fetch.take()
            finally:
                fetch.abandon()
            self._record(fetch, failed)
        if learned:
            self._learn({**self._files, **learned})

    def _read_parts(
        self, parts: dict[int, list[ByteRange]], failed: dict[int, GearError]
    ) -> dict[ByteRange, memoryview]:
        """Reads from several nodes. All READs are posted before any is waited for."""
        found: dict[ByteRange, memoryview] = {}
        asked = [(self._transports.fetch_videos(node, np.array(part, np.int64)), part) for node, part in parts.items()]
        fetches = {fetch: part for fetch, part in asked if fetch is not None}
        try:
            for fetch in fetches:
                fetch.post()
            for fetch, result in take_all(fetches):
                (data,), at = result.parts, 0
                for number in result.spans.tolist():
                    each = fetches[fetch][number]
                    size = each[2] - each[1]
                    found[each] = data.data[at : at + size]
                    at += size
        finally:
            for fetch in fetches:
                fetch.abandon()
        for fetch in fetches:
            self._record(fetch, failed)
        return found

    def _record(self, fetch: RdmaFetch, failed: dict[int, GearError]) -> None:
        """Records whether a node answered."""
        backoff = self._directory.backoff
        if fetch.error is None:
            backoff.record_success(fetch.peer)
            return
        if fetch.peer in self._files:
            # The node may hold other files when it returns.
            self._learn({node: files for node, files in self._files.items() if node != fetch.peer})
        if not self._transports.fall_back(fetch):
            failed[fetch.peer] = fetch.error
            backoff.record_failure(fetch.peer, fetch.waiting_since)

    def _learn(self, files: dict[int, frozenset[int]]) -> None:
        holders = defaultdict[int, list[int]](list)
        for node in sorted(files):
            for file in files[node]:
                holders[file].append(node)
        self._files, self._holders = files, dict(holders)

    def _wait(self, file: int, failed: dict[int, GearError]) -> None:
        """Waits for nodes that do not answer, as long as the retry policy allows."""
        silent = {node: error for node, error in failed.items() if isinstance(error, NodeUnreachableError)}
        if silent:
            error: GearError = next(iter(silent.values()))
            if self._retries.wait(silent, error) is not None:
                failed.clear()
                return
            raise error
        raise next(
            iter(failed.values()),
            NodeRefusedError(
                f"no node holds video file {file} in memory",
                file=self._directory.url,
                hint="serve its shards with --residency host from a folder with the file, or use transport='auto'",
            ),
        )
