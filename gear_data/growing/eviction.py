"""Eviction: the parts of a dataset that leave, so that it stays below a limit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gear_data.errors import InvalidArgumentError, unknown_name
from gear_data.growing.draft import Draft
from gear_data.growing.seal_options import SealOptions

#: Share of a dataset that is among the smallest weights, besides the excess. The larger it is, the fewer steps are
#: written again.
_FREED = 1 / 8


@dataclass(frozen=True, eq=False)
class Rewriting:
    """Parts that are written again as one, without some episodes.

    Attributes:
        parts: numbers of the parts.
        gone: bool [episodes], the episodes of these parts that leave.
    """

    parts: range
    gone: npt.NDArray[np.bool_]


def parts_to_evict(draft: Draft, options: SealOptions) -> list[int]:
    """Returns the numbers of the parts that leave, the oldest ones.

    Whole parts leave. The newest one stays in any case.
    """
    most_steps, most_bytes = (np.inf if each is None else each for each in (options.max_steps, options.max_bytes))
    steps, size = draft.steps, draft.bytes
    gone: list[int] = []
    for number in range(len(draft.parts) - 1):
        if steps <= most_steps and size <= most_bytes:
            break
        gone.append(number)
        steps, size = steps - draft.parts[number].steps, size - draft.parts[number].bytes
    return gone


def next_rewriting(draft: Draft, options: SealOptions, added: int) -> Rewriting | None:
    """Returns the part from which episodes of small weight leave next; None: there is none.

    Episodes leave that are among the smallest weights: so many of them that an eighth of the limit would be free
    without them. Parts that have no others leave first, the smallest mean first. Then the part with most steps of such
    episodes is written again. Adjacent parts that fit into one shard with it are joined.

    Args:
        draft: the dataset, which is above the limit.
        options: its largest size, and the largest size of a shard.
        added: number of parts that are new. They leave last.

    Raises:
        UnknownNameError: the episode table has no such column. The error lists the columns.
        InvalidArgumentError: the column is not numeric.
    """
    weights = _weights(draft, options.evict)
    lengths, shard = (draft.episodes.column(name).to_numpy() for name in ("length", "shard"))
    part, old = draft.part_of_shard()[shard], len(draft.parts) - added
    order = np.argsort(weights, kind="stable")
    order = order[part[order] < old]
    wanted = draft.steps * (options.excess(draft) + _FREED)
    small = np.zeros(len(lengths), np.bool_)
    small[order[: int(np.searchsorted(np.cumsum(lengths[order]), wanted)) + 1]] = True
    if not small.any():
        return None
    count = len(draft.parts)
    steps = np.array([each.steps for each in draft.parts])
    left = steps - np.bincount(part[small], lengths[small], minlength=count)
    sizes = np.array([each.bytes for each in draft.parts]) * left / steps
    if (empty := np.flatnonzero(left == 0)).size:
        means = np.bincount(part, np.nan_to_num(weights), minlength=count) / np.bincount(part, minlength=count)
        first = int(empty[np.argmin(means[empty])])
        return Rewriting(range(first, first + 1), part == first)
    first = int(np.argmax(steps - left))
    last = first + 1

    def fits(begin: int, end: int) -> bool:
        most = np.inf if options.part_steps is None else options.part_steps
        return bool(sizes[begin:end].sum() <= options.part_bytes and left[begin:end].sum() <= most)

    while last < old and fits(first, last + 1):
        last += 1
    while first > 0 and fits(first - 1, last):
        first -= 1
    return Rewriting(range(first, last), small & (part >= first) & (part < last))


def _weights(draft: Draft, name: str) -> npt.NDArray[np.float64]:
    names = draft.episodes.column_names
    if name not in names:
        raise unknown_name("column", name, names)
    column = draft.episodes.column(name)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)):
        raise InvalidArgumentError(
            f"evict={name!r} is a column of {column.type}", hint="name a numeric column of the episode table"
        )
    # Arrow casts no integers above 2^53 that floats round, unless it is told to.
    values: npt.NDArray[np.float64] = column.cast(pa.float64(), safe=False).to_numpy()
    return np.nan_to_num(values, nan=-np.inf)
