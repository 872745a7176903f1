"""ReadContext: objects that all reads of a client share."""

from __future__ import annotations

from dataclasses import dataclass

from gear_data.cluster.rdma.local_memory import LocalMemory
from gear_data.storage.manifest import Manifest


@dataclass(frozen=True)
class ReadContext:
    """Objects that all reads of a client share.

    Attributes:
        manifest: the dataset's manifest.
        memory: registered memory of this process.
        max_read_bytes: most bytes of one READ.
    """

    manifest: Manifest
    memory: LocalMemory
    max_read_bytes: int
