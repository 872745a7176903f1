"""The other nodes of a training run, whose servers are started again if they die."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from gear_data.cluster.addresses import Access, Address
from gear_data.cluster.nodes import Known, Nodes
from gear_data.cluster.protocol import Piece, Request
from gear_data.cluster.verbs.client import Targets
from gear_data.errors import NodeUnreachableError

#: Seconds before all is asked again.
_PAUSE = 0.5

_log = logging.getLogger(__name__)


class RunNodes(Nodes):
    """What no node gives is asked again, till as much time has passed as one answer may take.

    Args, errors: see `Nodes`.
    """

    def __init__(self, addresses: Sequence[Address], access: Access, known: Known, transport: str) -> None:
        super().__init__(addresses, access, known, transport)
        self._patience = access.timeout

    def fetch(self, request: Request, targets: Targets | None = None) -> list[Piece]:
        limit, warned = time.monotonic() + self._patience, False
        while True:
            try:
                return super().fetch(request, targets)
            except NodeUnreachableError as error:
                if time.monotonic() + _PAUSE > limit:
                    raise
                if not warned:
                    _log.warning("%s; asked again for %.0f s", error, limit - time.monotonic())
                    warned = True
            # Outside of `fetch`, so that the process can fork meanwhile.
            time.sleep(_PAUSE)
