"""SealOptions: how journals become shards, and the largest size of the dataset."""

from __future__ import annotations

from dataclasses import dataclass

from gear_data.errors import InvalidArgumentError
from gear_data.growing.draft import Draft
from gear_data.ingest.engine.spec import SHARD_BYTES

OLDEST = "oldest"
#: A growing dataset with a limit has at least so many parts, so that an eviction takes a small share of it.
_PARTS = 8


@dataclass(frozen=True)
class SealOptions:
    """How journals are sealed.

    Attributes:
        shard_bytes: the size up to which shards are filled.
        max_steps: steps of the dataset; None: no limit.
        max_bytes: bytes of its shards and video files; None: no limit.
        evict: `oldest`, or a numeric column of the episode table: episodes of the smallest values leave first.

    Raises:
        InvalidArgumentError: a limit is not above 0.
    """

    shard_bytes: int = SHARD_BYTES
    max_steps: int | None = None
    max_bytes: int | None = None
    evict: str = OLDEST

    def __post_init__(self) -> None:
        for name, limit in (("max_steps", self.max_steps), ("max_bytes", self.max_bytes)):
            if limit is not None and not (isinstance(limit, int | float) and limit > 0):
                raise InvalidArgumentError(f"{name} must be above 0, not {limit!r}")

    @property
    def limited(self) -> bool:
        """Whether the dataset has a limit."""
        return self.max_steps is not None or self.max_bytes is not None

    @property
    def part_bytes(self) -> int:
        """The largest size of a part. Smaller ones are joined."""
        return self.shard_bytes if self.max_bytes is None else max(1, min(self.shard_bytes, self.max_bytes // _PARTS))

    @property
    def part_steps(self) -> int | None:
        """The most steps of a part; None: no limit."""
        return None if self.max_steps is None else max(1, self.max_steps // _PARTS)

    def excess(self, draft: Draft) -> float:
        """Returns the share of a draft's size that is above the limit; 0 or less: nothing."""
        steps = -1.0 if self.max_steps is None else 1 - self.max_steps / draft.steps
        size = -1.0 if self.max_bytes is None else 1 - self.max_bytes / draft.bytes
        return max(steps, size)
