"""Integer weights, weighted draws and weight updates against plain Python."""

from __future__ import annotations

import json
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gear_data.errors import InvalidArgumentError, StateMismatchError
from gear_data.selection.anchors import Anchors
from gear_data.selection.integer_weights import int_weight_prefix, int_weight_scale
from gear_data.selection.samplers import Candidates, TopK, Uniform, Weighted
from gear_data.selection.windows import WindowRule
from tests.support.feed import selection as ref

# Weights of different magnitudes, close neighbours, and the smallest and largest floats.
WEIGHTS = st.one_of(
    st.floats(0, 1e3),
    st.floats(0, 1.7e308),
    st.sampled_from([0.0, 5e-324, 1e-300, 1e-12, 0.5, 1.0, 1e12, 1.7976931348623157e308]),
)


def running(counts):
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def anchors_of(lengths, context=1, ids=None):
    lengths = np.array(lengths, np.int64)
    ids = None if ids is None else np.array(ids, np.int64)
    return Anchors(lengths, None, ids, None, WindowRule(context))


def weighted(weights, lengths=None, seed=0, ids=None, **options):
    anchors = anchors_of([1] * len(weights) if lengths is None else lengths, ids=ids)
    values = np.array(weights, np.float64)
    return Weighted("w", **options).bind(Candidates(anchors, lambda expression, what: values), seed)


def rows(windows):
    return list(zip(windows.episode_id.tolist(), windows.start.tolist(), windows.length.tolist(), strict=True))


def chi_square(counts, expected):
    """Returns (chi-square, number of classes).

    Classes with an expected count below 5 are merged.
    """
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    assert not counts[expected == 0].any()
    rare = expected < 5
    counts, expected = (np.append(v[~rare], v[rare].sum()) for v in (counts, expected))
    if expected[-1] < 5:
        assert counts[-1] < 5 + 5 * math.sqrt(5)
        counts, expected = counts[:-1], expected[:-1]
    return float(((counts - expected) ** 2 / expected).sum()), len(counts)


def check_fit(counts, expected):
    """Checks that counts fit the expected ones within five deviations.

    Counts that fit too well would not be random either.
    """
    value, classes = chi_square(counts, expected)
    assert abs(value - (classes - 1)) < 5 * math.sqrt(2 * (classes - 1))


@given(st.lists(st.tuples(WEIGHTS, st.integers(0, 50)), min_size=1, max_size=20), st.booleans())
@example([(1.0, 1)], False)
@example([(5e-324, 3)], True)
@example([(1.7976931348623157e308, 1), (5e-324, 1)], False)
@settings(max_examples=150)
def test_int_weights_equal_exact_fractions(episodes, by_step):
    weights, counts = np.array([w for w, _ in episodes]), [c for _, c in episodes]
    usable = [i for i, (w, c) in enumerate(episodes) if w > 0 and c]
    if not usable:
        with pytest.raises(InvalidArgumentError, match="no weight is positive"):
            int_weight_scale(weights, running(counts), by_step)
        return
    units = [counts[i] if by_step else 1 for i in usable]
    expected, exponent = ref.integer_weights([episodes[i][0] for i in usable], units)
    scale = int_weight_scale(weights, running(counts), by_step)
    masses = np.diff(int_weight_prefix(weights, running(counts), by_step, scale)).tolist()
    assert [masses[i] // c for i, c in zip(usable, units, strict=True)] == expected
    assert all(mass == 0 for i, mass in enumerate(masses) if i not in usable)
    assert 1 << 60 <= sum(masses) < 1 << 62
    assert (scale.positive, scale.exponent) == (len(usable), exponent)
    # Raised weights round to 0.
    small = [Fraction(episodes[i][0]) * Fraction(2) ** scale.exponent <= Fraction(1, 2) for i in usable]
    assert scale.raised == sum(small)
    # The bound of gear_data.selection.integer_weights on the total variation, exactly.
    whole = sum(Fraction(episodes[i][0]) * c for i, c in zip(usable, units, strict=True))
    off = sum(
        abs(Fraction(masses[i], sum(masses)) - Fraction(episodes[i][0]) * c / whole)
        for i, c in zip(usable, units, strict=True)
    )
    assert off / 2 <= Fraction(sum(units), sum(masses)) <= Fraction(sum(units), 1 << 60)


def test_twenty_four_decades_of_weights_keep_to_the_bound():
    exponents = np.random.default_rng(3).uniform(-12, 12, 100_000)
    weights = 10.0**exponents
    prefix = running(np.ones(len(weights)))
    scale = int_weight_scale(weights, prefix, False)
    masses = np.diff(int_weight_prefix(weights, prefix, False, scale))
    total, whole = int(masses.sum()), math.fsum(weights)
    off = math.fsum(abs(m / total - w / whole) for m, w in zip(masses.tolist(), weights.tolist(), strict=True)) / 2
    # The errors of floats are far smaller.
    assert off <= len(weights) / 2**60 + 1e-15
    assert masses.min() == 1
    assert scale.raised == sum(Fraction(w) * Fraction(2) ** scale.exponent <= Fraction(1, 2) for w in weights)
    assert 1_000 < scale.raised < 50_000


@pytest.mark.parametrize("by_step", [False, True])
def test_any_split_and_any_number_of_threads_give_the_same_integers(by_step):
    rng = np.random.default_rng(5)
    size = 100_003
    weights = 10.0 ** rng.uniform(-12, 12, size) * (rng.random(size) < 0.9)
    prefix = running(rng.integers(0, 1000, size))
    scale = int_weight_scale(weights, prefix, by_step)
    expected = int_weight_prefix(weights, prefix, by_step, scale)
    with ThreadPoolExecutor(4) as pool:
        for parts in (1, 2, 3, 7):
            for run in (map, pool.map):
                edges = np.linspace(0, size, parts + 1).astype(int).tolist()
                slices = [slice(*edge) for edge in pairwise(edges)]
                split = int_weight_scale(weights, prefix, by_step, slices, run)
                assert (split.exponent, split.raised, split.positive) == (scale.exponent, scale.raised, scale.positive)
                assert np.array_equal(int_weight_prefix(weights, prefix, by_step, split, slices, run), expected)


WEIGHTS_OF_SIX = [1.0, 0.0, 5.0, 2.5, 1e-3, 0.75]
LENGTHS_OF_SIX = [4, 9, 1, 12, 3, 30]


@pytest.mark.parametrize("by", ["step", "episode"])
def test_anchors_are_drawn_in_proportion(by):
    draws, batch = 200, 1000
    for sampler, weights in (
        (Uniform(by), [1.0] * 6),
        (TopK("w", 3, by), [1.0, 0.0, 1.0, 1.0, 0.0, 0.0]),
        (Weighted("w", by), WEIGHTS_OF_SIX),
    ):
        values = np.array(WEIGHTS_OF_SIX)
        anchors = anchors_of(LENGTHS_OF_SIX)
        selector = sampler.bind(Candidates(anchors, lambda expression, what, values=values: values), 11)
        probability = np.repeat(
            [w if by == "step" else w / n for w, n in zip(weights, LENGTHS_OF_SIX, strict=True)], LENGTHS_OF_SIX
        )
        probability = probability / probability.sum()
        counts = np.zeros(sum(LENGTHS_OF_SIX))
        for step in range(draws):
            windows = selector.select(step, batch, step * batch)
            places = anchors.offsets[windows.episode_id] + windows.start
            counts += np.bincount(places, minlength=len(counts))
            if windows.probability is not None:
                np.testing.assert_allclose(windows.probability, probability[places], rtol=1e-14)
        assert (windows.probability is not None) == isinstance(sampler, Weighted)
        check_fit(counts, probability * draws * batch)


def test_a_million_episodes_with_weights_of_24_decades_are_drawn_in_proportion():
    size, batch, steps = 1_000_000, 4096, 100
    rng = np.random.default_rng(8)
    # Many episodes of medium weight hold most of the total; the others are hardly ever drawn.
    weights = 10.0 ** rng.uniform(-12, 0, size)
    weights[rng.integers(0, size, 3)] = 1e12
    weights[weights > 1] *= 1e-7 * rng.random(3)
    selector = weighted(weights, seed=21)
    drawn = np.concatenate([selector.select(step, batch, 0).episode_id for step in range(steps)])
    # Classes of episodes by order of weight; each heavy episode is a separate class.
    order = np.argsort(weights, kind="stable")
    classes = np.empty(size, np.int64)
    classes[order] = np.minimum(np.cumsum(weights[order]) / weights.sum() * 200, 199).astype(np.int64)
    expected = np.bincount(classes, weights, 200) / weights.sum()
    check_fit(np.bincount(classes[drawn], minlength=200), expected * steps * batch)


@pytest.mark.parametrize("weights", [[1.0, 2.0, 3.0, 4.0], [1.0, 1e-3, 1e3, 30.0], [1.0, 1.0, 1e-9, 1e9]])
def test_drawing_without_replacement_is_successive_sampling(weights):
    """Counts every order of four episodes against its probability.

    The probability is the product of the conditional probabilities. With the last weights, nearly every second slot
    draws from the remaining weight.
    """
    selector = weighted(weights, seed=4, replacement=False)
    orders = list(permutations(range(4)))
    counts, steps = dict.fromkeys(orders, 0), 30_000
    for step in range(steps):
        counts[tuple(selector.select(step, 4, 0).episode_id.tolist())] += 1
    expected = []
    for order in orders:
        left, probability = sum(weights), 1.0
        for episode in order:
            probability *= weights[episode] / left
            left = math.fsum(weights[other] for other in order if other not in order[: order.index(episode) + 1])
        expected.append(probability * steps)
    check_fit([counts[order] for order in orders], expected)


@pytest.mark.parametrize("by", ["step", "episode"])
def test_without_replacement_no_episode_occurs_twice(by):
    rng = np.random.default_rng(2)
    weights = 10.0 ** rng.uniform(-12, 12, 3000)
    selector = weighted(weights, rng.integers(1, 9, 3000), by=by, replacement=False)
    for step in range(5):
        drawn = selector.select(step, 3000, 0).episode_id
        assert np.array_equal(np.sort(drawn), np.arange(3000))
    with pytest.raises(InvalidArgumentError, match="3001 slots without replacement, but 3000 episodes"):
        selector.select(0, 3001, 0)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, -math.inf])
def test_invalid_weights_are_refused(wrong):
    with pytest.raises(InvalidArgumentError, match=f"the weight of episode 7 is {wrong}") as error:
        weighted([1.0, wrong, 2.0], ids=[5, 7, 9])
    assert error.value.row == 1
    selector = weighted([1.0, 1.0, 2.0], ids=[5, 7, 9])
    before = rows(selector.select(9, 50, 0))
    with pytest.raises(InvalidArgumentError, match=f"the weight of episode 9 is {wrong}"):
        selector.update(3, [5, 9], [2.0, wrong])
    assert rows(selector.select(9, 50, 0)) == before
    assert selector.version(9) == 0


def test_no_positive_weight_is_refused():
    with pytest.raises(InvalidArgumentError, match="no weight is positive"):
        weighted([0.0, 0.0])
    selector = weighted([1.0, 0.0, 2.0])
    selector.update(1, [0], [5.0])
    state, before = selector.state(), rows(selector.select(9, 50, 0))
    with pytest.raises(InvalidArgumentError, match="no weight is positive"):
        selector.update(3, [0, 2, 2], [0.0, 7.0, 0.0])
    assert selector.state() == state
    assert rows(selector.select(9, 50, 0)) == before


def test_wrong_updates_are_refused():
    selector = weighted([1.0, 1.0, 2.0], ids=[5, 7, 9])
    for ids, values, message in (
        ([5, 6], [1.0, 1.0], "there is no episode 6"),
        ([10], [1.0], "there is no episode 10"),
        ([-1], [1.0], "there is no episode -1"),
        ([5], [1.0, 2.0], "episode ids, but"),
        ([5.0], [1.0], "not integers"),
        ([[5]], [[1.0]], "not integers"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            selector.update(0, ids, values)
    assert selector.state() is None
    selector.update(8, [5], [2.0])
    with pytest.raises(InvalidArgumentError, match="from_step is 7, but weights are already set from step 8 on"):
        selector.update(7, [5], [3.0])


@st.composite
def histories(draw):
    """Draws weights, lengths, and updates (from_step, ids, values).

    The steps of updates never decrease.
    """
    size = draw(st.integers(2, 40))
    lengths = draw(st.lists(st.integers(1, 5), min_size=size, max_size=size))
    # The first episode keeps its weight, so that a positive weight is always left.
    weights = [1.0, *draw(st.lists(st.floats(0, 10), min_size=size - 1, max_size=size - 1))]
    values = st.one_of(st.floats(0, 10), st.sampled_from([1e-12, 1e9, 1e30, 0.0]))
    updates, step = [], 0
    for _ in range(draw(st.integers(1, 6))):
        step += draw(st.integers(0, 3))
        count = draw(st.integers(0, 12))
        ids = draw(st.lists(st.integers(1, size - 1), min_size=count, max_size=count))
        updates.append((step, ids, draw(st.lists(values, min_size=count, max_size=count))))
    return weights, lengths, updates


def masses_at(weights, lengths, updates, by, step):
    """Returns each episode's integer weight at a step.

    Updates are applied one by one. A total outside its range gets a new scale.
    """
    weights, units = list(weights), [n if by == "step" else 1 for n in lengths]

    def fresh_exponent():
        usable = [i for i, weight in enumerate(weights) if weight]
        return ref.integer_weights([weights[i] for i in usable], [units[i] for i in usable])[1]

    def masses():
        return [q * c for q, c in zip(ref.int_weights_at(weights, exponent), units, strict=True)]

    exponent = fresh_exponent()
    for from_step, ids, values in updates:
        if from_step <= step:
            for episode, value in zip(ids, values, strict=True):
                weights[episode] = value
            if not 1 << 52 <= sum(masses()) < (1 << 63) - (1 << 40):
                exponent = fresh_exponent()
    return masses()


def expected_windows(masses, lengths, by, seed, step, count, replacement):
    windows = []
    draw = ref.draws if replacement else ref.distinct_draws
    for slot, (episode, rest) in enumerate(draw(seed, step, count, masses)):
        length = lengths[episode]
        drawn = ref.below(seed, ref.DOMAIN_ANCHOR, step, slot, length)
        windows.append((episode, rest * length // masses[episode] if by == "step" else drawn, 1))
    return windows


@given(histories(), st.sampled_from(["step", "episode"]), st.booleans(), st.data())
@settings(max_examples=20)
def test_updates_hold_from_their_step_on_in_any_order_of_steps(history, by, replacement, data):
    weights, lengths, updates = history
    selector = weighted(weights, lengths, 77, by=by, replacement=replacement)
    steps = data.draw(st.lists(st.integers(0, 22), min_size=1, max_size=10))

    def check(of, given, asked):
        for step in asked:
            masses = masses_at(weights, lengths, given, by, step)
            count = 12 if replacement else sum(mass > 0 for mass in masses)
            assert of.version(step) == sum(from_step <= step for from_step, _, _ in given)
            expected = expected_windows(masses, lengths, by, 77, step, count, replacement)
            assert rows(of.select(step, count, 0)) == expected
        last = masses_at(weights, lengths, given, by, 10**9)
        size = Fraction(sum(last)) ** 2 / sum(mass * mass for mass in last)
        assert of.effective_sample_size() == pytest.approx(float(size), rel=1e-6)

    identity = selector.identity()
    check(selector, [], steps[:2])
    for number, update in enumerate(updates):
        selector.update(*update)
        check(selector, updates[: number + 1], steps[number : number + 3])
    check(selector, updates, steps)
    # Through JSON into a new selector, into one with other updates, and through a pickle.
    state = json.loads(json.dumps(selector.state()))
    other = weighted(weights, lengths, 77, by=by, replacement=replacement)
    other.update(2, [1], [7.0])
    other.update(5, [], [], keep_from=5)
    fresh = weighted(weights, lengths, 77, by=by, replacement=replacement)
    for copy in (fresh, other):
        copy.load(state)
        check(copy, updates, steps)
    check(pickle.loads(pickle.dumps(selector)), updates, steps)
    # Folded up to a step, before and after loading a state.
    first = data.draw(st.integers(1, 20))
    selector._history.compact(first)
    fresh.load(json.loads(json.dumps(selector.state())))
    for copy in (selector, fresh):
        check(copy, updates, [first + step for step in steps])
        with pytest.raises(InvalidArgumentError, match=f"weights of step {first - 1} are no longer kept"):
            copy.select(first - 1, 1, 0)
        with pytest.raises(InvalidArgumentError, match="from_step"):
            copy.update(first - 1, [1], [1.0])
    selector.load(None)
    check(selector, [], [0])
    assert selector.identity() == identity


def test_a_tree_of_many_episodes_draws_as_the_table_does():
    """Trees of several levels, before and after updates of all weights, and back."""
    rng = np.random.default_rng(1)
    for size in (15, 16, 17, 256, 257, 4097, 70_000):
        # The sums are equal, so the scales are equal.
        weights = rng.random(size)
        others = rng.permutation(weights)
        before, after = weighted(weights, seed=6), weighted(others, seed=6)
        changing = weighted(weights, seed=6)
        expected = [rows(before.select(step, 500, 0)) for step in range(2)] + [rows(after.select(2, 500, 0))]
        changing.update(2, np.arange(size), others)
        assert [rows(changing.select(step, 500, 0)) for step in (2, 1, 0)] == expected[::-1]
        assert changing.select(2, 500, 0).probability.tolist() == after.select(2, 500, 0).probability.tolist()


def test_updates_name_episodes_by_their_ids():
    ids = [40, 7, 19, 3]
    selector = weighted([1.0] * 4, ids=ids)
    selector.update(0, [3, 40, 7], [0.0, 0.0, 0.0])
    assert set(selector.select(0, 20, 0).episode_id.tolist()) == {19}


def test_threads_see_the_weights_of_their_steps():
    rng = np.random.default_rng(0)
    selector = weighted(rng.random(5000), seed=3)
    for step in range(1, 20):
        selector.update(step, rng.integers(0, 5000, 300), rng.random(300) * 10)
    expected = [rows(selector.select(step, 64, 0)) for step in range(20)]
    asked = rng.integers(0, 20, 400).tolist()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda step: rows(selector.select(step, 64, 0)), asked))
    assert found == [expected[step] for step in asked]


def test_a_state_that_does_not_fit_is_refused():
    selector = weighted([1.0] * 8)
    selector.update(3, [7], [2.0])
    state = selector.state()
    with pytest.raises(StateMismatchError, match="does not fit 5 episodes"):
        weighted([1.0] * 5).load(state)
    for name in state:
        with pytest.raises(StateMismatchError, match="malformed"):
            weighted([1.0] * 8).load({key: value for key, value in state.items() if key != name})
    with pytest.raises(StateMismatchError, match="malformed"):
        weighted([1.0] * 8).load({**state, "rows": "not base 64"})


def test_effective_sample_size_counts_episodes_of_equal_weight():
    assert weighted([3.0] * 50).effective_sample_size() == pytest.approx(50, rel=1e-12)
    assert weighted([3.0, 3.0, 0.0, 0.0]).effective_sample_size() == pytest.approx(2, rel=1e-12)
    assert weighted([1.0, 3.0]).effective_sample_size() == pytest.approx(16 / 10, rel=1e-12)
    # By step, an episode is drawn in proportion to its weight times its steps.
    assert weighted([1.0, 3.0], [3, 1], by="step").effective_sample_size() == pytest.approx(2, rel=1e-12)
