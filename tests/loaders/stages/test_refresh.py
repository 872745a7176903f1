"""A loader takes newer generations of its dataset, each from a step on."""

from __future__ import annotations

import gc
import itertools
import json
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from gear_data import Goals, Mixture, Seconds, SequenceLoader, TopK, Uniform, Weighted
from gear_data.errors import GenerationGoneError, InvalidArgumentError, StateMismatchError
from gear_data.loaders.stages.timeline import STEPS_KEPT
from tests.support.cluster.growing import refresh_rank
from tests.support.feed import reference as ref
from tests.support.feed.arguments import grouped
from tests.support.feed.batches import clones, same, take
from tests.support.feed.data import convert_episodes, locomotion, run_two_ranks
from tests.support.feed.growing import GrowingDataset

BATCH, CONTEXT, SEED = 10, 6, 3
OPTIONS = {"batch_size": BATCH, "context": CONTEXT, "seed": SEED, "columns": ["rewards"], "window_ids": True}


@pytest.fixture
def growing(tmp_path: Path) -> GrowingDataset:
    return GrowingDataset(tmp_path / "growing")


def make(dataset: Any, **options: Any) -> SequenceLoader:
    return SequenceLoader(dataset, **grouped(**{**OPTIONS, **options}))


def taken(iterator: Any, count: int) -> list[Any]:
    return clones(itertools.islice(iterator, count))


def as_windows(batch: Any) -> list[Any]:
    return list(zip(*(batch[key].tolist() for key in ("episode_id", "start", "valid_count")), strict=True))


def check(growing: GrowingDataset, batches: list[Any], first_steps: list[int], first: int = 0) -> None:
    """Asserts that batches are those that plain Python draws.

    Args:
        batches: of the steps `first` and following.
        first_steps: the first step of each generation.
    """
    for step, batch in enumerate(batches, first):
        generation = sum(each <= step for each in first_steps) - 1
        windows = growing.case(generation, CONTEXT).uniform(SEED, step, BATCH, "step")
        assert as_windows(batch) == windows, step
        rewards = ref.right_padded(growing.column("rewards"), windows, 0, CONTEXT)
        assert np.array_equal(batch["rewards"].numpy(), rewards), step


# Batches


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_generation_holds_after_all_prefetched_batches(growing, prefetch):
    loader = make(growing.open(), prefetch=prefetch)
    iterator = iter(loader)
    batches, first_steps = taken(iterator, 3), [0]
    for limits in ({}, {"max_steps": 60}):  # the second generation evicts episodes: ids are no longer rows
        growing.grow(4, **limits)
        before = len(batches)
        first_steps.append(loader.refresh())
        assert before <= first_steps[-1] <= before + (prefetch + 4 * 4 if prefetch else 0)
        assert loader.refresh() == first_steps[-1]  # nothing is newer
        batches += taken(iterator, 25)
    assert growing.live[2][0] > 0
    check(growing, batches, first_steps)
    assert loader.dataset.generation == 2
    for step in (first_steps[-1], 60, 1000):
        windows = growing.case(2, CONTEXT).uniform(SEED, step, BATCH, "step")
        assert ref.as_windows(loader.windows(step)) == windows == as_windows(loader.batch(step))
    assert loader.metrics()["windows"] == BATCH * len(batches)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_have_their_rows_of_every_generation(growing, world_size):
    loaders = [make(growing.open(), rank=rank, world_size=world_size) for rank in range(world_size)]
    iterators = [iter(loader) for loader in loaders]
    batches = [taken(each, 5) for each in iterators]
    growing.grow(5)
    for loader, iterator, own in zip(loaders, iterators, batches, strict=True):
        assert loader.refresh(from_step=30) == 30
        own += taken(iterator, 40)
    whole = [
        {key: torch.cat([each[key] for each in parts]) for key in parts[0]} for parts in zip(*batches, strict=True)
    ]
    check(growing, whole, [0, 30])


def test_from_step_may_be_inside_a_group_of_batches(growing):
    loader = make(growing.open(), prefetch=8)
    growing.grow(3)
    assert loader.refresh(from_step=6) == 6
    growing.grow(3)
    assert loader.refresh(from_step=7) == 7
    check(growing, take(loader, 20), [0, 6, 7])


def test_a_generation_that_no_batch_was_drawn_from_is_replaced(growing):
    loader = make(growing.open())
    for _ in range(3):
        growing.grow(2)
        assert loader.refresh() == 0
    assert len(loader.state_dict()["stages"]) == 1
    check(growing, take(loader, 5), [-3, -2, -1, 0])


def test_from_step_too_early_changes_nothing(growing):
    loader = make(growing.open(), prefetch=0)
    iterator = iter(loader)
    batches = taken(iterator, 5)
    growing.grow(3)
    for wrong in (4, -1, 2.0):
        with pytest.raises(InvalidArgumentError, match="from_step"):
            loader.refresh(from_step=wrong)
    check(growing, batches + taken(iterator, 5), [0])
    assert loader.refresh() == 10


def test_steps_of_earlier_generations_are_found_again(growing):
    growing.grow(1)
    held = growing.open()  # keeps the files of generation 1
    loader = make(held, prefetch=0)
    iterator = iter(loader)
    batches = taken(iterator, 5)
    for count in (2, 3):
        growing.grow(count)
        loader.refresh()
        batches += taken(iterator, 5)
    assert [each.from_step for each in loader._stages.opened] == [0, 5, 10]
    batches += taken(iterator, STEPS_KEPT)
    assert [each.from_step for each in loader._stages.opened] == [10]  # the others are let go
    for step in (12, 3, 7, 11, 0):
        same([loader.batch(step)], [batches[step]])
        assert ref.as_windows(loader.windows(step)) == as_windows(batches[step])
    new = make(growing.open())
    same(taken(iterator, 3), [new.batch(step) for step in range(len(batches), len(batches) + 3)])
    del held
    growing.grow(5, max_steps=30)
    loader.refresh()
    taken(iterator, 2)
    with pytest.raises(GenerationGoneError, match="no longer has all of its episodes"):
        loader.windows(3)


def test_generations_of_evicted_episodes_leave_the_state(growing):
    growing.grow(1)
    loader = make(growing.open(), prefetch=0)
    iterator = iter(loader)
    batches, sizes = taken(iterator, STEPS_KEPT), []
    for _ in range(8):
        growing.grow(1, max_steps=40)
        loader.refresh()
        batches += taken(iterator, STEPS_KEPT)
        sizes.append(len(loader.state_dict()["stages"]))
    assert max(sizes) < 7
    first = loader.state_dict()["stages"][0]["from_step"]
    resumed = make(growing.open(), prefetch=0)
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    for each in (loader, resumed):
        for step in (0, first - 1):
            with pytest.raises(GenerationGoneError, match=f"of step {step} is gone"):
                each.batch(step)
        for stage in each.state_dict()["stages"]:
            same([each.batch(stage["from_step"])], [batches[stage["from_step"]]])
    same(take(resumed, 3), taken(iterator, 3))


def test_a_generation_is_let_go_without_a_garbage_collection(growing):
    """Files of a generation go when no reader holds it. A cycle of references would hold it for some time."""
    growing.grow(1)
    loader = make(growing.open(), prefetch=2)
    iterator = iter(loader)
    taken(iterator, 2)
    gc.collect()
    gc.disable()
    try:
        stores = []
        for _ in range(3):
            stores.append(weakref.ref(loader.dataset.store))
            growing.grow(2)
            loader.refresh()
            taken(iterator, 30 + STEPS_KEPT)
            assert [each() is None for each in stores] == [True] * len(stores)
    finally:
        gc.enable()
    files = {path.name for path in (growing.path / "generations").iterdir()}
    assert files <= {"000003.json", "000004.json"}


def test_other_threads_read_while_generations_enter(growing):
    # A thread may wait for the processor while generations come and go: their files stay.
    held = [growing.open()]
    loader = make(held[0], sampler=Weighted([1.0] * 4), prefetch=2)
    iterator, stop, errors = iter(loader), threading.Event(), []

    def read() -> None:
        try:
            while not stop.is_set():
                step = loader.state_dict()["step"] - 1  # its batch was taken
                assert ref.as_windows(loader.windows(step)) == as_windows(loader.batch(step))
                loader.metrics()
        except Exception as error:
            errors.append(error)

    next(iterator)
    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(8):
            growing.grow(1, max_steps=100)
            held.append(growing.open())
            loader.refresh()
            for batch in itertools.islice(iterator, 20):
                loader.update_weights(batch["episode_id"][:2].numpy(), [0.5, 2.0])
    finally:
        stop.set()
        thread.join()
    assert errors == []


def test_every_sampler_that_draws_takes_new_episodes(growing):
    for sampler in (
        Uniform(by="episode"),
        TopK("length", 2),
        Weighted("length", by="step"),
        Weighted("return * return"),
    ):
        loader = make(growing.open(), sampler=sampler, prefetch=0)
        before = take(loader, 5)
        old = make(growing.open(), sampler=sampler)
        growing.grow(3)
        first = loader.refresh()
        assert first == 5
        same(before, [old.batch(step) for step in range(5)])
        new = make(growing.open(), sampler=sampler)
        same(take(loader, 5), [new.batch(step) for step in range(5, 10)])
        generations = loader.spec().pop("generations")
        assert {**loader.spec(), "generations": generations[1:]} == {**new.spec(), "generations": generations[1:]}
        assert [each["from_step"] for each in generations] == [0, 5]
        assert [each["fingerprints"] for each in generations] == [[old.dataset.fingerprint], [new.dataset.fingerprint]]


def test_goals_and_next_states_are_of_the_generation(growing):
    options = {"goals": Goals(), "preset": "transitions", "columns": None, "context": 1}
    loader = make(growing.open(), prefetch=0, **options)
    take(loader, 2)
    growing.grow(6, max_steps=80)
    assert loader.refresh() == 2
    new = make(growing.open(), **options)
    same(take(loader, 4), [new.batch(step) for step in range(2, 6)])
    for name, values in loader.windows(4).items():
        assert np.array_equal(values, new.windows(4)[name]), name
    assert set(loader.windows(4)["episode_id"].tolist()) <= set(growing.live[-1])


def test_a_filter_is_evaluated_for_new_episodes(growing):
    view = growing.open().filter("length > 5")
    loader = make(view, prefetch=0)
    take(loader, 2)
    growing.grow(5)
    assert loader.refresh() == 2
    drawn = {each for step in range(2, 60) for each in loader.windows(step)["episode_id"].tolist()}
    assert drawn == {each for each in growing.live[-1] if len(growing.episodes[each]["rewards"]) > 5}


def test_facts_are_of_the_generation(growing):
    """Episodes that were evicted have given their rows to others."""
    loader = make(growing.open(), prefetch=0, columns=["length"], choose={"either": ["length", "episode_id"]})
    take(loader, 2)
    growing.grow(6, max_steps=80)
    assert loader.refresh() == 2
    for step, batch in enumerate(take(loader, 4), 2):
        ids = loader.windows(step)["episode_id"].tolist()
        assert batch["length"].tolist() == [len(growing.episodes[each]["rewards"]) for each in ids]
        for value, each in zip(batch["either"].tolist(), ids, strict=True):
            assert value in (each, len(growing.episodes[each]["rewards"]))


@pytest.mark.processes
def test_copies_in_workers_have_the_generations(growing):
    loader = make(growing.open(), steps=8)
    growing.grow(4)
    loader.refresh(from_step=3)
    pipe = DataLoader(loader, batch_size=None, num_workers=2, multiprocessing_context="fork")
    check(growing, clones(pipe), [0, 3])
    with pytest.raises(InvalidArgumentError, match="DataLoader's workers"):
        loader.refresh()


@pytest.mark.parametrize(
    "options", [{"sampler": "shuffle"}, {"sampler": "fifo"}, {"epochs": 1}, {"steps": 4, "passes": "repeat"}]
)
def test_a_loader_without_a_place_for_new_episodes_refuses(growing, options):
    loader = make(growing.open(), **options)
    expected = take(make(growing.open(), **options), 4)
    growing.grow(4)
    with pytest.raises(InvalidArgumentError, match="new loader"):
        loader.refresh()
    same(take(loader, 4), expected)
    state = loader.state_dict()
    again = make(loader.dataset, **options)
    again.load_state_dict(json.loads(json.dumps(state)))


# States


def test_a_run_resumes_before_at_and_after_a_refresh(growing):
    growing.grow(2)
    loader = make(growing.open(), prefetch=2)
    iterator = iter(loader)
    taken(iterator, 2)
    states, batches, first_steps = {}, {}, [0]
    for step in range(2, 60):
        if step in (5, 25):
            growing.grow(3)
            first_steps.append(loader.refresh())
        states[step] = json.dumps(loader.state_dict())
        batches[step] = clones([next(iterator)])[0]
    growing.grow(3)
    _, second, third = first_steps
    assert 5 <= second < 25 <= third < 55
    for step in {2, 6, second - 1, second, second + 1, 26, third - 1, third, third + 2}:
        for options in ({"prefetch": 0}, {"prefetch": 2}):
            resumed = make(growing.open(), **options)  # of the newest generation
            resumed.load_state_dict(json.loads(states[step]))
            # A refresh after the state is not in the state.
            known = min([each for each in first_steps if each > step and each - 17 > step], default=60)
            same(take(resumed, min(known, 60) - step)[:5], [batches[each] for each in range(step, min(known, 60))][:5])
    state = {**json.loads(states[59]), "step": 0}
    thirds = [make(growing.open(), rank=rank, world_size=3) for rank in range(3)]
    for each in thirds:
        each.load_state_dict(state)
    parts = [take(each, 60) for each in thirds]
    whole = [{key: torch.cat([each[key] for each in some]) for key in some[0]} for some in zip(*parts, strict=True)]
    same(whole[2:], [batches[step] for step in range(2, 60)])
    # A resumed run goes on growing.
    assert thirds[0].refresh(from_step=100) == 100
    assert thirds[0].dataset.generation == growing.open().generation


def test_a_state_from_before_the_growth_loads(growing):
    held = growing.open()
    state = make(held, prefetch=0).state_dict()
    assert "stages" not in state
    growing.grow(3)
    loader = make(growing.open())
    loader.load_state_dict(state)
    check(growing, take(loader, 5), [0])
    loader = make(held)
    take(loader, 2)
    assert loader.refresh() >= 2
    loader.load_state_dict(state)
    check(growing, take(loader, 5), [0])


def test_wrong_states_are_refused(growing):
    growing.grow(2)
    loader = make(growing.open(), prefetch=0)
    take(loader, 2)
    growing.grow(2)
    loader.refresh()
    state = json.loads(json.dumps(loader.state_dict()))
    expected = [loader.batch(step) for step in range(4)]
    stage = state["stages"][0]
    for wrong in (
        {"stages": []},
        {"stages": "x"},
        {"stages": [{**stage, "from_step": 3}]},
        {"stages": [{**stage, "generations": [1, 2]}]},
        {"stages": [{**stage, "fingerprints": 5}]},
        {"stages": [{**stage, "selection": {"name": "fifo"}}]},
        {"version": 3},
        {"seed": 9},
    ):
        with pytest.raises(StateMismatchError):
            loader.load_state_dict({**state, **wrong})
    same(take(loader, 2), expected[2:])


def test_a_gone_generation_is_a_typed_error(growing):
    growing.grow(2)
    loader = make(growing.open())
    state = json.dumps(loader.state_dict())
    del loader
    growing.grow(6, max_steps=40)
    assert growing.live[-1][0] > 0
    resumed = make(growing.open())
    expected = take(resumed, 2)
    with pytest.raises(GenerationGoneError, match="generation 1 is gone"):
        resumed.load_state_dict(json.loads(state))
    same([resumed.batch(step) for step in range(2)], expected)


def test_normalisation_is_the_generation_s_also_after_a_resume(growing):
    growing.grow(1)
    options = {"normalize": True, "columns": ["observations"]}
    loader = make(growing.open(), prefetch=0, **options)
    states, expected, means = [], [], []
    for count in (2, 4, 0):
        statistics = growing.open().statistics["observations"]
        means.append(statistics.mean)
        batch = loader.batch(loader.state_dict()["step"])
        windows = as_windows(batch)
        mean, std = (np.asarray(each, np.float64) for each in (statistics.mean, statistics.std))
        raw = ref.right_padded(growing.column("observations"), windows, 0, CONTEXT).astype(np.float64)
        valid = ref.valid_places([len(each["rewards"]) for each in growing.episodes], windows, 0, CONTEXT)
        found = batch["observations"].numpy()
        assert np.allclose(found[valid], ((raw - mean) / std)[valid], atol=1e-5)
        assert np.allclose(loader.normalizer.columns["observations"].mean, mean)
        states.append(json.dumps(loader.state_dict()))
        expected.append(take(loader, 3))
        if count:
            growing.grow(count)
            loader.refresh()
    assert not np.allclose(means[0], means[1])
    del loader
    for state, batches in zip(states, expected, strict=True):
        # Earlier generations are gone: their episodes are views of the newest one, and views add statistics up anew.
        resumed = make(growing.open(), **options)
        resumed.load_state_dict(json.loads(state))
        same(take(resumed, 3), batches)


# Weights


def weights_of(growing: GrowingDataset, generation: int, known: dict[int, float]) -> list[float]:
    """The weights of a generation; new episodes get the largest weight, and are noted."""
    top = max(known.values())
    for each in growing.live[generation]:
        known.setdefault(each, top)
    return [known[each] for each in growing.live[generation]]


@pytest.mark.parametrize("by", ["episode", "step"])
@pytest.mark.parametrize("array", [True, False])
def test_weights_stay_with_their_episodes(growing, by, array):
    known = {each: 1.0 + each for each in range(4)}
    weights: Any = list(known.values()) if array else "episode_id + 1.0"
    loader = make(growing.open(), sampler=Weighted(weights, by=by), prefetch=0)
    iterator = iter(loader)

    def expect(generation: int, version: int, first: dict[int, float]) -> None:
        """first: the weights with which the generation began, which decide the scale of integer weights."""
        ids = growing.live[generation]
        own = [known[each] for each in ids]
        exponent = growing.case(generation, CONTEXT).exponent([first[each] for each in ids], by)
        for _ in range(4):
            step = loader.state_dict()["step"]
            batch = next(iterator)
            case = growing.case(generation, CONTEXT)
            assert as_windows(batch) == case.weighted(SEED, step, BATCH, by, own, True, exponent), step
            assert batch["weights_version"].tolist() == [version] * BATCH

    expect(0, 0, known)
    growing.grow(3)
    loader.refresh()
    known.update({each: max(known.values()) if array else 1.0 + each for each in growing.live[1][4:]})
    expect(1, 0, known)
    first = dict(known)
    loader.update_weights([6, 1], [50.0, 0.0])
    known.update({6: 50.0, 1: 0.0})
    expect(1, 1, first)
    growing.grow(4, max_steps=110)
    gone = min(set(growing.live[1]) - set(growing.live[2]))
    loader.refresh()
    weights_of(growing, 2, known)
    expect(2, 1, known)
    first = dict(known)
    state = json.dumps(loader.state_dict())
    # A batch that was drawn earlier has episodes that have left.
    new = growing.live[2][-1]
    loader.update_weights([gone, new], [7.0, 0.5])
    known[new] = 0.5
    with pytest.raises(InvalidArgumentError, match="no episode 99"):
        loader.update_weights([99], [1.0])
    expect(2, 2, first)
    given = Weighted([2.0] * len(growing.open()) if array else weights, by=by)
    resumed = make(growing.open(), sampler=given, prefetch=2)
    resumed.load_state_dict(json.loads(state))
    assert resumed.update_weights([new], [0.5]) == 16
    same(take(resumed, 4), [loader.batch(step) for step in range(16, 20)])
    assert resumed.metrics()["effective_sample_size"] == loader.metrics()["effective_sample_size"]
    assert ref.as_windows(loader.windows(7)) == as_windows(loader.batch(7))  # for the last batches, as PER needs
    taken(iterator, STEPS_KEPT)
    with pytest.raises(GenerationGoneError, match="of step 7 is gone"):
        loader.windows(7)


@pytest.mark.parametrize("undone", ["refused", "loaded"])
def test_new_episodes_have_the_expression_s_weights_without_an_update(growing, undone):
    """An update that was refused, and one that a loaded state does not have, change no weight."""
    sampler = Weighted("episode_id + 1.0")
    loader = make(growing.open(), sampler=sampler, prefetch=0)
    if undone == "refused":
        with pytest.raises(InvalidArgumentError, match="positive"):
            loader.update_weights([0, 1, 2, 3], [0.0] * 4)
    else:
        state = json.dumps(loader.state_dict())
        loader.update_weights([0], [90.0])
        loader.load_state_dict(json.loads(state))
    growing.grow(3)
    assert loader.refresh() == 0
    new = make(growing.open(), sampler=sampler)
    same(take(loader, 5), [new.batch(step) for step in range(5)])


def test_updated_weights_of_early_steps_are_not_kept(growing):
    loader = make(growing.open(), sampler=Weighted([1.0] * 4), prefetch=0)
    iterator = iter(loader)
    taken(iterator, 3)
    growing.grow(3)
    loader.refresh()
    taken(iterator, STEPS_KEPT + 1)
    with pytest.raises(InvalidArgumentError, match="weights of step 2 are no longer kept"):
        loader.windows(2)


def test_weights_of_steps_stay_with_their_steps(growing):
    lengths = [len(each["rewards"]) for each in growing.episodes]
    own = {(episode, t): float(1 + t) for episode in range(4) for t in range(lengths[episode])}
    loader = make(growing.open(), sampler=Weighted(list(own.values())), prefetch=0, context=1)
    loader.update_weights([2, 3], [90.0, 0.0], steps=[5, 1])
    own.update({(2, 5): 90.0, (3, 1): 0.0})
    growing.grow(4, max_steps=100)
    assert growing.live[1][0] > 0
    loader.refresh()
    steps = [(episode, t) for episode in growing.live[1] for t in range(lengths[episode])]
    weights = [own.get(each, 90.0) for each in steps]
    new = make(growing.open(), sampler=Weighted(weights), context=1)
    for step in range(5):
        assert np.array_equal(loader.windows(step)["episode_id"], new.windows(step)["episode_id"])
        assert np.array_equal(loader.windows(step)["start"], new.windows(step)["start"])
    loader.update_weights([growing.live[1][-1]], [4e3], steps=[0])
    loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert (loader.windows(0)["episode_id"] == growing.live[1][-1]).mean() > 0.2


def test_an_update_before_a_coming_generation_holds_in_both(growing):
    loader = make(growing.open(), sampler=Weighted("1.0"), prefetch=0)
    iterator = iter(loader)
    growing.grow(3)
    assert loader.refresh(from_step=10) == 10
    assert loader.update_weights([0, 5], [0.0, 0.0]) == 0
    taken(iterator, 2)
    assert loader.update_weights([1], [0.0]) == 2
    batches = taken(iterator, 20)
    drawn = [set(batch["episode_id"].tolist()) for batch in batches]
    assert set.union(*drawn[:8]) == {2, 3}
    assert set.union(*drawn[8:]) == {2, 3, 4, 6}
    assert [int(batch["weights_version"][0]) for batch in batches] == [2] * 20


def test_an_update_that_one_of_two_generations_refuses_changes_none(growing):
    loaders = [make(growing.open(), sampler=Weighted([1.0] * 4), prefetch=0) for _ in range(2)]
    growing.grow(3)
    for loader in loaders:
        assert loader.refresh(from_step=10) == 10
        loader.update_weights([5], [3.0], from_step=10)
    with pytest.raises(InvalidArgumentError, match="positive"):
        loaders[0].update_weights([0, 1, 2, 3], [0.0] * 4, from_step=9)
    same(take(loaders[0], 20), take(loaders[1], 20))


def test_an_update_of_a_coming_step_holds_from_this_step_in_a_generation_before_it(growing):
    loader = make(growing.open(), sampler=Weighted([1.0] * 4), prefetch=0)
    iterator = iter(loader)
    taken(iterator, 2)
    assert loader.update_weights([0, 1], [0.0, 0.0], from_step=12) == 12
    growing.grow(3)
    assert loader.refresh() == 2
    state = json.dumps(loader.state_dict())
    batches = taken(iterator, 20)
    drawn = [set(batch["episode_id"].tolist()) for batch in batches]
    assert set.union(*drawn[:10]) == {0, 1, 2, 3, 4, 5, 6}
    assert set.union(*drawn[10:]) == {2, 3, 4, 5, 6}
    assert [int(batch["weights_version"][0]) for batch in batches] == [0] * 10 + [1] * 10
    resumed = make(growing.open(), sampler=Weighted([2.0] * 7))
    resumed.load_state_dict(json.loads(state))
    same(take(resumed, 20), batches)


def test_an_update_of_a_coming_step_passes_over_episodes_that_leave(growing):
    growing.grow(3)
    loader = make(growing.open(), sampler=Weighted([1.0] * 7), prefetch=0)
    assert loader.update_weights([0, 1, 2, 3, 4, 5], [0.0] * 6, from_step=10) == 10
    growing.grow(4, max_steps=110)
    assert growing.live[2][0] > 0
    assert loader.refresh() == 0
    batches = take(loader, 20)
    drawn = [set(batch["episode_id"].tolist()) for batch in batches]
    assert set.union(*drawn[:10]) == set(growing.live[2])
    assert set.union(*drawn[10:]) == set(growing.live[2]) - {0, 1, 2, 3, 4, 5}
    assert [int(batch["weights_version"][0]) for batch in batches] == [0] * 10 + [1] * 10


# Mixtures


@pytest.mark.parametrize("join", [False, True])
def test_a_mixture_refreshes_the_datasets_that_grew(growing, tmp_path, join):
    offline = convert_episodes(locomotion([30, 12, 9], seed=5), tmp_path / "offline")
    options = {"normalize": None, "columns": ["rewards", "actions"]}

    def mixed(**more: Any) -> SequenceLoader:
        sampler = Weighted("length")
        return make(
            Mixture([(offline, 0.5, {"sampler": sampler}), (growing.open(), 0.5)], join=join), **options, **more
        )

    growing.grow(1)
    loader = mixed(prefetch=0)
    iterator = iter(loader)
    batches = taken(iterator, 4)
    same(batches, [mixed().batch(step) for step in range(4)])
    loader.update_weights([0], [900.0], dataset=0)
    growing.grow(4)
    assert loader.refresh() == 4
    new = mixed()
    new.update_weights([0], [900.0], dataset=0, from_step=4)
    state = json.dumps(loader.state_dict())
    batches = taken(iterator, 8)
    same(batches, [new.batch(step) for step in range(4, 12)])
    ids = torch.cat([batch["episode_id"][batch["source"] == 1] for batch in batches])
    assert int(ids.max()) > growing.live[1][-1]
    loader.update_weights([0], [0.0], dataset=0)
    assert not any((batch["episode_id"][batch["source"] == 0] == 0).any() for batch in taken(iterator, 6))
    growing.grow(1)
    resumed = mixed()
    resumed.load_state_dict(json.loads(state))
    same(take(resumed, 8), batches)


def test_a_view_of_positions_in_a_mixture_stays_as_it_is(growing, tmp_path):
    offline = convert_episodes(locomotion([30, 12, 9], seed=5), tmp_path / "offline").split({"a": 0.6, "b": 0.4})["a"]
    growing.grow(1)
    loader = make(Mixture([(offline, 0.5), (growing.open(), 0.5)], join=True), prefetch=0)
    growing.grow(2)
    assert loader.refresh(from_step=3) == 3
    assert [each.dataset.generation for each in loader.dataset.components] == [0, 2]
    new = make(Mixture([(offline, 0.5), (growing.open(), 0.5)], join=True))
    same(take(loader, 6)[3:], [new.batch(step) for step in range(3, 6)])
    with pytest.raises(InvalidArgumentError, match="view of positions"):
        make(growing.open()[:2]).refresh()


def check_refreshed(growing, make_loader, *, more: int = 0) -> list[dict[str, Any]]:
    """Checks batches before and after a refresh, and after a resume, when the dataset has grown by `more` since.

    Returns the batches after the refresh.
    """
    loader = make_loader(prefetch=0)
    iterator = iter(loader)
    before = make_loader()
    same(taken(iterator, 2), [before.batch(step) for step in range(2)])
    growing.grow(2)
    assert loader.refresh() == 2
    batches, new = taken(iterator, 4), make_loader()
    same(batches, [new.batch(step) for step in range(2, 6)])
    if more:
        growing.grow(more)
    resumed = make_loader()
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    same(take(resumed, 2), taken(iterator, 2))
    return batches


def test_datasets_of_unlike_shape(growing, tmp_path):
    wide = convert_episodes(locomotion([30, 12, 9], seed=5, observations=7), tmp_path / "wide")

    def mixed(**options: Any) -> SequenceLoader:
        mixture = Mixture([(wide, 0.5), (growing.open(), 0.5)], join=True, pad_to="largest")
        return make(mixture, columns=["observations", "rewards"], **options)

    batches = check_refreshed(growing, mixed, more=1)
    assert all(batch["observations"].shape[-1] == 7 for batch in batches)


def test_steps_by_their_times(growing, tmp_path):
    slow = convert_episodes(locomotion([30, 12, 9], seed=5), tmp_path / "slow")

    def mixed(**options: Any) -> SequenceLoader:
        mixture = Mixture([(slow, 0.5, {"fps": 5}), (growing.open(), 0.5, {"fps": 50})], join=True)
        chunk = Seconds(0, 0.5, hz=50, fill="interpolate")
        return make(mixture, columns=["rewards"], offsets={"rewards": chunk}, **options)

    check_refreshed(growing, mixed)


def test_a_schedule_is_a_warm_up(growing, tmp_path):
    """A share of 0 for the first n steps, then one half of every batch."""
    offline = convert_episodes(locomotion([30, 12, 9], seed=5), tmp_path / "offline")
    warmed = [(0, 0.0), (9, 0.0), (10, 0.5)]
    mixture = Mixture([(offline, 0.5), (growing.open(), warmed)], join=True)
    loader = make(mixture, columns=["rewards"], prefetch=0)
    iterator = iter(loader)
    batches = taken(iterator, 6)
    growing.grow(5)
    assert loader.refresh() == 6
    batches += taken(iterator, 8)
    assert [int(batch["source"].sum()) for batch in batches] == [0] * 10 + [5] * 4


# Ranks


@pytest.mark.processes
def test_two_ranks_take_the_same_generations_from_the_same_steps(growing, tmp_path):
    run_two_ranks(Path(refresh_rank.__file__), growing.path, tmp_path)
    first, second = (json.loads((tmp_path / f"out-{rank}.json").read_text()) for rank in range(2))
    assert first["from"] == second["from"] == sorted(first["from"])
    assert first["generations"] == second["generations"] == [1, 2]
    assert first["state"] == second["state"]
    for errors in (first["errors"], second["errors"]):
        unlike, wrong, early = errors
        assert "different from_step" in unlike
        assert "at least 0" in wrong
        assert "already built" in early
    # Ranks that opened different generations begin with rank 0's.
    assert [each["late"][:2] for each in (first, second)] == [[3, 3], [4, 3]]
    begun = refresh_rank.loader(growing.open().at_generation(3), prefetch=0).batch(0)["episode_id"].tolist()
    assert first["late"][2] + second["late"][2] == begun
    whole = refresh_rank.loader(growing.open(), prefetch=0)
    whole.load_state_dict({**first["state"], "step": 0})
    for step, batch in enumerate(take(whole, refresh_rank.STEPS)):
        for rank in range(2):
            arrays = np.load(tmp_path / f"out-{rank}.npz")
            for key, values in batch.items():
                assert np.array_equal(arrays[key][step], values[3 * rank : 3 * rank + 3].numpy()), (step, key)
    ids = np.concatenate([np.load(tmp_path / f"out-{rank}.npz")["episode_id"] for rank in range(2)], axis=1)
    tops = [int(ids[start:stop].max()) for start, stop in itertools.pairwise([0, *first["from"], refresh_rank.STEPS])]
    assert tops[0] <= 3 < tops[1] <= 5 < tops[2] <= 10
