"""torch's DataLoader and torchdata's StatefulDataLoader.

They give the same global sequence, and no batch is overwritten.
"""

from __future__ import annotations

import itertools
import json
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

from gear_data import SequenceLoader
from gear_data.errors import InvalidArgumentError, StateMismatchError
from tests.support.feed import data as feed_data
from tests.support.feed.batches import clones, same

OPTIONS = {"batch_size": 6, "context": 5, "seed": 12}
pytestmark = [
    pytest.mark.usefixtures("quick_spawn"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    pytest.mark.processes,
]


def inline(dataset, count, **options):
    return clones(itertools.islice(SequenceLoader(dataset, prefetch=0, **{**OPTIONS, **options}), count))


def through(loader, workers, start="fork", **options):
    if workers:
        options = {"multiprocessing_context": start, "prefetch_factor": 3, **options}
    return DataLoader(loader, batch_size=None, num_workers=workers, **options)


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_kept_batches_of_forked_workers_are_the_inline_ones(dataset, workers, prefetch):
    expected = inline(dataset, 100)
    loader = SequenceLoader(dataset, prefetch=prefetch, steps=100, **OPTIONS)
    kept = list(through(loader, workers))
    same(kept, expected)


@pytest.mark.parametrize("workers", [2])
def test_kept_batches_of_spawned_workers_are_the_inline_ones(dataset, workers):
    options = {"sampler": "shuffle", "transform": feed_data.add_noise, "rank": 1, "world_size": 2}
    expected = inline(dataset, 100, **options)
    loader = SequenceLoader(dataset, steps=100, **OPTIONS, **options)
    loader.load_state_dict({**loader.state_dict(), "step": 3})
    kept = list(through(loader, workers, "spawn"))
    same(kept, expected[3:])


@pytest.mark.parametrize("sampler", ["uniform", "shuffle", "fifo"])
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_the_end_of_epochs(dataset, sampler, workers):
    """Each epoch has 138 steps, which is not a whole number of batches.

    The workers have unequal numbers of batches.
    """
    options = {"sampler": sampler, "epochs": 2}
    loader = SequenceLoader(dataset, **OPTIONS, **options)
    batches = through(loader, workers)
    assert len(batches) == len(loader) == 46
    same(list(batches), inline(dataset, 99, **options))


def test_fewer_steps_than_workers(dataset):
    same(list(through(SequenceLoader(dataset, steps=2, **OPTIONS), 4)), inline(dataset, 2))


def test_transforms_draw_the_same_in_workers_and_inline(dataset):
    loader = SequenceLoader(dataset, steps=9, transform=feed_data.add_noise, **OPTIONS)
    expected = inline(dataset, 9, transform=feed_data.add_noise)
    assert len({tuple(batch["noise"].tolist()) for batch in expected}) == 9
    same(list(through(loader, 2)), expected)


def test_forking_while_prefetch_threads_run(dataset):
    iterator = iter(SequenceLoader(dataset, prefetch=4, **OPTIONS))
    first = [next(iterator) for _ in range(3)]
    expected = inline(dataset, 60)
    same(list(itertools.islice(through(SequenceLoader(dataset, **OPTIONS), 2), 60)), expected)
    same(first + [next(iterator) for _ in range(57)], expected)
    iterator.close()


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("left_early", [False, True])
def test_passes_over_a_dataloader_go_on(dataset, persistent, left_early):
    """The last batch of a pass is short, and every pass has another order."""
    options = {"sampler": "shuffle", "epochs": 1}
    plain = SequenceLoader(dataset, **OPTIONS, **options)
    expected = [clones(plain) for _ in range(4)]
    batches = through(SequenceLoader(dataset, **OPTIONS, **options), 2, persistent_workers=persistent)
    for number, whole in enumerate(expected):
        if left_early and number == 1:
            same(list(itertools.islice(batches, 3)), whole[:3])
        else:
            same(list(batches), whole)
    assert not torch.equal(expected[0][0]["rewards"], expected[1][0]["rewards"])


def test_validation_repeats_its_passes(dataset):
    expected = inline(dataset, 5)
    for workers in (0, 2):
        batches = through(SequenceLoader(dataset, steps=5, passes="repeat", **OPTIONS), workers)
        for _ in range(3):
            same(list(batches), expected)


@pytest.mark.parametrize(("workers", "start"), [(0, "fork"), (2, "fork"), (2, "spawn")])
def test_set_epoch_before_each_pass(dataset, workers, start):
    expected = inline(dataset, 40)
    loader = SequenceLoader(dataset, steps=10, **OPTIONS)
    batches = through(loader, workers, start, persistent_workers=workers > 0)
    for epoch in (2, 0, 3):
        loader.set_epoch(epoch)
        same(list(batches), expected[10 * epoch :][:10])
    loader.load_state_dict({**SequenceLoader(dataset, **OPTIONS).state_dict(), "step": 14})
    for epoch in (0, 1):  # Accelerate counts from 0 after a resume
        loader.set_epoch(epoch)
        same(list(batches), expected[10 * epoch + (14 if epoch == 0 else 10) : 10 * epoch + 20])


def test_workers_do_not_go_on_without_an_end(dataset):
    batches = through(SequenceLoader(dataset, **OPTIONS), 1)
    next(iter(batches))
    with pytest.raises(InvalidArgumentError, match=r"second pass.*\n.*steps="):
        next(iter(batches))


def test_two_iterators_of_a_dataloader_at_once(dataset):
    batches = through(SequenceLoader(dataset, steps=60, **OPTIONS), 2)
    with pytest.raises(InvalidArgumentError, match="another iteration of this loader began"):
        for _ in zip(batches, batches, strict=True):
            pass


@pytest.mark.parametrize("workers", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("done", [1, 7, 8])
def test_a_state_is_valid_for_any_number_of_workers(dataset, workers, done):
    loader = SequenceLoader(dataset, **OPTIONS)
    iterator = iter(loader)
    for _ in range(done):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    iterator.close()
    resumed = SequenceLoader(dataset, steps=20, **OPTIONS)
    resumed.load_state_dict(state)
    same(list(through(resumed, workers)), inline(dataset, 20)[done:])


@pytest.mark.parametrize(
    ("workers", "start", "persistent"),
    [(0, "fork", False), *((n, "fork", kept) for n in (1, 2) for kept in (False, True)), (2, "spawn", False)],
)
def test_a_loaded_state_is_for_one_pass(dataset, workers, start, persistent):
    expected = inline(dataset, 36)
    loader = SequenceLoader(dataset, steps=12, **OPTIONS)
    loader.load_state_dict({**loader.state_dict(), "step": 7})
    batches = through(loader, workers, start, persistent_workers=persistent)
    # Spawned workers take seconds to start.
    for first, end in [(7, 12), (12, 24), (24, 36)][: 3 if start == "fork" else 2]:
        same(list(batches), expected[first:end])


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loaded_state_is_for_one_pass_even_if_passes_have_one_seed(dataset, persistent):
    loader = SequenceLoader(dataset, steps=12, **OPTIONS)
    loader.load_state_dict({**loader.state_dict(), "step": 7})
    batches = through(loader, 3, persistent_workers=persistent)
    expected = inline(dataset, 36)
    for first, end in (7, 12), (12, 24), (24, 36):
        torch.manual_seed(0)
        same(list(batches), expected[first:end])


@pytest.mark.parametrize("persistent", [False, True])
def test_states_loaded_between_passes(dataset, persistent):
    expected = inline(dataset, 24)
    loader = SequenceLoader(dataset, steps=12, **OPTIONS)
    state = loader.state_dict()
    batches = through(loader, 2, persistent_workers=persistent)
    same(list(batches), expected[:12])
    for step in (3, 9, 3):
        loader.load_state_dict({**state, "step": step})
        same(list(batches), expected[step:12])
    same(list(batches), expected[12:])


def test_passes_in_workers_and_inline_are_counted_together(dataset):
    expected = inline(dataset, 36)
    loader = SequenceLoader(dataset, steps=9, **OPTIONS)
    state = loader.state_dict()
    loader.load_state_dict({**state, "step": 4})
    same(list(through(loader, 2)), expected[4:9])
    same(clones(loader), expected[9:18])
    same(list(through(loader, 3)), expected[18:27])
    loader.load_state_dict({**state, "step": 4})
    same(clones(loader), expected[4:9])
    same(list(through(loader, 2)), expected[9:18])


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_processes_that_are_not_workers_do_not_share_a_state(dataset, start):
    loader = SequenceLoader(dataset, steps=9, **OPTIONS)
    loader.load_state_dict({**loader.state_dict(), "step": 4})
    context = torch.multiprocessing.get_context(start)
    for _ in range(2):
        received, sent = context.Pipe(duplex=False)
        child = context.Process(target=feed_data.lengths_of_passes, args=(loader, sent))
        child.start()
        assert received.poll(60)
        assert received.recv() == [5, 9]
        child.join()
    assert len(list(loader)) == 5


def test_no_state_is_returned_after_workers_iterated(dataset):
    loader = SequenceLoader(dataset, steps=6, **OPTIONS)
    state = loader.state_dict()
    list(through(loader, 1))
    with pytest.raises(StateMismatchError, match="StatefulDataLoader"):
        loader.state_dict()
    with pytest.raises(StateMismatchError, match="StatefulDataLoader"):
        pickle.loads(pickle.dumps(loader)).state_dict()
    loader.load_state_dict({**state, "step": 5})
    assert loader.state_dict()["step"] == 5
    list(through(loader, 1))
    next(iter(loader))
    assert loader.state_dict()["step"] == 7


def test_an_error_in_a_worker_names_its_cause(dataset):
    loader = SequenceLoader(dataset, transform=feed_data.fail_at_step_3, prefetch=0, **OPTIONS)
    batches = iter(through(loader, 1))
    for _ in range(3):
        next(batches)
    with pytest.raises(OSError, match="transform broke"):
        next(batches)


@pytest.mark.parametrize(
    ("workers", "done"), [*((workers, done) for workers in (0, 3) for done in (1, 7, 22, 23, 24, 31)), (1, 7), (1, 23)]
)
def test_stateful_dataloader_resumes_in_the_middle(dataset, workers, done):
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader():
        sequence = SequenceLoader(dataset, sampler="shuffle", epochs=1, **OPTIONS)
        return StatefulDataLoader(sequence, batch_size=None, num_workers=workers)

    plain = SequenceLoader(dataset, sampler="shuffle", epochs=1, **OPTIONS)
    expected = [batch for _ in range(4) for batch in clones(plain)]
    first = loader()
    iterator = itertools.chain.from_iterable(itertools.repeat(first))
    same([next(iterator) for _ in range(done)], expected[:done])
    state = first.state_dict()
    del iterator
    resumed = loader()
    resumed.load_state_dict(state)
    end = 23 if done < 23 else 46
    if done == 23 and workers:
        assert list(resumed) == []  # the rest of the pass, as torchdata resumes any dataset
    same(list(resumed), expected[done:end])
    same(list(resumed), expected[end : end + 23])


def states_at_the_end(stateful):
    """Returns the states after the last of five batches, and after the `for`."""
    batches = iter(stateful)
    for _ in range(5):
        next(batches)
    inside = stateful.state_dict()
    assert next(batches, None) is None
    return inside, stateful.state_dict()


@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_dataloader_resumes_at_the_end_of_a_pass(dataset, workers):
    """torchdata resumes a range in the pass of the state, also at its end."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def through_torchdata(batches):
        return StatefulDataLoader(batches, batch_size=None, num_workers=workers)

    def pass_after(batches, state):
        resumed = through_torchdata(batches)
        resumed.load_state_dict(state)
        return list(resumed)

    inside, after = states_at_the_end(through_torchdata(range(5)))
    assert pass_after(range(5), inside) == []
    assert pass_after(range(5), after) == [0, 1, 2, 3, 4]
    inside, after = states_at_the_end(through_torchdata(SequenceLoader(dataset, steps=5, **OPTIONS)))
    second = inline(dataset, 10)[5:]
    same(pass_after(SequenceLoader(dataset, steps=5, **OPTIONS), inside), [] if workers else second)
    same(pass_after(SequenceLoader(dataset, steps=5, **OPTIONS), after), second)


def test_a_worker_refuses_the_state_of_another_worker(dataset, monkeypatch):
    loader = SequenceLoader(dataset, **OPTIONS)
    state = {**loader.state_dict(), "worker": [1, 2], "worker_pass": 3}
    with pytest.raises(StateMismatchError, match="worker"):
        loader.load_state_dict(state)
    for place, fits in (((0, 2), False), ((1, 3), False), ((1, 2), True)):
        worker = SimpleNamespace(id=place[0], num_workers=place[1], seed=7 + place[0])
        for module in ("passes.progress", "passes.shared_passes"):
            monkeypatch.setattr(f"gear_data.loaders.{module}.get_worker_info", lambda worker=worker: worker)
        if fits:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
        else:
            with pytest.raises(StateMismatchError, match="worker"):
                loader.load_state_dict(state)
