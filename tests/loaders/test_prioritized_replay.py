"""Prioritised replay: one weight a step, updated during training, with importance weights."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch

from gear_data import Mixture, SequenceLoader, Weighted
from gear_data.errors import InvalidArgumentError
from tests.support.feed.batches import clones, same, take

LENGTHS = np.array([7, 1, 23, 40, 2, 20, 19, 21, 5])  # episodes of the fixture `dataset`
STEPS = int(LENGTHS.sum())
OPTIONS = {"batch_size": 12, "context": 6, "seed": 3, "columns": ["rewards"]}
BETA = [(0, 0.4), (20, 1.0)]


def prioritized(dataset, priorities=None, **options):
    weights = np.ones(dataset.num_steps) if priorities is None else priorities
    return SequenceLoader(
        dataset, **{**OPTIONS, "sampler": Weighted(weights, beta=BETA, divide_by_max=True), **options}
    )


def priorities_of(batch):
    """Returns new priorities, as a trainer computes them from errors; a function of the batch."""
    return batch["rewards"][:, 0].abs().numpy().astype(float) + 0.1


def train(loader, steps):
    """Trains for some steps, and updates the priorities of every batch's windows."""
    batches = iter(loader)
    for _ in range(steps):
        step = loader.state_dict()["step"]
        batch = next(batches)
        windows = loader.windows(step)
        # Every step is updated from a fixed step on, so that prefetching does not change the run.
        mine = slice(0, len(batch["valid_count"]))
        loader.update_weights(
            windows["episode_id"][mine], priorities_of(batch), steps=windows["start"][mine], from_step=step + 30
        )
        yield clones([batch])[0]
    batches.close()


def plain_run(dataset, steps):
    """Returns the weights of every step of the run, by a plain loop over `windows` of a loader without updates."""
    offsets = np.cumsum(LENGTHS) - LENGTHS
    weights = np.ones(STEPS)
    loader = prioritized(dataset, prefetch=0)
    for step in range(steps):
        batch, windows = loader.batch(step), loader.windows(step)
        weights[offsets[windows["episode_id"]] + windows["start"]] = priorities_of(batch)
    return weights


def test_a_run_of_prioritised_replay_is_exact_and_resumes(dataset):
    whole = list(train(prioritized(dataset, prefetch=0), 60))
    same(list(train(prioritized(dataset, prefetch=4), 60)), whole)
    # The first 30 batches are of the first weights; batch 59 has the weights of 30 updates.
    assert [int(batch["weights_version"][0]) for batch in whole] == [0] * 30 + list(range(1, 31))
    expected = plain_run(dataset, 30)
    offsets = np.cumsum(LENGTHS) - LENGTHS
    loader = prioritized(dataset, prefetch=0)
    list(train(loader, 60))
    windows = loader.windows(59)
    share = expected[offsets[windows["episode_id"]] + windows["start"]] / expected.sum()
    np.testing.assert_allclose(whole[59]["probability"].numpy(), share, rtol=1e-9)
    raw = (STEPS * share) ** -1.0
    np.testing.assert_allclose(whole[59]["importance_weights"].numpy(), raw / raw.max(), rtol=1e-9)
    # Interrupt, save as JSON, and go on.
    first = prioritized(dataset, prefetch=2)
    batches = list(train(first, 37))
    state = json.loads(json.dumps(first.state_dict()))
    again = prioritized(dataset)
    again.load_state_dict(state)
    same(batches + list(train(again, 23)), whole)


def test_importance_weights_are_of_the_global_batch_on_every_rank(dataset):
    priorities = np.random.default_rng(1).gamma(0.5, size=STEPS) + 1e-3
    whole = take(prioritized(dataset, priorities), 30)
    for batch, step in zip(whole, range(30), strict=True):
        beta = 0.4 + 0.6 * min(step, 20) / 20
        raw = (STEPS * batch["probability"]) ** -beta
        torch.testing.assert_close(batch["importance_weights"], raw / raw.max())
    ranks = [take(prioritized(dataset, priorities, rank=rank, world_size=3), 30) for rank in range(3)]
    same(
        [{key: torch.cat([part[key] for part in parts]) for key in parts[0]} for parts in zip(*ranks, strict=True)],
        whole,
    )
    spec = prioritized(dataset).spec()
    assert spec["importance_weights"] == {"beta": [[0, 0.4], [20, 1.0]], "divide_by_max": True}
    json.dumps(spec)


def test_steps_of_a_view_are_those_of_its_episodes(dataset):
    view = dataset.filter("length > 19")
    lengths = view.lengths
    weights = np.zeros(view.num_steps)
    weights[lengths[0] + 3] = 1  # step 3 of the view's second episode
    loader = prioritized(view, weights)
    windows = loader.windows(4)
    assert set(windows["episode_id"].tolist()) == {int(view.episode_ids[1])}
    assert set(windows["start"].tolist()) == {3}
    loader.update_weights([int(view.episode_ids[2])] * 2, [5.0, 1e6], steps=[1, int(lengths[2]) - 1], from_step=2)
    assert int(view.episode_ids[2]) in loader.windows(2)["episode_id"]
    with pytest.raises(InvalidArgumentError, match=f"{STEPS} weights, and the dataset or view has {len(view)}"):
        prioritized(view, np.ones(STEPS))


def test_a_joined_mixture_has_importance_weights_of_one_where_there_are_none(dataset):
    weighted = {"sampler": Weighted(np.arange(STEPS) + 1.0, beta=0.5)}
    mixture = Mixture([(dataset, 0.5, weighted), (dataset, 0.5)], join=True)
    batch = next(iter(SequenceLoader(mixture, **OPTIONS)))
    expected = (STEPS * batch["probability"]) ** -0.5
    torch.testing.assert_close(batch["importance_weights"], torch.where(batch["source"] == 0, expected, 1.0))


@pytest.mark.parametrize("join", [False, True])
def test_beta_counts_the_batches_of_its_dataset_in_a_mixture(dataset, join):
    """With `join`, every batch is of each dataset."""
    weighted = {"sampler": Weighted(np.arange(STEPS) + 1.0, beta=BETA)}
    mixture = Mixture([(dataset, 0.25, weighted), (dataset, 0.75, weighted)], join=join)
    earlier = [0, 0]
    for step, batch in enumerate(take(SequenceLoader(mixture, **OPTIONS), 30)):
        source = int(batch["source"][0])
        beta = 0.4 + 0.6 * min(step if join else earlier[source], 20) / 20
        torch.testing.assert_close(batch["importance_weights"], (STEPS * batch["probability"]) ** -beta)
        earlier[source] += 1
    assert join or 0 < earlier[0] < 20 < earlier[1]


def test_steps_are_given_where_steps_have_weights(dataset):
    loader = prioritized(dataset)
    batches = iter(loader)
    first = clones(itertools.islice(batches, 3))
    for steps, message in (
        (None, "names no steps"),
        ([0, 1], "one integer step for each of"),
        ([0.5], "one integer step"),
        ([40], "episode 3 has 40 steps, and the update names step 40"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            loader.update_weights([3], [1.0], steps=steps)
    by_episode = SequenceLoader(dataset, **OPTIONS, sampler=Weighted("length"))
    with pytest.raises(InvalidArgumentError, match="names steps"):
        by_episode.update_weights([3], [1.0], steps=[0])
    batches.close()
    same(first, take(prioritized(dataset), 3))
