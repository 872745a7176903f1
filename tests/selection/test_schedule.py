"""Schedules against plain loops."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from gear_data.errors import InvalidArgumentError
from gear_data.selection.schedule import (
    checked_schedule,
    last_change,
    schedule_json,
    value_at,
    values_between,
)

POINTS = [(3, 0.5), (7, 2), (8, 0), (1_000_008, 4.0)]


def plain(step):
    if step <= 3:
        return Fraction(1, 2)
    for (s0, v0), (s1, v1) in pairwise(POINTS):
        if s0 <= step <= s1:
            return Fraction(v0) + (Fraction(v1) - Fraction(v0)) * Fraction(step - s0, s1 - s0)
    return Fraction(4)


def test_breakpoints_are_joined_by_straight_lines():
    schedule = checked_schedule("beta", POINTS)
    steps = [*range(20), 500_000, 1_000_007, 1_000_008, 1_000_009, 10**12]
    assert [value_at("beta", schedule, step) for step in steps] == pytest.approx([float(plain(s)) for s in steps])
    values = values_between("beta", schedule, 2, 12)
    assert values.tolist() == [value_at("beta", schedule, step) for step in range(2, 12)]
    assert last_change(schedule) == 1_000_008
    assert json.loads(json.dumps(schedule_json(schedule))) == [list(point) for point in POINTS]


def test_numbers_and_functions_are_schedules():
    number = checked_schedule("share", np.float32(0.25))
    assert (value_at("share", number, 9), last_change(number), schedule_json(number)) == (0.25, 0, 0.25)
    assert values_between("share", number, 0, 3).tolist() == [0.25] * 3

    def half(step):
        return step / 2

    function = checked_schedule("share", half)
    assert (value_at("share", function, 3), last_change(function)) == (1.5, None)
    assert values_between("share", function, 1, 4).tolist() == [0.5, 1.0, 1.5]
    assert "half" in schedule_json(function)["function"]
    with pytest.raises(InvalidArgumentError, match="the function of share returns -1 for step 2"):
        value_at("share", lambda step: 1 - step, 2)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("fast", "beta is a number, breakpoints or a function of the step, not 'fast'"),
        ([], r"not \[\]"),
        (True, "not True"),
        (float("nan"), "not nan"),
        ([(0, 1), (0, 2)], "step 0 after step 0"),
        ([(0.5, 1)], r"not \(0.5, 1\)"),
        ([(0, -1)], r"not \(0, -1\)"),
        ([(0, 1, 2)], r"not \(0, 1, 2\)"),
    ],
)
def test_other_forms_are_refused(schedule, message):
    with pytest.raises(InvalidArgumentError, match=message):
        checked_schedule("beta", schedule)
