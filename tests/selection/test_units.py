"""One weight a step, importance weights, and arrays of weights, against plain loops and torchrl."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gear_data.errors import InvalidArgumentError
from gear_data.selection.anchors import Anchors
from gear_data.selection.samplers import Candidates, Weighted
from gear_data.selection.step_mask import StepMask
from gear_data.selection.units import EpisodeUnits, StepUnits
from gear_data.selection.windows import WindowRule
from tests.selection.test_weighted import check_fit

LENGTHS = np.array([4, 9, 1, 12, 3, 30])
STEPS = int(LENGTHS.sum())
IDS = np.array([2, 3, 5, 8, 9, 40])
RULES = [WindowRule(5), WindowRule(3, 4, "end", False), WindowRule(4, 2, "start", False), WindowRule(4, 3, "random")]


def anchors_of(rule=RULES[0], mask=None):
    return Anchors(LENGTHS, None, IDS, None, rule, mask)


def bound(sampler, anchors, seed=11):
    values = np.linspace(0.5, 3, len(LENGTHS))
    return sampler.bind(Candidates(anchors, lambda expression, what: values), seed)


def drawn_steps(selector, batches=1, size=4000):
    """Returns the drawn steps, counted over all episodes, and their probabilities."""
    starts = dict(zip(IDS.tolist(), np.cumsum(LENGTHS) - LENGTHS, strict=True))
    windows = [selector.select(step, size, 0) for step in range(batches)]
    episodes = np.concatenate([each.episode_id for each in windows])
    steps = np.array([starts[e] for e in episodes.tolist()]) + np.concatenate([each.start for each in windows])
    return steps, np.concatenate([each.probability for each in windows])


def plain_anchors(rule, mask=None):
    """Returns whether each step is an anchor, by a plain loop."""
    flags, at = [], 0
    for length in LENGTHS.tolist():
        for step in range(length):
            if rule.short:
                keeps = step % rule.stride == 0
            elif rule.anchor == "end":
                keeps = step >= rule.context - 1 and (step - rule.context + 1) % rule.stride == 0
            elif rule.anchor == "random":
                keeps = length >= rule.context and step % rule.stride == 0
            else:
                keeps = step + rule.context <= length and step % rule.stride == 0
            flags.append(keeps and (mask is None or bool(mask[at + step])))
        at += length
    return np.array(flags)


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("filtered", [False, True])
def test_the_flags_of_anchors_are_those_of_a_plain_loop(rule, filtered):
    kept = np.random.default_rng(1).random(STEPS) < 0.6 if filtered else None
    mask = None if kept is None else StepMask.from_blocks(STEPS, [(0, kept)])
    anchors = anchors_of(rule, mask)
    expected = plain_anchors(rule, kept)
    assert anchors.flags().tolist() == expected.tolist()
    assert anchors.total == expected.sum()


def test_the_flags_of_a_view_are_those_of_its_episodes():
    kept = np.random.default_rng(2).random(STEPS) < 0.5
    offsets = np.concatenate([[0], np.cumsum(LENGTHS)])
    rows = np.array([1, 3, 5])
    view = Anchors(LENGTHS[rows], None, rows, offsets[rows], WindowRule(4), StepMask.from_blocks(STEPS, [(0, kept)]))
    assert view.flags().tolist() == np.concatenate([kept[offsets[r] : offsets[r + 1]] for r in rows]).tolist()


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("replacement", [True, False])
def test_equal_weights_of_an_episodes_steps_draw_the_windows_of_by_step(rule, replacement):
    if not replacement:
        rule = WindowRule(1)
    per_episode = np.linspace(0.5, 3, len(LENGTHS))
    anchors = anchors_of(rule)
    expected = bound(Weighted(per_episode, by="step"), anchors)
    expression = bound(Weighted("w", by="step"), anchors)
    steps = bound(Weighted(np.repeat(per_episode, LENGTHS), replacement=replacement), anchors)
    if not replacement:
        chosen = drawn_steps(steps, 1, STEPS)[0]
        assert sorted(chosen.tolist()) == list(range(STEPS))
        with pytest.raises(InvalidArgumentError, match=f"{STEPS + 1} slots without replacement, but {STEPS} steps"):
            steps.select(0, STEPS + 1, 0)
        return
    for step in range(20):
        ours, theirs, by_text = (each.select(step, 50, 0) for each in (steps, expected, expression))
        assert (ours.episode_id == theirs.episode_id).all()
        assert (ours.start == theirs.start).all()
        assert (by_text.start == theirs.start).all()
        np.testing.assert_allclose(ours.probability, theirs.probability, rtol=1e-12)
    np.testing.assert_allclose(steps.shares(), expected.shares(), rtol=1e-12)


def test_steps_are_drawn_in_proportion_and_only_anchors():
    weights = np.random.default_rng(4).gamma(0.5, size=STEPS)
    weights[7] = 0
    rule = WindowRule(4, 2, "start", False)
    expected = weights * plain_anchors(rule)
    expected /= expected.sum()
    selector = bound(Weighted(weights.tolist()), anchors_of(rule))
    steps, probability = drawn_steps(selector, 50)
    check_fit(np.bincount(steps, minlength=STEPS), expected * len(steps))
    np.testing.assert_allclose(probability, expected[steps], rtol=1e-9)
    sums = np.add.reduceat(expected, np.cumsum(LENGTHS) - LENGTHS)
    np.testing.assert_allclose(selector.shares(), sums, rtol=1e-9)
    assert selector.effective_sample_size() == pytest.approx(1 / (expected**2).sum())
    again = pickle.loads(pickle.dumps(selector))
    assert (drawn_steps(again)[0] == drawn_steps(selector)[0]).all()


def test_updates_of_steps_draw_as_new_weights_and_travel_with_the_state():
    rng = np.random.default_rng(6)
    first = rng.gamma(0.5, size=STEPS) + 1e-3
    # A permutation keeps the scale, so a new sampler has the same integers.
    second = rng.permutation(first)
    anchors = anchors_of()
    selector, after = bound(Weighted(first), anchors), bound(Weighted(second), anchors)
    before = bound(Weighted(first), anchors)
    offsets = np.cumsum(LENGTHS) - LENGTHS
    episode = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    selector.update(5, IDS[episode], second, np.arange(STEPS) - offsets[episode])
    for step, expected in ((0, before), (4, before), (5, after), (99, after), (3, before)):
        assert (selector.select(step, 64, 0).start == expected.select(step, 64, 0).start).all()
    assert (selector.version(4), selector.version(5)) == (0, 1)
    assert selector.identity() == before.identity() != after.identity()
    state = json.loads(json.dumps(selector.state()))
    before.load(state)
    assert (before.select(7, 64, 0).episode_id == after.select(7, 64, 0).episode_id).all()
    selector.update(5, [], [], [], keep_from=5)
    assert (selector.select(7, 64, 0).episode_id == after.select(7, 64, 0).episode_id).all()


def test_wrong_updates_of_steps_are_refused():
    selector = bound(Weighted(np.ones(STEPS)), anchors_of())
    for ids, steps, message in (
        ([40], None, "names no steps"),
        ([40], [30], "episode 40 has 30 steps, and the update names step 30"),
        ([40, 2], [1], r"\[2\] episode ids, but int64 \[1\] steps"),
        ([40], [1.5], "float64"),
        ([7], [0], "there is no episode 7"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            selector.update(0, np.array(ids), [1.0] * len(ids), None if steps is None else np.array(steps))
    with pytest.raises(InvalidArgumentError, match="one weight an episode, and the update names steps"):
        bound(Weighted("w"), anchors_of()).update(0, [2], [1.0], [0])


def test_arrays_of_another_length_or_with_other_values_are_refused():
    anchors = anchors_of()
    with pytest.raises(InvalidArgumentError, match="58 weights, and the dataset or view has 6 episodes and 59 steps"):
        bound(Weighted(np.ones(58)), anchors)
    with pytest.raises(InvalidArgumentError, match="6x1 weights"):
        bound(Weighted(np.ones((6, 1))), anchors)
    with pytest.raises(InvalidArgumentError, match="by='episode' takes one weight an episode, 6 in all"):
        bound(Weighted(np.ones(STEPS), by="episode"), anchors)
    with pytest.raises(InvalidArgumentError, match="step 2 of episode 3 is nan"):
        bound(Weighted(np.where(np.arange(STEPS) == 6, np.nan, 1)), anchors)
    with pytest.raises(InvalidArgumentError, match=r"episode 5 is -1\.0"):
        bound(Weighted(torch.tensor([1.0, 1, -1, 1, 1, 1])), anchors)
    with pytest.raises(InvalidArgumentError, match="weights must be numbers"):
        bound(Weighted(["a"] * 6), anchors)
    with pytest.raises(InvalidArgumentError, match=r"weights must be numbers: .*detach"):
        bound(Weighted(torch.ones(6, requires_grad=True)), anchors)
    with pytest.raises(InvalidArgumentError, match="beta is a number, breakpoints or a function"):
        Weighted("w", beta=-0.5)
    with pytest.raises(InvalidArgumentError, match="divide_by_max"):
        Weighted("w", divide_by_max=True)


class PlainTree:
    """The part of torchrl's segment trees that its sampler uses, over a plain array.

    Their C++ extension is not built for every version of torch.
    """

    def __init__(self, size):
        self.values = np.zeros(size, np.float32)

    def __getitem__(self, index):
        return torch.from_numpy(self.values[np.asarray(index)])

    def __setitem__(self, index, value):
        self.values[np.asarray(index)] = np.asarray(value)

    def scan_lower_bound(self, mass):
        return np.searchsorted(np.cumsum(self.values), np.asarray(mass))


class PlainSum(PlainTree):
    def query(self, first, last):
        return self.values[first:last].sum()


class PlainMin(PlainTree):
    def query(self, first, last):
        return self.values[first:last].min()


def test_importance_weights_are_those_of_torchrl(monkeypatch):
    prioritized = pytest.importorskip("torchrl.data.replay_buffers.samplers.prioritized")
    storages = pytest.importorskip("torchrl.data.replay_buffers.storages")
    for kind, tree in (("Sum", PlainSum), ("Min", PlainMin)):
        for bits in (32, 64):
            monkeypatch.setattr(prioritized, f"{kind}SegmentTreeFp{bits}", tree)
    priority = np.random.default_rng(8).gamma(1.0, size=STEPS) + 0.01
    alpha, beta = 0.7, 0.45
    storage = storages.LazyTensorStorage(STEPS)
    storage.set(range(STEPS), torch.arange(STEPS))
    theirs = prioritized.PrioritizedSampler(STEPS, alpha, beta, eps=0.0)
    theirs.extend(torch.arange(STEPS))
    theirs.update_priority(torch.arange(STEPS), torch.tensor(priority, dtype=torch.float32))
    index, info = theirs.sample(storage, 500)
    by_torchrl = np.full(STEPS, np.nan)
    by_torchrl[np.asarray(index)] = np.asarray(info["priority_weight"])
    anchors = anchors_of()
    raw = bound(Weighted(priority**alpha, beta=beta), anchors).select(3, 500, 0)
    steps, probability = drawn_steps(bound(Weighted(priority**alpha), anchors), 1, 500)
    selector = bound(Weighted(priority**alpha, beta=beta), anchors)
    windows = selector.select(0, 500, 0)
    assert selector.sampling_plan(500) is None
    np.testing.assert_allclose(windows.importance, (STEPS * probability) ** -beta, rtol=1e-12)
    # torchrl divides by the largest weight of the whole buffer.
    both = ~np.isnan(by_torchrl[steps])
    assert both.sum() > 400
    largest = (STEPS * (priority**alpha).min() / (priority**alpha).sum()) ** -beta
    np.testing.assert_allclose(windows.importance[both] / largest, by_torchrl[steps][both], rtol=1e-4)
    of_batch = bound(Weighted(priority**alpha, beta=beta, divide_by_max=True), anchors).select(3, 500, 0)
    np.testing.assert_allclose(of_batch.importance, raw.importance / raw.importance.max(), rtol=1e-12)
    assert of_batch.importance.max() == 1
    # An expectation with importance weights of beta = 1 is the expectation of a uniform draw.
    exact = bound(Weighted(priority, beta=1), anchors)
    total = sum(float(exact.select(step, 5000, 0).importance.sum()) for step in range(20))
    assert total / 100_000 == pytest.approx(1, abs=0.05)


def test_beta_follows_its_schedule():
    weights = np.linspace(1, 2, STEPS)
    anchors = anchors_of()
    for beta in ([(10, 0.4), (20, 1.0)], lambda step: min(max(0.4 + 0.06 * (step - 10), 0.4), 1.0)):
        selector = bound(Weighted(weights, beta=beta), anchors)
        for step, expected in ((0, 0.4), (10, 0.4), (15, 0.7), (20, 1.0), (1000, 1.0)):
            windows = selector.select(step, 40, 0)
            np.testing.assert_allclose(windows.importance, (STEPS * windows.probability) ** -expected, rtol=1e-12)


# Generations


@given(
    before=st.sets(st.integers(0, 30), min_size=1),
    after=st.sets(st.integers(0, 40), min_size=1),
    by_step=st.booleans(),
)
def test_values_of_episodes_are_carried_by_id(before, after, by_step):
    old, new = sorted(before), sorted(after)
    values = {each: 1.5 * each for each in old}
    units, carried = EpisodeUnits(anchors_of_ids(old), by_step).carried(
        np.array(list(values.values())), anchors_of_ids(new), 99.0
    )
    assert carried.tolist() == [values.get(each, 99.0) for each in new]
    assert units.by_anchor == by_step
    asked = np.arange(-2, 43)
    assert units.known(asked).tolist() == [each in after for each in asked.tolist()]
    assert units.rows(np.array(new[::-1]), None).tolist() == list(range(len(new)))[::-1]


@given(before=st.sets(st.integers(0, 12), min_size=1), after=st.sets(st.integers(0, 15), min_size=1))
def test_values_of_steps_are_carried_by_episode_and_step(before, after):
    old, new = ([(each, step) for each in sorted(ids) for step in range(1 + each % 4)] for ids in (before, after))
    values = {each: float(number) for number, each in enumerate(old)}
    units, carried = StepUnits(anchors_of_ids(sorted(before))).carried(
        np.array(list(values.values())), anchors_of_ids(sorted(after)), -1.0
    )
    assert carried.tolist() == [values.get(each, -1.0) for each in new]
    ids, steps = np.array(new).T
    assert units.rows(ids, steps).tolist() == list(range(len(new)))


def anchors_of_ids(ids: list[int]) -> Anchors:
    """Episodes of 1 to 4 steps, which have other rows than ids."""
    lengths = np.array([1 + each % 4 for each in ids])
    return Anchors(lengths, None, None, None, WindowRule(2), names=np.array(ids))
