"""Every sampler against its plain-Python reference, and what each promises on its own."""

from __future__ import annotations

import feed_reference as ref
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gear_data.errors import UnknownNameError
from gear_data.selection.samplers import SAMPLERS, make_sampler
from gear_data.selection.windows import StepTable

LENGTHS = [7, 1, 23, 40, 2, 20, 19, 21, 5]
CONTEXT = 20


def table(lengths=LENGTHS, context=CONTEXT):
    return StepTable(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), context)


def rows(windows):
    return list(zip(windows.episode_id.tolist(), windows.start.tolist(), windows.length.tolist(), strict=True))


def positions(windows, lengths=LENGTHS):
    return np.concatenate([[0], np.cumsum(lengths)])[windows.episode_id] + windows.start


every_sampler = pytest.mark.parametrize("name", SAMPLERS)


def test_every_sampler_has_a_reference():
    assert set(SAMPLERS) == set(ref.WINDOWS)


@every_sampler
@given(
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(0, 2**34),
    batch=st.integers(1, 40),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    context=st.integers(1, 25),
)
@settings(max_examples=40)
def test_selection_equals_plain_python(name, seed, step, batch, lengths, context):
    windows = make_sampler(name, table(lengths, context), seed).select(step, batch)
    assert rows(windows) == ref.WINDOWS[name](seed, step, batch, lengths, context)
    assert {array.dtype for array in (windows.episode_id, windows.start, windows.length)} == {np.dtype(np.int64)}


@every_sampler
def test_selection_keeps_nothing_between_steps(name):
    one = make_sampler(name, table(), 5)
    there_and_back = {step: rows(one.select(step, 16)) for step in (0, 1, 1000, 3, 2**33, 2, 0)}
    for step, expected in there_and_back.items():
        assert rows(make_sampler(name, table(), 5).select(step, 16)) == expected


@every_sampler
def test_selection_changes_with_seed_and_step(name):
    def first(seed, step):
        return rows(make_sampler(name, table(), seed).select(step, 32))

    # Bits of the seed and of the step above the 32nd count, too.
    selections = [first(0, 0), first(1, 0), first(2**32, 0), first(0, 1), first(0, 2**32)]
    assert all(a != b for i, a in enumerate(selections) for b in selections[:i])


@every_sampler
def test_one_episode_of_one_step(name):
    assert rows(make_sampler(name, table([1]), 0).select(3, 4)) == [(0, 0, 1)] * 4


def test_unknown_sampler_lists_the_known_ones():
    with pytest.raises(UnknownNameError) as error:
        make_sampler("unifrom", table(), 0)
    assert "did you mean 'uniform'" in str(error.value)
    assert all(name in str(error.value) for name in SAMPLERS)


# Frozen: a resumed run of another release must draw the same. Computed by `feed_reference.uniform_windows` and
# `shuffle_windows` with seed 2024, step 3, batch 6.
FROZEN = {
    "uniform": [(0, 5, 2), (2, 0, 20), (4, 1, 1), (6, 14, 5), (3, 6, 20), (5, 14, 6)],
    "shuffle": [(5, 4, 16), (5, 18, 2), (7, 12, 9), (3, 37, 3), (3, 3, 20), (6, 12, 7)],
}


@every_sampler
def test_the_stream_of_random_numbers_stays_as_it_is(name):
    windows = make_sampler(name, table(), 2024).select(3, 6)
    assert rows(windows) == FROZEN[name] == ref.WINDOWS[name](2024, 3, 6, LENGTHS, CONTEXT)


def test_uniform_draws_every_step_equally_often():
    size, steps, batch = sum(LENGTHS), 200, 690
    sampler = make_sampler("uniform", table(), 17)
    counts = np.zeros(size)
    for step in range(steps):
        counts += np.bincount(positions(sampler.select(step, batch)), minlength=size)
    expected = steps * batch / size
    chi_square = ((counts - expected) ** 2 / expected).sum()
    # 137 degrees of freedom, deviation 16.6; far below as far above would not be random.
    assert 137 - 5 * 16.6 < chi_square < 137 + 5 * 16.6


def test_uniform_draws_with_replacement_and_has_no_epoch():
    sampler = make_sampler("uniform", table(), 0)
    drawn = positions(sampler.select(0, 2 * sum(LENGTHS)))
    assert len(set(drawn.tolist())) < sum(LENGTHS)
    assert sampler.epoch_slots(3) is None


@pytest.mark.parametrize("batch", [1, 6, 23, 138, 139, 400])
def test_shuffle_takes_each_step_once_an_epoch_across_batches(batch):
    size, epochs = sum(LENGTHS), 7
    sampler = make_sampler("shuffle", table(), 3)
    steps = -(-epochs * size // batch)
    drawn = np.concatenate([positions(sampler.select(step, batch)) for step in range(steps)])
    orders = drawn[: epochs * size].reshape(epochs, size)
    assert (np.sort(orders, axis=1) == np.arange(size)).all()
    assert len({tuple(order) for order in orders.tolist()}) == epochs
    assert sampler.epoch_slots(epochs) == epochs * size


def test_shuffle_of_many_steps_equals_plain_python_across_an_epoch_end():
    lengths = [30_000, 1, 36_001]  # past 2^16: a Feistel network
    size = sum(lengths)
    sampler = make_sampler("shuffle", table(lengths), 2**50)
    for step in (0, size // 100 - 1, size // 100, 5 * size // 100):
        assert rows(sampler.select(step, 100)) == ref.shuffle_windows(2**50, step, 100, lengths, CONTEXT)


def test_shuffle_of_many_steps_takes_each_once_an_epoch():
    lengths = [30_000, 1, 36_001]
    size = sum(lengths)
    sampler = make_sampler("shuffle", table(lengths), 8)
    drawn = np.concatenate([positions(sampler.select(step, 4096), lengths) for step in range(2 * size // 4096 + 1)])
    first, second = drawn[:size], drawn[size : 2 * size]
    assert np.array_equal(np.sort(first), np.arange(size))
    assert np.array_equal(np.sort(second), np.arange(size))
    assert (first == second).mean() < 0.001
    assert abs(np.corrcoef(first, np.arange(size))[0, 1]) < 0.02


def test_two_shuffles_do_not_share_their_orders():
    """Orders of small tables are cached; the cache must tell seeds, epochs and sizes apart."""
    sizes = ([5, 5], [5, 6])
    samplers = {(seed, i): make_sampler("shuffle", table(sizes[i]), seed) for seed in (0, 1) for i in (0, 1)}
    for step in range(12):
        for (seed, i), sampler in samplers.items():
            assert rows(sampler.select(step, 4)) == ref.shuffle_windows(seed, step, 4, sizes[i], CONTEXT)
