"""SequenceLoader: ranks, prefetching, resuming, and refused arguments."""

from __future__ import annotations

import copy
import json
import pickle
import threading

import numpy as np
import pytest
import torch

import gear_data
from gear_data import SequenceLoader
from gear_data.errors import DeviceError, InvalidArgumentError, StateMismatchError, UnknownNameError
from gear_data.loaders.arguments.checks import warn_of_empty_batches
from gear_data.residency import RESIDENCIES
from tests.support.feed import data as feed_data
from tests.support.feed import reference as ref
from tests.support.feed.batches import same, take
from tests.support.running.eventually import eventually

OPTIONS = {"batch_size": 10, "context": 6, "seed": 3, "preset": "decision_transformer"}
every_sampler = pytest.mark.parametrize("sampler", feed_data.EVERY_SAMPLER.values(), ids=feed_data.EVERY_SAMPLER)


# The sequence


@every_sampler
@pytest.mark.parametrize(
    ("batch_size", "world_size"),
    [(size, ranks) for size in (1, 5, 10, 16) for ranks in (1, 2, 3, 7, 13) if ranks <= size],
)
def test_rank_slices_together_are_the_global_batch(dataset, sampler, batch_size, world_size):
    options = {**OPTIONS, "sampler": sampler, "batch_size": batch_size}
    whole = take(SequenceLoader(dataset, **options), 4)
    parts = [
        take(SequenceLoader(dataset, rank=rank, world_size=world_size, **options), 4) for rank in range(world_size)
    ]
    for rank, part in enumerate(parts):
        rows = (rank + 1) * batch_size // world_size - rank * batch_size // world_size
        assert [len(batch["valid_count"]) for batch in part] == [rows] * 4
        loader = SequenceLoader(dataset, rank=rank, world_size=world_size, **options)
        assert loader.local_batch_size == rows
    joined = [{key: torch.cat([part[step][key] for part in parts]) for key in whole[0]} for step in range(4)]
    same(joined, whole)


@every_sampler
@pytest.mark.parametrize("prefetch", [1, 2, 3, 8])
def test_prefetching_changes_nothing(dataset, sampler, prefetch):
    options = {**OPTIONS, "sampler": sampler}
    expected = take(SequenceLoader(dataset, prefetch=0, **options), 40)
    same(take(SequenceLoader(dataset, prefetch=prefetch, **options), 40), expected)


@pytest.mark.parametrize("sampler", ref.WINDOWS)
def test_windows_describe_the_rows_of_the_batch(dataset, episodes, sampler):
    lengths = [len(episode["rewards"]) for episode in episodes]
    loader = SequenceLoader(dataset, batch_size=12, context=6, sampler=sampler, seed=2**40 + 1)
    for step, batch in enumerate(take(loader, 5)):
        selection = loader.windows(step)
        assert list(selection) == ["dataset", "episode_id", "start", "length"]
        assert all(array.dtype == np.int64 and array.shape == (12,) for array in selection.values())
        assert not selection["dataset"].any()
        windows = ref.as_windows(selection)
        assert windows == ref.WINDOWS[sampler](2**40 + 1, step, 12, lengths, 6)
        assert batch["valid_count"].tolist() == [length for _, _, length in windows]
        observations = [episode["observations"] for episode in episodes]
        assert np.array_equal(batch["observations"].numpy(), ref.right_padded(observations, windows, 0, 6))


def test_windows_are_global_on_every_rank(dataset):
    expected = ref.as_windows(SequenceLoader(dataset, **OPTIONS).windows(2))
    for rank in range(3):
        loader = SequenceLoader(dataset, rank=rank, world_size=3, **OPTIONS)
        assert ref.as_windows(loader.windows(2)) == expected


@pytest.mark.parametrize("step", [-1, 1.0, "1", None, True])
def test_windows_of_invalid_steps_are_refused(dataset, step):
    with pytest.raises(InvalidArgumentError, match="step"):
        SequenceLoader(dataset, **OPTIONS).windows(step)


# The end


@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize("prefetch", [0, 1, 8])
def test_steps(dataset, steps, prefetch):
    loader = SequenceLoader(dataset, steps=steps, prefetch=prefetch, **OPTIONS)
    assert len(list(loader)) == len(loader) == steps


def test_without_an_end_there_is_no_length(dataset):
    with pytest.raises(TypeError, match="no end"):
        len(SequenceLoader(dataset, **OPTIONS))


@pytest.mark.parametrize("options", [{}, {"steps": 0}, {"epochs": 2}])
def test_every_loader_is_true(dataset, options):
    assert bool(SequenceLoader(dataset, **OPTIONS, **options)) is True


@pytest.mark.parametrize("batch_size", [1, 23, 40, 138, 200])
@pytest.mark.parametrize("epochs", [0, 1, 3])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_epochs_of_shuffle_take_each_step_as_often(dataset, batch_size, epochs, prefetch):
    options = {"batch_size": batch_size, "context": 3, "sampler": "shuffle", "epochs": epochs, "prefetch": prefetch}
    loader = SequenceLoader(dataset, **options)
    size = dataset.num_steps
    sizes = [len(batch["valid_count"]) for batch in loader]
    whole, rest = divmod(epochs * size, batch_size)
    assert sizes == [batch_size] * whole + [rest] * bool(rest)
    assert len(loader) == len(sizes)
    selections = [loader.windows(step) for step in range(len(sizes))]
    assert [len(selection["start"]) for selection in selections] == sizes
    counts = np.zeros(size, np.int64)
    for selection in selections:
        np.add.at(counts, dataset.offsets[selection["episode_id"]] + selection["start"], 1)
    assert (counts == epochs).all()


def test_the_short_last_batch_is_split_over_the_ranks(dataset):
    options = {**OPTIONS, "sampler": "shuffle", "epochs": 1}  # 138 = 13 * 10 + 8
    whole = list(SequenceLoader(dataset, **options))[-1]
    assert len(whole["valid_count"]) == 8
    parts = [list(SequenceLoader(dataset, rank=rank, world_size=3, **options))[-1] for rank in range(3)]
    assert [len(part["valid_count"]) for part in parts] == [2, 3, 3]
    same([{key: torch.cat([part[key] for part in parts]) for key in whole}], [whole])


def test_an_epoch_of_uniform_draws_as_many_windows_in_whole_batches(dataset):
    sizes = [len(batch["valid_count"]) for batch in SequenceLoader(dataset, epochs=2, **OPTIONS)]
    assert sizes == [10] * 28  # 276 steps


# transform


def noisy(batch, rng):
    batch["noise"] = torch.from_numpy(rng.normal(size=3))
    return batch


def numpy_noise(seed, step):
    return np.random.Generator(np.random.Philox(key=np.array([seed, step], np.uint64))).normal(size=3)


@pytest.mark.parametrize("prefetch", [0, 2, 8])
@pytest.mark.parametrize(("rank", "world_size"), [(None, None), (0, 3), (2, 3)])
def test_transform_gets_a_generator_of_the_seed_and_the_step(dataset, prefetch, rank, world_size):
    options = {**OPTIONS, "seed": 2**64 - 1, "rank": rank, "world_size": world_size, "prefetch": prefetch}
    noise = [batch["noise"].numpy() for batch in take(SequenceLoader(dataset, transform=noisy, **options), 6)]
    assert np.array_equal(noise, [numpy_noise(2**64 - 1, step) for step in range(6)])


def test_transform_gets_the_whole_batch_and_returns_the_result(dataset):
    seen = []

    def transform(batch, rng):
        seen.append(set(batch))
        return {"valid_count": batch["valid_count"], "total": batch["states"].sum()}

    plain = take(SequenceLoader(dataset, **OPTIONS), 1)[0]
    batch = take(SequenceLoader(dataset, transform=transform, prefetch=0, **OPTIONS), 1)[0]
    assert seen == [set(plain)]
    assert set(batch) == {"valid_count", "total"}
    assert torch.equal(batch["total"], plain["states"].sum())


def test_a_transform_need_not_keep_any_key(dataset):
    loader = SequenceLoader(dataset, transform=lambda batch, rng: {"x": batch["states"]}, **OPTIONS)
    assert [set(batch) for batch in take(loader, 2)] == [{"x"}] * 2
    assert loader.metrics()["windows"] == 20


def test_a_transform_that_returns_nothing_is_named(dataset):
    def scale_rewards(batch, rng):
        batch["rewards"] *= 2

    with pytest.raises(InvalidArgumentError, match=r"scale_rewards returned None.*\n.*return batch"):
        take(SequenceLoader(dataset, transform=scale_rewards, **OPTIONS), 1)


@pytest.mark.parametrize("prefetch", [0, 1, 4])
def test_an_error_in_a_transform_comes_at_its_step_and_ends_the_iteration(dataset, prefetch):
    # Not the fourth call: prefetch threads overtake each other.
    drawn = np.random.Generator(np.random.Philox(key=np.array([OPTIONS["seed"], 3], np.uint64))).random()

    def transform(batch, rng):
        if rng.random() == drawn:
            raise OSError("transform broke")
        return batch

    loader = SequenceLoader(dataset, transform=transform, prefetch=prefetch, **OPTIONS)
    iterator = iter(loader)
    with pytest.raises(OSError, match="transform broke"):
        for _ in range(4):
            next(iterator)
    assert next(iterator, None) is None
    assert eventually(lambda: not prefetching())


# Threads


def prefetching():
    return [thread for thread in threading.enumerate() if thread.name.startswith("gear-prefetch")]


def test_an_abandoned_iterator_leaves_no_thread(dataset):
    for _ in SequenceLoader(dataset, prefetch=4, **OPTIONS):
        assert prefetching()
        break
    assert eventually(lambda: not prefetching())
    iterator = iter(SequenceLoader(dataset, prefetch=4, **OPTIONS))
    next(iterator)
    del iterator
    assert eventually(lambda: not prefetching())


def test_simultaneous_iterators_are_independent(dataset):
    expected = take(SequenceLoader(dataset, **OPTIONS), 12)
    loaders = [SequenceLoader(dataset, prefetch=prefetch, **OPTIONS) for prefetch in (0, 1, 2)]
    together = zip(*loaders, strict=True)
    for batches, clean in zip(together, expected, strict=False):
        same(list(batches), [clean] * 3)


def test_two_loaders_in_two_threads(dataset):
    expected = take(SequenceLoader(dataset, **OPTIONS), 60)
    results = {}

    def run(name):
        results[name] = take(SequenceLoader(gear_data.open(dataset.path), prefetch=2, **OPTIONS), 60)

    threads = [threading.Thread(target=run, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in range(3):
        same(results[name], expected)


# Resuming


@every_sampler
@pytest.mark.parametrize("done", [0, 1, 4, 17])
@pytest.mark.parametrize(("before", "after"), [(0, 2), (8, 0), (2, 3)])
def test_a_resumed_loader_continues_at_the_saved_step(dataset, sampler, done, before, after):
    options = {**OPTIONS, "sampler": sampler}
    expected = take(SequenceLoader(dataset, prefetch=0, **options), 20)
    loader = SequenceLoader(dataset, prefetch=before, **options)
    iterator = iter(loader)
    same([next(iterator) for _ in range(done)], expected[:done])
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["step"] == done  # batches that are built ahead do not count
    for world_size in (1, 3):
        parts = []
        for rank in range(world_size):
            resumed = SequenceLoader(dataset, prefetch=after, rank=rank, world_size=world_size, **options)
            resumed.load_state_dict(state)
            assert resumed.state_dict() == state
            parts.append(take(resumed, 20 - done))
        joined = [{key: torch.cat([part[i][key] for part in parts]) for key in expected[0]} for i in range(20 - done)]
        same(joined, expected[done:])


def test_the_state_counts_batches_handed_out(dataset):
    loader = SequenceLoader(dataset, prefetch=8, steps=5, **OPTIONS)
    assert loader.state_dict()["step"] == 0
    for count, _ in enumerate(loader, 1):
        assert loader.state_dict()["step"] == count
    assert loader.state_dict()["step"] == 5


def test_resuming_in_the_middle_of_epochs(dataset):
    options = {**OPTIONS, "sampler": "shuffle", "epochs": 2}
    expected = take(SequenceLoader(dataset, **options), 99)
    loader = SequenceLoader(dataset, **options)
    take(loader, 20)
    resumed = SequenceLoader(dataset, **options)
    resumed.load_state_dict(loader.state_dict())
    same(take(resumed, 99), expected[20:])


def test_pickled_and_copied_loaders_keep_the_state(dataset):
    expected = take(SequenceLoader(dataset, **OPTIONS), 6)
    loader = SequenceLoader(dataset, **OPTIONS)
    loader.load_state_dict({**loader.state_dict(), "step": 2})
    for twin in (pickle.loads(pickle.dumps(loader)), copy.copy(loader), copy.deepcopy(loader)):
        assert twin.state_dict() == loader.state_dict()
        same(take(twin, 4), expected[2:])


def test_numpy_integers_are_accepted(dataset):
    plain = SequenceLoader(dataset, steps=3, **OPTIONS)
    numbers = {name: np.int64(OPTIONS[name]) for name in ("batch_size", "context", "seed")}
    loader = SequenceLoader(dataset, preset=OPTIONS["preset"], steps=np.int64(3), prefetch=np.int32(1), **numbers)
    assert json.loads(json.dumps(loader.state_dict())) == plain.state_dict()
    same(take(loader, 9), take(plain, 9))
    assert json.dumps(loader.state_dict()) == json.dumps(plain.state_dict())


@pytest.mark.parametrize("end", [{"steps": 5}, {"epochs": 1}], ids=["steps", "epochs"])
def test_a_loader_with_numpy_integers_resumes(dataset, end):
    options = {**OPTIONS, "sampler": "shuffle", "rank": 0, "world_size": 2, **end}
    numbers = {name: np.int64(options[name]) for name in ("rank", "world_size", *end)}
    plain, loader, resumed = (SequenceLoader(dataset, **{**options, **given}) for given in ({}, numbers, numbers))
    assert json.dumps(loader.spec()) == json.dumps(plain.spec())
    expected = take(plain, 99)
    same(take(loader, 2), expected[:2])
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    same(take(resumed, 99), expected[2:])


def test_a_state_of_other_contents_is_refused(dataset, make_dataset, episodes):
    state = SequenceLoader(dataset, **OPTIONS).state_dict()
    changed = [{name: values.copy() for name, values in episode.items()} for episode in episodes]
    changed[4]["rewards"][1] += 1
    with pytest.raises(StateMismatchError, match="fingerprint"):
        SequenceLoader(make_dataset(changed), **OPTIONS).load_state_dict(state)
    # The same contents in other shards are the same dataset.
    SequenceLoader(make_dataset(episodes), **OPTIONS).load_state_dict(state)


@pytest.mark.parametrize(("name", "value"), [("seed", 4), ("batch_size", 11), ("sampler", "shuffle"), ("context", 7)])
def test_a_state_of_another_selection_is_refused(dataset, name, value):
    state = SequenceLoader(dataset, **{**OPTIONS, name: value}).state_dict()
    loader = SequenceLoader(dataset, **OPTIONS)
    with pytest.raises(StateMismatchError, match=name):
        loader.load_state_dict(state)
    assert loader.state_dict()["step"] == 0


@pytest.mark.parametrize(
    "change",
    [{"step": -1}, {"step": 1.5}, {"step": "1"}, {"step": None}, {"step": True}, {"version": 99}, {"seed": None}],
)
def test_a_damaged_state_is_refused(dataset, change):
    loader = SequenceLoader(dataset, **OPTIONS)
    with pytest.raises(StateMismatchError):
        loader.load_state_dict({**loader.state_dict(), **change})
    with pytest.raises(StateMismatchError):
        loader.load_state_dict({key: value for key, value in loader.state_dict().items() if key not in change})


# Refused arguments

BAD = [
    *(pytest.param({name: value}, id=f"{name}={value}")
      for name in ("batch_size", "context") for value in (0, -1, 1.5, "8", True, np.float64(3))),
    pytest.param({"batch_size": None}, id="batch_size=None"),
    *(pytest.param({name: value}, id=f"{name}={value}")
      for name in ("prefetch", "steps", "epochs") for value in (-1, 0.5, "1", False)),
    *(pytest.param({"seed": value}, id=f"seed={value}") for value in (-1, 2**64, 1.0, None)),
    pytest.param({"steps": 1, "epochs": 1}, id="steps and epochs"),
    pytest.param({"rank": 0}, id="rank alone"),
    pytest.param({"world_size": 2}, id="world_size alone"),
    *(pytest.param({"rank": rank, "world_size": size}, id=f"rank {rank} of {size}")
      for rank, size in ((2, 2), (-1, 2), (0, 0), (0.0, 2), (0, "2"))),
    *(pytest.param({"dtype": dtype}, id=f"dtype={dtype}") for dtype in ("int32", "float8", torch.int64, 3, float)),
]  # fmt: skip


@pytest.mark.parametrize("options", BAD)
def test_bad_arguments_are_refused_by_name(dataset, options):
    with pytest.raises(InvalidArgumentError) as error:
        SequenceLoader(dataset, **options)
    assert any(name in str(error.value) for name in options)


@pytest.mark.parametrize(
    "options",
    [
        {"context": 1 << 40},
        {"context": 1 << 80},
        {"batch_size": 1 << 50},
        {"batch_size": 1 << 62, "context": 1 << 62},
        {"batch_size": 256, "offsets": {"actions": (-(1 << 31), 1 << 31)}},
        {"batch_size": 1 << 40, "columns": [], "preset": "raw", "context": 1},
    ],
)
def test_batches_beyond_any_memory_are_refused(dataset, options):
    with pytest.raises(InvalidArgumentError, match="GiB"):
        SequenceLoader(dataset, **{**OPTIONS, **options})


@pytest.mark.parametrize("first", [-(1 << 31), (1 << 31) - 2])
def test_offsets_far_outside_every_episode_are_padding(dataset, first):
    loader = SequenceLoader(dataset, offsets={"actions": (first, first + 2)}, **{**OPTIONS, "preset": "raw"})
    batch = take(loader, 1)[0]
    assert not batch["actions_mask"].any()
    assert not batch["actions"].any()
    assert batch["actions"].shape == (10, 2, 3)


@pytest.mark.parametrize("names", [{"sampler": "uniforn"}, {"preset": "rew"}])
def test_unknown_names_are_refused(dataset, names):
    with pytest.raises(UnknownNameError, match="did you mean"):
        SequenceLoader(dataset, **names)


def test_an_unknown_residency_lists_the_known_ones(dataset):
    with pytest.raises(UnknownNameError) as error:
        gear_data.open(dataset.path, residency="mmmap")
    assert all(name in str(error.value) for name in RESIDENCIES)


@pytest.mark.parametrize("device", ["quantum", "cuda:", "", 3.5, None])
def test_an_unknown_device_is_refused(dataset, device):
    with pytest.raises(DeviceError):
        SequenceLoader(dataset, device=device)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:7", torch.device("cuda")])
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_gpu_is_refused(dataset, device):
    with pytest.raises(DeviceError, match="cuda"):
        SequenceLoader(dataset, device=device)


def test_a_dataset_of_one_step(make_dataset):
    dataset = make_dataset(feed_data.locomotion([1], seed=0))
    for sampler in feed_data.EVERY_SAMPLER.values():
        batch = take(SequenceLoader(dataset, sampler=sampler, **OPTIONS), 1)[0]
        assert batch["valid_count"].tolist() == [1] * 10
        assert torch.equal(batch["states"][0], batch["states"][9])


@pytest.mark.parametrize("batch_size", [8, 13])
def test_a_rank_may_have_more_of_the_short_last_batch(make_dataset, batch_size):
    """Batches of unequal rows are prefetched and collected together.

    Rank 2 of 5 has 1 row of 8, 2 of 7, 2 of 13 and 3 of 12.
    """
    dataset = make_dataset(feed_data.locomotion([batch_size * 8 - 1], seed=4))
    options = {**OPTIONS, "batch_size": batch_size, "sampler": "shuffle", "epochs": 1, "rank": 2, "world_size": 5}
    made_ahead = SequenceLoader(dataset, prefetch=2, **options)
    one_by_one = SequenceLoader(dataset, prefetch=0, **options)
    batches = take(made_ahead, 9)
    sizes = [len(batch["valid_count"]) for batch in batches]
    assert sizes[-1] > sizes[0]
    same(batches, take(one_by_one, 9))
    assert made_ahead.metrics()["valid_bytes_per_s"] > 0
    assert made_ahead.metrics()["pad_fraction"] == one_by_one.metrics()["pad_fraction"]


def test_a_context_longer_than_every_episode(dataset, episodes, caplog):
    """The log says it once. Windows are as before."""
    longest = max(len(episode["rewards"]) for episode in episodes)
    SequenceLoader(dataset, context=longest + 3)
    loader = SequenceLoader(dataset, batch_size=2, context=longest + 3, seed=1, steps=2)
    assert [record.getMessage() for record in caplog.records] == [
        f"{dataset.path}: context is {longest + 3}, and the longest episode has {longest} steps: the rest of each "
        f"window is padding; give context={longest} or less"
    ]
    assert [batch["mask"].shape for batch in loader] == [(2, longest + 3)] * 2
    for options in ({"context": longest}, {"context": longest + 3, "pack": 1000}, {}):
        SequenceLoader(dataset, batch_size=2, **options)
    assert len(caplog.records) == 1


def test_ranks_without_rows_of_the_last_batch(dataset, caplog):
    """The log says it once: a mean over no rows is NaN, and so are then the gradients of all ranks."""
    warn_of_empty_batches.cache_clear()
    options = {**OPTIONS, "batch_size": dataset.num_steps - 2, "sampler": "shuffle", "epochs": 1}
    for ranks, rows in ((2, [1, 1]), (3, [0, 1, 1]), (3, [0, 1, 1])):
        last = [take(SequenceLoader(dataset, rank=rank, world_size=ranks, **options), 2)[1] for rank in range(ranks)]
        assert [len(batch["valid_count"]) for batch in last] == rows
    assert [record.getMessage() for record in caplog.records] == [
        "the last batch of a pass has 2 rows for 3 ranks: some ranks have none, and their mean loss is NaN; give "
        "steps= instead of epochs=, so that every batch is whole"
    ]
