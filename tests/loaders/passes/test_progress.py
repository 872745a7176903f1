"""Passes go on: steps over all passes, set_epoch, states, misuse."""

from __future__ import annotations

import copy
import itertools
import json
import pickle

import numpy as np
import pytest
import torch
from accelerate import skip_first_batches

import gear_data
from gear_data import SequenceLoader
from gear_data.errors import InvalidArgumentError, StateMismatchError, UnknownNameError
from tests.support.feed.batches import clones, same, take

#: An epoch of the dataset has 138 windows: 13 batches of 10, and one of 8.
OPTIONS = {"batch_size": 10, "context": 6, "seed": 3}
SHUFFLE = {**OPTIONS, "sampler": "shuffle", "epochs": 1}


def windows(loader, steps):
    """The (episode, first step) of all windows of some steps."""
    found = [loader.windows(step) for step in steps]
    return [pair for each in found for pair in zip(each["episode_id"], each["start"], strict=True)]


# Steps


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("options", [{"steps": 7}, {"steps": 7, "sampler": "shuffle"}, {}])
def test_passes_are_pieces_of_a_pass_without_end(dataset, options, prefetch):
    """Without steps=, a pass goes on after the last batch that was taken."""
    options = {**OPTIONS, "prefetch": prefetch, **options}
    expected = take(SequenceLoader(dataset, **{**options, "steps": None}), 21)
    loader = SequenceLoader(dataset, **options)
    passes = [clones(itertools.islice(loader, 7)) for _ in range(3)]
    same([batch for each in passes for batch in each], expected)
    assert loader.state_dict()["step"] == 21


@pytest.mark.parametrize("sampler", ["shuffle", "fifo"])
@pytest.mark.parametrize("epochs", [1, 2])
def test_every_pass_has_every_window_and_a_short_last_batch(dataset, sampler, epochs):
    loader = SequenceLoader(dataset, **{**SHUFFLE, "sampler": sampler, "epochs": epochs})
    whole = SequenceLoader(dataset, **{**SHUFFLE, "sampler": sampler, "epochs": 6 * epochs, "batch_size": 138})
    orders = []
    for number in range(3):
        batches = clones(loader)
        count = len(loader)
        assert [len(batch["valid_count"]) for batch in batches] == [10] * (count - 1) + [138 * epochs % 10]
        steps = range(number * count, (number + 1) * count)
        same([loader.batch(step) for step in steps], batches)
        order = windows(loader, steps)
        # A batch of `whole` is an epoch.
        assert order == windows(whole, range(number * epochs, (number + 1) * epochs))
        orders.append(order)
    assert len({tuple(order) for order in orders}) == (3 if sampler == "shuffle" else 1)


def test_ranks_divide_the_batches_of_later_passes(dataset):
    whole, *parts = (
        [clones(loader) for _ in range(2)][1]
        for loader in (
            SequenceLoader(dataset, **SHUFFLE),
            *(SequenceLoader(dataset, rank=rank, world_size=3, **SHUFFLE) for rank in range(3)),
        )
    )
    joined = [{key: torch.cat([part[key] for part in step]) for key in step[0]} for step in zip(*parts, strict=True)]
    same(joined, whole)
    assert [len(part[-1]["valid_count"]) for part in parts] == [2, 3, 3]


def test_transforms_draw_other_numbers_in_every_pass(dataset):
    def draw(batch, rng):
        return {"noise": torch.from_numpy(rng.normal(size=2))}

    loader = SequenceLoader(dataset, steps=3, transform=draw, **OPTIONS)
    drawn = [batch["noise"][0].item() for _ in range(2) for batch in loader]
    assert len(set(drawn)) == 6


def test_a_pass_that_is_left_is_over(dataset):
    expected = take(SequenceLoader(dataset, **OPTIONS), 30)
    loader = SequenceLoader(dataset, steps=10, **OPTIONS)
    for _ in loader:
        break
    # The state is of the pass that was left, as torchdata's.
    resumed = SequenceLoader(dataset, steps=10, **OPTIONS)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    same(clones(resumed), expected[1:10])
    same(clones(loader), expected[10:20])
    iter(loader)  # without a batch, no pass begins
    same(clones(loader), expected[20:])


def test_repeated_passes(dataset):
    loader = SequenceLoader(dataset, **SHUFFLE, passes="repeat", prefetch=3)
    first = clones(SequenceLoader(dataset, **SHUFFLE))
    for epoch in range(2):
        loader.set_epoch(epoch)
        same(clones(loader), first)
    take(loader, 5)
    same(clones(loader), first)
    take(loader, 5)
    resumed = SequenceLoader(dataset, **SHUFFLE, passes="repeat")
    resumed.load_state_dict(loader.state_dict())
    same(clones(resumed), first[5:])
    resumed.load_state_dict(resumed.state_dict())
    same(clones(resumed), first)
    for refused in (loader.windows, loader.batch):
        with pytest.raises(InvalidArgumentError, match="0 to 13"):
            refused(14)
    with pytest.raises(StateMismatchError, match="0 to 13"):
        loader.load_state_dict({**loader.state_dict(), "step": 28})
    with pytest.raises(UnknownNameError, match="repeat"):
        SequenceLoader(dataset, **OPTIONS, passes="again")


def test_a_pass_without_batches(dataset):
    loader = SequenceLoader(dataset, steps=0, **OPTIONS)
    for epoch in range(2):
        loader.set_epoch(epoch)
        assert list(loader) == []
    assert loader.state_dict()["step"] == 0
    for refused in (loader.windows, loader.batch):
        with pytest.raises(InvalidArgumentError, match="step"):
            refused(0)


def test_weight_updates_in_a_later_pass(dataset):
    options = {**OPTIONS, "sampler": gear_data.Weighted("length")}
    loader, plain = SequenceLoader(dataset, steps=6, **options), SequenceLoader(dataset, **options)
    assert plain.update_weights([0], [0.0], from_step=20) == 20
    list(loader)
    batches = take(loader, 1)
    assert loader.update_weights([0], [0.0], from_step=20) == 20  # in the fourth pass
    for _ in range(2):
        batches += clones(loader)
    assert [int(batch["weights_version"][0]) for batch in batches] == [0] * 9 + [1] * 4
    expected = take(plain, 24)
    same(batches, expected[6:7] + expected[12:])


# set_epoch


def test_set_epoch(dataset):
    expected = take(SequenceLoader(dataset, **OPTIONS), 40)
    loader = SequenceLoader(dataset, steps=10, **OPTIONS)
    for epoch in (3, 0, 0, np.int64(1)):
        loader.set_epoch(epoch)
        assert loader.state_dict()["step"] == 10 * epoch
        same(clones(loader), expected[10 * epoch :][:10])
    take(loader, 4)
    loader.set_epoch(2)  # the pass that was left
    same(clones(loader), expected[20:30])
    for wrong in (-1, 1.0, None):
        with pytest.raises(InvalidArgumentError, match="epoch"):
            loader.set_epoch(wrong)
    endless = SequenceLoader(dataset, **OPTIONS)
    take(endless, 3)
    endless.set_epoch(0)
    same(take(endless, 3), expected[3:6])


def test_set_epoch_inside_its_pass_changes_nothing(dataset):
    """Some frameworks call it after the first batch."""
    expected = take(SequenceLoader(dataset, **OPTIONS), 30)
    loader = SequenceLoader(dataset, steps=10, **OPTIONS)
    for epoch in range(3):
        batches = iter(loader)
        first = clones(itertools.islice(batches, 4))
        loader.set_epoch(epoch)
        assert loader.state_dict()["step"] == 10 * epoch + 4
        same(first + clones(batches), expected[10 * epoch :][:10])


@pytest.mark.parametrize(
    ("epochs", "passes"),
    [((1, 2, 3), (1, 2, 3)), ((0, 1, 2), (1, 2, 3)), ((0, 1, 0), (1, 2, 1))],
    ids=["counted from the start", "counted from the resume", "back"],
)
def test_set_epoch_after_a_resume(dataset, epochs, passes):
    expected = take(SequenceLoader(dataset, **OPTIONS), 40)
    loader = SequenceLoader(dataset, steps=10, **OPTIONS)
    loader.load_state_dict({**loader.state_dict(), "step": 14})
    for turn, (epoch, number) in enumerate(zip(epochs, passes, strict=True)):
        loader.set_epoch(epoch)
        if turn == 0:
            loader.set_epoch(epoch)
            assert loader.state_dict()["step"] == 14
        same(clones(loader), expected[14 if turn == 0 else 10 * number : 10 * (number + 1)])


# States


def test_a_state_at_the_end_of_a_pass_begins_the_next(dataset):
    loader = SequenceLoader(dataset, **SHUFFLE)
    expected = [clones(loader) for _ in range(2)]
    resumed = SequenceLoader(dataset, **SHUFFLE)
    resumed.load_state_dict({**loader.state_dict(), "step": 14})
    iter(resumed)
    assert resumed.state_dict()["step"] == 14
    same(clones(resumed), expected[1])


@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_copies_go_on_alone(dataset, twin_of):
    expected = take(SequenceLoader(dataset, **OPTIONS), 30)
    loader = SequenceLoader(dataset, steps=10, **OPTIONS)
    list(loader)
    twin = twin_of(loader)
    for each in (loader, twin):
        same(clones(each), expected[10:20])
    loader.load_state_dict({**loader.state_dict(), "step": 27})
    same(clones(twin_of(loader)), expected[27:])
    same(clones(loader), expected[27:])
    same(clones(twin), expected[20:])


def test_a_step_of_passes_with_other_windows_is_refused(dataset):
    """In the first pass, a step has the same windows with any steps= or epochs=."""
    loader = SequenceLoader(dataset, **SHUFFLE)
    state = {**loader.state_dict(), "step": 13}
    other = SequenceLoader(dataset, **{**SHUFFLE, "epochs": None, "steps": 20})
    expected = take(other, 20)
    other.load_state_dict(state)
    same(take(other, 7), expected[13:])
    with pytest.raises(StateMismatchError, match=r"138 windows before step 14, this loader 140.*\n.*epochs="):
        other.load_state_dict({**state, "step": 14})
    with pytest.raises(StateMismatchError, match=r"140 windows before step 14, this loader 138"):
        loader.load_state_dict({**other.state_dict(), "step": 14})
    for damaged in ([0, 1], "pass", [14], {}):
        with pytest.raises(StateMismatchError, match="pass"):
            loader.load_state_dict({**state, "pass": damaged})
    with pytest.raises(StateMismatchError, match=r"version 2.*\n.*step"):
        loader.load_state_dict({**state, "version": 2})


# Misuse


def test_two_iterators_at_once(dataset):
    loader = SequenceLoader(dataset, steps=10, **OPTIONS)
    taken = []
    with pytest.raises(InvalidArgumentError, match=r"another iteration.*\n.*make one SequenceLoader for each"):
        for pair in zip(loader, loader, strict=True):
            taken.append(pair)
    assert len(taken) == 1
    # An iterator that is kept but no longer used is no second one.
    kept = iter(loader)
    next(kept)
    assert len(list(loader)) == 10
    with pytest.raises(InvalidArgumentError, match="another iteration"):
        next(kept)
    assert list(kept) == []  # closed
    separate = zip(
        SequenceLoader(dataset, steps=3, **OPTIONS), SequenceLoader(dataset, steps=3, **OPTIONS), strict=True
    )
    for first, second in separate:
        same([first], [second])


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("steps", [10, None])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_resume_with_a_skip_on_top(dataset, steps, workers):
    """transformers.Trainer skips by the same function."""
    expected = take(SequenceLoader(dataset, **OPTIONS), 10)
    loader = SequenceLoader(dataset, steps=steps, **OPTIONS)
    skipping = skip_first_batches(loader.dataloader(workers), 4)
    same(clones(itertools.islice(skipping, 6)), expected[4:])
    loader.load_state_dict({**SequenceLoader(dataset, **OPTIONS).state_dict(), "step": 4})
    with pytest.raises(InvalidArgumentError, match=r"skip 4 more batches.*\n.*LoaderTrainer"):
        next(iter(skipping))
    same(clones(itertools.islice(loader, 6)), expected[4:])
