"""StepMask, WindowRule and Anchors: the steps that position windows."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from gear_data.errors import InvalidArgumentError, UnknownNameError
from gear_data.kernels.cpu import step_mask as kernels
from gear_data.selection.anchors import Anchors
from gear_data.selection.step_mask import StepMask
from gear_data.selection.windows import WindowRule


@njit
def _rank(words, ranks, place):
    return kernels.rank(words, ranks, place)


@njit
def _select(words, ranks, first, last, number):
    return kernels.select(words, ranks, first, last, number)


def mask_of(flags, edges=()):
    flags = np.array(flags, np.bool_)
    places = [0, *edges, len(flags)]
    blocks = [(first, flags[first:last]) for first, last in pairwise(places)]
    return StepMask.from_blocks(len(flags), reversed(blocks))


# Sizes around the edges of words and of blocks of 512 steps; dense, sparse and empty masks.
@pytest.mark.parametrize("size", [1, 63, 64, 65, 511, 512, 513, 1024, 3000])
@pytest.mark.parametrize("density", [0.0, 0.01, 0.5, 1.0])
def test_rank_and_select_equal_a_count(size, density):
    flags = np.random.default_rng(size).random(size) < density
    mask = mask_of(flags, sorted({size // 3, size // 2}))
    assert mask.count == flags.sum()
    for place in range(size + 1):
        assert _rank(mask.words, mask.ranks, place) == flags[:place].sum()
    for number, place in enumerate(np.flatnonzero(flags).tolist()):
        assert _select(mask.words, mask.ranks, 0, size, number) == place
        assert _select(mask.words, mask.ranks, place, place + 1, number) == place
        assert _select(mask.words, mask.ranks, max(0, place - 600), min(size, place + 600), number) == place
    for first, last in ((0, size), (size // 3, size), (size // 2, size // 2), (1 % size, size - 1)):
        if first <= last:
            assert np.array_equal(mask.flags(first, last), flags[first:last])


@given(st.lists(st.booleans(), min_size=1, max_size=200), st.lists(st.booleans(), min_size=200, max_size=200))
@settings(max_examples=30)
def test_both_masks_must_hold(one, other):
    other = other[: len(one)]
    both = mask_of(one) & mask_of(other)
    assert both.flags(0, len(one)).tolist() == [a and b for a, b in zip(one, other, strict=True)]
    assert both.count == sum(both.flags(0, len(one)).tolist())


def test_steps_of_no_block_do_not_satisfy():
    mask = StepMask.from_blocks(10, [(3, np.array([True, False, True]))])
    assert np.flatnonzero(mask.flags(0, 10)).tolist() == [3, 5]
    for first in (-1, 8):
        with pytest.raises(InvalidArgumentError, match="and the dataset has 10 steps"):
            StepMask.from_blocks(10, [(first, np.ones(3, np.bool_))])


def test_a_digest_tells_masks_apart_and_does_not_depend_on_the_blocks():
    flags = np.arange(700) % 3 == 0
    digest = mask_of(flags).digest()
    assert digest == mask_of(flags, (1, 77, 513)).digest() == pickle.loads(pickle.dumps(mask_of(flags))).digest()
    assert len(digest) == 32
    others = [mask_of(np.roll(flags, 1)), mask_of(flags[:-1]), mask_of([*flags, False])]
    assert len({digest, *(other.digest() for other in others)}) == 4


def test_a_window_with_a_drawn_place_cannot_be_filtered_by_its_steps():
    mask = mask_of([True] * 5)
    with pytest.raises(InvalidArgumentError, match="anchor='random' cannot be chosen by a filter of steps"):
        mask.anchors(np.array([0, 5]), WindowRule(3, anchor="random"), "first")
    with pytest.raises(UnknownNameError, match="known: all, first"):
        mask.anchors(np.array([0, 5]), WindowRule(3), "last")


def test_invalid_rules_are_refused():
    with pytest.raises(InvalidArgumentError, match="context is 0"):
        WindowRule(0)
    with pytest.raises(InvalidArgumentError, match="stride is -1"):
        WindowRule(5, stride=-1)
    with pytest.raises(UnknownNameError, match="did you mean 'start'"):
        WindowRule(5, anchor="strat")


def anchors(lengths, rule, mask=None):
    return Anchors(np.array(lengths, np.int64), None, None, None, rule, mask)


def test_no_anchor_at_all_is_an_error_that_says_why():
    with pytest.raises(InvalidArgumentError, match="no episode has the 10 steps of the context; the longest has 9"):
        anchors([3, 9, 4], WindowRule(10, short=False))
    with pytest.raises(InvalidArgumentError, match="no window satisfies the filter of steps"):
        anchors([3, 2], WindowRule(2), mask_of([False] * 5))
    with pytest.raises(InvalidArgumentError, match="no window satisfies the filter of steps"):
        # A step satisfies the condition, but it is not an anchor.
        anchors([3, 2], WindowRule(2, stride=2), mask_of([False, True, False, False, False]))
    with pytest.raises(InvalidArgumentError, match="no episode"):
        anchors([], WindowRule(2))


def test_if_every_step_is_an_anchor_nothing_is_copied():
    offsets = np.array([0, 3, 8, 9])
    plain = Anchors(np.diff(offsets), offsets, None, None, WindowRule(20))
    assert plain.prefix is offsets
    assert (plain.total, plain.counts().tolist(), len(plain)) == (9, [3, 5, 1], 3)
