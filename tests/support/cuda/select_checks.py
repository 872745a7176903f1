"""Checks that select.cu computes the CPU kernels' integers, on any runner."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gear_data.kernels.cpu import random as random_kernels
from gear_data.kernels.cpu.collect import count_valid
from gear_data.kernels.cuda import launch_arguments as launches
from gear_data.kernels.output_plan import OUTPUT_PLAN
from gear_data.kernels.window_plan import WITHIN_DRAWN, WITHIN_OFFSET, WITHIN_QUOTIENT
from gear_data.selection.anchors import Anchors
from gear_data.selection.integer_weights import int_weight_prefix, int_weight_scale
from gear_data.selection.prefix_table import PrefixTable
from gear_data.selection.samplers.fifo_shuffle import Permuted
from gear_data.selection.step_mask import StepMask
from gear_data.selection.weight_tree import WeightTree
from gear_data.selection.window_sampler import WindowSampler
from gear_data.selection.windows import ANCHORS, WindowRule
from gear_data.storage.episode_block import offsets_of
from tests.support.cuda.runner import Runner
from tests.support.philox_answers import KNOWN_ANSWERS

WITHIN = (WITHIN_OFFSET, WITHIN_QUOTIENT, WITHIN_DRAWN)


def put_plan(runner: Runner, anchors: Anchors, source: PrefixTable | WeightTree, sampler: WindowSampler) -> int:
    """Copies a window sampler's plan, and its tables, to the runner's memory.

    Returns the plan's address.
    """
    plan = sampler._plan.copy()
    if isinstance(source, PrefixTable):
        plan["prefix"] = runner.put(source.prefix)
        plan["total"] = plan["prefix"] + source.prefix.nbytes - 8
        plan["guide"] = runner.put(source._guide)
    else:
        plan["nodes"] = runner.put(source._nodes)
        plan["starts"] = runner.put(source._starts)
        plan["total"] = plan["nodes"] + 8 * int(source._starts[-1])
    plan["counts"] = runner.put(anchors.prefix)
    plan["offsets"] = runner.put(anchors.offsets)
    if anchors.ids is not None:
        plan["ids"] = runner.put(anchors.ids)
    if anchors.eligible is not None:
        plan["words"] = runner.put(anchors.eligible.words)
        plan["ranks"] = runner.put(anchors.eligible.ranks)
        plan["first"] = runner.put(anchors.first)
    return runner.put(plan)


class Drawing:
    """A window sampler on both processors."""

    def __init__(
        self,
        runner: Runner,
        anchors: Anchors,
        weights: np.ndarray | None = None,
        within: int = WITHIN_DRAWN,
        *,
        tree: bool = False,
        distinct: bool = False,
        seed: int = 3,
    ) -> None:
        self.runner, self.anchors, self.distinct = runner, anchors, distinct
        self.probability = within != WITHIN_OFFSET
        self.blocks = 0
        by_anchor = within != WITHIN_DRAWN
        source: PrefixTable | WeightTree
        if within == WITHIN_OFFSET:
            source = PrefixTable(anchors.prefix)
        else:
            assert weights is not None
            scale = int_weight_scale(weights, anchors.prefix, by_anchor)
            if tree:
                source = WeightTree(weights.copy(), anchors.prefix, by_anchor, scale.exponent)
            else:
                source = PrefixTable(int_weight_prefix(weights, anchors.prefix, by_anchor, scale))
        self.sampler = WindowSampler(anchors, source, seed, 4, within, distinct, self.probability)
        self.plan = put_plan(runner, anchors, source, self.sampler)

    def draw(self, slots: launches.Slots, counting: launches.Counting = launches.NOT_COUNTED) -> np.ndarray:
        """Returns the runner's draw, int64 [3 or 4, batches, count]."""
        rows = 4 if self.probability else 3
        shape = rows, slots.batches, slots.count
        out = self.runner.put(np.full(shape, -7, np.int64))
        if self.distinct:
            work = self.runner.put(np.zeros((slots.batches, launches.distinct_words(slots.whole)), np.int64))
            self.blocks = launches.draw_distinct_windows(self.runner, self.plan, slots, out, rows, work, counting)
        else:
            self.blocks = launches.draw_windows(self.runner, self.plan, slots, out, rows, counting)
        return self.runner.get(out, shape, np.int64)

    def expected(self, slots: launches.Slots) -> np.ndarray:
        """Returns the CPU's draw of the same windows."""
        batches = []
        for batch in range(slots.batches):
            windows = self.sampler.draw(slots.step + batch, slots.whole)
            rows = [windows.episode_id, windows.start, windows.length]
            if windows.probability is not None:
                rows.append(windows.probability.view(np.int64))
            batches.append(np.stack(rows)[:, slots.first : slots.first + slots.count])
        return np.stack(batches, 1)

    def check(self, step: int, count: int) -> None:
        for slots in some_slots(step, count):
            np.testing.assert_array_equal(self.draw(slots), self.expected(slots))

    def check_order(self, position: int, count: int, seed: int | None) -> None:
        """Checks windows in the order of the dataset, or permuted by a seed."""
        total = self.anchors.total
        for slots in some_slots(7, count):
            batches = []
            for batch in range(slots.batches):
                points = points_in_order(position + batch * slots.whole, slots.whole, total, seed)
                windows = self.sampler.windows(points, slots.step + batch)
                rows = np.stack([windows.episode_id, windows.start, windows.length])
                batches.append(rows[:, slots.first : slots.first + slots.count])
            out = self.runner.put(np.full((3, slots.batches, slots.count), -7, np.int64))
            order = launches.EpochOrder(total, seed)
            launches.draw_in_order(self.runner, self.plan, slots, out, position, order)
            got = self.runner.get(out, (3, slots.batches, slots.count), np.int64)
            np.testing.assert_array_equal(got, np.stack(batches, 1))


def some_slots(step: int, count: int) -> list[launches.Slots]:
    """Returns all slots of a batch, and the slots of a rank of several batches."""
    first = count // 3
    own = launches.Slots(step, first, max(1, count // 2), count, batches=1 + count % 5)
    return [launches.Slots.of_batch(step, count), own]


def points_in_order(position: int, count: int, total: int, seed: int | None) -> np.ndarray:
    """Returns the points of slots over several epochs, by the CPU's permutation."""
    points = np.empty(count, np.int64)
    keys, image = np.empty(12, np.uint64), np.empty(1, np.int64)
    for slot in range(count):
        epoch, points[slot] = divmod(position + slot, total)
        if seed is not None:
            random_kernels.round_keys(np.uint64(seed), random_kernels.DOMAIN_FEISTEL, epoch, keys)
            random_kernels.permuted(int(points[slot]), keys, total, image)
            points[slot] = image[0]
    return points


@st.composite
def output_plans(draw: Any) -> np.ndarray:
    """Draws the fields of output plans on which the valid rows depend."""
    plan = np.zeros(draw(st.integers(1, 9)), OUTPUT_PLAN)
    for record in plan:
        record["first"], record["width"] = draw(st.integers(-4, 4)), draw(st.integers(1, 6))
        record["within"], record["shift"] = draw(st.booleans()), draw(st.integers(-1, 1))
        record["finals"], record["out_bytes"] = draw(st.booleans()), draw(st.integers(1, 2**20))
        record["hops"] = draw(st.sampled_from([0, 0, 0, 3]))
    # No two outputs share their spans: the CPU locates each one.
    plan["same_spans_as"] = np.arange(len(plan))
    return plan


def steps_mask(rng: np.random.Generator, steps: int) -> StepMask:
    return StepMask.from_blocks(steps, [(0, rng.random(steps) < 0.4)])


@st.composite
def drawings(draw: Any) -> tuple[Anchors, dict[str, Any]]:
    """Draws anchors, and the other arguments of a Drawing.

    Episodes have from one step to more steps than a block of a mask.
    """
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    lengths = np.array(draw(st.lists(st.integers(1, 9) | st.integers(400, 1500), min_size=1, max_size=40)), np.int64)
    short = draw(st.booleans()) or int(lengths.max()) < 5
    rule = WindowRule(draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.sampled_from(ANCHORS)), short)
    ids = draw(st.sampled_from([None, np.sort(rng.choice(10_000, len(lengths), replace=False))]))
    mask = draw(st.booleans()) and draw(st.booleans())
    eligible = steps_mask(rng, int(lengths.sum())) if mask else None
    if eligible is not None:
        flags = eligible.flags(0, eligible.num_steps)
        # The longest episode has an anchor under every rule.
        begin = int(offsets_of(lengths)[np.argmax(lengths)])
        flags[begin : begin + int(lengths.max())] = True
        eligible = StepMask.from_blocks(eligible.num_steps, [(0, flags)])
    anchors = Anchors(lengths, None, ids, None, rule, eligible)
    weights = rng.random(len(lengths)) ** draw(st.sampled_from([1, 40]))
    weights[rng.random(len(lengths)) < 0.2] = 0
    weights[np.argmax(anchors.counts())] = 1.0
    return anchors, {
        "weights": weights,
        "within": draw(st.sampled_from(WITHIN)),
        "tree": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**64 - 1)),
    }


class SelectChecks:
    """Checks for any fixture `runner`."""

    def test_philox_gives_the_published_answers(self, runner: Runner) -> None:
        given_numbers = np.array([[*counter, *key] for counter, key, _ in KNOWN_ANSWERS], np.uint32)
        out = runner.put(np.zeros((3, 4), np.uint32))
        runner.launch("gear_philox", 1, 32, runner.put(given_numbers), out, 3)
        got = runner.get(out, (3, 4), np.uint32).tolist()
        runner.clear()
        assert [tuple(row) for row in got] == [answer for _, _, answer in KNOWN_ANSWERS]

    @given(drawings(), st.integers(0, 2**62), st.integers(1, 300))
    @settings(max_examples=80, deadline=None, derandomize=True)
    def test_any_draw(self, runner: Runner, drawn: Any, step: int, count: int) -> None:
        anchors, arguments = drawn
        drawing = Drawing(runner, anchors, **arguments)
        drawing.check(step, count)
        if arguments["within"] == WITHIN_OFFSET:
            drawing.check_order(step % (5 * anchors.total), count, None)
            drawing.check_order(step % (5 * anchors.total), min(count, 20), arguments["seed"])
        runner.clear()

    @given(drawings(), output_plans(), st.integers(1, 700), st.booleans())
    @settings(max_examples=30, deadline=None, derandomize=True)
    def test_draws_count_the_bytes_of_valid_rows(
        self, runner: Runner, drawn: Any, plan: np.ndarray, count: int, distinct: bool
    ) -> None:
        anchors, arguments = drawn
        if distinct:
            arguments["within"] = WITHIN_DRAWN
            count = min(count, int(((arguments["weights"] > 0) & (anchors.counts() > 0)).sum()))
        rng = np.random.default_rng(count)
        # Episode ids are the positions of episodes in these tables.
        episodes = 10_000 if anchors.ids is not None else len(anchors)
        lengths = np.full(episodes, -1, np.int64)
        lengths[np.arange(episodes) if anchors.ids is None else anchors.ids] = np.diff(anchors.offsets)
        finals = rng.integers(-1, 2, episodes)
        first, last = sorted(rng.integers(0, count + 1, 2).tolist())
        slots = launches.Slots(5, first, last - first, count, batches=int(rng.integers(1, 6)))
        groups = launches.row_groups(plan)
        # The sums are not cleared before.
        sums = runner.put(np.full(slots.batches * runner.blocks, -3, np.int64))
        counting = launches.Counting(runner.put(groups), len(groups), runner.put(lengths), runner.put(finals), sums)
        drawing = Drawing(runner, anchors, **arguments, distinct=distinct)
        windows = drawing.draw(slots, counting)[:3].reshape(3, -1)
        expected = np.zeros(slots.batches, np.int64)
        count_valid(*windows, lengths, finals, plan, max(1, slots.count), expected)
        counted = runner.get(sums, slots.batches * drawing.blocks, np.int64)
        np.testing.assert_array_equal(counted.reshape(slots.batches, -1).sum(1), expected)
        runner.clear()

    @given(drawings(), st.integers(0, 2**62), st.integers(1, 40))
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_any_draw_without_replacement(self, runner: Runner, drawn: Any, step: int, count: int) -> None:
        anchors, arguments = drawn
        if arguments["within"] == WITHIN_OFFSET:
            arguments["within"] = WITHIN_DRAWN
        count = min(count, int(((arguments["weights"] > 0) & (anchors.counts() > 0)).sum()))
        Drawing(runner, anchors, **arguments, distinct=True).check(step, count)
        runner.clear()

    @pytest.mark.parametrize("tree", [False, True])
    @pytest.mark.parametrize("power", [0, 3, 30, 300])
    def test_all_episodes_of_any_skew_without_replacement(self, runner: Runner, power: int, tree: bool) -> None:
        """Skewed weights make slots draw 32 repeats, and then from the remaining weight."""
        rng = np.random.default_rng(power)
        anchors = Anchors(rng.integers(1, 30, 100), None, None, None, WindowRule(4))
        weights = np.maximum(rng.random(100) ** power, 1e-250)
        drawing = Drawing(runner, anchors, weights, tree=tree, distinct=True)
        for step in range(2):
            drawing.check(step, 100)
            assert len(np.unique(drawing.draw(launches.Slots.of_batch(step, 100))[0])) == 100
            drawing.check(step, 41)
        runner.clear()

    def test_many_episodes_and_slots(self, runner: Runner) -> None:
        rng = np.random.default_rng(0)
        anchors = Anchors(rng.integers(1, 200, 20_000), None, None, None, WindowRule(20))
        for tree in (False, True):
            weights = rng.exponential(1.0, 20_000) ** 5
            Drawing(runner, anchors, weights, tree=tree).check(2**40 + 1, 3000)
        Drawing(runner, anchors, within=WITHIN_OFFSET).check(1, 3000)
        Drawing(runner, anchors, np.ones(20_000), distinct=True).check(1, 3000)
        runner.clear()

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 10, 255, 257, 65537, 2**40 - 1, 2**40, 10**11, 2**63 - 1])
    def test_permutations_of_any_size(self, runner: Runner, size: int) -> None:
        first = max(0, size - 300) // 2
        count = min(300, size - first)
        keys = np.empty(12, np.uint64)
        random_kernels.round_keys(np.uint64(2**63 + 1), random_kernels.DOMAIN_FEISTEL, 2**33, keys)
        expected = np.empty(count, np.int64)
        random_kernels.permuted(first, keys, size, expected)
        out = runner.put(np.zeros(count, np.int64))
        launches.permuted(runner, 2**63 + 1, 2**33, first, size, out, count)
        np.testing.assert_array_equal(runner.get(out, count, np.int64), expected)
        runner.clear()

    def test_permutations_are_those_of_the_sampler(self, runner: Runner) -> None:
        expected = Permuted(5, 100_000)(7, 99_000, 500)
        out = runner.put(np.zeros(500, np.int64))
        launches.permuted(runner, 5, 7, 99_000, 100_000, out, 500)
        np.testing.assert_array_equal(runner.get(out, 500, np.int64), expected)
        runner.clear()

    @pytest.mark.parametrize("count", [1, 33, 3000])
    def test_windows_are_ordered_by_their_places(self, runner: Runner, count: int) -> None:
        rng = np.random.default_rng(count)
        lengths = rng.integers(1, 900, 500)
        # The episodes lie in memory in another order.
        in_memory = rng.permutation(500)
        places = np.empty(500, np.int64)
        places[in_memory] = np.cumsum(lengths[in_memory]) - lengths[in_memory]
        episode = rng.integers(0, 500, count)
        start = rng.integers(0, lengths[episode])
        rows = launches.WindowRows(runner.put(episode), runner.put(start), 0, count)
        at_places, order = runner.put(places), runner.put(np.full(count, -7, np.int64))
        found = launches.order_windows(runner, rows, launches.EpisodePlaces(at_places, int(lengths.sum())), order)
        got = runner.get(found.order, count, np.int64)
        runner.clear()
        assert sorted(got.tolist()) == list(range(count))
        ordered = (places[episode] + start)[got]
        # Only places in the same of 1,024 ranges may change places.
        assert (np.diff(ordered) > -lengths.sum() / 1024).all()
        assert count < 100 or (np.diff(places[episode] + start) < -lengths.sum() / 1024).any()

    def test_the_order_of_the_dataset(self, runner: Runner) -> None:
        out = runner.put(np.zeros(100, np.int64))
        launches.in_order(runner, 2**40, out, 100)
        assert runner.get(out, 100, np.int64).tolist() == list(range(2**40, 2**40 + 100))
        runner.clear()
