"""Cycle: every part's share of the turns is exact at any time."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gear_data.errors import InvalidArgumentError
from gear_data.selection.turns import MAX_CYCLE, Cycle

PROPORTIONS = [
    pytest.param([5], id="one part"),
    pytest.param([1, 1], id="equal"),
    pytest.param([0.7, 0.2, 0.1], id="decimals"),
    pytest.param([1 / 3, 2 / 3], id="thirds"),
    pytest.param([1e-300, 2e-300, 5e-300], id="tiny numbers, plain ratios"),
    pytest.param([1e300, 1e300, 3e300], id="huge numbers, plain ratios"),
    pytest.param([99_999, 1], id="one in 100,000"),
    pytest.param([1] * 97, id="97 equal parts"),
    pytest.param(list(range(1, 41)), id="40 unlike parts"),
    pytest.param([1000, *[1] * 60], id="one large and 60 small"),
]


def shares_of(proportions):
    """Returns the intended ratios: 0.1 is a tenth, and 1 / 3 a third."""
    parts = [Fraction(str(value)) for value in proportions]
    if proportions == [1 / 3, 2 / 3]:
        parts = [Fraction(1, 3), Fraction(2, 3)]
    return [part / sum(parts) for part in parts]


def check_turns(parts, shares):
    """Checks that |turns - share * t| < 1 for every part and every t.

    t goes up to len(parts); the arithmetic is exact.
    """
    for number, share in enumerate(shares):
        turns = np.concatenate([[0], np.cumsum(parts == number)])
        owed = share.numerator * np.arange(len(parts) + 1)
        off = abs(turns * share.denominator - owed).max()
        assert off < share.denominator, (number, share)
        if len(shares) > 1:
            assert Fraction(int(off), share.denominator) <= 1 - Fraction(1, 2 * len(shares) - 2)  # Tijdeman's bound


@pytest.mark.parametrize("proportions", PROPORTIONS)
def test_at_any_time_every_part_is_within_one_turn_of_its_share(proportions):
    cycle, shares = Cycle(proportions), shares_of(proportions)
    assert cycle.length == math.lcm(*(share.denominator for share in shares))
    assert cycle.identity() == [share * cycle.length for share in shares]
    check_turns(cycle.turns(0, cycle.length + 1000)[0], shares)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=9))
@example([1, 400])
@settings(max_examples=60)
def test_any_ratios_of_integers_are_exact(proportions):
    parts, _ = Cycle(proportions).turns(0, 2 * sum(proportions))
    check_turns(parts, [Fraction(value, sum(proportions)) for value in proportions])


@pytest.mark.parametrize(
    "proportions",
    [
        pytest.param([math.pi, math.e, 1.0], id="no ratios of integers"),
        pytest.param([1.0, 1e-12], id="one in 10^12"),
        pytest.param([1.0, *[1e-12] * 20], id="20 in 10^12"),
        pytest.param([1e300, 1e-300], id="600 decades"),
    ],
)
def test_shares_without_a_short_cycle_are_rounded(proportions):
    cycle = Cycle(proportions)
    turns = cycle.identity()
    assert sum(turns) == cycle.length == MAX_CYCLE
    assert min(turns) >= 1
    total = sum(map(Fraction, proportions))
    for count, value in zip(turns, proportions, strict=True):
        assert abs(count - Fraction(value) / total * cycle.length) < len(turns)
    check_turns(cycle.turns(0, cycle.length)[0], [Fraction(count, cycle.length) for count in turns])


@pytest.mark.parametrize("proportions", [[3], [2, 3, 7], [0.25, 0.75], list(range(1, 12))])
def test_turn_and_count_before_and_turns_agree(proportions):
    cycle = Cycle(proportions)
    first, count = 3, 3 * cycle.length + 5
    parts, before = cycle.turns(0, first + count)
    counted = [0] * len(proportions)
    for number, (part, had) in enumerate(zip(parts.tolist(), before.tolist(), strict=True)):
        assert cycle.turn(number) == (part, had) == (part, counted[part])
        assert [cycle.count_before(other, number) for other in range(len(counted))] == counted
        counted[part] += 1
    later = cycle.turns(first, count)
    assert np.array_equal(later[0], parts[first:])
    assert np.array_equal(later[1], before[first:])
    assert {array.dtype for array in later} == {np.dtype(np.int64)}


def test_far_turns_are_those_of_the_cycle():
    cycle = Cycle([2, 3, 7])
    laps = 10**15
    part, before = cycle.turn(5)
    assert cycle.turn(laps * cycle.length + 5) == (part, laps * [2, 3, 7][part] + before)
    assert cycle.count_before(part, laps * cycle.length + 5) == laps * [2, 3, 7][part] + before


def test_only_ratios_count():
    assert Cycle([0.1, 0.2, 0.3]).identity() == Cycle([1, 2, 3]).identity() == Cycle([1e9, 2e9, 3e9]).identity()
    first, second = Cycle([0.1, 0.2, 0.3]), Cycle([10, 20, 30])
    assert np.array_equal(first.turns(0, 99), second.turns(0, 99))


@pytest.mark.parametrize("bad", [0, -1, 0.0, -0.5, math.nan, math.inf, True, "1", None, 1j])
def test_proportions_are_positive_numbers(bad):
    with pytest.raises(InvalidArgumentError, match="proportion"):
        Cycle([1, bad])


def test_no_proportions_are_refused():
    with pytest.raises(InvalidArgumentError, match="no proportions"):
        Cycle([])
