"""Batches as tests take and compare them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gear_data import Dataset, SequenceLoader
from tests.support.feed import reference as ref
from tests.support.feed.arguments import grouped

#: Of `first_batch`.
CONTEXT = 20
Batch = dict[str, torch.Tensor]


def clones(batches: Iterable[Batch]) -> list[Batch]:
    return [
        {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
        for batch in batches
    ]


def take(batches: Iterable[Batch], count: int) -> list[Batch]:
    """Returns the first batches of a pass, and closes the pass."""
    iterator: Any = iter(batches)
    taken = clones(itertools.islice(iterator, count))
    # A DataLoader's iterator has nothing to close.
    if isinstance(batches, SequenceLoader):
        iterator.close()
    return taken


def same(batches: Sequence[Batch], expected: Sequence[Batch]) -> None:
    """Asserts that batches are equal, dtypes included."""
    assert len(batches) == len(expected)
    for step, (batch, other) in enumerate(zip(batches, expected, strict=True)):
        assert batch.keys() == other.keys()
        for key in batch:
            if not isinstance(batch[key], torch.Tensor):
                assert batch[key] == other[key], (step, key)
                continue
            assert batch[key].dtype == other[key].dtype, (step, key)
            if key == "probability":
                # In a mixture, windows of a dataset without weights have NaN.
                assert np.array_equal(batch[key], other[key], equal_nan=True), step
            else:
                assert torch.equal(batch[key], other[key]), (step, key)


def first_batch(
    dataset: Dataset, *, batch_size: int = 64, context: int = CONTEXT, seed: int = 4, **options: Any
) -> tuple[dict[str, Any], list[tuple[int, int, int]]]:
    """(the batch of step 0, its windows (episode, start, length))."""
    loader = SequenceLoader(dataset, batch_size, **grouped(context=context, seed=seed, prefetch=0, **options))
    return next(iter(loader)), ref.as_windows(loader.windows(0))


def column(episodes: Sequence[Mapping[str, np.ndarray]], name: str) -> list[np.ndarray]:
    return [episode[name] for episode in episodes]
