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
    """What no node gives is asked again, till as much time has passed as one answer may take: since the first of them
    failed, so that several threads, or batches, do not wait one after another.

    Args, errors: see `Nodes`.
    """

    def __init__(self, addresses: Sequence[Address], access: Access, known: Known, transport: str) -> None:
        super().__init__(addresses, access, known, transport)
        self._patience = access.timeout
        self._failing_since: float | None = None

    def fetch(self, request: Request, targets: Targets | None = None) -> list[Piece]:
        while True:
            began = time.monotonic()
            try:
                pieces = super().fetch(request, targets)
            except NodeUnreachableError as error:
                since = self._failing_since
                if since is None:
                    since = self._failing_since = began
                    _log.warning("%s; asked again for %g s", error, self._patience)
                if time.monotonic() + _PAUSE > since + self._patience:
                    raise
            else:
                self._failing_since = None
                return pieces
            # Outside of `fetch` of `Nodes`, so that the process can fork meanwhile.
            time.sleep(_PAUSE)
