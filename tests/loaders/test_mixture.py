"""Mixtures against plain loops: batches of one dataset, and of several."""

from __future__ import annotations

import json
import pickle
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
import torch
from torch.utils.data import DataLoader

import gear_data
from gear_data import BatchOptions, Fifo, Mixture, SequenceLoader, Shuffle, TopK, Uniform, Weighted
from gear_data.errors import InvalidArgumentError, StateMismatchError, UnknownArgumentError, UnknownNameError
from tests.support.feed import data as feed_data
from tests.support.feed import reference as ref
from tests.support.feed.batches import same, take

CONTEXT, BATCH = 6, 7
#: Datasets with observations of different widths; only the first has integers, only the third has images.
LENGTHS = [[7, 1, 23, 40, 2], [12, 5, 33], [9, 3, 17, 8]]
PROPORTIONS = [0.5, 0.3, 0.2]


def make_episodes(number):
    episodes = feed_data.locomotion(LENGTHS[number], seed=number, observations=[4, 4, 2][number])
    rng = np.random.default_rng(number)
    for episode in episodes:
        length = len(episode["rewards"])
        # Multiples of 1/4: their sums are exact in any order.
        episode["rewards"] = (rng.integers(-8, 8, length) / 4).astype(np.float32)
        if number == 0:
            episode["infos.count"] = rng.integers(0, 9, length)
        if number == 2:
            episode["observations.image"] = rng.integers(0, 255, (length, 2, 3)).astype(np.uint8)
    return episodes


EPISODES = [make_episodes(number) for number in range(3)]


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixture")
    return [
        feed_data.convert_episodes(episodes, folder / str(number), shard_bytes=1024)
        for number, episodes in enumerate(EPISODES)
    ]


def grouped(datasets, **options):
    """Three datasets with different schemas; each batch has windows of one dataset."""
    mixture = Mixture(list(zip(datasets, PROPORTIONS, strict=True)))
    return SequenceLoader(mixture, **{"batch_size": BATCH, "context": CONTEXT, "seed": 4, **options})


def joined(datasets, **options):
    """Two datasets with observations of one shape; each batch has windows of both."""
    mixture = Mixture([(datasets[0], 3), (datasets[1], 2)], join=True)
    return SequenceLoader(mixture, **{"batch_size": BATCH, "context": CONTEXT, "seed": 4, **options})


both = pytest.mark.parametrize("make", [grouped, joined])


def windows_of(loader, step):
    """(dataset, (episode, start, length)) of every row."""
    selection = loader.windows(step)
    return list(zip(selection["dataset"].tolist(), ref.as_windows(selection), strict=True))


def returns_to_go(number):
    return [np.array(ref.returns_to_go(episode["rewards"]), np.float32) for episode in EPISODES[number]]


def column(number, name):
    return returns_to_go(number) if name == "returns_to_go" else [episode[name] for episode in EPISODES[number]]


def in_an_episode(number, window):
    episode, start, length = window
    steps = LENGTHS[number][episode]
    return 0 <= start < steps and length == min(CONTEXT, steps - start)


# Batches


@pytest.mark.parametrize("sampler", ["uniform", "shuffle", "fifo"])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_batches_of_one_dataset_each(datasets, sampler, prefetch):
    loader = grouped(datasets, sampler=sampler, prefetch=prefetch)
    extra = [{"infos.count"}, set(), {"observations.image"}]
    for step, batch in enumerate(take(loader, 40)):
        sources, windows = zip(*windows_of(loader, step), strict=True)
        number = sources[0]
        assert set(sources) == {number}
        assert batch["source"].tolist() == [number] * BATCH
        assert all(in_an_episode(number, window) for window in windows)
        assert batch.keys() == {
            "observations", "actions", "rewards", "terminated", "truncated", "returns_to_go",
            "timesteps", "mask", "valid_count", "source",
        } | extra[number]  # fmt: skip
        for name in ("observations", "actions", "rewards", "returns_to_go", *extra[number]):
            expected = ref.left_padded(column(number, name), windows, CONTEXT, 0.0)
            rolled = [np.roll(row, n - CONTEXT, 0) for row, (*_, n) in zip(expected, windows, strict=True)]
            assert np.array_equal(batch[name].numpy().reshape(BATCH, CONTEXT, -1), np.stack(rolled))
        assert batch["valid_count"].tolist() == [n for *_, n in windows]


@pytest.mark.parametrize("sampler", ["uniform", "shuffle", "fifo"])
@pytest.mark.parametrize("prefetch", [0, 3])
def test_batches_of_several_datasets(datasets, sampler, prefetch):
    loader = joined(datasets, sampler=sampler, prefetch=prefetch)
    names = ("observations", "actions", "rewards", "returns_to_go")
    for step, batch in enumerate(take(loader, 20)):
        rows = windows_of(loader, step)
        assert batch["source"].tolist() == [number for number, _ in rows]
        assert batch.keys() == {*names, "terminated", "truncated", "timesteps", "mask", "valid_count", "source"}
        for row, (number, window) in enumerate(rows):
            assert in_an_episode(number, window)
            episode, start, length = window
            for name in names:
                own = column(number, name)[episode][start : start + length]
                expected = np.zeros((CONTEXT, *own.shape[1:]), np.float32)
                expected[:length] = own
                assert np.array_equal(batch[name][row].numpy(), expected), (step, row, name)
            assert batch["timesteps"][row].tolist() == [start + k if k < length else 0 for k in range(CONTEXT)]
            assert batch["mask"][row].tolist() == [k < length for k in range(CONTEXT)]
            ends = [start + k == LENGTHS[number][episode] - 1 and k < length for k in range(CONTEXT)]
            assert batch["truncated"][row].tolist() == ends
        assert batch["valid_count"].tolist() == [length for _, (*_, length) in rows]


def test_proportions_of_batches_are_exact_at_any_time(datasets):
    loader = grouped(datasets)
    turns = [0, 0, 0]
    for step in range(60):
        turns[windows_of(loader, step)[0][0]] += 1
        for number, share in enumerate(PROPORTIONS):
            assert abs(turns[number] - Fraction(str(share)) * (step + 1)) < 1
    take(loader, 60)
    assert loader.metrics()["mixture"] == [0.5, 0.3, 0.2]


def test_proportions_of_windows_are_exact_at_any_time(datasets):
    loader = joined(datasets)
    sources = [number for step in range(50) for number, _ in windows_of(loader, step)]
    for count in range(len(sources)):
        assert abs(sources[:count].count(1) - Fraction(2, 5) * count) < 1
    take(loader, 50)
    assert loader.metrics()["mixture"] == [0.6, 0.4]


@pytest.mark.parametrize("sampler", ["fifo", "shuffle"])
@both
def test_every_dataset_has_separate_epochs(datasets, make, sampler):
    """A dataset's anchors come in order, each once an epoch, in any turns."""
    loader = make(datasets, sampler=sampler)
    seen = [[] for _ in LENGTHS]
    for step in range(90):
        for number, (episode, start, _) in windows_of(loader, step):
            seen[number].append((episode, start))
    for number, windows in enumerate(seen):
        anchors = [(episode, t) for episode, length in enumerate(LENGTHS[number]) for t in range(length)]
        for first in range(0, len(windows) - len(anchors) + 1, len(anchors)):
            epoch = windows[first : first + len(anchors)]
            assert (epoch if sampler == "fifo" else sorted(epoch)) == anchors


def test_windows_of_a_dataset_do_not_depend_on_the_mixture(datasets):
    """The windows of a dataset's n-th turn do not depend on other datasets."""

    def own(mixture, count):
        loader = SequenceLoader(mixture, BATCH, context=CONTEXT, seed=4)
        rows = [windows_of(loader, step) for step in range(count)]
        return [[window for _, window in row] for row in rows if row[0][0] == 0]

    first = own(Mixture([(datasets[0], 1), (datasets[1], 1)]), 20)
    second = own(Mixture([(datasets[0], 1), (datasets[2], 3), (datasets[1], 1)]), 50)
    assert first == second
    assert len(first) == 10


@both
def test_one_dataset_twice_does_not_draw_the_same_windows(datasets, make):
    loader = make([datasets[0], datasets[0], datasets[0]])
    rows = [windows_of(loader, step) for step in range(20)]
    drawn = [[window for row in rows for number, window in row if number == part][:40] for part in (0, 1)]
    assert drawn[0] != drawn[1]


# Options of a dataset's own


@both
def test_each_dataset_is_normalised_by_its_statistics(datasets, make):
    loader = make(datasets, normalize=True, columns=["observations"])
    for step, batch in enumerate(take(loader, 10)):
        for row, (number, (episode, start, length)) in enumerate(windows_of(loader, step)):
            every = np.concatenate(column(number, "observations")).astype(np.float64)
            own = (EPISODES[number][episode]["observations"][start : start + length] - every.mean(0)) / every.std(0)
            np.testing.assert_allclose(batch["observations"][row, :length].numpy(), own, rtol=1e-5, atol=1e-6)
            assert not batch["observations"][row, length:].any()


@pytest.mark.parametrize("join", [False, True])
def test_options_of_single_datasets(datasets, join):
    mean = np.arange(4.0)
    mixture = Mixture(
        [
            (datasets[0], 1, {"preset_options": {"return_scale": 0.5}, "sampler": "fifo"}),
            (datasets[1], 1, {"normalize": {"observations": (mean, 2.0)}, "sampler": TopK("length", 1)}),
        ],
        join=join,
    )
    loader = SequenceLoader(
        mixture, BATCH, context=CONTEXT, preset="corl", batch=BatchOptions(preset_options={"return_scale": 2.0})
    )
    count = 0
    for step, batch in enumerate(take(loader, 12)):
        for row, (number, (episode, start, length)) in enumerate(windows_of(loader, step)):
            steps = slice(start, start + length)
            observations = EPISODES[number][episode]["observations"][steps].astype(np.float64)
            if number == 0:
                position = count
                count += 1
                flat = [(e, t) for e, n in enumerate(LENGTHS[0]) for t in range(n)]
                assert (episode, start) == flat[position % len(flat)]
            else:
                observations = (observations - mean) / (2.0 + 1e-6)
                assert episode == 2  # the longest
            np.testing.assert_allclose(batch["states"][row, :length].numpy(), observations, rtol=1e-6)
            expected = returns_to_go(number)[episode][steps] * [0.5, 2.0][number]
            assert np.array_equal(batch["returns"][row, :length].numpy(), expected)


@both
def test_probabilities_come_from_the_dataset_of_the_window(datasets, make):
    loader = make(datasets, sampler=Weighted("length", by="step"))
    for step, batch in enumerate(take(loader, 10)):
        for row, (number, (episode, *_)) in enumerate(windows_of(loader, step)):
            total = sum(length * length for length in LENGTHS[number])
            assert batch["probability"][row].item() == pytest.approx(LENGTHS[number][episode] / total, rel=1e-9)
        assert batch["weights_version"].tolist() == [0] * BATCH
    assert len(loader.metrics()["effective_sample_size"]) == len(loader.dataset.components)


def test_a_mixture_in_which_only_one_dataset_has_weights(datasets):
    weighted = {"sampler": Weighted(pl.lit(1.0))}
    mixture = Mixture([(datasets[0], 1), (datasets[1], 1, weighted)])
    for batch in take(SequenceLoader(mixture, BATCH, context=CONTEXT), 6):
        drawn = {"probability", "weights_version"}
        assert batch.keys() & drawn == (drawn if batch["source"][0] == 1 else set())


def test_mixtures_of_views(datasets):
    view = datasets[0].filter("length > 6").filter_steps(pl.col("rewards") > 0)
    mixture = Mixture([(view, 1), (datasets[1], 1)], join=True)
    loader = SequenceLoader(mixture, BATCH, context=CONTEXT)
    for step in range(30):
        for number, (episode, start, _) in windows_of(loader, step):
            if number == 0:
                assert LENGTHS[0][episode] > 6
                assert EPISODES[0][episode]["rewards"][start] > 0
    assert view.fingerprint in mixture.fingerprint


# The sequence


@pytest.mark.parametrize("world_size", [2, 3, 7])
@both
def test_rank_slices_together_are_the_global_batch(datasets, make, world_size):
    whole = take(make(datasets), 12)
    parts = [take(make(datasets, rank=rank, world_size=world_size), 12) for rank in range(world_size)]
    together = [{key: torch.cat([part[step][key] for part in parts]) for key in whole[step]} for step in range(12)]
    same(together, whole)


@pytest.mark.parametrize("prefetch", [1, 2, 8])
@both
def test_prefetching_changes_nothing(datasets, make, prefetch):
    same(take(make(datasets, prefetch=prefetch), 30), take(make(datasets, prefetch=0), 30))


@pytest.mark.processes
@pytest.mark.parametrize("workers", [1, 2])
@both
def test_dataloader_workers_change_nothing(datasets, make, workers):
    expected = take(make(datasets), 13)
    same(list(DataLoader(make(datasets, steps=13), batch_size=None, num_workers=workers)), expected)


@pytest.mark.parametrize("done", [0, 1, 11])
@both
def test_a_resumed_loader_continues_at_the_saved_step(datasets, make, done):
    for sampler in (Uniform(by="episode"), Shuffle(), Fifo(), Weighted("length", replacement=False)):
        options = {"sampler": sampler, "batch_size": 2}
        expected = take(make(datasets, **options), 20)
        loader = make(datasets, **options)
        same(take(loader, done), expected[:done])
        state = json.loads(json.dumps(loader.state_dict()))
        resumed = pickle.loads(pickle.dumps(make(datasets, prefetch=0, **options)))
        resumed.load_state_dict(state)
        same(take(resumed, 20 - done), expected[done:])


def test_a_state_of_another_mixture_is_refused(datasets):
    a, b = datasets[:2]
    state = SequenceLoader(Mixture([(a, 1), (b, 2)]), BATCH, context=CONTEXT).state_dict()
    for other, name in [
        (Mixture([(a, 2), (b, 1)]), "turns"),
        (Mixture([(b, 1), (a, 2)]), "fingerprint"),
        (Mixture([(a, 1), (b, 2)], join=True), "join"),
        (Mixture([(a, 1), (b, 2, {"sampler": "fifo"})]), "sampler"),
        (a, "fingerprint"),
    ]:
        with pytest.raises(StateMismatchError, match=name):
            SequenceLoader(other, BATCH, context=CONTEXT).load_state_dict(state)
    # Only ratios count.
    SequenceLoader(Mixture([(a, 0.1), (b, 0.2)]), BATCH, context=CONTEXT).load_state_dict(state)


def test_the_spec_has_the_options_of_each_dataset(datasets):
    spec = json.loads(json.dumps(grouped(datasets, normalize=True).spec()))
    assert [list(part["normalize"]) for part in spec["datasets"]] == [["observations"]] * 3
    assert spec["turns"] == [5, 3, 2]


# Refused arguments


def test_wrong_entries_are_refused(datasets):
    with pytest.raises(InvalidArgumentError, match="one dataset or more"):
        Mixture([])
    for entry in ((datasets[0],), (1, datasets[0]), ("path", 1), (datasets[0], 1, {}, 2)):
        with pytest.raises(InvalidArgumentError, match="mixture takes"):
            Mixture([entry])
    with pytest.raises(UnknownNameError, match="sampler"):
        Mixture([(datasets[0], 1, {"samplr": "fifo"})])
    with pytest.raises(UnknownArgumentError, match="did you mean 'join'"):
        Mixture(datasets, joins=True)  # type: ignore[arg-type]
    for wrong in (lambda: Mixture(datasets, [0.5, 0.5]), lambda: Mixture(datasets, weights=[0.5, 0.5])):
        with pytest.raises(InvalidArgumentError, match=r"each dataset with its proportion: Mixture\(\[\(a, 0.5\), "):
            wrong()
    with pytest.raises(InvalidArgumentError, match="dataset 1 of the mixture has no proportion"):
        Mixture([(datasets[0], 1), datasets[1]])
    for several in (datasets, tuple(datasets)):
        with pytest.raises(InvalidArgumentError, match=r"of 3\n.*gear_data.Mixture\(\[a, b\]\)"):
            SequenceLoader(several)


@pytest.mark.parametrize("join", [False, True])
def test_bare_datasets_have_equal_shares(datasets, join):
    options = {"batch_size": BATCH, "context": CONTEXT, "steps": 12, "columns": ["actions"]}
    bare = SequenceLoader(Mixture(datasets, join=join), **options)
    even = SequenceLoader(Mixture([(each, 2.5) for each in datasets], join=join), **options)
    counts = np.bincount(np.concatenate([bare.windows(step)["dataset"] for step in range(12)]))
    assert counts.tolist() == [4 * BATCH] * 3
    for step in range(12):
        for name, values in bare.windows(step).items():
            assert values.tolist() == even.windows(step)[name].tolist()


def test_the_repr_shows_the_shares(datasets):
    a, b, c = map(repr, datasets)
    assert repr(Mixture(datasets[:2])) == f"Mixture([50% {a}, 50% {b}], join=False)"
    thirds = Mixture([(datasets[0], 2), (datasets[1], 3.0), (datasets[2], np.int64(1))], join=True)
    assert repr(thirds) == f"Mixture([33.3% {a}, 50% {b}, 16.7% {c}], join=True)"
    warm = Mixture([(datasets[0], 1), (datasets[1], [(0, 0.0), (9, 1.0)])])
    assert repr(warm) == f"Mixture([proportion 1 {a}, proportion ((0, 0.0), (9, 1.0)) {b}], join=False)"
    loader = SequenceLoader(warm, batch_size=4, context=3, sampler="fifo", seed=9)
    assert repr(loader) == (
        f"SequenceLoader({warm!r}, batch_size=4, context=3, preset='raw', sampler='fifo', seed=9, no end, next step 0)"
    )


@pytest.mark.parametrize("proportion", [0, -1, float("nan"), float("inf"), "1", None, True])
def test_wrong_proportions_are_refused(datasets, proportion):
    with pytest.raises(InvalidArgumentError, match="proportion"):
        SequenceLoader(Mixture([(datasets[0], 1), (datasets[1], proportion)]))


@both
def test_epochs_are_refused(datasets, make):
    with pytest.raises(InvalidArgumentError, match="epochs"):
        make(datasets, epochs=1)
    assert len(make(datasets, steps=3)) == 3


def with_dtype(dataset_episodes, name, dtype):
    return [{**episode, name: episode[name].astype(dtype)} for episode in dataset_episodes]


def test_joined_batches_have_one_layout(datasets, make_dataset):
    other = make_dataset(with_dtype(EPISODES[1], "observations", np.float64))
    mixture = Mixture([(datasets[0], 1), (other, 1)], join=True)
    with pytest.raises(InvalidArgumentError, match="differ"):
        take(SequenceLoader(mixture, BATCH, context=CONTEXT), 1)
    # With a dtype for both they fit.
    batch = take(SequenceLoader(mixture, BATCH, context=CONTEXT, batch=BatchOptions(dtype="float32")), 1)[0]
    assert batch["observations"].dtype == torch.float32
    assert "infos.count" not in batch


def test_columns_that_one_dataset_lacks_are_refused(datasets):
    mixture = Mixture([(datasets[0], 1), (datasets[1], 1)], join=True)
    with pytest.raises(UnknownNameError, match=r"infos\.count"):
        SequenceLoader(mixture, columns=["infos.count"])


@pytest.mark.parametrize("wrong", [None, "path", 3, []])
def test_other_types_than_datasets_are_refused(wrong):
    with pytest.raises(InvalidArgumentError, match="Dataset or a Mixture"):
        SequenceLoader(wrong)


def test_a_mixture_of_one_is_its_dataset(datasets):
    alone = take(SequenceLoader(datasets[0], BATCH, context=CONTEXT, seed=4), 5)
    same(take(SequenceLoader(Mixture([(datasets[0], 7)]), BATCH, context=CONTEXT, seed=4), 5), alone)


def test_it_is_public():
    assert gear_data.Mixture is Mixture


# Proportions that depend on the step


@pytest.mark.parametrize("join", [False, True])
def test_scheduled_proportions_are_kept_and_resume(datasets, join):
    def mixture(last=30):
        return Mixture([(datasets[0], [(0, 1.0), (last, 0.0)]), (datasets[1], [(0, 0.0), (last, 1.0)])], join=join)

    def make(last=30, **options):
        return SequenceLoader(mixture(last), 6, context=3, seed=4, columns=["rewards"], **options)

    loader = make()
    counts, owed = np.zeros(2), np.zeros(2)
    per_step = 6 if join else 1
    for step in range(60):
        selection = loader.windows(step)["dataset"]
        counts += np.bincount(selection, minlength=2) / (6 // per_step)
        share = min(step / 30, 1)
        owed += np.array([1 - share, share]) * per_step
        # The bound for two datasets is 1/2; after the last breakpoint a cycle may add as much.
        assert np.abs(counts - owed).max() <= 0.5 + 1e-6
    assert set(loader.windows(0)["dataset"].tolist()) == {0}
    assert set(loader.windows(59)["dataset"].tolist()) == {1}
    whole = take(loader, 50)
    ranks = [take(make(rank=rank, world_size=2), 50) for rank in range(2)]
    parts = zip(*ranks, strict=True)
    same([{key: torch.cat([part[key] for part in pair]) for key in pair[0]} for pair in parts], whole)
    if join:
        # Every rank has rows of both datasets.
        assert all(part[15]["source"].unique().numel() == 2 for part in ranks)
    resumed = make()
    resumed.load_state_dict(json.loads(json.dumps({**make().state_dict(), "step": 23})))
    same(take(resumed, 27), whole[23:])
    same([make().batch(41)], [whole[41]])
    with pytest.raises(StateMismatchError, match="turns"):
        make(31).load_state_dict(make().state_dict())
    json.dumps(loader.spec())


def test_a_schedule_may_be_a_function_but_not_anything(datasets):
    mixture = Mixture([(datasets[0], lambda step: 1 + step % 2), (datasets[1], 1)])
    loader = SequenceLoader(mixture, 4, columns=["rewards"])
    drawn = [int(loader.windows(step)["dataset"][0]) for step in range(240)]
    assert drawn.count(0) == 140  # (1/2 + 2/3) / 2 of them
    assert loader.spec()["turns"]["schedules"][1] == 1
    for wrong, message in (
        ([], "a proportion is a number"), ([(0, -1)], "a proportion is a number"), (0, "positive"), ("1", "positive"),
        (float("nan"), "positive"), (True, "positive"), ([(3, 1), (3, 2)], "step 3 after step 3"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=rf"dataset 1 \(.*1\): .*{message}"):
            Mixture([(datasets[0], 1), (datasets[1], wrong)])
    SequenceLoader(Mixture([(datasets[0], np.float32(0.5)), (datasets[1], np.int64(2))]), 4, columns=["rewards"])
    late = Mixture([(datasets[0], 1), (datasets[1], lambda step: 1.0 if step < 5000 else -1.0)])
    with pytest.raises(InvalidArgumentError, match=r"proportion of dataset 1 returns -1\.0 for step 5000"):
        SequenceLoader(late, 4, columns=["rewards"]).windows(5000)


def test_proportions_that_are_all_0_at_a_late_step_are_refused_at_once(datasets):
    pair = [(datasets[0], [(0, 1), (10**6, 0), (2 * 10**6, 1)]), (datasets[1], [(0, 1), (10**5, 0), (10**7, 0)])]
    with pytest.raises(InvalidArgumentError, match=r"at step 1000000 are \[0.0, 0.0\]"):
        SequenceLoader(Mixture(pair), 4, columns=["rewards"])
