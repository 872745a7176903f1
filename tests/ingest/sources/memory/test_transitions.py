"""Transitions in memory: the lists and deques of replay buffers."""

from __future__ import annotations

from collections import deque, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gear_data
from gear_data.errors import BadEpisodeError, UnsupportedColumnError

Step = namedtuple("Step", ["state", "action", "next_state", "reward", "done"])


def transitions(rollouts: list[Any], *, flags: int = 1) -> list[tuple[Any, ...]]:
    """Returns (s, a, r, s', terminated[, truncated]) of all steps, as a loop over an environment collects them."""
    steps = []
    for rollout in rollouts:
        columns = rollout.columns
        after = [*columns["observations"][1:], rollout.final]
        for t in range(len(rollout)):
            ends = (bool(columns["terminated"][t]), bool(columns["truncated"][t]))[:flags]
            steps.append((columns["observations"][t], columns["actions"][t], columns["rewards"][t], after[t], *ends))
    return steps


@pytest.mark.parametrize("kind", ["one flag", "two flags", "deque", "named"])
def test_transitions_are_the_episodes_they_came_from(
    sources: Any, rollouts: list[Any], kind: str, tmp_path: Path
) -> None:
    steps: Any = transitions(rollouts, flags=2 if kind == "two flags" else 1)
    if kind == "deque":
        steps = deque(steps)
    elif kind == "named":
        steps = [Step(s, a, after, r, done) for s, a, r, after, done in steps]
    gear_data.convert(steps, tmp_path / "d")
    sources.check_dataset(tmp_path / "d", rollouts, final=True)


def test_observations_may_be_mappings(rollouts: list[Any], tmp_path: Path) -> None:
    steps = [
        ({"pos": s[:1], "vel": s[1:]}, a, r, {"pos": after[:1], "vel": after[1:]}, done)
        for s, a, r, after, done in transitions(rollouts)
    ]
    gear_data.convert(steps, tmp_path / "d")
    dataset = gear_data.open(tmp_path / "d")
    expected = np.concatenate([rollout.columns["observations"] for rollout in rollouts])
    assert np.array_equal(dataset.steps("observations.vel", 0, dataset.num_episodes), expected[:, 1:])


def test_bad_transitions_are_named(rollouts: list[Any], tmp_path: Path) -> None:
    steps = transitions(rollouts)
    for changed, words in [
        (steps[7][:4], "row 7: is not a tuple of the 5 values"),
        ((*steps[7][:3], None, True), "column 'next_observations', row 7: is None"),
        ((np.zeros(9), *steps[7][1:]), "column 'observations', row 7: has the shape"),
        (((np.zeros(2), {}), *steps[7][1:]), "column .observations., row 7: cannot be converted to an array"),
        ((*steps[7], {"TimeLimit.truncated": True}), "row 7: is not a tuple of the 5 values"),
    ]:
        with pytest.raises(BadEpisodeError, match=words):
            gear_data.convert([*steps[:7], changed, *steps[8:]], tmp_path / "d")
    with pytest.raises(UnsupportedColumnError, match="column 'q'"):
        gear_data.convert([namedtuple("Odd", ["state", "q"])(1, 2)], tmp_path / "d")


def test_tuples_of_another_order_are_refused(tmp_path: Path) -> None:
    """The flag of (s, a, r, done, s') ends no episode: its place is that of the next observation."""
    zeros, ones = np.zeros(2), np.ones(2)
    for steps, words in [
        ([(zeros, 0, 1.0, False, ones)] * 4, "column 'terminated', row 0: is float64 \\(2,\\), where one flag"),
        ([(3, 0, 1.0, False, 1)] * 4, "column 'next_observations', row 0: is bool \\(\\), where 'observations' is int"),
        ([(zeros, 0, 1.0, ones[None], False)] * 4, "column 'next_observations', row 0: is float64 \\(1, 2\\)"),
        ([(zeros, 0, 1.0, ones, "False")] * 4, "column 'terminated', row 0: is <U5"),
        (
            [(zeros, 0, 1.0, ones, False, {}), (ones, 0, 1.0, zeros, True, {"end": 1})],
            "'truncated', row 1: is a mapping",
        ),
    ]:
        with pytest.raises(BadEpisodeError, match=words) as error:
            gear_data.convert(steps, tmp_path / "d")
        assert "give (observations, actions, rewards, next_observations, done)" in (error.value.hint or "")
