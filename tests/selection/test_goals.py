"""Goals against a plain loop, bit for bit, and against OGBench's distributions."""

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gear_data import Goals
from gear_data.errors import InvalidArgumentError
from gear_data.selection.anchors import Anchors
from gear_data.selection.goals import GoalSampler, survivors
from gear_data.selection.windows import WindowRule, Windows
from tests.support.feed import goals as reference

LENGTHS = [7, 1, 23, 40, 2, 20]
FINALS = frozenset({0, 2, 4})


def sampler(goals, seed, lengths=LENGTHS, ids=None, finals=FINALS, at_end=False):
    lengths = np.array(lengths, np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    if ids is None:
        anchors = Anchors(lengths, offsets, None, None, WindowRule(1))
    else:
        ids = np.array(ids, np.int64)
        anchors = Anchors(lengths[ids], None, ids, offsets[ids], WindowRule(1))
    final_rows = np.array([0 if episode in finals else -1 for episode in range(len(lengths))], np.int64)
    return GoalSampler(goals, anchors, lengths, final_rows if goals.future else None, seed, at_end)


def windows_of(states, length=1):
    episode, start = np.array(states, np.int64).T.copy()
    return Windows(episode, start, np.full(len(states), length, np.int64))


def states_of(lengths, ids):
    return [(episode, step) for episode in ids for step in range(lengths[episode])]


@st.composite
def shares(draw):
    parts = draw(st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any))
    return [part / sum(parts) for part in parts]


@settings(max_examples=60)
@given(
    shares(), shares(), st.sampled_from([0.0, 0.3, 0.9, 0.99, 0.999999]), st.booleans(), st.booleans(), st.booleans(),
    st.none() | st.integers(1, 30), st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.booleans(),
)  # fmt: skip
def test_goals_equal_a_plain_loop(
    value, actor, discount, geometric, actor_geometric, future, subgoal, seed, step, some
):
    if subgoal is not None:
        actor = [0.0, actor[0] + actor[1], actor[2]]
    goals = Goals(
        *value, discount, geometric, *actor, actor_geometric, future=future, subgoal_steps=subgoal
    )  # fmt: skip
    ids = [1, 2, 4] if some else range(len(LENGTHS))
    candidates = states_of(LENGTHS, ids)
    current = candidates[::3]
    drawn = sampler(goals, seed, ids=ids if some else None).draw(step, windows_of(current))
    dataset = reference.Dataset(LENGTHS, candidates, FINALS)
    for slot, state in enumerate(current):
        expected = reference.drawn(goals, dataset, seed, step, slot, state)
        assert list(zip(*drawn[:, :, slot].tolist(), strict=True)) == expected, (slot, state)


def test_slots_do_not_depend_on_later_slots():
    whole = sampler(Goals(), 5).draw(9, windows_of(states_of(LENGTHS, range(6))))
    part = sampler(Goals(), 5).draw(9, windows_of(states_of(LENGTHS, range(2))))
    assert np.array_equal(whole[:, :, :8], part)


def test_a_sampler_can_be_pickled():
    one = sampler(Goals(subgoal_steps=3, future=True), 2**64 - 1)
    windows = windows_of(states_of(LENGTHS, range(6)))
    assert np.array_equal(pickle.loads(pickle.dumps(one)).draw(4, windows), one.draw(4, windows))


def test_no_windows_have_no_goals():
    none = np.empty(0, np.int64)
    assert sampler(Goals(), 1).draw(0, Windows(none, none, none)).shape == (2, 2, 0)


def test_the_current_step_can_be_the_end_of_a_window():
    goals = Goals(1, 0, 0, actor_current=1, actor_trajectory=0)
    windows = windows_of([(2, 3), (3, 0)], length=5)
    assert sampler(goals, 1, at_end=True).draw(0, windows)[:, 0].tolist() == [[2, 3], [7, 4]]
    assert sampler(goals, 1).draw(0, windows)[:, 0].tolist() == [[2, 3], [3, 0]]


@pytest.mark.parametrize("future", [False, True])
def test_windows_at_their_goal(future):
    one = sampler(Goals(future=future), 3)
    windows = windows_of([(2, 4)] * 5)
    windows.goals = np.array([[[2, 2, 2, 3, 3]] * 2, [[4, 5, 6, 4, 5]] * 2], np.int64)
    assert one.reached(windows).tolist() == [not future, future, False, False, False]


# Distributions

SMALL = [4, 1, 9, 2]
DRAWS = 6000
CASES = {
    "hiql": Goals(),
    "uniform": Goals(0.1, 0.6, 0.3, geometric=False, actor_random=0.25, actor_trajectory=0.75, actor_geometric=True),
    "short horizon": Goals(0, 1, 0, discount=0.5, actor_current=0.5, actor_trajectory=0.0, actor_random=0.5),
    "subgoals": Goals(subgoal_steps=3, actor_trajectory=0.6, actor_random=0.4),
    "near subgoals": Goals(subgoal_steps=1, actor_geometric=True, discount=0.7),
}


def difference(ours, theirs):
    """Returns chi-square of two samples of one size, over the limit for false alarms."""
    outcomes = sorted(set(ours) | set(theirs))
    chi_square = sum((ours[each] - theirs[each]) ** 2 / (ours[each] + theirs[each]) for each in outcomes)
    return chi_square / reference.chi_square_limit(max(1, len(outcomes) - 1))


@pytest.mark.parametrize("name", CASES)
def test_distributions_are_those_of_ogbench(name):
    goals, rng = CASES[name], np.random.default_rng(11)
    starts = np.concatenate([[0], np.cumsum(SMALL)])
    candidates = range(sum(SMALL))
    for state in [(0, 0), (0, 3), (1, 0), (2, 1), (2, 7), (3, 0)]:
        drawn = sampler(goals, 17, SMALL).draw(5, windows_of([state] * DRAWS))
        index = starts[drawn[0]] + drawn[1]
        now, last = int(starts[state[0]]) + state[1], int(starts[state[0] + 1]) - 1
        value = Counter(
            reference.ogbench(
                rng, now, last, candidates, goals.current, goals.trajectory, goals.geometric, goals.discount
            )
            for _ in range(DRAWS)
        )
        assert difference(Counter(index[0].tolist()), value) < 1, state
        if goals.subgoal_steps is None:
            actor = Counter(
                reference.ogbench(
                    rng, now, last, candidates, goals.actor_current, goals.actor_trajectory, goals.actor_geometric,
                    goals.discount,
                )
                for _ in range(DRAWS)
            )  # fmt: skip
            assert difference(Counter(index[1].tolist()), actor) < 1, state
            # Value and actor goals are independent.
            pairs = Counter(zip(index[0].tolist(), rng.permutation(index[1]).tolist(), strict=True))
            assert difference(Counter(zip(index[0].tolist(), index[1].tolist(), strict=True)), pairs) < 1, state
            continue
        assert set(index[1].tolist()) == {min(now + goals.subgoal_steps, last)}
        high = Counter(
            reference.ogbench_high_level(
                rng, now, last, candidates, goals.actor_random, goals.actor_geometric, goals.discount,
                goals.subgoal_steps,
            )
            for _ in range(DRAWS)
        )  # fmt: skip
        assert difference(Counter(zip(index[2].tolist(), index[3].tolist(), strict=True)), high) < 1, state


def test_uniform_goals_have_the_exact_shares_of_their_definitions():
    """Checks shares: the next and the last step have half a share in OGBench."""
    for future, expected in ((False, [1, 2, 2, 2, 2, 2, 2, 1]), (True, [1] * 9)):
        goals = Goals(0, 1, 0, geometric=False, future=future)
        steps = sampler(goals, 3, SMALL, finals={2}).draw(0, windows_of([(2, 0)] * 90_000))[1, 0]
        counts = np.bincount(steps)[1:]
        wanted = 90_000 * np.array(expected) / sum(expected)
        assert ((counts - wanted) ** 2 / wanted).sum() < reference.chi_square_limit(len(expected) - 1)


def test_survivors_are_the_tail_of_the_geometric_distribution():
    table = survivors(0.99, 10**9)
    assert np.allclose(table / 2**53, 0.99 ** np.arange(1, len(table) + 1), rtol=1e-12, atol=2**-53)
    assert table[-1] == 1 or table[-1] == 2
    assert 0.99 ** (len(table) + 2) * 2**53 < 1
    assert len(survivors(0.99, 12)) == 12
    assert len(survivors(0.0, 12)) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"current": 0.5}, "current=0.5, trajectory=0.5, random=0.3 have the sum 1.3, not 1"),
        ({"actor_random": 0.1}, "have the sum 1.1, not 1"),
        ({"random": -0.1}, "random is -0.1; it must be a probability"),
        ({"trajectory": "0.5"}, "trajectory is '0.5'"),
        ({"discount": 1.0}, "discount of goals is 1.0"),
        ({"discount": float("nan")}, "discount of goals is nan"),
        ({"geometric": 1}, "geometric is True or False, not 1"),
        ({"subgoal_steps": 0}, "subgoal_steps must be an integer of at least 1, not 0"),
        ({"subgoal_steps": 5, "actor_current": 0.5, "actor_trajectory": 0.5}, "never the current step"),
        ({"goal_column": ["observations"]}, "goal_column is the name of one column"),
    ],
)
def test_bad_goals_are_refused(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Goals(**arguments)
