"""Every sampler against a plain-Python reference, and its own guarantees."""

from __future__ import annotations

import json
import pickle

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gear_data.errors import InvalidArgumentError, UnknownNameError
from gear_data.selection.anchors import Anchors
from gear_data.selection.samplers import KINDS, SAMPLERS, Candidates, Fifo, Shuffle, TopK, Uniform, Weighted, as_sampler
from gear_data.selection.step_mask import StepMask
from gear_data.selection.windows import WindowRule
from tests.support.feed import data as feed_data
from tests.support.feed import reference as ref
from tests.support.feed.selection import Case

LENGTHS = [7, 1, 23, 40, 2, 20, 19, 21, 5]
CONTEXT = 20
VALUES = [3.0, 0.0, 1e-9, 7.25, 3.0, 1e9, 0.5, 3.0, 2.0]

#: Name -> (sampler, its windows by the reference). The expression "v" has the value of the episode's index.
MEMBERS = {
    "uniform": (Uniform(), lambda c, v, seed, t, n, p: c.uniform(seed, t, n, "step")),
    "uniform by episode": (Uniform("episode"), lambda c, v, seed, t, n, p: c.uniform(seed, t, n, "episode")),
    "weighted": (Weighted("v"), lambda c, v, seed, t, n, p: c.weighted(seed, t, n, "episode", v, True)),
    "weighted by step": (
        Weighted("v", by="step"),
        lambda c, v, seed, t, n, p: c.weighted(seed, t, n, "step", v, True),
    ),
    "weighted once": (
        Weighted("v", replacement=False),
        lambda c, v, seed, t, n, p: c.weighted(seed, t, n, "episode", v, False),
    ),
    "weighted once by step": (
        Weighted("v", by="step", replacement=False),
        lambda c, v, seed, t, n, p: c.weighted(seed, t, n, "step", v, False),
    ),
    "topk": (TopK("v", 1), lambda c, v, seed, t, n, p: c.topk(seed, t, n, "step", v, 1)),
    "topk by episode": (TopK("v", 2, "episode"), lambda c, v, seed, t, n, p: c.topk(seed, t, n, "episode", v, 2)),
    "fifo": (Fifo(), lambda c, v, seed, t, n, p: c.fifo(seed, t, n, p)),
    "shuffle": (Shuffle(), lambda c, v, seed, t, n, p: c.shuffle(seed, t, n, p)),
}
every_sampler = pytest.mark.parametrize("name", MEMBERS)


def anchors_of(case):
    """Returns the package's Anchors of a reference case."""
    lengths = np.array(case.lengths, np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.array(case.ids, np.int64)
    rule = WindowRule(case.context, case.stride, case.anchor, case.short)
    mask = None
    if case.flags is not None:
        flags = np.array(case.flags, np.bool_)
        half = len(flags) // 2
        mask = StepMask.from_blocks(len(flags), [(half, flags[half:]), (0, flags[:half])])
        if case.anchor != "random":
            mask = mask.anchors(offsets, rule, case.mode)
    if case.ids == list(range(len(case.lengths))):
        return Anchors(lengths, offsets, None, None, rule, mask)
    return Anchors(lengths[ids], None, ids, offsets[ids], rule, mask)


def bind(sampler, case, seed, values=None):
    values = np.array(VALUES if values is None else values, np.float64)
    anchors = anchors_of(case)
    return sampler.bind(Candidates(anchors, lambda expression, what: values[np.array(case.ids)]), seed)


def whole(lengths=LENGTHS, context=CONTEXT, **rule):
    return Case(lengths, list(range(len(lengths))), context, **rule)


def rows(windows):
    return list(zip(windows.episode_id.tolist(), windows.start.tolist(), windows.length.tolist(), strict=True))


def positions(windows, lengths=LENGTHS):
    return np.concatenate([[0], np.cumsum(lengths)])[windows.episode_id] + windows.start


@st.composite
def cases(draw):
    """Draws views of up to ten episodes with any rule and filter, and an anchor."""
    lengths = draw(st.lists(st.integers(1, 30), min_size=1, max_size=10))
    ids = draw(st.sampled_from([list(range(len(lengths))), list(range(0, len(lengths), 2))]))
    # Filters that often keep many steps and often few, but always one.
    flags = draw(st.none() | st.lists(st.booleans(), min_size=sum(lengths), max_size=sum(lengths)))
    if flags is not None and draw(st.booleans()):
        flags = [bool(k % 11) for k in range(len(flags))]
    case = Case(
        lengths,
        ids,
        context=draw(st.integers(1, 25)),
        stride=draw(st.sampled_from([1, 1, 2, 7])),
        anchor=draw(st.sampled_from(["start", "end", "random"])),
        short=draw(st.booleans()),
        flags=flags,
        mode=draw(st.sampled_from(["first", "all"])),
    )
    return case if case.all_anchors() else whole(lengths, case.context)


def drawable(case, values):
    return [values[i] for i in case.ids if case.anchors(i) and values[i] > 0]


@every_sampler
@given(
    case=cases(),
    values=st.lists(st.sampled_from([0.0, 1.0, 1.0, 2.5, 1e-7, 1e12, 3e-300]), min_size=10, max_size=10),
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(0, 2**34),
    count=st.integers(1, 40),
)
@settings(max_examples=60)
def test_selection_equals_plain_python(name, case, values, seed, step, count):
    sampler, expected = MEMBERS[name]
    if not drawable(case, values):
        values = [1.0] * 10
    if "once" in name:
        count = min(count, len(drawable(case, values)))
    if name == "topk by episode" and len({episode for episode, _ in case.all_anchors()}) < 2:
        case = whole([3, 4])
    windows = bind(sampler, case, seed, values).select(step, count, step * count)
    own = [values[i] for i in case.ids]
    assert rows(windows) == expected(case, own, seed, step, count, step * count)
    assert {array.dtype for array in (windows.episode_id, windows.start, windows.length)} == {np.dtype(np.int64)}


@every_sampler
def test_every_sampler_keeps_the_shared_guarantees(name):
    """Checks the guarantees that all samplers share.

    Each window lies in its episode and is positioned by an anchor step. A selection depends only on (seed, step, slot):
    no state is kept between steps, and slots do not depend on later slots. A pickled selector selects the same windows.
    """
    case = Case([*LENGTHS, 9], [0, 2, 3, 4, 5, 6, 7, 8], 6, stride=2, short=False)
    sampler = MEMBERS[name][0]
    anchors = set(case.all_anchors())
    selector = bind(sampler, case, 5, [*VALUES, 1.0])
    # The number of episodes that have an anchor and a weight limits the slots.
    count = 5 if "once" in name else 16
    seen = {step: rows(selector.select(step, count, step * count)) for step in (0, 1, 1000, 3, 2**33, 2, 0)}
    for step, expected in seen.items():
        assert all((episode, start) in anchors and length == 6 for episode, start, length in expected)
        fresh = bind(pickle.loads(pickle.dumps(sampler)), case, 5, [*VALUES, 1.0])
        assert rows(fresh.select(step, count, step * count)) == expected
        assert rows(selector.select(step, count - 2, step * count)) == expected[:-2]
        assert rows(pickle.loads(pickle.dumps(selector)).select(step, count, step * count)) == expected
    assert json.loads(json.dumps(selector.identity())) == selector.identity()
    assert selector.identity()["name"] == sampler.name == name.split()[0]


@pytest.mark.parametrize("name", [name for name in MEMBERS if name != "fifo"])
def test_selection_changes_with_seed_and_step(name):
    def first(seed, step):
        selector = bind(MEMBERS[name][0], whole(), seed)
        return rows(selector.select(step, 8, step * 8))

    # The bits above the 32nd of the seed and of the step matter, too.
    selections = [first(0, 0), first(1, 0), first(2**32, 0), first(0, 1), first(0, 2**32)]
    assert all(a != b for i, a in enumerate(selections) for b in selections[:i])


@pytest.mark.parametrize("name", [name for name in MEMBERS if "once" not in name and name != "topk by episode"])
def test_one_episode_of_one_step(name):
    assert rows(bind(MEMBERS[name][0], whole([1]), 0, [2.0]).select(3, 4, 12)) == [(0, 0, 1)] * 4


def test_samplers_can_be_given_by_name():
    assert as_sampler("uniform") == Uniform()
    assert as_sampler("shuffle") == Shuffle()
    sampler = TopK("v", 3)
    assert as_sampler(sampler) is sampler
    with pytest.raises(UnknownNameError) as error:
        as_sampler("unifrom")
    assert "did you mean 'uniform'" in str(error.value)
    assert all(name in str(error.value) for name in SAMPLERS)


@pytest.mark.parametrize("name", [name for name, default in SAMPLERS.items() if default is None])
def test_a_sampler_that_needs_arguments_says_so(name):
    with pytest.raises(InvalidArgumentError, match=rf"(?i)give an instance: {name}\("):
        as_sampler(name)


def test_every_sampler_is_in_the_tables_of_the_tests():
    known = set(SAMPLERS)
    assert {*KINDS} == known, "list its class, too"
    assert {sampler.name for sampler, _ in MEMBERS.values()} == known, "add a plain reference to MEMBERS"
    assert {sampler.name for sampler in feed_data.EVERY_SAMPLER.values()} == known, "tests/support/feed/data.py"
    assert {*FROZEN} == {*MEMBERS}, "add the windows of the plain reference: seed 2024, step 3, 18 slots before"


def test_wrong_arguments_of_samplers():
    for make in (lambda: Uniform("steps"), lambda: Weighted("v", by="row"), lambda: TopK("v", 3, by="")):
        with pytest.raises(UnknownNameError, match="known: episode, step"):
            make()
    with pytest.raises(InvalidArgumentError, match="k is 0, not an integer of 1 or more"):
        TopK("v", 0)


def test_a_sampler_with_a_polars_expression_can_be_pickled():
    sampler = pickle.loads(pickle.dumps(Weighted(pl.col("return") + 1, by="step")))
    assert isinstance(sampler.weights, pl.Expr)
    assert str(sampler.weights) == str(pl.col("return") + 1)


# Fixed: a run that is resumed with another release must draw the same windows. Computed by the references with seed
# 2024, step 3 and 18 slots before the step.
FROZEN = {
    "uniform": [(0, 5, 2), (2, 0, 20), (4, 1, 1), (6, 14, 5), (3, 6, 20), (5, 14, 6)],
    "uniform by episode": [(0, 2, 5), (0, 5, 2), (4, 1, 1), (7, 5, 16)],
    "weighted": [(5, 7, 13), (5, 15, 5), (5, 12, 8), (5, 5, 15)],
    "weighted by step": [(5, 11, 9), (5, 14, 6), (5, 14, 6), (5, 1, 19)],
    "weighted once": [(5, 7, 13), (7, 15, 6), (3, 24, 16), (8, 1, 4)],
    "weighted once by step": [(5, 11, 9), (7, 10, 11), (3, 8, 20), (4, 1, 1)],
    "topk": [(5, 11, 9), (5, 14, 6), (5, 14, 6), (5, 9, 11)],
    "topk by episode": [(5, 7, 13), (5, 15, 5), (5, 12, 8), (3, 11, 20)],
    "fifo": [(2, 10, 13), (2, 11, 12), (2, 12, 11), (2, 13, 10)],
    "shuffle": [(5, 4, 16), (5, 18, 2), (7, 12, 9), (3, 37, 3), (3, 3, 20), (6, 12, 7)],
}


@pytest.mark.parametrize("name", FROZEN)
def test_the_stream_of_random_numbers_stays_as_it_is(name):
    windows = bind(MEMBERS[name][0], whole(), 2024).select(3, len(FROZEN[name]), 18)
    assert rows(windows) == FROZEN[name] == MEMBERS[name][1](whole(), VALUES, 2024, 3, len(FROZEN[name]), 18)


def test_fifo_goes_through_the_anchors_in_order():
    case = whole([3, 5, 1], 2, stride=2)
    anchors = [(0, 0, 2), (0, 2, 1), (1, 0, 2), (1, 2, 2), (1, 4, 1), (2, 0, 1)]
    selector = bind(Fifo(), case, 0)
    assert rows(selector.select(7, 13, 5)) == [anchors[(5 + slot) % 6] for slot in range(13)]
    assert selector.epoch_slots(2) == 12


@pytest.mark.parametrize("batch", [1, 6, 23, 138, 139, 400])
def test_shuffle_takes_each_step_once_an_epoch_across_batches(batch):
    size, epochs = sum(LENGTHS), 7
    selector = bind(Shuffle(), whole(), 3)
    steps = -(-epochs * size // batch)
    drawn = np.concatenate([positions(selector.select(step, batch, step * batch)) for step in range(steps)])
    orders = drawn[: epochs * size].reshape(epochs, size)
    assert (np.sort(orders, axis=1) == np.arange(size)).all()
    assert len({tuple(order) for order in orders.tolist()}) == epochs
    assert selector.epoch_slots(epochs) == epochs * size


def test_shuffle_of_many_steps_equals_plain_python_across_an_epoch_end():
    lengths = [30_000, 1, 36_001]  # more than 2^16 steps: a Feistel network
    size = sum(lengths)
    selector = bind(Shuffle(), whole(lengths), 2**50)
    for step in (0, size // 100 - 1, size // 100, 5 * size // 100):
        expected = ref.shuffle_windows(2**50, step, 100, lengths, CONTEXT)
        assert rows(selector.select(step, 100, step * 100)) == expected


def test_shuffle_of_many_steps_takes_each_once_an_epoch():
    lengths = [30_000, 1, 36_001]
    size = sum(lengths)
    selector = bind(Shuffle(), whole(lengths), 8)
    drawn = np.concatenate(
        [positions(selector.select(step, 4096, step * 4096), lengths) for step in range(2 * size // 4096 + 1)]
    )
    first, second = drawn[:size], drawn[size : 2 * size]
    assert np.array_equal(np.sort(first), np.arange(size))
    assert np.array_equal(np.sort(second), np.arange(size))
    assert (first == second).mean() < 0.001
    assert abs(np.corrcoef(first, np.arange(size))[0, 1]) < 0.02


def test_two_shuffles_do_not_share_their_orders():
    """Orders of small tables are cached by seed, epoch and size."""
    sizes = ([5, 5], [5, 6])
    selectors = {(seed, i): bind(Shuffle(), whole(sizes[i]), seed) for seed in (0, 1) for i in (0, 1)}
    for step in range(12):
        for (seed, i), selector in selectors.items():
            assert rows(selector.select(step, 4, 4 * step)) == ref.shuffle_windows(seed, step, 4, sizes[i], CONTEXT)


def test_topk_takes_the_largest_values_and_the_first_of_equal_ones():
    case = whole([4] * 6, 2)
    values = [2.0, 9.0, float("nan"), 9.0, 9.0, -1.0]
    selector = bind(TopK("v", 2), case, 0, values)
    assert set(selector.select(0, 200, 0).episode_id.tolist()) == {1, 3}
    assert set(bind(TopK("v", 5), case, 0, values).select(0, 200, 0).episode_id.tolist()) == {0, 1, 3, 4, 5}
    with pytest.raises(InvalidArgumentError, match="k is 6, but 5 episodes have a window and a value"):
        bind(TopK("v", 6), case, 0, values)


def test_topk_leaves_out_episodes_without_a_window():
    case = whole([4, 1, 4], 2, short=False)
    selector = bind(TopK("v", 2), case, 0, [1.0, 9.0, 2.0])
    assert set(selector.select(0, 100, 0).episode_id.tolist()) == {0, 2}


@every_sampler
def test_shares_equal_the_drawn_shares_in_the_long_run(name):
    case = whole()
    values = [3.0, 0.0, 1.0, 7.25, 3.0, 5.0, 0.5, 3.0, 2.0]
    selector = bind(MEMBERS[name][0], case, 11, values)
    shares = selector.shares()
    assert shares.shape == (len(LENGTHS),)
    assert shares.sum() == pytest.approx(1)
    # Batches of one slot, so that replacement makes no difference; many epochs of slots.
    steps = 40 * sum(LENGTHS)
    drawn = [selector.select(step, 1, step).episode_id[0] for step in range(steps)]
    found = np.bincount(drawn, minlength=len(LENGTHS)) / steps
    assert np.abs(found - shares).max() < 5 * np.sqrt(0.25 / steps)
    assert ((found == 0) == (shares == 0)).all()


def test_shares_follow_updates():
    selector = bind(Weighted("v"), whole(), 0, [1.0] * 9)
    selector.update(0, [2], [8.0])
    np.testing.assert_allclose(selector.shares(), [1 / 16 if i != 2 else 0.5 for i in range(9)])
