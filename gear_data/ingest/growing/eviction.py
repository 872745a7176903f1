"""Eviction: the parts of a dataset that leave, so that it stays below a limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.ingest.growing.draft import Draft

OLDEST = "oldest"


@dataclass(frozen=True)
class Limits:
    """The largest size of a growing dataset.

    Attributes:
        max_steps: steps; None: no limit.
        max_bytes: bytes of the shards and video files; None: no limit.
        evict: `oldest`, or a numeric column of the episode table: the parts with the smallest mean leave first.
    """

    max_steps: int | None = None
    max_bytes: int | None = None
    evict: str = OLDEST

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return self.max_steps is not None or self.max_bytes is not None


def parts_to_evict(draft: Draft, limits: Limits, added: int) -> list[int]:
    """Returns the numbers of the parts that leave.

    Whole parts leave. The newest one stays in any case.

    Args:
        draft: the dataset.
        limits: its largest size.
        added: number of parts that are new. They leave last.

    Raises:
        UnknownNameError: the episode table has no such column. The error lists the columns.
        InvalidArgumentError: the column is not numeric.
    """
    steps, size = draft.steps, sum(part.bytes for part in draft.parts)
    gone: list[int] = []
    for number in _order(draft, limits, added)[: len(draft.parts) - 1]:
        within = (limits.max_steps is None or steps <= limits.max_steps) and (
            limits.max_bytes is None or size <= limits.max_bytes
        )
        if within:
            break
        gone.append(number)
        steps, size = steps - draft.parts[number].steps, size - draft.parts[number].bytes
    return gone


def _order(draft: Draft, limits: Limits, added: int) -> list[int]:
    """Returns the parts, the first to leave first."""
    count = len(draft.parts)
    if not limits.any or limits.evict == OLDEST:
        return list(range(count))
    names = draft.episodes.column_names
    if limits.evict not in names:
        raise unknown_name("column", limits.evict, names)
    column = draft.episodes.column(limits.evict)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)):
        raise InvalidArgumentError(
            f"evict={limits.evict!r} is a column of {column.type}", hint="name a numeric column of the episode table"
        )
    values = np.nan_to_num(column.cast(pa.float64()).to_numpy(), nan=-np.inf)
    part = draft.part_of_shard()[draft.episodes.column("shard").to_numpy()]
    means = np.bincount(part, values, minlength=count) / np.bincount(part, minlength=count)
    old = count - added
    return [*np.argsort(means[:old], kind="stable").tolist(), *range(old, count)]
