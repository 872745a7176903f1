"""Keys that a loader adds to batches: the place of each window."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from gear_data import Goals, Mixture, SequenceLoader, Weighted
from gear_data.errors import InvalidArgumentError
from tests.support.feed import data as feed_data
from tests.support.feed.arguments import grouped
from tests.support.feed.batches import take

OPTIONS = {"batch_size": 6, "context": 5, "seed": 12, "window_ids": True}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sampler": "shuffle", "epochs": 1, "rank": 1, "world_size": 3},
        {"sampler": Weighted("length"), "anchor": "random", "prefetch": 0},
        {"preset": "gato"},
        {"preset": "lerobot"},
    ],
    ids=str,
)
def test_window_ids(dataset, episodes, options):
    """Every row holds the rewards of its episode from its first step on."""
    loader = SequenceLoader(dataset, **grouped(**{**OPTIONS, **options}))
    rank, ranks = options.get("rank", 0), options.get("world_size", 1)
    for step, batch in enumerate(itertools.islice(loader, 4)):
        expected = loader.windows(step)
        rows = slice(6 * rank // ranks, 6 * (rank + 1) // ranks)
        for key in ("episode_id", "start"):
            assert batch[key].dtype.itemsize == 8
            assert np.array_equal(batch[key], expected[key][rows])
        if "preset" in options:
            continue
        for episode, start, count, rewards in zip(
            *(batch[key].numpy() for key in ("episode_id", "start", "valid_count", "rewards")), strict=True
        ):
            assert np.array_equal(rewards[:count].ravel(), episodes[episode]["rewards"][start : start + count].ravel())


@pytest.mark.parametrize("join", [False, True])
def test_window_ids_of_a_mixture(dataset, join):
    mixture = Mixture([(dataset.filter("length > 6"), 1), (dataset, 2)], join=join)
    loader = SequenceLoader(mixture, **grouped(**OPTIONS))
    for step, batch in enumerate(take(loader, 3)):
        expected = loader.windows(step)
        for key, other in (("episode_id", "episode_id"), ("start", "start"), ("source", "dataset")):
            assert np.array_equal(batch[key], expected[other])


def test_window_ids_beside_a_column_of_their_name(make_dataset):
    episodes = [{**episode, "start": episode["rewards"]} for episode in feed_data.locomotion([4, 5], seed=1)]
    dataset = make_dataset(episodes)
    with pytest.raises(InvalidArgumentError, match="adds the key 'start'"):
        SequenceLoader(dataset, **grouped(**OPTIONS))
    assert "start" in take(SequenceLoader(dataset, **grouped(columns=["rewards"], **OPTIONS)), 1)[0]
    with pytest.raises(InvalidArgumentError, match="window_ids is True or False"):
        SequenceLoader(dataset, **grouped(**{**OPTIONS, "window_ids": 1}))


def test_a_column_is_never_replaced_by_a_number_of_its_windows(make_dataset):
    names = ("probability", "weights_version", "importance_weights", "value_goals")
    episodes = [{**each, **dict.fromkeys(names, each["rewards"])} for each in feed_data.locomotion([4, 5], seed=1)]
    dataset = make_dataset(episodes)
    weighted, corrected = Weighted("length"), Weighted("length", beta=0.5)
    for name, arguments in (
        ("probability", {"sampler": weighted}),
        ("weights_version", {"sampler": weighted}),
        ("importance_weights", {"sampler": corrected}),
        ("value_goals", {"goals": Goals()}),
    ):
        with pytest.raises(InvalidArgumentError, match=f"adds the key '{name}', which the batch already has"):
            SequenceLoader(dataset, 8, columns=["rewards", name], context=2, **arguments)
    columns = ["rewards", "importance_weights"]
    batch = SequenceLoader(dataset, 8, columns=columns, context=2, sampler=weighted).batch(0)
    assert torch.equal(batch["importance_weights"], batch["rewards"])
    # A joined batch has the numbers of all its datasets' samplers, another one those of its own.
    pairs = [(dataset, 1, {"sampler": weighted}), (dataset, 1)]
    with pytest.raises(InvalidArgumentError, match="adds the key 'probability'"):
        SequenceLoader(Mixture(pairs[::-1], join=True), 8, columns=["probability"], context=2)
    own = [(dataset, 1, {"sampler": weighted, "columns": ["rewards"]}), (dataset, 1, {"columns": ["probability"]})]
    for batch in take(SequenceLoader(Mixture(own), 8, context=2), 2):
        shape = (8,) if int(batch["source"][0]) == 0 else (8, 2)
        assert batch["probability"].shape == shape
