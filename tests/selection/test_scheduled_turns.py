"""Turns with scheduled shares against a plain loop and the bound of the module."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gear_data.errors import InvalidArgumentError
from gear_data.selection.schedule import checked_schedule, value_at
from gear_data.selection.scheduled_turns import ScheduledTurns, dealt_turns
from gear_data.selection.turns import Cycle

CASES = {
    "two": ([[(0, 0.9), (500, 0.1)], [(0, 0.1), (500, 0.9)]], 1),
    "from zero to all": ([[(10, 1), (300, 0)], [(10, 0), (300, 1)], 0.001], 1),
    "a batch": ([[(0, 3), (40, 1)], 1, [(5, 0), (6, 1)]], 7),
    "a function": ([lambda step: 1 + (step // 50) % 2, 1.5, lambda step: 0.1], 1),
    "many": ([[(0, i + 1), (100, 8 - i)] for i in range(7)] + [lambda step: (step * 37 % 11) / 3], 3),
}


def shares_before(schedules, per_step, steps):
    """Returns the share of all turns that each part should have before each step, by a plain loop."""
    shares = [0.0] * len(schedules)
    rows = [list(shares)]
    for step in range(steps):
        values = [value_at("p", each, step) for each in schedules]
        for part, value in enumerate(values):
            shares[part] += per_step * value / sum(values)
        rows.append(list(shares))
    return rows


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_step_is_within_the_bound(case):
    schedules, per_step = [checked_schedule("p", each) for each in case[0]], case[1]
    turns = ScheduledTurns(schedules, per_step)
    bound = sum(1 / j for j in range(2, len(schedules) + 1))
    # After the last breakpoint a cycle continues, which is off by less than one by itself.
    known = [s[-1][0] if isinstance(s, tuple) else 0 for s in schedules]
    fixed = 10**9 if any(callable(s) for s in schedules) else max(known)
    seen = np.zeros(len(schedules), int)
    for step, shares in enumerate(shares_before(schedules, per_step, 700)):
        before = [turns.count_before(part, step * per_step) for part in range(len(schedules))]
        assert before == seen.tolist()
        off = np.array(shares) - before
        assert off.max() <= bound + (step > fixed) + 1e-6
        assert off.min() > -1 - (step > fixed) - 1e-6
        part, earlier = turns.turns(step * per_step, per_step)
        for slot in range(per_step):
            assert earlier[slot] == seen[part[slot]]
            assert turns.turn(step * per_step + slot) == (part[slot], earlier[slot])
            seen[part[slot]] += 1


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_any_step_is_found_without_the_steps_before(case):
    schedules, per_step = [checked_schedule("p", each) for each in case[0]], case[1]
    turns = ScheduledTurns(schedules, per_step)
    expected = [turns.turns(step * per_step, per_step) for step in range(9000)]
    for step in (8999, 5, 4096, 4095, 300):
        fresh = ScheduledTurns(schedules, per_step)
        if not any(callable(each) for each in schedules):
            fresh = pickle.loads(pickle.dumps(fresh))
        for ours, theirs in zip(fresh.turns(step * per_step, per_step), expected[step], strict=True):
            assert (ours == theirs).all()
    fresh = ScheduledTurns(schedules, per_step)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda step: fresh.turns(step * per_step, per_step), range(8999, -1, -7)))
    for step, (part, before) in zip(range(8999, -1, -7), found, strict=True):
        assert (part == expected[step][0]).all()
        assert (before == expected[step][1]).all()
    if per_step == 1:
        for part in range(len(schedules)):
            for step in (0, 1, 77, 299, 301, 650):
                count = turns.count_before(part, step)
                first = turns.turn_after(part, count)
                assert turns.count_before(part, first) == count
                assert first == 0 or turns.count_before(part, first - 1) < count


def test_numbers_make_a_cycle_and_wrong_schedules_are_refused():
    assert isinstance(dealt_turns([0.7, 0.3], 1), Cycle)
    turns = dealt_turns([((0, 1.0), (9, 2.0)), 1, lambda step: 1.0], 1)
    identity = json.loads(json.dumps(turns.identity()))
    assert identity == turns.identity()
    assert identity["schedules"][:2] == [[[0, 1.0], [9, 2.0]], 1]
    with pytest.raises(InvalidArgumentError, match=r"proportions at step 9 are \[0.0, 0.0\]"):
        dealt_turns([((0, 1.0), (9, 0.0)), 0], 1)
    broken = dealt_turns([lambda step: 1.0 if step < 5000 else -1.0, 1.0], 1)
    good = broken.turn(4000)
    with pytest.raises(InvalidArgumentError, match="for step 5000"):
        broken.turn(6000)
    assert broken.turn(4000) == good
