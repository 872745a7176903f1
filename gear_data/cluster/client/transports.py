"""Choice of a transport for each peer, with a fallback from RDMA to Arrow Flight.

Why: docs/explanation/decisions/transports.md
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gear_data.cluster.client.fetch import Fetch, WaitLimits
from gear_data.cluster.client.shard_directory import ShardDirectory
from gear_data.cluster.flight.fetch import FlightFetch, split_into_batches
from gear_data.cluster.protocol import Request
from gear_data.cluster.rdma.client import RdmaClient
from gear_data.cluster.rdma.fetch import RdmaFetch
from gear_data.cluster.rdma.gpu_memory import gpu_transfer_method
from gear_data.cluster.rdma.reads.span_read import WriteTargets
from gear_data.cluster.transport_names import AUTO, FLIGHT, VERBS, has_device
from gear_data.errors import DeviceError, MissingExtraError
from gear_data.selection.windows import Int64Array
from gear_data.storage.manifest import Manifest

#: Seconds for which a peer is read by Arrow Flight after RDMA failed.
FALLBACK_SECONDS = 60.0

_log = logging.getLogger(__name__)


class PeerTransports:
    """Creates the fetches of each peer.

    A fetch uses RDMA where both ends have it, else Arrow Flight.

    Args:
        directory: the peers.
        manifest: the dataset's manifest.
        transport: `verbs`, `flight` or `auto`.

    Attributes:
        transport: see above.
        rdma: the RDMA client; None where RDMA is not used.

    Raises:
        DeviceError, MissingExtraError: transport `verbs`, and this machine has no RDMA device or no pyverbs.
    """

    def __init__(self, directory: ShardDirectory, manifest: Manifest, transport: str) -> None:
        self._directory, self._manifest, self.transport = directory, manifest, transport
        self.rdma = self._open_rdma()
        #: Peer -> time until which it is read by Arrow Flight.
        self._fallback_until: dict[int, float] = {}

    def _open_rdma(self) -> RdmaClient | None:
        if self.transport == FLIGHT or not self._directory.rdma_peers:
            return None
        if self.transport == AUTO and not has_device():
            return None
        client = RdmaClient(self._manifest, self._directory.dataset)
        try:
            # Opened now, so that a problem shows before training.
            client.open()
        except (DeviceError, MissingExtraError) as error:
            if self.transport == VERBS:
                raise
            _log.warning("RDMA is not used: %s", error)
            return None
        return client

    def can_write_gpu(self, device: int) -> bool:
        """Returns whether RDMA can write to the memory of a CUDA device.

        Args:
            device: number of the CUDA device.
        """
        return self.rdma is not None and gpu_transfer_method(device) is not None

    def fetch(
        self,
        number: int,
        request: Request,
        batches: Sequence[Int64Array],
        targets: WriteTargets | None,
        latest: float = math.inf,
    ) -> Fetch[Any, Any]:
        """Creates the fetch of one peer's part of a request. Posts nothing yet.

        Args:
            number: number of the peer.
            request: the whole request, for all peers.
            batches: int64 arrays of positions of spans, one array for each request to this peer.
            targets: memory that rows are written to if they are read by RDMA.
            latest: see `WaitLimits`.
        """
        peer, rdma = self._directory.peers[number], self.rdma_to(number)
        waits = WaitLimits(peer.endpoint.timeout, latest)
        if rdma is not None:
            return RdmaFetch(
                rdma,
                number,
                peer.endpoint,
                lambda connection, spans: rdma.span_read(connection, request, spans, targets),
                batches,
                waits,
                is_direct=targets is not None,
            )
        return FlightFetch(
            number,
            peer,
            lambda seconds: self._directory.acquire_stream(number, seconds),
            self._manifest.schema,
            request,
            batches,
            waits,
        )

    def rdma_to(self, number: int) -> RdmaClient | None:
        """Returns the RDMA client; None if a peer is read by Arrow Flight now."""
        has_rdma = number in self._directory.rdma_peers
        return self.rdma if has_rdma and self._fallback_until.get(number, 0.0) <= time.monotonic() else None

    def fetch_videos(self, number: int, ranges: Int64Array) -> RdmaFetch | None:
        """Creates the fetch of ranges of video files from one peer. Posts nothing yet.

        Args:
            number: number of the peer.
            ranges: see `VideoRead`. None is empty. Without ranges the fetch only connects.

        Returns:
            None if the peer is read by Arrow Flight now.
        """
        rdma, endpoint = self.rdma_to(number), self._directory.peers[number].endpoint
        if rdma is None:
            return None
        sizes = ranges[:, 2] - ranges[:, 1]
        return RdmaFetch(
            rdma,
            number,
            endpoint,
            lambda connection, spans: rdma.video_read(connection, ranges[spans]),
            split_into_batches(np.arange(len(ranges)), sizes) if len(ranges) else [],
            WaitLimits(endpoint.timeout),
        )

    def fall_back(self, fetch: Fetch[Any, Any]) -> bool:
        """Switches the peer of a failed fetch from RDMA to Arrow Flight.

        After `FALLBACK_SECONDS` the peer is read by RDMA again.

        Returns:
            False, without a change, if the fetch used Arrow Flight, the transport is not `auto`, or the fetch has taken
            all its time.
        """
        if not (isinstance(fetch, RdmaFetch) and self.transport == AUTO) or fetch.deadline <= time.monotonic():
            return False
        self._fallback_until[fetch.peer] = time.monotonic() + FALLBACK_SECONDS
        _log.warning("%s; reading this peer by Arrow Flight for %g s", fetch.error, FALLBACK_SECONDS)
        return True
