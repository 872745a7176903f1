"""The other nodes of a training run, whose servers are started again if they die."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from gear_data.cluster.addresses import Address, ClientOptions
from gear_data.cluster.client.shard_client import ShardClient, ShardDirectory
from gear_data.errors import GearError, NodeUnreachableError
from gear_data.selection.windows import Int64Array

#: Seconds before a node is asked again.
_PAUSE = 0.5

_log = logging.getLogger(__name__)


class RunShardClient(ShardClient):
    """What no node gives is asked again, till as much time has passed as one answer may take: since the first failure,
    so that several threads, or batches, do not wait one after another.

    Args, errors: see `ShardClient`.
    """

    def __init__(
        self, addresses: Sequence[Address], access: ClientOptions, known: ShardDirectory, transport: str
    ) -> None:
        super().__init__(addresses, access, known, transport)
        self._patience = access.timeout
        self._told = 0.0  # of the failure since then

    def _owners(self, shards: Int64Array, turn: int, failed: dict[int, GearError]) -> Int64Array:
        while True:
            try:
                return super()._owners(shards, turn, failed)
            except NodeUnreachableError as error:
                now = time.monotonic()
                failing = [self._failures.since(number) for number in failed]
                since = max((each for each in failing if each is not None), default=now)
                left = since + self._patience - now
                if left < _PAUSE:
                    raise
                if since != self._told:
                    self._told = since
                    _log.warning("%s; asked again for %.0f s", error, left)
                time.sleep(_PAUSE)
                failed.clear()
