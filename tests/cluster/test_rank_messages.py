"""The published form of an error."""

from __future__ import annotations

import torch.distributed

from gear_data.cluster.error_codec import error_from_bytes
from gear_data.cluster.key_value_store import KeyValueStore
from gear_data.cluster.rank_messages import RankMessages
from gear_data.errors import ClusterError, CorruptShardError, GearError


def test_an_error_is_published_with_its_rank_and_stays_as_it_is() -> None:
    messages = RankMessages(KeyValueStore(torch.distributed.HashStore(), "run/", 0.5), "rank 1")
    error = CorruptShardError("is damaged", file="shards/000000.arrow", hint="repair it")
    failure = messages.as_failure(error)
    assert failure.rank == "rank 1"
    raised = error_from_bytes(failure.error.encode(), failure.rank)
    assert isinstance(raised, CorruptShardError)
    assert str(raised) == "rank 1: shards/000000.arrow: is damaged\n  repair it"
    assert (error.message, error.file) == ("is damaged", "shards/000000.arrow")


def test_an_error_of_another_rank_keeps_that_rank() -> None:
    messages = RankMessages(KeyValueStore(torch.distributed.HashStore(), "run/", 0.5), "rank 1")
    first: GearError = ClusterError("failed", file="rank 3")
    failure = messages.as_failure(first)
    assert failure.rank == "rank 3"
    assert str(error_from_bytes(failure.error.encode(), failure.rank)) == "rank 3: failed"
