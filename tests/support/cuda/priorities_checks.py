"""Checks that priorities.cu computes the CPU kernels' integers, on any runner."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gear_data.kernels.cuda import priority_arguments as launches
from gear_data.selection.integer_weights import fit_exponent, int_weight_prefix, int_weight_scale, scale_factors
from gear_data.selection.prefix_table import PrefixTable
from gear_data.selection.samplers.topk import _largest
from gear_data.selection.weight_tree import WeightTree
from gear_data.storage.episode_block import offsets_of
from tests.support.cuda.runner import Runner


class DeviceWeights:
    """Weights of episodes in a runner's memory."""

    def __init__(self, runner: Runner, weights: np.ndarray, prefix: np.ndarray, by_anchor: bool) -> None:
        self.runner, self.count, self.by_anchor = runner, len(weights), by_anchor
        self.rows = launches.WeightRows(runner.put(weights), runner.put(prefix), by_anchor, len(weights))
        self.sums = self.zeros(launches.tiles(self.count) + 1)

    def zeros(self, count: int, dtype: Any = np.int64) -> int:
        return self.runner.put(np.zeros(count, dtype))

    def scale(self) -> tuple[int, int, int, int]:
        """Returns (exponent, total integer weight, raised, positive)."""
        out = self.zeros(3)
        launches.weight_bounds(self.runner, self.rows, out)
        largest, units, positive = self.runner.get(out, 3, np.int64).tolist()
        raised = 0

        def total_at(exponent: int) -> int:
            nonlocal raised
            sums = self.zeros(2)
            launches.int_weight_sums(self.runner, self.rows, scale_factors(exponent), sums)
            total, raised = self.runner.get(sums, 2, np.int64).tolist()
            return int(total)

        exponent = fit_exponent(struct.unpack("<d", struct.pack("<q", largest))[0], units, total_at)
        return exponent, total_at(exponent), raised, positive

    def weighted_prefix(self, exponent: int) -> np.ndarray:
        out = self.zeros(self.count + 1)
        launches.weighted_prefix(self.runner, self.rows, scale_factors(exponent), self.sums, out)
        return self.runner.get(out, self.count + 1, np.int64)

    def chosen_prefix(self, chosen: int) -> np.ndarray:
        out = self.zeros(self.count + 1)
        launches.chosen_prefix(self.runner, self.rows.prefix, self.by_anchor, chosen, self.count, self.sums, out)
        return self.runner.get(out, self.count + 1, np.int64)

    def largest(self, k: int) -> tuple[int, int]:
        """Returns (address of uint8 [count], number of usable values).

        The values are in the memory of the weights.
        """
        first = np.zeros(launches.LARGEST_WORDS, np.uint64)
        first[1] = k
        state, chosen = self.runner.put(first), self.zeros(self.count, np.uint8)
        launches.largest(self.runner, self.rows.weights, self.rows.prefix, self.count, state, self.sums, chosen)
        return chosen, int(self.runner.get(state, 3, np.uint64)[2])

    def tree(self, tree: WeightTree) -> launches.TreeAddresses:
        nodes = self.zeros(len(tree._nodes))
        launches.fill_tree(self.runner, self.rows, scale_factors(tree.exponent), tree._starts, nodes)
        return launches.TreeAddresses(nodes, self.runner.put(tree._starts), len(tree._starts))

    def put(
        self, rows: np.ndarray, values: np.ndarray, exponent: int, tree: launches.TreeAddresses
    ) -> tuple[np.ndarray, float, int]:
        """Returns (replaced weights, change of the total, change of the positives)."""
        table = self.runner.put(np.full(2 * launches.update_size(len(rows)), -1, np.int64))
        update = launches.WeightUpdate(
            self.runner.put(rows), self.runner.put(values), len(rows), table, self.zeros(len(rows))
        )
        before, change = self.zeros(len(rows)), self.zeros(2)
        launches.put(self.runner, self.rows, scale_factors(exponent), update, tree, before, change)
        changed = self.runner.get(change, 2, np.int64)
        return self.runner.get(before, len(rows), np.float64), float(changed.view(np.float64)[0]), int(changed[1])


@st.composite
def weights_of(draw: Any) -> tuple[np.ndarray, np.ndarray, bool]:
    """Draws weights of up to three tiles of episodes, over up to 600 decades.

    At least one episode can be drawn.
    """
    count = draw(st.integers(1, 60) | st.sampled_from([4095, 4096, 4097, 9000]))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    weights = rng.random(count)
    spread = draw(st.sampled_from([0, 3, 20, 300]))
    weights = weights * 10.0 ** rng.uniform(-spread, spread, count)
    weights[rng.random(count) < draw(st.sampled_from([0.0, 0.3]))] = 0
    lengths = rng.integers(0, draw(st.sampled_from([2, 50, 10**9])), count)
    at = draw(st.integers(0, count - 1))
    weights[at], lengths[at] = 1.0, 1
    return weights, offsets_of(lengths), draw(st.booleans())


class PrioritiesChecks:
    """Checks for any fixture `runner`."""

    @given(weights_of())
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_int_weight_prefix_and_guide_of_any_weights(self, runner: Runner, drawn: Any) -> None:
        weights, prefix, by_anchor = drawn
        expected = int_weight_scale(weights, prefix, by_anchor)
        device = DeviceWeights(runner, weights, prefix, by_anchor)
        assert device.scale() == (expected.exponent, sum(expected.sums), expected.raised, expected.positive)
        sums = int_weight_prefix(weights, prefix, by_anchor, expected)
        np.testing.assert_array_equal(device.weighted_prefix(expected.exponent), sums)
        table = PrefixTable(sums)
        guide = device.zeros(len(table._guide), np.uint32)
        launches.fill_guide(runner, runner.put(sums), len(weights), table._shift, guide, len(table._guide))
        np.testing.assert_array_equal(runner.get(guide, len(table._guide), np.uint32), table._guide)
        runner.clear()

    def test_no_positive_weight(self, runner: Runner) -> None:
        device = DeviceWeights(runner, np.array([0.0, 1.0, 0.0]), np.array([0, 3, 3, 4], np.int64), True)
        out = device.zeros(3)
        launches.weight_bounds(runner, device.rows, out)
        assert runner.get(out, 3, np.int64).tolist() == [0, 0, 0]
        runner.clear()

    @given(st.data())
    @settings(max_examples=25, deadline=None, derandomize=True)
    def test_the_largest_values(self, runner: Runner, data: Any) -> None:
        rng = np.random.default_rng(data.draw(st.integers(0, 999)))
        count = data.draw(st.integers(1, 60) | st.sampled_from([4096, 9000]))
        pool = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -np.nan, 5e-324, 1e300, 1.0 + 2**-52])
        if data.draw(st.booleans()):
            pool = np.concatenate([pool, rng.normal(0, 1e3, count)])
        values = rng.choice(pool, count)
        counts = rng.integers(0, 4, count)
        usable = (counts > 0) & ~np.isnan(values)
        device = DeviceWeights(runner, values, offsets_of(counts), data.draw(st.booleans()))
        if not usable.any():
            assert device.largest(1)[1] == 0
            runner.clear()
            return
        for k in {int(usable.sum()), data.draw(st.integers(1, int(usable.sum())))}:
            chosen, found = device.largest(k)
            expected = _largest(values, counts > 0, k)
            assert found == usable.sum()
            np.testing.assert_array_equal(runner.get(chosen, count, np.uint8), expected)
            int_weights = (counts if device.by_anchor else np.minimum(counts, 1)) * expected
            np.testing.assert_array_equal(device.chosen_prefix(chosen), offsets_of(int_weights))
        int_weights = counts if device.by_anchor else np.minimum(counts, 1)
        np.testing.assert_array_equal(device.chosen_prefix(0), offsets_of(int_weights))
        runner.clear()

    @given(weights_of(), st.data())
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_updates_of_a_tree(self, runner: Runner, drawn: Any, data: Any) -> None:
        weights, prefix, by_anchor = drawn
        exponent = int_weight_scale(weights, prefix, by_anchor).exponent
        tree = WeightTree(weights.copy(), prefix, by_anchor, exponent)
        device = DeviceWeights(runner, weights, prefix, by_anchor)
        at = device.tree(tree)
        np.testing.assert_array_equal(runner.get(at.nodes, len(tree._nodes), np.int64), tree._nodes)
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        for _ in range(2):
            m = data.draw(st.integers(1, 200))
            rows = rng.integers(0, len(weights), m)
            values = rng.random(m) * 10.0 ** rng.uniform(-9, data.draw(st.sampled_from([0, 9, 300])), m)
            values[rng.random(m) < 0.2] = 0
            positive, root = tree.positive, tree.total
            expected, in_range = tree.put(rows, values)
            before, total, more = device.put(rows, values, exponent, at)
            assert before.tobytes() == expected.tobytes()
            np.testing.assert_array_equal(runner.get(at.nodes, len(tree._nodes), np.int64), tree._nodes)
            assert runner.get(device.rows.weights, len(weights), np.float64).tobytes() == tree.weights.tobytes()
            assert more == tree.positive - positive
            if in_range:
                assert total == pytest.approx(float(tree.total) - float(root), rel=1e-9, abs=2.0**20)
            else:
                break
        runner.clear()

    def test_updates_of_running_sums(self, runner: Runner) -> None:
        rng = np.random.default_rng(1)
        weights, prefix = rng.random(5000), offsets_of(rng.integers(0, 5, 5000))
        exponent = int_weight_scale(weights, prefix, True).exponent
        device = DeviceWeights(runner, weights, prefix, True)
        rows, values = rng.integers(0, 5000, 300), rng.random(300)
        before, _, _ = device.put(rows, values, exponent, launches.NO_TREE)
        assert before[0] == weights[rows[0]]
        weights[rows] = values
        np.testing.assert_array_equal(
            device.weighted_prefix(exponent),
            int_weight_prefix(weights, prefix, True, int_weight_scale(weights, prefix, True)),
        )
        runner.clear()

    def test_one_episode_many_times(self, runner: Runner) -> None:
        tree = WeightTree(np.ones(40), np.arange(41), False, 50)
        device = DeviceWeights(runner, np.ones(40), np.arange(41), False)
        at = device.tree(tree)
        rows, values = np.full(150, 7), np.arange(150.0) + 2
        before, _, more = device.put(rows, values, 50, at)
        assert before.tolist() == [1.0, *values[:-1]]
        tree.put(rows, values)
        np.testing.assert_array_equal(runner.get(at.nodes, len(tree._nodes), np.int64), tree._nodes)
        assert more == 0
        runner.clear()
