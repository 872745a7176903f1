"""rate_limited: batches at the rate at which Writers insert steps."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Never

import numpy as np

from gear_data.common.keywords import refuse_keywords_of
from gear_data.common.paths import absolute_path, is_remote, plain_path
from gear_data.errors import InvalidArgumentError
from gear_data.recording.rate_limit.limit import RateLimit
from gear_data.recording.rate_limit.limiter import RateLimiter

Batch = Mapping[str, Any]


def rate_limited(
    batches: Iterable[Batch],
    path: str | os.PathLike[str],
    limit: RateLimit,
    *,
    source: int | None = None,
    **unknown: Never,
) -> Iterator[Batch]:
    """Yields batches, and waits before each batch that a rate limit does not allow yet.

    A batch counts when it is taken. Each rank counts its own rows, so a batch of all ranks counts once. Batches that
    the loader keeps ready do not count.

    Args:
        batches: a `SequenceLoader`, its DataLoader, or another iterable of batches.
        path: the dataset that Writers with the same limit record.
        limit: the limit.
        source: number of this dataset in the loader's `Mixture`: only rows of this dataset count. None: all rows.

    Returns:
        An iterator over one pass.

    Raises:
        InvalidArgumentError: the path is a URL, or a running process has another limit for this dataset, or batches
            have no `source`.
        RateLimitError: a wait lasted longer than the limit's `timeout`.
        StorageFullError, UnwritableError: the counters in `PATH.rate` cannot be written.
    """
    refuse_keywords_of(rate_limited, unknown)
    if is_remote(text := plain_path(path)):
        raise InvalidArgumentError("a rate limit needs a folder of this machine", file=text)
    return _limited(batches, RateLimiter(Path(absolute_path(text)), limit, "sampled"), source)


def _limited(batches: Iterable[Batch], limiter: RateLimiter, source: int | None) -> Iterator[Batch]:
    with limiter:
        iterator = iter(batches)
        while True:
            limiter.wait()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            limiter.add(_rows(batch, source))
            yield batch


def _rows(batch: Batch, source: int | None) -> int:
    """Returns the number of rows of this process, of one dataset of a mixture."""
    if source is None:
        return sum(len(part) for part in _parts(next(iter(batch.values()))))
    if "source" not in batch:
        raise InvalidArgumentError("batches have no source", hint="leave out source=, or give the loader a Mixture")
    return sum(int(np.count_nonzero(np.asarray(part) == source)) for part in _parts(batch["source"]))


def _parts(value: Any) -> list[Any]:
    """Returns the rows of this process: of a sharded array of JAX, those of its shards."""
    shards = getattr(value, "addressable_shards", None)
    return [value] if shards is None else [shard.data for shard in shards if shard.replica_id == 0]
