"""Random kernels against published vectors and plain-Python integers."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import njit

from gear_data.kernels.cpu import random as kernels
from tests.support.feed import reference as ref
from tests.support.philox_answers import KNOWN_ANSWERS

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)


@njit
def _philox(c0, c1, c2, c3, k0, k1):
    return kernels.philox(c0, c1, c2, c3, k0, k1)


@njit
def _multiply_high(a, b):
    return kernels.multiply_high(a, b)


@njit
def _word64(seed, domain, step, slot, attempt):
    return kernels.word64(seed, domain, step, slot, attempt)


@njit
def _below(seed, domain, step, slot, bound):
    return kernels.below(seed, domain, step, slot, bound)


def philox(counter, key):
    return tuple(int(word) for word in _philox(*(np.uint64(word) for word in (*counter, *key))))


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS, ids=["zeros", "ones", "pi"])
def test_philox_gives_the_published_answers(counter, key, expected):
    assert philox(counter, key) == expected
    assert ref.philox(counter, key) == expected


@given(st.tuples(U32, U32, U32, U32), st.tuples(U32, U32))
def test_philox_equals_plain_python(counter, key):
    assert philox(counter, key) == ref.philox(counter, key)


@given(U64, U64)
@example(2**64 - 1, 2**64 - 1)
@example(2**32, 2**32)
@example(2**32 - 1, 2**32 + 1)
def test_multiply_high_is_the_128_bit_product(a, b):
    high, low = _multiply_high(np.uint64(a), np.uint64(b))
    assert (int(high) << 64 | int(low)) == a * b


@given(U64, st.integers(0, 255), st.integers(0, 2**63 - 1), U32, st.integers(0, 2**24 - 1))
def test_word64_lays_the_counter_out_as_documented(seed, domain, step, slot, attempt):
    got = _word64(np.uint64(seed), domain, step, slot, attempt)
    assert int(got) == ref.word64(seed, domain, step, slot, attempt)


@given(U64, st.integers(0, 2**63 - 1), U32, st.integers(1, 2**63 - 1))
@example(0, 0, 0, 1)
@example(2**64 - 1, 2**63 - 1, 2**32 - 1, 2**63 - 1)
@example(7, 2**32, 3, 2**32 + 1)
def test_below_equals_big_integers(seed, step, slot, bound):
    got = int(_below(np.uint64(seed), 1, step, slot, bound))
    assert got == ref.below(seed, 1, step, slot, bound)
    assert 0 <= got < bound


# Bounds that reject many first draws: just above 2^62, about half of them.
@pytest.mark.parametrize("bound", [1, 2, 3, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**62 + 1, 2**63 - 1, 3 * 2**61 + 7])
def test_draw_below_equals_big_integers(bound):
    out = np.empty(200, np.int64)
    kernels.draw_below(np.uint64(2**40 + 9), 1, 2**33 + 5, bound, out)
    assert out.tolist() == [ref.below(2**40 + 9, 1, 2**33 + 5, slot, bound) for slot in range(200)]


def test_some_of_those_draws_were_rejected_first():
    bound = 3 * 2**61 + 7
    first = [ref.word64(2**40 + 9, 1, 2**33 + 5, slot, 0) * bound for slot in range(200)]
    assert any(product % 2**64 < 2**64 % bound for product in first)


@given(U64, st.integers(0, 2**40), st.integers(1, 600))
@example(0, 0, 256)
@example(1, 2, 513)
@settings(max_examples=30)
def test_fisher_yates_equals_plain_python(seed, epoch, size):
    out = np.empty(size, np.int64)
    kernels.shuffled(np.uint64(seed), kernels.DOMAIN_SHUFFLE, epoch, out)
    assert out.tolist() == ref.fisher_yates(seed, ref.DOMAIN_SHUFFLE, epoch, size)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
@pytest.mark.parametrize("size", [1, 2, 256, 257, 1000])
def test_unshuffle_moves_values_to_where_the_shuffle_took_the_places_from(size, dtype):
    order = ref.fisher_yates(2**64 - 1, ref.DOMAIN_SHUFFLE, 3, size)
    values = (np.arange(size) * 7).astype(dtype)
    expected = np.empty_like(values)
    expected[order] = values
    kernels.unshuffle(np.uint64(2**64 - 1), kernels.DOMAIN_SHUFFLE, 3, values)
    assert np.array_equal(values, expected)


def round_keys(seed, epoch=0, rounds=12):
    keys = np.empty(rounds, np.uint64)
    kernels.round_keys(np.uint64(seed), kernels.DOMAIN_FEISTEL, epoch, keys)
    return keys


def feistel(keys, size, first=0, count=None):
    out = np.empty(size if count is None else count, np.int64)
    kernels.permuted(first, keys, size, out)
    return out


def test_round_keys_equal_plain_python():
    expected = [ref.word64(2**63 + 3, ref.DOMAIN_FEISTEL, 5, i, 0) for i in range(12)]
    assert [int(key) for key in round_keys(2**63 + 3, epoch=5)] == expected


POWERS = sorted({2**k + d for k in range(1, 14) for d in (-1, 0, 1)} | {65535, 65536, 65537})


def test_feistel_is_a_bijection_of_every_small_size():
    for size in [*range(1, 301), *POWERS]:
        image = feistel(round_keys(size), size)
        assert np.array_equal(np.sort(image), np.arange(size)), size


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10, 255, 256, 257, 1000, 65537, 2**40 - 1, 2**40, 10**11, 2**63 - 1])
def test_feistel_equals_plain_python(size):
    keys = round_keys(99, epoch=size & 0xFFFF)
    places = sorted({k % size for k in (0, 1, 2, size // 3, size // 2, size - 2, size - 1)})
    expected = [ref.feistel(place, [int(key) for key in keys], size) for place in places]
    assert [int(feistel(keys, size, place, 1)[0]) for place in places] == expected
    # Several at a time, some of which walk further than others.
    first, count = max(0, size - 300), min(size, 300)
    expected = [ref.feistel(place, [int(key) for key in keys], size) for place in range(first, first + count)]
    assert feistel(keys, size, first, count).tolist() == expected


def test_feistel_over_a_large_domain_never_repeats_and_stays_inside():
    size = 10**11
    image = np.concatenate([feistel(round_keys(4), size, first, 20_000) for first in (0, 2**33, size - 20_000)])
    assert image.min() >= 0
    assert image.max() < size
    assert len(np.unique(image)) == len(image)
    # A permutation that kept the high bits would keep each run of positions together.
    for part in np.split(image, 3):
        assert np.histogram(part, 10, (0, size))[0].min() > 1_500


def chi_square(counts, expected):
    return float(((counts - expected) ** 2 / expected).sum())


def fisher_yates(seed, epoch, size):
    out = np.empty(size, np.int64)
    kernels.shuffled(np.uint64(seed), kernels.DOMAIN_SHUFFLE, epoch, out)
    return out


def feistel_order(seed, epoch, size):
    return feistel(round_keys(seed, epoch), size)


ORDERS = {"fisher_yates": fisher_yates, "feistel": feistel_order}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_every_number_comes_at_every_place_equally_often(order):
    size, epochs = 10, 20_000
    counts = np.zeros((size, size))
    for epoch in range(epochs):
        counts[np.arange(size), order(1, epoch, size)] += 1
    # 81 degrees of freedom: mean 81, deviation 12.7. A network of 8 rounds gives 3.2 for each degree (260), one of 4
    # rounds gives 463.
    assert chi_square(counts, epochs / size) < 81 + 5 * 12.7


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_neighbours_are_independent(order):
    size, epochs = 10, 20_000
    counts = np.zeros((size, size))
    for epoch in range(epochs):
        image = order(2, epoch, size)
        counts[image[0], image[1]] += 1
    off_diagonal = counts[~np.eye(size, dtype=bool)]
    assert counts.trace() == 0
    # 89 degrees of freedom, deviation 13.3.
    assert chi_square(off_diagonal, epochs / (size * (size - 1))) < 89 + 5 * 13.3


def test_fisher_yates_gives_every_order_equally_often():
    orders = dict.fromkeys(permutations(range(5)), 0)
    for epoch in range(24_000):
        orders[tuple(fisher_yates(3, epoch, 5).tolist())] += 1
    # 119 degrees of freedom, deviation 15.4.
    assert chi_square(np.array(list(orders.values())), 200) < 119 + 5 * 15.4
