"""SealOptions: how journals become shards."""

from __future__ import annotations

from dataclasses import dataclass, field

from gear_data.growing.eviction import Limits
from gear_data.ingest.engine.spec import SHARD_BYTES

#: A growing dataset with a limit has at least so many parts, so that an eviction takes a small share of it.
_PARTS = 8


@dataclass(frozen=True)
class SealOptions:
    """How journals are sealed.

    Attributes:
        shard_bytes: the size up to which shards are filled.
        limits: the largest size of the dataset.
    """

    shard_bytes: int = SHARD_BYTES
    limits: Limits = field(default_factory=Limits)

    @property
    def part_bytes(self) -> int:
        """The largest size of a part."""
        most = self.limits.max_bytes
        return self.shard_bytes if most is None else max(1, min(self.shard_bytes, most // _PARTS))

    @property
    def part_steps(self) -> int | None:
        """The most steps of a part; None: no limit."""
        return None if self.limits.max_steps is None else max(1, self.limits.max_steps // _PARTS)
