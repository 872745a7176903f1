"""The sink of a path or URL."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from gear_data.cluster.addresses import is_cluster
from gear_data.common.paths import is_remote
from gear_data.errors import InvalidArgumentError
from gear_data.growing.seal_options import SealOptions
from gear_data.recording.acceptance.columns import recorded_schema
from gear_data.recording.sealing import FolderPublisher
from gear_data.recording.sinks.episode_sink import EpisodeSink
from gear_data.recording.sinks.journal_sink import JournalSink
from gear_data.schema import ColumnSpec


def open_sink(location: str, options: SealOptions, publish_every: float | None, *, limited: bool) -> EpisodeSink:
    """Returns where a Writer puts its episodes.

    Args:
        location: a folder, a URL of an object store, or `gear://HOST:PORT`.
        options: how journals are sealed.
        publish_every: seconds between generations; None: only `seal` and `close` make them.
        limited: whether the Writer has a rate limit.

    Raises:
        InvalidArgumentError: an argument is not for this kind of place, or the store has no conditional puts.
        GearError: the place cannot be used. See `Writer`.
    """
    # Arrow's first conversion imports pandas, for a second or so. It must not delay the end of an episode.
    pa.array(np.zeros(1))
    if is_cluster(location):
        if publish_every is not None or options.limited or limited:
            raise InvalidArgumentError(
                "publish_every, max_steps, max_bytes and rate_limit need a folder of this machine",
                file=location,
                hint="leave them out: the server makes the dataset",
            )
        from gear_data.recording.sinks.remote_sink import RemoteSink

        return RemoteSink(location)
    # Likewise, what the first step is checked with.
    recorded_schema((ColumnSpec("actions", "float64"),), (), location)
    if is_remote(location):
        if limited:
            raise InvalidArgumentError(
                "rate_limit needs a folder of this machine", file=location, hint="leave it out, or record to a folder"
            )
        from gear_data.recording.object_store.publisher import BucketPublisher
        from gear_data.recording.object_store.sink import BucketSink

        return BucketSink(BucketPublisher(location, options), publish_every)
    return JournalSink(FolderPublisher(Path(location), options), publish_every)
