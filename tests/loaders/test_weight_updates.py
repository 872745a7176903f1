"""Weights that change while batches are prefetched.

The tests check the first step with the new weights, and that nothing else changes.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from gear_data import Mixture, SequenceLoader, Weighted
from gear_data.errors import InvalidArgumentError, StateMismatchError
from tests.support.cluster import update_rank
from tests.support.feed import data as feed_data
from tests.support.feed import reference as ref
from tests.support.feed.batches import clones, same, take

LENGTHS = [7, 1, 23, 40, 2, 20, 19, 21, 5]  # episodes of the fixture `dataset`
OPTIONS = {"batch_size": 10, "context": 6, "seed": 3, "columns": ["rewards"]}
#: The update removes episode 3, which is a third of all draws, and adds episode 1.
IDS, VALUES = [3, 1, 3], [7.0, 300.0, 0.0]
by_both = pytest.mark.parametrize("by", ["episode", "step"])


def weighted(dataset, by="episode", **options):
    return SequenceLoader(dataset, **{**OPTIONS, "sampler": Weighted("length + 1", by=by), **options})


def versions(batches):
    for batch in batches:
        assert batch["weights_version"].dtype == torch.int64
        assert batch["weights_version"].shape == batch["valid_count"].shape
        assert len(batch["weights_version"].unique()) == 1
    return [int(batch["weights_version"][0]) for batch in batches]


# From which step


@pytest.mark.parametrize("prefetch", [0, 2, 8])
@pytest.mark.parametrize("consumed", [0, 1, 5, 17])
@by_both
def test_an_update_holds_after_all_prefetched_batches(dataset, by, prefetch, consumed):
    never = take(weighted(dataset, by, prefetch=0), 60)
    loader = weighted(dataset, by, prefetch=prefetch)
    iterator = iter(loader)
    batches = clones(itertools.islice(iterator, consumed))
    first = loader.update_weights(IDS, VALUES)
    # The update holds after the batches that are ready or in progress. Batches are built in groups of four here.
    assert consumed <= first <= consumed + (prefetch + 4 * 4 if prefetch else 0)
    batches += clones(itertools.islice(iterator, 60 - consumed))
    iterator.close()
    before = weighted(dataset, by, prefetch=0)
    assert before.update_weights(IDS, VALUES, from_step=first) == first
    same(batches[:first], never[:first])
    same(batches, take(before, 60))
    assert versions(batches) == [0] * first + [1] * (60 - first)
    for step in (0, consumed, max(0, first - 1), first, 59):
        selection = loader.windows(step)
        assert batches[step]["valid_count"].tolist() == selection["length"].tolist()
        assert np.array_equal(selection["episode_id"], before.windows(step)["episode_id"])
    drawn = [set(loader.windows(step)["episode_id"].tolist()) for step in range(60)]
    assert 3 in set.union(*drawn[:first], {3} if not first else set())
    assert not any(3 in episodes for episodes in drawn[first:])
    assert all(1 in episodes for episodes in drawn[first:]) == (by == "episode")


def test_an_update_before_the_first_batch_holds_from_the_first_step(dataset):
    loader = weighted(dataset)
    assert loader.update_weights(IDS, VALUES) == 0
    assert versions(take(loader, 3)) == [1] * 3
    resumed = weighted(dataset)
    resumed.load_state_dict({**resumed.state_dict(), "step": 7})
    assert resumed.update_weights(IDS, VALUES) == 7


def test_an_update_holds_after_the_batches_of_all_passes(dataset):
    expected = take(weighted(dataset), 80)
    loader = weighted(dataset, steps=10)
    kept = [iter(loader) for _ in range(3)]
    batches = [clones(itertools.islice(each, count)) for each, count in zip(kept, (10, 4, 5), strict=True)]
    first = loader.update_weights(IDS, VALUES)
    assert 25 <= first <= 30
    batches += [clones(kept[2]), take(loader, 10)]
    changed = weighted(dataset)
    assert changed.update_weights(IDS, VALUES, from_step=first) == first
    after = take(changed, 40)
    same([*batches[0], *batches[1], *batches[2]], expected[:14] + expected[20:25])
    same([*batches[3], *batches[4]], after[25:])


@settings(max_examples=40)
@given(
    changes=st.lists(
        st.tuples(
            st.integers(0, 12),
            st.lists(st.tuples(st.integers(0, 8), st.floats(0.125, 1e6) | st.just(0.0)), max_size=4),
        ),
        max_size=5,
    ),
    prefetch=st.sampled_from([0, 1, 2, 5]),
    by=st.sampled_from(["episode", "step"]),
    replacement=st.booleans(),
)
def test_updates_during_a_pass_equal_updates_before_it(dataset, changes, prefetch, by, replacement):
    sampler = Weighted("length + 1", by=by, replacement=replacement)
    options = {**OPTIONS, "batch_size": 3, "sampler": sampler}
    loader, before = (SequenceLoader(dataset, **options, prefetch=depth) for depth in (prefetch, 0))
    iterator = iter(loader)
    batches, steps = [], []
    for consume, update in changes:
        batches += clones(itertools.islice(iterator, consume))
        # Without replacement, three episodes must keep a positive weight.
        ids, values = [e for e, _ in update if e > 2], [v for e, v in update if e > 2]
        steps.append(loader.update_weights(ids, values))
        assert before.update_weights(ids, values, from_step=steps[-1]) == steps[-1] >= len(batches)
    batches += clones(itertools.islice(iterator, max([0, *steps]) + 5 - len(batches)))
    same(batches, take(before, len(batches)))
    assert versions(batches) == [sum(first <= step for first in steps) for step in range(len(batches))]
    iterator.close()


def test_from_step(dataset):
    loader = weighted(dataset, prefetch=2)
    iterator = iter(loader)
    list(itertools.islice(iterator, 5))
    assert loader.update_weights(IDS, VALUES, from_step=40) == 40
    assert loader.update_weights([0], [5.0], from_step=np.int64(40)) == 40
    batches = clones(itertools.islice(iterator, 50))
    assert versions(batches) == [0] * 35 + [2] * 15
    for early in (0, 39, 54):
        with pytest.raises(InvalidArgumentError, match="from_step"):
            loader.update_weights([0], [1.0], from_step=early)
    with pytest.raises(InvalidArgumentError, match="from_step"):
        loader.update_weights([0], [1.0], from_step=-1)
    with pytest.raises(InvalidArgumentError, match="from_step"):
        loader.update_weights([0], [1.0], from_step=100.0)
    assert loader.update_weights([0], [1.0], from_step=1000) == 1000


def test_a_repeated_pass_repeats_the_updates_of_the_first(dataset):
    loader = weighted(dataset, steps=40, passes="repeat")
    iterator = iter(loader)
    batches = clones(itertools.islice(iterator, 25))
    loader.update_weights(IDS, VALUES)
    batches += clones(iterator)
    same(take(loader, 40), batches)


class Collecting:
    """Episode ids whose conversion to an array runs a garbage collection."""

    def __array__(self, dtype=None, copy=None):
        gc.collect()
        return np.array([0])


def test_an_abandoned_iterator_may_be_collected_during_an_update(dataset):
    loader = weighted(dataset, prefetch=2)
    iterator = iter(loader)
    next(iterator)
    cycle = [iterator]
    cycle.append(cycle)
    del iterator, cycle
    steps = []
    thread = threading.Thread(target=lambda: steps.append(loader.update_weights(Collecting(), [1.0])), daemon=True)
    thread.start()
    thread.join(timeout=120)
    assert not thread.is_alive()
    assert steps[0] >= 1


# Probabilities


def plain_probabilities(weights, by, windows):
    """Of drawing the window's anchor: every step is one."""
    total = sum(weight * (LENGTHS[e] if by == "step" else 1) for e, weight in weights.items())
    return [weights[e] / total / (1 if by == "step" else LENGTHS[e]) for e, _, _ in windows]


@by_both
@pytest.mark.parametrize("view", [False, True])
def test_probabilities_are_weights_over_their_sum(dataset, by, view):
    ids = [e for e, length in enumerate(LENGTHS) if length > 6] if view else list(range(9))
    loader = weighted(dataset.filter("length > 6") if view else dataset, by, prefetch=0)
    weights = {e: LENGTHS[e] + 1.0 for e in ids}
    changed = {**weights, 3: 1e-3, 7: 12.25}
    loader.update_weights([3, 7], [1e-3, 12.25], from_step=10)
    for step, batch in enumerate(take(loader, 20)):
        windows = ref.as_windows(loader.windows(step))
        expected = plain_probabilities(weights if step < 10 else changed, by, windows)
        assert batch["probability"].dtype == torch.float64
        np.testing.assert_allclose(batch["probability"].numpy(), expected, rtol=1e-9)
    total = sum(weight * (LENGTHS[e] if by == "step" else 1) for e, weight in changed.items())
    shares = [weight * (LENGTHS[e] if by == "step" else 1) / total for e, weight in changed.items()]
    size = loader.metrics()["effective_sample_size"]
    assert size == pytest.approx(1 / sum(share**2 for share in shares), rel=1e-9)


# Resuming


@pytest.mark.parametrize("after", [0, 3, 12, 30, 44])
@pytest.mark.parametrize("prefetch", [0, 2, 8])
@pytest.mark.parametrize("kept", [1024, 4])
def test_resuming_before_between_and_after_updates_is_exact(dataset, monkeypatch, after, prefetch, kept):
    """Updates at about steps 3, 12 and 30, and one for step 70.

    The last one is still in the future wherever the state is taken.
    """
    monkeypatch.setattr("gear_data.loaders.weight_updates._STEPS_KEPT", kept)
    loader = weighted(dataset, prefetch=prefetch)
    iterator = iter(loader)
    batches, state = [], None
    changes = {3: (IDS, VALUES, None), 12: ([3], [90.0], None), 30: ([0, 1], [0.5, 0.0], 70)}
    for step in range(45):
        if step in changes:
            ids, values, first = changes[step]
            loader.update_weights(ids, values, from_step=first)
        if step == after:
            state = json.loads(json.dumps(loader.state_dict()))
        batches.append(clones([next(iterator)])[0])
    batches += clones(itertools.islice(iterator, 45))
    iterator.close()
    assert state["step"] == after
    # The state does not know of updates that come after it.
    end = min([step for step in changes if step > after], default=90)
    for world_size in (1, 3):
        parts = []
        for rank in range(world_size):
            resumed = weighted(dataset, prefetch=prefetch, rank=rank, world_size=world_size)
            resumed.update_weights([5], [1e9])  # what came before does not matter
            resumed.load_state_dict(state)
            parts.append(take(resumed, end - after))
        joined = [{key: torch.cat([part[i][key] for part in parts]) for key in batches[0]} for i in range(end - after)]
        same(joined, batches[after:end])
    again = weighted(dataset)
    again.load_state_dict(state)
    assert again.state_dict() == state


def test_steps_whose_weights_are_gone_are_refused(dataset, monkeypatch):
    monkeypatch.setattr("gear_data.loaders.weight_updates._STEPS_KEPT", 4)
    loader = weighted(dataset, prefetch=0)
    iterator = iter(loader)
    list(itertools.islice(iterator, 10))
    expected = ref.as_windows(loader.windows(6))
    loader.update_weights(IDS, VALUES)
    list(itertools.islice(iterator, 10))
    loader.update_weights([0], [2.0])
    assert ref.as_windows(loader.windows(16)) != expected
    with pytest.raises(InvalidArgumentError, match="weights of step 3 are no longer kept"):
        loader.windows(3)
    with pytest.raises(InvalidArgumentError, match="weights of step 0 are no longer kept"):
        loader.batch(0)


def test_a_state_is_of_its_first_weights(dataset):
    loader = weighted(dataset)
    loader.update_weights(IDS, VALUES)
    state = loader.state_dict()
    with pytest.raises(StateMismatchError, match="selection"):
        SequenceLoader(dataset, **OPTIONS, sampler=Weighted("length + 2")).load_state_dict(state)
    for wrong in ({"rows": "?"}, {"updates": [{}]}, {"first_step": None}):
        with pytest.raises(StateMismatchError, match="malformed"):
            weighted(dataset).load_state_dict({**state, "weights": [{**state["weights"][0], **wrong}]})


# Refused updates


@pytest.mark.parametrize(
    ("ids", "values", "message"),
    [
        pytest.param([0, 9], [1.0, 1.0], "no episode 9", id="unknown"),
        pytest.param([-1], [1.0], "no episode -1", id="negative id"),
        pytest.param([4, 5], [1.0, float("nan")], "episode 5 is nan", id="NaN"),
        pytest.param([4], [float("inf")], "episode 4 is inf", id="infinite"),
        pytest.param([2, 6], [1.0, -0.5], "episode 6 is -0.5", id="negative"),
        pytest.param(list(range(9)), [0.0] * 9, "positive", id="all zero"),
        pytest.param([1, 2], [1.0], "integers", id="fewer values"),
        pytest.param([1.0], [1.0], "integers", id="floats as ids"),
        pytest.param([[1]], [[1.0]], "integers", id="two axes"),
        pytest.param(3, 1.0, "integers", id="scalars"),
        pytest.param([4], torch.ones(1, requires_grad=True), "detach", id="a gradient"),
    ],
)
def test_wrong_updates_are_refused_and_change_nothing(dataset, ids, values, message):
    expected = take(weighted(dataset), 20)
    loader = weighted(dataset, prefetch=2)
    iterator = iter(loader)
    batches = clones(itertools.islice(iterator, 4))
    with pytest.raises(InvalidArgumentError, match=message):
        loader.update_weights(ids, values)
    same(batches + clones(itertools.islice(iterator, 16)), expected)


def test_episodes_outside_a_view_are_refused(dataset):
    loader = weighted(dataset.filter("length > 6"))
    assert loader.update_weights([3], [1.0]) == 0
    with pytest.raises(InvalidArgumentError, match="no episode 1 "):
        loader.update_weights([3, 1], [1.0, 1.0])


def test_only_weighted_samplers_have_weights(dataset):
    with pytest.raises(InvalidArgumentError, match="Weighted"):
        SequenceLoader(dataset, **OPTIONS).update_weights([0], [1.0])
    for number in (1, -1, 0.0):
        with pytest.raises(InvalidArgumentError, match="dataset"):
            weighted(dataset).update_weights([0], [1.0], dataset=number)


# DataLoader workers


class Updating(torch.utils.data.IterableDataset):
    """Changes weights inside a worker, and yields the message of the error."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        try:
            self.loader.update_weights([0], [1.0])
        except InvalidArgumentError as error:
            yield str(error)


@pytest.mark.processes
def test_workers_cannot_update(dataset):
    (said,) = DataLoader(Updating(weighted(dataset)), batch_size=None, num_workers=1)
    assert "inside a DataLoader's worker" in said


@pytest.mark.processes
def test_workers_have_only_the_updates_before_their_start(dataset):
    inline = weighted(dataset, steps=9)
    inline.update_weights(IDS, VALUES, from_step=4)
    loader = weighted(dataset, steps=9)
    loader.update_weights(IDS, VALUES, from_step=4)
    same(list(DataLoader(loader, batch_size=None, num_workers=2)), take(inline, 9))
    with pytest.raises(InvalidArgumentError, match="workers"):
        loader.update_weights([0], [1.0])
    # The loader's own again.
    loader.load_state_dict({**inline.state_dict(), "step": 9})
    assert loader.update_weights([0], [1.0]) == 9


# Mixtures


def mixture_loader(dataset, other, join, **options):
    mixture = Mixture([(dataset, 2, {"sampler": "uniform"}), (other, 1)], join=join)
    return weighted(mixture, **options)


@pytest.mark.parametrize("join", [False, True])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_weights_of_one_dataset_of_a_mixture(dataset, make_dataset, join, prefetch):
    other = make_dataset(feed_data.locomotion([4, 9, 30], seed=5))
    never = take(mixture_loader(dataset, other, join), 60)
    loader = mixture_loader(dataset, other, join, prefetch=prefetch)
    iterator = iter(loader)
    batches = clones(itertools.islice(iterator, 11))
    first = loader.update_weights([2, 0], [0.0, 100.0], dataset=1)
    assert first >= 11
    batches += clones(itertools.islice(iterator, 49))
    iterator.close()
    same(batches[:first], never[:first])
    before = mixture_loader(dataset, other, join, prefetch=0)
    before.update_weights([2, 0], [0.0, 100.0], dataset=1, from_step=first)
    same(batches, take(before, 60))
    for step in range(60):
        selection = loader.windows(step)
        ours = selection["dataset"] == 1
        assert (2 in selection["episode_id"][ours]) <= (step < first)
        # The other dataset's windows stay as they were.
        assert torch.equal(batches[step]["rewards"][~ours], never[step]["rewards"][~ours])
        if ours.any():
            assert batches[step]["weights_version"][ours].tolist() == [int(step >= first)] * ours.sum()
    with pytest.raises(InvalidArgumentError, match="Weighted"):
        loader.update_weights([0], [1.0], dataset=0)
    resumed = mixture_loader(dataset, other, join)
    loader.load_state_dict({**loader.state_dict(), "step": first + 5})
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    same(take(resumed, 20), batches[first + 5 : first + 25])


# Ranks

SCRIPT = Path(update_rank.__file__)


@pytest.mark.processes
def test_ranks_update_together(dataset, tmp_path):
    feed_data.run_two_ranks(SCRIPT, dataset.path, tmp_path)
    results = [json.loads((tmp_path / f"out-{rank}.json").read_text()) for rank in range(2)]
    first, second, of_steps = results[0]["from"]
    assert results[1]["from"] == [first, second, of_steps]
    assert first >= 9
    assert second >= 25
    # One process, with all updates in the order of the ranks.
    alone = update_rank.loader(dataset, prefetch=0)
    alone.update_weights([3, 0, 3, 5], [1000.0, 500.0, 0.0, 250.0], from_step=first)
    alone.update_weights([1, 0], [800.0, 0.0], from_step=second)
    by_steps = update_rank.by_steps(dataset)
    joined = zip(*(update_rank.steps_update(rank) for rank in range(2)), strict=True)
    ids, values, steps = (list(itertools.chain(*each)) for each in joined)
    by_steps.update_weights(ids, values, steps=steps, from_step=of_steps)
    for rank in range(2):
        assert results[rank]["starts"] == [by_steps.windows(step)["start"].tolist() for step in range(20)]
    windows = [{name: values.tolist() for name, values in alone.windows(s).items()} for s in range(update_rank.STEPS)]
    assert not any(3 in selection["episode_id"] for selection in windows[first:])
    whole = take(alone, update_rank.STEPS)
    for rank in range(2):
        assert results[rank]["windows"] == windows
        wrong, unknown, unlike, early, partly = results[rank]["errors"]
        assert "some ranks give steps" in partly
        assert "-1" in wrong
        assert "no episode 99" in unknown
        assert "different from_step" in unlike
        assert "from_step" in early
        arrays = np.load(tmp_path / f"out-{rank}.npz")
        for key in whole[0]:
            mine = np.stack([batch[key].numpy()[3 * rank : 3 * rank + 3] for batch in whole])
            assert np.array_equal(arrays[key], mine), (rank, key)


@pytest.mark.processes
def test_a_fork_never_finds_the_weights_locked(dataset):
    """A forked child does not wait for a lock that a thread held.

    The child has no such thread, so it would wait for ever.
    """
    selector = weighted(dataset)._stages.newest.components[0].selector
    stop = threading.Event()

    def select() -> None:
        step = 0
        while not stop.is_set():
            selector.select(step, 2048, 0)
            step += 1

    thread = threading.Thread(target=select)
    thread.start()
    try:
        for _ in range(40):
            child = os.fork()
            if child == 0:
                signal.alarm(20)  # whose default ends the child
                selector.select(0, 4, 0)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()
