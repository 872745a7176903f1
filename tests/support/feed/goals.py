"""The expected goals, from plain Python loops.

`drawn` computes the goals of gear-data number by number. The other functions draw from the distributions of OGBench's
`GCDataset` and `HGCDataset` (seohongpark/ogbench, `impls/utils/datasets.py`, read in 2026).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gear_data import Goals
from tests.support.feed import reference as ref

VALUE, VALUE_STEP, ACTOR, ACTOR_STEP = 7, 8, 9, 10

#: (episode, step); the number of an episode's steps stands for its final observation.
State = tuple[int, int]


@dataclass(frozen=True)
class Dataset:
    """Lengths of episodes, ids with final observations, and states of random goals."""

    lengths: Sequence[int]
    candidates: Sequence[State]
    finals: frozenset[int] = frozenset()

    def last(self, episode: int, *, future: bool) -> int:
        return self.lengths[episode] if future and episode in self.finals else self.lengths[episode] - 1


def drawn(goals: Goals, dataset: Dataset, seed: int, step: int, slot: int, current: State) -> list[State]:
    """Returns the goals of one slot, in the order of `goals.keys`."""
    value = _one(
        goals, dataset, seed, step, slot, current, (VALUE, VALUE_STEP), goals.current, goals.trajectory, goals.random,
        goals.geometric,
    )[0]  # fmt: skip
    actor, is_random = _one(
        goals, dataset, seed, step, slot, current, (ACTOR, ACTOR_STEP), goals.actor_current, goals.actor_trajectory,
        goals.actor_random, goals.actor_geometric,
    )  # fmt: skip
    if goals.subgoal_steps is None:
        return [value, actor]
    episode, now = current
    low = min(now + goals.subgoal_steps, dataset.last(episode, future=goals.future))
    return [value, (episode, low), actor, (episode, low if is_random else min(low, actor[1]))]


def _one(
    goals: Goals, dataset: Dataset, seed: int, step: int, slot: int, current: State, domains: tuple[int, int],
    p_current: float, p_trajectory: float, p_random: float, geometric: bool,
) -> tuple[State, bool]:  # fmt: skip
    counter = (slot, step & ref.MASK32, step >> 32, domains[0] << 24)
    c0, c1, c2, c3 = ref.philox(counter, (seed & ref.MASK32, seed >> 32))
    place, number = (c1 << 32 | c0) >> 11, (c3 << 32 | c2) >> 11
    episode, now = current
    last = dataset.last(episode, future=goals.future)
    if p_random and number >= round((p_current + p_trajectory) * 2**53):
        return dataset.candidates[ref.below(seed, domains[1], step, slot, len(dataset.candidates))], True
    if number < round(p_current * 2**53):
        return current, False
    first = min(now + 1, last)
    if geometric:
        offset, survivor = 1, goals.discount
        while offset < max(dataset.lengths) + 1 and round(survivor * 2**53) > place:
            offset, survivor = offset + 1, survivor * goals.discount
        return (episode, min(now + offset, last)), False
    if goals.future:
        return (episode, first + ref.below(seed, domains[0], step, slot, last - first + 1)), False
    if first == last:
        return (episode, last), False
    return (episode, first + (ref.below(seed, domains[0], step, slot, 2 * (last - first)) + 1) // 2), False


def ogbench(
    rng: np.random.Generator, now: int, last: int, candidates: Sequence[int], p_current: float, p_trajectory: float,
    geometric: bool, discount: float,
) -> int:  # fmt: skip
    """Draws a goal as `GCDataset.sample_goals`.

    Indices count the steps of all episodes.
    """
    if rng.random() < p_current:
        return now
    if rng.random() >= p_trajectory / (1.0 - p_current):
        return int(rng.choice(candidates))
    return ogbench_trajectory(rng, now, last, geometric, discount)


def ogbench_trajectory(rng: np.random.Generator, now: int, last: int, geometric: bool, discount: float) -> int:
    if geometric:
        return min(now + int(rng.geometric(1 - discount)), last)
    distance = rng.random()
    return round(min(now + 1, last) * distance + last * (1 - distance))


def ogbench_high_level(
    rng: np.random.Generator, now: int, last: int, candidates: Sequence[int], p_random: float, geometric: bool,
    discount: float, subgoal_steps: int,
) -> tuple[int, int]:  # fmt: skip
    """Draws a high-level goal and its target, as `HGCDataset.sample`."""
    if rng.random() < p_random:
        return int(rng.choice(candidates)), min(now + subgoal_steps, last)
    goal = ogbench_trajectory(rng, now, last, geometric, discount)
    return goal, min(now + subgoal_steps, goal)


def chi_square_limit(freedom: int) -> float:
    """Returns a limit that chi-square exceeds with a probability below 2 * 10^-8.

    The approximation is Wilson and Hilferty's (1931).
    """
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 5.5 * math.sqrt(spread)) ** 3
